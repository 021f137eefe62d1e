"""One row of a trace, with exact conversions of its text to bounded numbers.

Numbers are decimal, with a fraction or an exponent where the file has one. Times become integer ms, rounded to the
nearest (half to even); those of ISO 8601 have a time zone, and years of up to six digits, so that each time that a
number may have is one. Text that only resembles a number is refused: nan, inf, 1_000, digits of other scripts.
"""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Final

import numpy as np

from ganger.model.units import HOUR_MS, MINUTE_MS
from ganger.simulation.traces.trace import Flaw

LARGEST: Final = 2**53
"""285,000 years in ms, 8 PiB in bytes; exact in programs that have only floating-point numbers."""
_SHORT: Final = len(str(LARGEST))
_NUMBER = re.compile(r"[+-]?[0-9]{1,40}(\.[0-9]{0,40})?([eE][+-]?[0-9]{1,4})?")
_ISO = re.compile(
    r"(?P<day>[0-9]{4,6}-[0-9]{2}-[0-9]{2})[T ](?P<time>[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?)"
    r"(Z|(?P<sign>[+-])(?P<hours>[0-9]{2}):?(?P<minutes>[0-9]{2}))"
)


class BadRow(Exception):
    """A row that cannot be used, with its flaw and the offending text."""

    def __init__(self, flaw: Flaw, text: str) -> None:
        super().__init__(text)
        self.flaw = flaw
        self.text = text

    def __reduce__(self) -> tuple[object, ...]:
        """Return what makes an equal error in another process: pickle would call the class with the message alone."""
        return type(self), (self.flaw, self.text)


class Row:
    """The fields of one line, by the format's key for each column."""

    __slots__ = ("_extra", "_fields", "_indices", "line")

    def __init__(self, line: int, fields: Sequence[str], indices: Mapping[str, int], extra: Sequence[int]) -> None:
        """Take the fields of a line.

        indices: index of the field of each key; a column that the file does not have is missing
        extra: indices of the other fields
        """
        self.line = line
        self._fields = fields
        self._indices = indices
        self._extra = extra

    def has(self, key: str) -> bool:
        """Return whether the file has the column."""
        return key in self._indices

    def text(self, key: str) -> str:
        """Return the text without surrounding blanks; empty if the column is missing."""
        index = self._indices.get(key)
        return "" if index is None else self._fields[index].strip()

    def required(self, key: str) -> str:
        """Return the text. BadRow: it is empty."""
        if text := self.text(key):
            return text
        raise BadRow(Flaw.MISSING, f"{key} is empty")

    def extra(self) -> tuple[str, ...]:
        """Return the columns without a key."""
        return tuple(self._fields[index].strip() for index in self._extra)

    def integer(self, key: str, least: int = 0, unit: int = 1) -> int:
        """Return a whole number of at least `least`, times `unit`."""
        text = self.required(key)
        number = _exact(key, text)
        if number.denominator != 1:
            raise BadRow(Flaw.NOT_A_NUMBER, f"{key}: {text!r} is not a whole number")
        return _in_bounds(key, text, int(number) * unit, least * unit)

    def exact(self, key: str) -> Fraction:
        """Return a number of at least 0, as it is written."""
        text = self.required(key)
        number = _exact(key, text)
        if number < 0:
            raise BadRow(Flaw.NEGATIVE, f"{key}: {text[:40]} is less than zero")
        return Fraction(number)

    def rounded(self, key: str, unit: int) -> int:
        """Return a number of at least 0, times `unit`, as the nearest integer: 1.5 s are 1500 ms."""
        text = self.required(key)
        number = _exact(key, text)
        return _in_bounds(key, text, -1 if number < 0 else round(number * unit), 0)

    def iso_time(self, key: str) -> int:
        """Return a time of ISO 8601 with its zone in Unix ms: `2026-01-05T10:00:00.000Z`."""
        text = self.required(key)
        match = _ISO.fullmatch(text)
        if match is None:
            raise BadRow(Flaw.NOT_A_NUMBER, f"{key}: {text[:40]!r} is not a time such as 2026-01-05T10:00:00Z")
        try:
            local_ms = int(np.datetime64(f"{match['day']}T{match['time']}", "ms").astype(np.int64))
        except ValueError as error:
            raise BadRow(Flaw.NOT_LEGAL, f"{key}: {error}") from None
        offset_ms = int(match["hours"] or 0) * HOUR_MS + int(match["minutes"] or 0) * MINUTE_MS
        return _in_bounds(key, text, local_ms + (offset_ms if match["sign"] == "-" else -offset_ms), 0)

    def iso_time_or_none(self, key: str) -> int | None:
        """Return the same as `iso_time`; None for empty text."""
        return self.iso_time(key) if self.text(key) else None

    def integer_or_none(self, key: str, least: int = 0, unit: int = 1) -> int | None:
        """Return the same as `integer`; None for empty text."""
        return self.integer(key, least, unit) if self.text(key) else None

    def signed_or_none(self, key: str) -> int | None:
        """Return a whole number that may be negative; None for empty text."""
        text = self.text(key)
        if not text:
            return None
        number = _exact(key, text)
        if number.denominator != 1:
            raise BadRow(Flaw.NOT_A_NUMBER, f"{key}: {text!r} is not a whole number")
        return int(number)

    def rounded_or_none(self, key: str, unit: int) -> int | None:
        """Return the same as `rounded`; None for empty text."""
        return self.rounded(key, unit) if self.text(key) else None


def iso_text(time_ms: int) -> str:
    """Return a Unix time in ms as `Row.iso_time` reads it."""
    return f"{np.datetime64(time_ms, 'ms')}Z"


def bounded(key: str, number: int) -> int:
    """Return the number. BadRow: it is larger than any real value."""
    if number > LARGEST:
        raise BadRow(Flaw.OUT_OF_RANGE, f"{key}: {number} is larger than any real value")
    return number


def _exact(key: str, text: str) -> Fraction | int:
    if text.isdecimal() and text.isascii() and len(text) < _SHORT:
        return int(text)
    if not _NUMBER.fullmatch(text):
        raise BadRow(Flaw.NOT_A_NUMBER, f"{key}: {text[:40]!r} is not a number")
    number = Decimal(text)
    if abs(number) > LARGEST:
        raise BadRow(Flaw.OUT_OF_RANGE, f"{key}: {text[:40]} is larger than any real value")
    return Fraction(number)


def _in_bounds(key: str, text: str, number: int, least: int) -> int:
    if number < 0:
        raise BadRow(Flaw.NEGATIVE, f"{key}: {text[:40]} is less than zero")
    if number < least:
        raise BadRow(Flaw.NOT_LEGAL, f"{key}: {text[:40]} is less than {least}")
    return bounded(key, number)
