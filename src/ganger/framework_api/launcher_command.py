"""Launchers in a user's command: their position, their options, and the command with other words in their place.

A command is a list of words, or a shell line (`/bin/sh -c LINE`, `bash -lc LINE`), of which everything but the
launcher's own words is kept as written. Only a word where a shell looks for a program can be a launcher: `echo
torchrun` has none.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

PYTHON: Final = re.compile(r"(?:.*/)?python(?:\d+(?:\.\d+)*)?")
_SHELL: Final = re.compile(r"(?:.*/)?(?:ba|da|k|z)?sh")
_SHELL_LINE_OPTION: Final = re.compile(r"-[eilux]*c")
"""The option before a line, with others in the same word that do not take a value."""
_SUBSTITUTION: Final = r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`"
_WORD: Final = re.compile(
    rf"""(?:{_SUBSTITUTION}|[^\s'"\\;&|()`]|\\.|'[^']*'|"(?:{_SUBSTITUTION}|[^"\\]|\\.)*")+|[;&|()`]+|\n""",
    re.DOTALL,
)
"""A word of a shell line, with the commands whose output it takes, or a sign between words."""
_BEFORE_A_PROGRAM: Final = re.compile(r"[;&|()]+|\n|exec|time|then|do|else|\w+=.*", re.DOTALL)
RUNNERS: Final = {
    "uv": (
        *("--with", "--with-editable", "--with-requirements", "--python", "-p", "--extra", "--group", "--package"),
        *("--project", "--directory", "--env-file", "--index", "--index-url", "--only-group", "--no-group"),
    ),
    "conda": ("-n", "--name", "-p", "--prefix", "--cwd"),
    "mamba": ("-n", "--name", "-p", "--prefix", "--cwd"),
    "micromamba": ("-n", "--name", "-p", "--prefix", "--cwd", "-r", "--root-prefix"),
    "poetry": (),
    "pipenv": (),
}
"""Programs that with `run` start another one in an environment -> their options that take a value."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a launcher.

    Attributes:
        name: Without leading dashes, `-` for `_`.
        words: The words it was written in.
    """

    name: str
    value: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A launcher in a command.

    Attributes:
        head: The words that name it.
        rest: The words that follow.
        position: The index of its first word.
        spans: The positions of its words in the shell line.
    """

    argv: tuple[str, ...]
    head: tuple[str, ...]
    rest: tuple[str, ...]
    position: int
    spans: tuple[tuple[int, int], ...] = ()

    def options(self, flags: Sequence[str], pairs: Sequence[str] = ()) -> list[Option]:
        """Return the launcher's own options, which end at the program it is to start.

        Args:
            flags: Those that take no value.
            pairs: Those that take two.
        """
        return list(_options(self.rest, flags, pairs))

    def replace_launcher(self, words: Sequence[str], removed: int) -> tuple[str, ...]:
        """Return the command with `words` in place of the launcher and the `removed` words after it."""
        end = len(self.head) + removed
        if not self.spans:
            return (*self.argv[: self.position], *words, *self.argv[self.position + end :])
        line = self.argv[-1]
        return (*self.argv[:2], f"{line[: self.spans[0][0]]}{' '.join(words)}{line[self.spans[end - 1][1] :]}")


def count_words(options: Sequence[Option]) -> int:
    """Return the number of words that the options were written in."""
    return sum(len(option.words) for option in options)


def find_call(argv: tuple[str, ...], programs: Sequence[str], modules: Sequence[str] = ()) -> Call | None:
    """Return the first of `programs`, or of `python -m` with one of `modules`, that the command starts."""
    if not _is_shell_line(argv):
        position = _position(argv, programs, modules)
        return None if position is None else _call(argv, argv, position, modules)
    # A line that goes on: blanks of the same length, so that positions stay.
    matches = list(_WORD.finditer(argv[-1].replace("\\\n", "  ")))
    words = tuple(match[0] for match in matches)
    position = _position(words, programs, modules)
    return None if position is None else _call(argv, words, position, modules, [match.span() for match in matches])


def _is_shell_line(argv: tuple[str, ...]) -> bool:
    is_shell = len(argv) == 3 and _SHELL.fullmatch(argv[0]) is not None
    return is_shell and _SHELL_LINE_OPTION.fullmatch(argv[1]) is not None


def find_interpreter(argv: tuple[str, ...]) -> str:
    """Return the Python that a command names, to run another program in the same environment; else `python3`."""
    words = tuple(match[0] for match in _WORD.finditer(argv[-1])) if _is_shell_line(argv) else argv
    return next((word for word in words if PYTHON.fullmatch(word)), "python3")


def sibling_program(program: str, name: str) -> str:
    """Return `name` in the directory that `program` was named in; alone if that was left to PATH."""
    directory, slash, _ = program.rpartition("/")
    return f"{directory}{slash}{name}"


def parse_positive(text: str) -> int | None:
    """Return the positive number that a text is, None for other texts, such as `auto`."""
    return parse_count(text) or None


def parse_count(text: str) -> int | None:
    """Return the number, 0 or more, that a text is, None for other texts and for those of over nine digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def parse_range(text: str) -> int | str | None:
    """Return MIN:MAX as the size of a job; None for a text that is none."""
    low, colon, high = text.partition(":")
    return size_range(parse_positive(low), parse_positive(high)) if colon else None


