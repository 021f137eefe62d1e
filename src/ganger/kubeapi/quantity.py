"""Kubernetes quantities as exact numbers: `7910m`, `64Gi`, `1e3`, `100k`. Called by `requested` and `nodes`.

The grammar is the API server's (apimachinery, `resource.Quantity`): a decimal number and a suffix of thousands, of
1024s, or an exponent of ten. Nothing is a float on the way: `0.1` is a tenth. Amounts are whole numbers of units: what
somebody asks for is rounded up, as schedulers count it, and what a node offers down.
"""

import logging
import math
import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

MOST: Final = 1 << 50
"""No node has that much of anything (a pebibyte of memory): sums of thousands of nodes stay within 64 bits."""

_NUMBER = re.compile(r"([0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE]([+-]?[0-9]{1,3})|([A-Za-z]*))")
_THOUSANDS: Final = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_SUFFIX: Final = {suffix: Fraction(1000) ** power for power, suffix in enumerate(_THOUSANDS, -3)} | {
    suffix: Fraction(1024**power) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)
}
_log = logging.getLogger(__name__)


def quantity(text: str) -> Fraction:
    """What it says, exactly. ValueError: it is no quantity, or one below nothing."""
    found = _NUMBER.fullmatch(text)
    if found is None or (found[3] or "") not in _SUFFIX:
        raise ValueError(f"{text!r} is not a quantity: write 2, 500m, 64Gi, 1e3")
    scale = Fraction(10) ** int(found[2]) if found[2] else _SUFFIX[found[3] or ""]
    return Fraction(found[1] if found[1][-1] != "." else found[1][:-1]) * scale


def wanted(text: str, per_unit: int, whose: str) -> int:
    """What `whose` (`pod a/b: cpu`) asks for, rounded up; per_unit: 1000 for thousandths. A bad one is said, and 0."""
    return _amount(text, per_unit, whose, up=True)


def offered(text: str, per_unit: int, whose: str) -> int:
    """The same of what `whose` (`node n1: memory`) has, rounded down."""
    return _amount(text, per_unit, whose, up=False)


def _amount(text: str, per_unit: int, whose: str, *, up: bool) -> int:
    try:
        return _whole(text, per_unit, up)
    except ValueError as error:
        _say(whose, str(error))
        return 0


@lru_cache(maxsize=1 << 14)
def _whole(text: str, per_unit: int, up: bool) -> int:  # noqa: FBT001 - a cache does not take names
    """Thousands of pods say the same few."""
    exact = quantity(text) * per_unit
    return min(MOST, math.ceil(exact) if up else math.floor(exact))


@lru_cache(maxsize=1 << 10)
def _say(whose: str, what: str) -> None:
    """Once, not with each heartbeat of the node."""
    _log.warning("%s: %s; it counts as 0", whose, what)
