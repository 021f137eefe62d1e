"""Pages taken apart: what a reader would type, the files to write, and the specs, with the lines they stand on.

The convention for authors of pages:

- ```` ```console ````: `$ ` begins a command, `> ` goes on with it; what follows is what it prints. In it `...` stands
  for anything within a line, and a line that is only `...` for any lines; how far columns are apart is not compared.
  Commands of which nothing is shown may print what they like. A command succeeds; one that fails is followed by
  `; echo "exit $?"`.
- ```` ```yaml ````: a job file, which a dry run must accept; ```` ```yaml NAME ```` is written to NAME first. A
  topology, and a file of several jobs, are only written.
- ```` ```python NAME ````: written to NAME. ```` ```python ````: runs.
- ```` ```text ```` and the like: shown, not run. Where it has commands, `<!-- not run: WHY -->` stands above it.
- `<!-- tested with: NAME -->` gives the page the environment .venv-NAME; `stand-ins`, for what only dry runs
  look at: empty modules of the names that frameworks want, and nodes with GPUs that are not there.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(
    r"^(?P<above><!-- not run: (?P<why>[^>]+) -->\n+)?```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_TESTED = re.compile(r"<!-- tested with: (\S+) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file it is, why it is not run, its text and its line."""

    language: str
    name: str
    why_not: str
    text: str
    line: int


@dataclass(frozen=True)
class Typed:
    """A command, and the lines that it is said to print; None: the page says nothing of them."""

    command: str
    prints: tuple[str, ...] | None


def written() -> list[Path]:
    """Return the hand-written pages: both README.md, and docs/ without decisions and wholly generated pages."""
    whole = ("cli.md", "lifecycle.md")
    found = [page for page in sorted(DOCS.rglob("*.md")) if page.parent.name != "decisions" and page.name not in whole]
    return [ROOT / "README.md", ROOT / "examples" / "README.md", *found]


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page, in order."""
    text = page.read_text()
    for found in _FENCE.finditer(text):
        language, _, name = found["info"].strip().partition(" ")
        line = text.count("\n", 0, found.start()) + 1
        yield Block(language, name.strip(), found["why"] or "", found["text"], line)


def environment_of(page: Path) -> str:
    """Return the environment that the page asks for; an empty text for ganger's own."""
    found = _TESTED.search(page.read_text())
    return found[1] if found else ""


def typed(text: str) -> Iterator[Typed]:
    """Yield the commands of a console block."""
    command: list[str] = []
    shown: list[str] = []
    for line in [*text.splitlines(), "$ "]:
        if line.startswith("$ "):
            if command:
                yield Typed("\n".join(command), tuple(_stripped(shown)) or None)
            command, shown = [line[2:]], []
        elif line.startswith("> ") and not shown:
            command.append(line[2:])
        else:
            shown.append(line.rstrip())


def agrees(shown: tuple[str, ...], printed: str) -> bool:
    """Return whether a command printed what the page shows."""
    parts = []
    for line in map(_spaced, shown):
        pieces = [re.escape(piece) for piece in line.split("...")]
        parts.append(r"(?:[^\n]*\n)*?" if line.strip() == "..." else "[^\n]*".join(pieces) + r"[ \t]*\n")
    text = "\n".join(map(_spaced, printed.splitlines())).strip("\n") + "\n"
    return re.fullmatch("".join(parts), text) is not None


def _spaced(line: str) -> str:
    """With columns two blanks apart."""
    return re.sub(" {2,}", "  ", line.rstrip())


def _stripped(lines: list[str]) -> list[str]:
    """Without empty lines before and after."""
    text = "\n".join(lines).strip("\n")
    return text.split("\n") if text else []
