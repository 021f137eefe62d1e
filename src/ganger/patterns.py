"""Regular expressions of users, matched in time linear in the text, whatever the pattern.

The engine is RE2: Python's `re` backtracks, so that some patterns take exponential time on an ordinary line, and cannot
be interrupted while they do.
"""

import re
import sys
from functools import lru_cache
from typing import Final

import re2

MAX_BYTES: Final = 1 << 20
"""Memory limit of a compiled pattern; a larger one is refused. The time that a line takes is linear in it too."""
_NOT_REGULAR: Final = ("invalid perl operator", "invalid escape sequence", "Backreferences not supported")

_CODE_POINT: Final = re.compile(r"(\\\\)|\\x\{([0-9A-Fa-f]{1,6})\}|\\(0[0-7]{0,2})")
"""What RE2 takes for a code point and its binding for a back-reference; a backslash that is escaped is none of it."""
MAX_TWO_DIGITS: Final = 0xFF

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
        text = _CODE_POINT.sub(_two_digits, text)
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


@lru_cache(maxsize=64)
def pattern(text: str) -> Pattern:
    """Return the pattern, compiled once. Raise PatternError when it is invalid."""
    return Pattern(text)


def _two_digits(escape: re.Match[str]) -> str:
    """Return an escape for a code point as the binding takes it."""
    if escape[1]:
        return escape[1]
    code = int(escape[2], 16) if escape[2] else int(escape[3], 8)
    if code > sys.maxunicode:
        raise PatternError(f"invalid escape sequence: {escape[0]}")
    return f"\\x{code:02x}" if code <= MAX_TWO_DIGITS else chr(code)


def _reason(message: str) -> str:
    if message.startswith(_NOT_REGULAR):
        return f"{message} (the syntax is that of RE2: no look-around, no back-reference, \\z for \\Z)"
    return message
