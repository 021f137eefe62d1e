"""Regular expressions of users, matched in time linear in the text, whatever the pattern.

The engine is RE2: Python's `re` backtracks, so that some patterns take exponential time on an ordinary line, and cannot
be interrupted while they do.
"""

from functools import lru_cache
from typing import Final

import re2

MAX_BYTES: Final = 8 << 20
"""Memory limit of a compiled pattern; a larger one is refused."""
_NOT_REGULAR: Final = ("invalid perl operator", "invalid escape sequence", "Backreferences not supported")

# What RE2 cannot match is an error: it is not given to Python's engine instead.
re2.set_fallback_notification(re2.FALLBACK_EXCEPTION)


class PatternError(ValueError):
    """Not a valid regular expression; the text is the reason, in one sentence."""


class Pattern:
    """A compiled pattern."""

    def __init__(self, text: str) -> None:
        """Compile the pattern. Raise PatternError when it is invalid."""
        if (len(text) - len(text.rstrip("\\"))) % 2:
            raise PatternError("trailing \\ at the end of the pattern")
        try:
            # ASCII: \w, \d and \s are those of RE2, also in Python's binding.
            self._contains = re2.compile(text, re2.ASCII, max_mem=MAX_BYTES).contains
        except UnicodeError:
            raise PatternError("the pattern is not valid UTF-8") from None
        except re2.error as error:
            raise PatternError(_reason(str(error))) from None

    def matches(self, text: str | bytes) -> bool:
        """Return whether the pattern matches anywhere in the text, of which bytes that are not UTF-8 match `.`."""
        # The binding takes the bytes of a text for Latin-1, and does not take surrogates.
        if isinstance(text, str):
            text = text.encode(errors="replace")
        return bool(self._contains(text.decode(errors="replace")))


@lru_cache(maxsize=256)
def pattern(text: str) -> Pattern:
    """Return the pattern, compiled once. Raise PatternError when it is invalid."""
    return Pattern(text)


def _reason(message: str) -> str:
    if message.startswith(_NOT_REGULAR):
        return (
            f"{message} (the syntax is that of RE2: no look-around, no back-reference, \\x41 for \\101 and \\x{{41}})"
        )
    return message
