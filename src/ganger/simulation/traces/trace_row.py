"""One row of a trace, and its text as numbers: exact, within bounds, or said to be broken. Called by the formats.

Numbers are decimal, with a fraction or an exponent where somebody wrote one. Times become integer ms, rounded to the
nearest (half to even). Nothing is taken for a number that only looks like one: nan, inf, 1_000, digits of other
scripts.
"""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Final

from ganger.simulation.traces.trace import Flaw

LARGEST: Final = 2**53
"""285,000 years in ms, 8 PiB in bytes: what programs in other languages hold too."""
_SHORT: Final = len(str(LARGEST))
_NUMBER = re.compile(r"[+-]?[0-9]{1,40}(\.[0-9]{0,40})?([eE][+-]?[0-9]{1,4})?")


class Broken(Exception):
    """A row that cannot be used: its flaw, and what stands there."""

    def __init__(self, flaw: Flaw, what: str) -> None:
        super().__init__(what)
        self.flaw = flaw
        self.what = what


class Row:
    """The fields of one line, by the reader's word for each column."""

    __slots__ = ("_at", "_columns", "_extra", "_fields", "line")

    def __init__(self, line: int, fields: Sequence[str], at: Mapping[str, int], extra: Sequence[int]) -> None:
        """`at`: word -> index of its field; a column that the file does not have is not in it."""
        self.line = line
        self._fields = fields
        self._at = at
        self._extra = extra

    def has(self, word: str) -> bool:
        """Whether the file has that column."""
        return word in self._at

    def text(self, word: str) -> str:
        """What stands there, without surrounding blanks; empty where the column is missing."""
        at = self._at.get(word)
        return "" if at is None else self._fields[at].strip()

    def needed(self, word: str) -> str:
        """What stands there, which must be something."""
        if text := self.text(word):
            return text
        raise Broken(Flaw.MISSING, f"{word} is empty")

    def extra(self) -> tuple[str, ...]:
        """The columns that have no word."""
        return tuple(self._fields[at].strip() for at in self._extra)

    def whole(self, word: str, least: int = 0, unit: int = 1) -> int:
        """A whole number of at least `least`, times `unit`."""
        text = self.needed(word)
        number = _exact(word, text)
        if number.denominator != 1:
            raise Broken(Flaw.NOT_A_NUMBER, f"{word}: {text!r} is not a whole number")
        return _within(word, text, int(number) * unit, least * unit)

    def rounded(self, word: str, unit: int) -> int:
        """A number that is not negative, times `unit`, as the nearest integer: 1.5 s are 1500 ms."""
        text = self.needed(word)
        number = _exact(word, text)
        return _within(word, text, -1 if number < 0 else round(number * unit), 0)

    def whole_or_none(self, word: str, least: int = 0, unit: int = 1) -> int | None:
        """As `whole`; None where nothing stands."""
        return self.whole(word, least, unit) if self.text(word) else None

    def signed_or_none(self, word: str) -> int | None:
        """A whole number that may be negative; None where nothing stands."""
        text = self.text(word)
        if not text:
            return None
        number = _exact(word, text)
        if number.denominator != 1:
            raise Broken(Flaw.NOT_A_NUMBER, f"{word}: {text!r} is not a whole number")
        return int(number)

    def rounded_or_none(self, word: str, unit: int) -> int | None:
        """As `rounded`; None where nothing stands."""
        return self.rounded(word, unit) if self.text(word) else None


def bounded(word: str, number: int) -> int:
    """The number, if it is not larger than anything real."""
    if number > LARGEST:
        raise Broken(Flaw.OUT_OF_RANGE, f"{word}: {number} is more than can be")
    return number


def _exact(word: str, text: str) -> Fraction | int:
    if text.isdecimal() and text.isascii() and len(text) < _SHORT:
        return int(text)
    if not _NUMBER.fullmatch(text):
        raise Broken(Flaw.NOT_A_NUMBER, f"{word}: {text[:40]!r} is not a number")
    number = Decimal(text)
    if abs(number) > LARGEST:
        raise Broken(Flaw.OUT_OF_RANGE, f"{word}: {text[:40]} is more than can be")
    return Fraction(number)


def _within(word: str, text: str, number: int, least: int) -> int:
    if number < 0:
        raise Broken(Flaw.NEGATIVE, f"{word}: {text[:40]} is less than zero")
    if number < least:
        raise Broken(Flaw.NOT_LEGAL, f"{word}: {text[:40]} is less than {least}")
    return bounded(word, number)
