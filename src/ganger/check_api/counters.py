"""Totals in samples: how fast they grow, and how many devices and keys are remembered."""

from collections.abc import Mapping
from typing import NamedTuple, TypeGuard, TypeVar

from ganger.check_api.rule import Rule

MAX_COUNT = 2**64
MAX_KEYS = 1024
"""Keys that a state remembers at most."""
Key = TypeVar("Key")
Value = TypeVar("Value")


class CounterBase(NamedTuple):
    """A total at the start of a window."""

    total: int
    at_ms: int


def is_count(value: object) -> TypeGuard[int]:
    """Return whether this is a total: a whole number that is not negative and has a sane size."""
    return type(value) is int and 0 <= value < MAX_COUNT


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether this is a measured number of a sane size."""
    return type(value) in (int, float) and -MAX_COUNT < value < MAX_COUNT  # type: ignore[operator]


def grown(base: CounterBase | None, total: object, now_ms: int, rule: Rule) -> tuple[CounterBase | None, int]:
    """Return the base for the next sample, and the growth since this one if it is above the limit of the rule, else 0.

    A total that goes back starts again: its driver was loaded again, or its machine started.
    """
    if not is_count(total):
        return base, 0
    if base is None or total < base.total:
        return CounterBase(total, now_ms), 0
    growth, window_ms = total - base.total, rule.per_s * 1000
    elapsed_ms = now_ms - base.at_ms
    limit = rule.limit or 0
    exceeded = growth > (limit * max(1.0, elapsed_ms / window_ms) if window_ms else limit)
    if exceeded or elapsed_ms >= window_ms:
        base = CounterBase(total, now_ms)
    return base, growth if exceeded else 0


def newest(entries: Mapping[Key, Value], limit: int = MAX_KEYS) -> dict[Key, Value]:
    """Return a copy with at most so many entries, those that were added last."""
    surplus = max(0, len(entries) - limit)
    return dict(list(entries.items())[surplus:])
