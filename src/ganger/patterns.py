"""Regular expressions of users, matched in time linear in the text, whatever the pattern.

The engine is RE2: Python's `re` backtracks, so that some patterns take exponential time on an ordinary line, and cannot
be interrupted while they do.
"""

from functools import lru_cache
from typing import Final

import re2

MAX_BYTES: Final = 8 << 20
"""Memory limit of a compiled pattern; a larger one is refused."""
_NOT_REGULAR: Final = ("invalid perl operator", "invalid escape sequence")


class PatternError(ValueError):
    """Not a valid regular expression; the text is the reason, in one sentence."""


class Pattern:
    """A compiled pattern."""

    def __init__(self, text: str) -> None:
        """Compile the pattern. Raise PatternError when it is invalid."""
        options = re2.Options()
        options.log_errors = False  # RE2 writes to stderr otherwise
        options.max_mem = MAX_BYTES
        try:
            self._search = re2.compile(text, options).search
        except UnicodeError:
            raise PatternError("the pattern is not valid UTF-8") from None
        except re2.error as error:
            raise PatternError(_reason(error)) from None

    def matches(self, text: str | bytes) -> bool:
        """Return whether the pattern matches anywhere in the text."""
        return self._search(text) is not None


@lru_cache(maxsize=256)
def pattern(text: str) -> Pattern:
    """Return the pattern, compiled once. Raise PatternError when it is invalid."""
    return Pattern(text)


def _reason(error: Exception) -> str:
    message = error.args[0] if error.args else "it cannot be read"
    reason = message.decode(errors="replace") if isinstance(message, bytes) else str(message)
    if reason.startswith(_NOT_REGULAR):
        reason += " (the syntax is that of RE2: no look-around, no back-reference, \\z for \\Z)"
    return reason
