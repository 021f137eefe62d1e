"""The checklists of CONTRIBUTING.md: every place and every check that they name exists, and is in `make check`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
LINT = "`make lint` (mypy)"
DOCS = "`make docs`"
KINDS = ("policy", "framework", "check", "job field", "event", "command", "backend")
EXAMPLES = {"policy": "las", "framework": "xgboost", "check": "disk", "command": "whoami", "backend": "local"}
"""Values of NAME: something that exists, with all its files."""
_TITLE = re.compile(r"^### Add an? (?P<kind>.+)$", re.MULTILINE)
_ROW = re.compile(r"^\| (?P<place>`[^|]+`) \| (?P<text>[^|]+) \| (?P<check>`[^|]+) \|$", re.MULTILINE)


class Row(NamedTuple):
    """A row of a checklist: a path or `make docs`, what to write there, and a test or `make lint`."""

    place: str
    text: str
    check: str

    @property
    def path(self) -> str:
        """The path of the place, "" for `make docs`."""
        return "" if self.place == DOCS else self.place.strip("`")

    @property
    def test(self) -> str:
        """The id of the test, "" for `make lint`."""
        return "" if self.check == LINT else self.check.strip("`")


def checklists() -> dict[str, list[Row]]:
    """Return the rows of each checklist by its kind."""
    _, *parts = _TITLE.split((ROOT / "CONTRIBUTING.md").read_text())
    return {kind: [Row(*row) for row in _ROW.findall(text)] for kind, text in zip(parts[::2], parts[1::2], strict=True)}


def rows() -> Iterator[tuple[str, Row]]:
    for kind, of_kind in checklists().items():
        yield from ((kind, row) for row in of_kind)


def paths_of(kind: str, row: Row) -> list[str]:
    """Return every path that a row names, with an existing thing for NAME."""
    words = re.findall(r"`([\w./-]+)`", f"{row.place} {row.text}")
    paths = [word for word in words if "/" in word or word.endswith((".yml", ".md", ".py"))]
    return [path.replace("NAME", EXAMPLES.get(kind, "NAME")) for path in paths]


def test_there_is_a_checklist_of_every_kind() -> None:
    lists = checklists()
    assert tuple(lists) == KINDS
    text = (ROOT / "CONTRIBUTING.md").read_text()
    lines = [line for line in text[text.index("### Add ") :].splitlines() if line.startswith("| `")]
    assert len(lines) == len(list(rows())), "a row has another form"


@pytest.mark.parametrize(("kind", "row"), list(rows()), ids=[f"{kind}-{row.place}-{row.test}" for kind, row in rows()])
def test_what_a_row_names_exists(kind: str, row: Row) -> None:
    missing = [
        path
        for path in paths_of(kind, row)
        if not (ROOT / path).exists() and not (ROOT / "src/ganger/cli" / path).exists()
    ]
    assert missing == []
    assert bool(row.path) or row.place == DOCS
    if row.test:
        file, _, name = row.test.partition("::")
        functions = [
            node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)
        ]
        assert name in functions


def test_paths_in_the_text_exist() -> None:
    words = re.findall(r"`([a-z][\w.-]*/[\w./-]+)`", (ROOT / "CONTRIBUTING.md").read_text())
    top = {path.name for path in ROOT.iterdir()}
    paths = [word for word in words if word.split("/")[0] in top and "NAME" not in word]
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_check_is_in_make_check() -> None:
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    fast = re.findall(r"^FAST := (.*)$", makefile, re.MULTILINE)[0].split()
    tests = {row.test for _, row in rows() if row.test}
    assert [test for test in sorted(tests) if not any(test.startswith(part) for part in fast)] == []
