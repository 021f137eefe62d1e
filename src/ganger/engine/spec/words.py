"""Words that a spec is written in: names, choices, paths, commands and variables. Called by `engine.spec.forms`.

A reader takes what YAML or JSON gave and raises ValueError with a sentence that quotes it and says what is legal.
"""

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from ganger.engine import registry
from ganger.engine.spec.document import shown
from ganger.model.units import KIB_BYTES

NAME_PATTERN: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
ENV_NAME_PATTERN: Final = r"[A-Za-z_][A-Za-z0-9_]*"
SIGNALS: Final = ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM")
RESUME: Final = ("auto", "never")
MAX_NAME: Final = 40
MAX_PATH_BYTES: Final = 4096
MAX_TEXT_BYTES: Final = 128 * KIB_BYTES - 1
"""What Linux takes as one argument or variable: MAX_ARG_STRLEN of execve(2), less the terminating zero."""


def nearest(word: str, legal: Iterable[str]) -> str:
    """The legal word that was probably meant, or nothing."""
    by_lower = {each.lower(): each for each in legal}
    close = difflib.get_close_matches(word[:64].lower().replace("-", "_"), by_lower, n=1)
    return by_lower[close[0]] if close else ""


def did_you_mean(word: str, legal: Iterable[str]) -> str:
    """The end of a sentence: "; did you mean 'x'?", or nothing."""
    meant = nearest(word, legal)
    return f"; did you mean {meant!r}?" if meant else ""


def choice(what: str, legal: tuple[str, ...]) -> Callable[[Any], str]:
    """A reader of one of `legal`; `what` names them in the error."""

    def read(value: Any) -> str:
        if isinstance(value, str) and value in legal:
            return value
        meant = did_you_mean(str(value), legal) if isinstance(value, str) else ""
        raise ValueError(f"{shown(value)} is not {what}: write {listed(legal)}{meant}")

    return read


def listed(words: Iterable[str]) -> str:
    """Words as a sentence has them: `a, b or c`."""
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def read_name(value: Any) -> str:
    """A label; the error has a legal one that is like it."""
    legal = f"lower-case letters, digits and '-' inside, at most {MAX_NAME} characters"
    if isinstance(value, str) and len(value) <= MAX_NAME and re.fullmatch(NAME_PATTERN, value):
        return value
    clean = re.sub(r"[^a-z0-9]+", "-", str(value).lower()).strip("-")[:MAX_NAME].strip("-")
    raise ValueError(f"{shown(value)} is not a name: write {legal}" + (f", for instance {clean!r}" if clean else ""))


def read_framework(value: Any) -> str:
    """The name of a framework that there is."""
    legal = registry.frameworks()
    if isinstance(value, str) and value in legal:
        return value
    meant = did_you_mean(value, legal) if isinstance(value, str) else ""
    broken = "".join(f"; {sentence}" for sentence in registry.broken().values())
    raise ValueError(f"{shown(value)} is not a framework: write {listed(sorted(legal))}{meant}{broken}")


def read_path(value: Any) -> str:
    """A path, as it was written: a shell has not seen it."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{shown(value)} is not a directory: write its path")
    if value.startswith("~") or "$" in value:
        raise ValueError(f"{shown(value)} is not a path as it stands: '~' and '$' are a shell's, write the path out")
    if len(value.encode()) > MAX_PATH_BYTES:
        raise ValueError(f"{shown(value)} is longer than a path can be: write at most {MAX_PATH_BYTES} bytes")
    return value


def read_shell(value: Any) -> str:
    """A line for a shell."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{shown(value)} is not a command: write a shell line")
    return _short(value, "a command")


def read_command(value: Any) -> str | tuple[str, ...]:
    """A line for a shell, or a tuple of words."""
    if isinstance(value, list):
        if not value or not all(isinstance(word, str) for word in value) or not value[0]:
            raise ValueError(f"{shown(value)} is not a command: write a list of words, the program first")
        return tuple(_short(word, "an argument") for word in value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{shown(value)} is not a command: write a shell line, or a list of words")
    return _short(value, "a command")


def write_command(value: str | tuple[str, ...]) -> str | list[str]:
    """A line, or a list of words."""
    return value if isinstance(value, str) else list(value)


def _short(text: str, what: str) -> str:
    if len(text.encode()) > MAX_TEXT_BYTES:
        raise ValueError(f"{shown(text)} is longer than {what} can be: put what is over 128 KiB into a file")
    return text


def read_env_name(value: str) -> str:
    """The name of a variable."""
    if not re.fullmatch(ENV_NAME_PATTERN, value):
        raise ValueError(
            f"{shown(value)} is not the name of a variable: write letters, digits and '_', no digit at the beginning"
        )
    return value


def read_env_value(value: Any) -> str:
    """The value of a variable."""
    if isinstance(value, str):
        return _short(value, "a variable")
    raise ValueError(f"{shown(value)} is not the value of a variable: write text or a number")
