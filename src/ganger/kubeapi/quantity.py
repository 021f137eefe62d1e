"""Kubernetes quantities as exact numbers: `7910m`, `64Gi`, `1e3`, `100k`.

The grammar is the API server's (apimachinery, `resource.Quantity`): a decimal number and a suffix of powers of 1000 or
1024, or an exponent of ten. No float is involved: `0.1` is a tenth. Amounts are whole numbers of units: requests are
rounded up, as schedulers count them, and what a node has is rounded down.
"""

import logging
import math
import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

MAX_AMOUNT: Final = 1 << 50
"""More than any node has (a pebibyte of memory): sums over thousands of nodes stay within 64 bits."""

_NUMBER = re.compile(r"([0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE]([+-]?[0-9]{1,3})|([A-Za-z]*))")
_THOUSANDS: Final = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_SCALES: Final = {suffix: Fraction(1000) ** power for power, suffix in enumerate(_THOUSANDS, -3)} | {
    suffix: Fraction(1024**power) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)
}
_log = logging.getLogger(__name__)


def parse_quantity(text: str) -> Fraction:
    """Return the exact value. Raises ValueError if the text is not a quantity, or is negative."""
    match = _NUMBER.fullmatch(text)
    if match is None or (match[3] or "") not in _SCALES:
        raise ValueError(f"{text!r} is not a quantity: write 2, 500m, 64Gi, 1e3")
    scale = Fraction(10) ** int(match[2]) if match[2] else _SCALES[match[3] or ""]
    return Fraction(match[1].removesuffix(".")) * scale


def requested_amount(text: str, per_unit: int, subject: str) -> int:
    """Return a requested amount, rounded up. An invalid one is logged and counts as 0.

    Args:
        text: the quantity.
        per_unit: 1000 for thousandths.
        subject: what it is of, for messages, such as `pod a/b: cpu`.
    """
    return _amount(text, per_unit, subject, up=True)


def available_amount(text: str, per_unit: int, subject: str) -> int:
    """Return an amount that a node has, rounded down. An invalid one is logged and counts as 0."""
    return _amount(text, per_unit, subject, up=False)


def _amount(text: str, per_unit: int, subject: str, *, up: bool) -> int:
    try:
        return _rounded(text, per_unit, up)
    except ValueError as error:
        _log_invalid(subject, str(error))
        return 0


@lru_cache(maxsize=1 << 14)
def _rounded(text: str, per_unit: int, up: bool) -> int:  # noqa: FBT001 - a cache does not take names
    """Return the rounded amount; cached, because thousands of pods have the same few."""
    exact = parse_quantity(text) * per_unit
    return min(MAX_AMOUNT, math.ceil(exact) if up else math.floor(exact))


@lru_cache(maxsize=1 << 10)
def _log_invalid(subject: str, message: str) -> None:
    """Log an invalid quantity once, not with each heartbeat of the node."""
    _log.warning("%s: %s; it counts as 0", subject, message)
