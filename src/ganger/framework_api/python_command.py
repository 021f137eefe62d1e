"""A command that is one plain call of Python on a script: only such ranks can be forked (`warm` in a job)."""

import re
from typing import Final

from ganger.framework_api.launcher_command import PYTHON

_WORD: Final = r"""(?:[\w@%+=:,./^-]|'[^']*'|"[^"$`\\]*")+"""
_PLAIN_LINE: Final = re.compile(rf"[ \t]*{_WORD}(?:[ \t]+{_WORD})*[ \t]*")
"""A shell line in which a shell does nothing but split it into words."""
_OPTION: Final = re.compile(r"-[bBdEIOPqsSuv]+|-[WX].+|--check-hash-based-pycs=.+")
_VALUE_OPTIONS: Final = ("-W", "-X", "--check-hash-based-pycs")


def split_python_command(run: str | tuple[str, ...]) -> tuple[tuple[str, ...], int]:
    """Return the words of a command, and how many of them start the interpreter; a script or -m MODULE follows.

    Raise ValueError with the reason, a clause, if it is another kind of command.
    """
    words = _words(run)
    if not words or not PYTHON.fullmatch(words[0]):
        raise ValueError(f"{words[0] if words else ''!r} is not a Python interpreter")
    index = 1
    while words[index : index + 1] and (words[index] in _VALUE_OPTIONS or _OPTION.fullmatch(words[index])):
        index += 2 if words[index] in _VALUE_OPTIONS else 1
    program = words[index : index + 2]
    if program[:1] == ("-m",) and len(program) == 2:
        return words, index
    if not program or program[0].startswith("-"):
        raise ValueError(f"{' '.join(words[: index + 1])} runs no script")
    return words, index


def python_of(run: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the words that start the interpreter of a command, or else the one beside its program."""
    try:
        words, count = split_python_command(run)
    except ValueError:
        first = next(iter(run.split() if isinstance(run, str) else run), "")
        folder, _, _ = first.rpartition("/")
        return (first if PYTHON.fullmatch(first) else f"{folder}/python3" if folder else "python3",)
    return words[:count]


def _words(run: str | tuple[str, ...]) -> tuple[str, ...]:
    if not isinstance(run, str):
        return run
    if not _PLAIN_LINE.fullmatch(run):
        raise ValueError("its line needs a shell, for more than one plain command")
    return tuple(re.sub(r"'([^']*)'|\"([^\"]*)\"", r"\1\2", word) for word in re.findall(_WORD, run))
