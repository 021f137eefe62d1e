"""A launcher inside a user's command: where it stands, what its options say, and the command with others in its place.

Called by the files in `frameworks/`. A command is words, or a shell line (`/bin/sh -c LINE`), of which everything but
the launcher's own words is kept as it was written. Only a launcher that stands where a shell looks for a program is
one: `echo torchrun` has none.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

PYTHON: Final = re.compile(r"(?:.*/)?python(?:\d+(?:\.\d+)*)?")
_SHELL: Final = ("/bin/sh", "-c")
_WORD: Final = re.compile(r"""(?:[^\s'"\\;&|()]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+|[;&|()]+|\n""", re.DOTALL)
_BEFORE_A_PROGRAM: Final = re.compile(r"[;&|()]+|\n|exec|time|then|do|else|\w+=.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a launcher: its name without the leading dashes, `-` for `_`, and the words it was written in."""

    name: str
    value: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A launcher in a command: the words that name it, and those that follow. `spans`: where they are in the line."""

    argv: tuple[str, ...]
    head: tuple[str, ...]
    rest: tuple[str, ...]
    at: int
    spans: tuple[tuple[int, int], ...] = ()

    def options(self, flags: Sequence[str]) -> list[Option]:
        """The launcher's own options, which end at the program it is to start; `flags` take no value."""
        return list(_options(self.rest, flags))

    def replaced(self, words: Sequence[str], gone: int) -> tuple[str, ...]:
        """The command with `words` for the launcher and the `gone` words after it."""
        end = len(self.head) + gone
        if not self.spans:
            return (*self.argv[: self.at], *words, *self.argv[self.at + end :])
        line = self.argv[-1]
        return (*_SHELL, f"{line[: self.spans[0][0]]}{' '.join(words)}{line[self.spans[end - 1][1] :]}")


def length(options: Sequence[Option]) -> int:
    """How many words they were written in."""
    return sum(len(option.words) for option in options)


def find_call(argv: tuple[str, ...], programs: Sequence[str], modules: Sequence[str] = ()) -> Call | None:
    """The first of `programs`, or `python -m` with one of `modules`, that the command starts."""
    if argv[:2] != _SHELL or len(argv) != len(_SHELL) + 1:
        at = _position(argv, programs, modules)
        return None if at is None else _call(argv, argv, at, modules)
    # A line that goes on: blanks of the same length, so that positions stay.
    matches = list(_WORD.finditer(argv[-1].replace("\\\n", "  ")))
    words = tuple(match[0] for match in matches)
    at = _position(words, programs, modules)
    return None if at is None else _call(argv, words, at, modules, [match.span() for match in matches])


def interpreter(argv: tuple[str, ...]) -> str:
    """The Python that a command names, to run something else beside it in the same environment; else `python3`."""
    words = argv if argv[:2] != _SHELL else tuple(match[0] for match in _WORD.finditer(argv[-1]))
    return next((word for word in words if PYTHON.fullmatch(word)), "python3")


def beside(program: str, name: str) -> str:
    """`name` in the directory that `program` was named in; by itself when that was left to PATH."""
    directory, slash, _ = program.rpartition("/")
    return f"{directory}{slash}{name}"


def whole(text: str) -> int | None:
    """The number that a value is, or None for one that is none, such as `auto`."""
    return int(text) if text.isascii() and text.isdigit() and int(text) else None


def _call(
    argv: tuple[str, ...],
    words: tuple[str, ...],
    at: int,
    modules: Sequence[str],
    spans: Sequence[tuple[int, int]] = (),
) -> Call:
    length = 3 if _runs_module(words[at:], modules) else 1
    return Call(argv, words[at : at + length], words[at + length :], at, tuple(spans[at:]))


def _position(words: tuple[str, ...], programs: Sequence[str], modules: Sequence[str]) -> int | None:
    for at, word in enumerate(words):
        if (word.rpartition("/")[2] in programs or _runs_module(words[at:], modules)) and (
            at == 0 or _BEFORE_A_PROGRAM.fullmatch(words[at - 1])
        ):
            return at
    return None


def _runs_module(words: tuple[str, ...], modules: Sequence[str]) -> bool:
    return len(words) > 2 and bool(PYTHON.fullmatch(words[0])) and words[1] == "-m" and words[2] in modules


def _options(words: Sequence[str], flags: Sequence[str]) -> Iterator[Option]:
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            yield Option("", "", (word,))
            return
        written, equals, value = word.partition("=")
        name, taken = written.lstrip("-").replace("_", "-"), [word]
        if not equals and name not in flags and rest:
            value = rest.pop(0)
            taken.append(value)
        yield Option(name, value.strip("\"'"), tuple(taken))