def size_range(low: int | None, high: int | None) -> int | str | None:
    """Return the sizes from `low` to `high` as a job writes them, None if one of them is unknown."""
    if low is None or high is None:
        return None
    return low if low == high else f"{low}..{high}"


def _call(
    argv: tuple[str, ...],
    words: tuple[str, ...],
    position: int,
    modules: Sequence[str],
    spans: Sequence[tuple[int, int]] = (),
) -> Call:
    word_count = 3 if _runs_module(words[position:], modules) else 1
    return Call(
        argv, words[position : position + word_count], words[position + word_count :], position, tuple(spans[position:])
    )


def _position(words: tuple[str, ...], programs: Sequence[str], modules: Sequence[str]) -> int | None:
    for index in _program_positions(words):
        if words[index].rpartition("/")[2] in programs or _runs_module(words[index:], modules):
            return index
    return None


def _program_positions(words: tuple[str, ...]) -> Iterator[int]:
    """Yield the positions at which a program is named, by a shell or by one that runs another."""
    started = -1
    for index in range(len(words)):
        if index in (0, started) or _BEFORE_A_PROGRAM.fullmatch(words[index - 1]):
            yield index
            value_options = RUNNERS.get(words[index].rpartition("/")[2])
            if value_options is not None and words[index + 1 : index + 2] == ("run",):
                started = _end_of_options(words, index + 2, value_options)


def _end_of_options(words: tuple[str, ...], position: int, value_options: Sequence[str]) -> int:
    """Return the position of the first word from `position` on that is neither an option nor its value."""
    while position < len(words) and words[position].startswith("-"):
        if words[position] == "--":
            return position + 1
        position += 2 if words[position] in value_options else 1
    return position


def _runs_module(words: tuple[str, ...], modules: Sequence[str]) -> bool:
    return len(words) > 2 and bool(PYTHON.fullmatch(words[0])) and words[1] == "-m" and words[2] in modules


def _options(words: Sequence[str], flags: Sequence[str], pairs: Sequence[str]) -> Iterator[Option]:
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            yield Option("", "", (word,))
            return
        name_text, equals, value = word.partition("=")
        name, option_words = name_text.lstrip("-").replace("_", "-"), [word]
        if not equals and name not in flags and rest:
            value = rest.pop(0)
            option_words.append(value)
        if name in pairs and rest:
            option_words.append(rest.pop(0))
        yield Option(name, value.strip("\"'"), tuple(option_words))
