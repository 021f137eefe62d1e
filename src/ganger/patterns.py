"""Regular expressions that users write, matched in time linear in the text, whatever the pattern.

Called where a user's pattern is read, and where it is tried. The engine is RE2: Python's `re` tries one possibility
after the other, so that some patterns take for ever on an ordinary line, and cannot be interrupted while they do.
"""

from functools import lru_cache
from typing import Final

import re2

MAX_BYTES: Final = 8 << 20
"""What a compiled pattern may take; a larger one is refused."""
_NOT_REGULAR: Final = ("invalid perl operator", "invalid escape sequence")


class PatternError(ValueError):
    """Not a regular expression: why, in one sentence."""


class Pattern:
    """A compiled pattern."""

    def __init__(self, text: str) -> None:
        """BadPattern when it is none."""
        options = re2.Options()
        options.log_errors = False  # RE2 writes to stderr otherwise
        options.max_mem = MAX_BYTES
        try:
            self._search = re2.compile(text, options).search
        except UnicodeError:
            raise PatternError("it is no text of UTF-8") from None
        except re2.error as error:
            raise PatternError(_why(error)) from None

    def is_in(self, text: str | bytes) -> bool:
        """Whether it is found anywhere in the text."""
        return self._search(text) is not None


@lru_cache(maxsize=256)
def pattern(text: str) -> Pattern:
    """The pattern, compiled once. BadPattern when it is none."""
    return Pattern(text)


def _why(error: Exception) -> str:
    said = error.args[0] if error.args else "it cannot be read"
    why = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    if why.startswith(_NOT_REGULAR):
        why += " (the syntax is that of RE2: no look-around, no back-reference, \\z for \\Z)"
    return why
