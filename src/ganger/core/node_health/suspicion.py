"""The score of a node: points for its faults, which decay with a half-life. Integers only.

Within a half-life the decay is linear: exact where an integer can be, and the same on every machine.
"""

from typing import Final

from ganger.model.node_health.health_record import HealthState, NodeHealth
from ganger.model.node_health.health_rules import SuspicionRules

MAX_SUSPICION: Final = 9
_MAX_HALVINGS: Final = 63


def points_milli_at(record: NodeHealth, now_ms: int, half_life_ms: int) -> int:
    """Return the score of a node at a time, in thousandths of a point."""
    return _decayed(record.points_milli, now_ms - record.points_ms, half_life_ms)


def recovers_ms(record: NodeHealth, rules: SuspicionRules) -> int:
    """Return when the score of a node is below half of the points from which it is suspect: the lag avoids flapping."""
    target_milli, since_ms = 500 * rules.suspect_from, record.points_ms
    halvings, left = 0, record.points_milli
    while left // 2 >= target_milli and halvings < _MAX_HALVINGS:
        halvings, left = halvings + 1, left // 2
    since_ms += halvings * rules.half_life_ms
    # Within this half-life it falls from `left` to half of it.
    fall_milli = max(0, left - target_milli + 1)
    return since_ms + min(rules.half_life_ms, -(-2 * fall_milli * rules.half_life_ms // max(1, left)))


def suspicion_of(record: NodeHealth) -> int:
    """Return what placement holds against a node in its state, from 0 to 9."""
    points = record.points_milli // 10_000
    if record.state is HealthState.SUSPECT:
        return min(MAX_SUSPICION, max(1, points))
    return min(MAX_SUSPICION, 1 + points) if record.state is HealthState.PROBATION else 0


def _decayed(milli: int, elapsed_ms: int, half_life_ms: int) -> int:
    halvings, rest_ms = divmod(max(0, elapsed_ms), half_life_ms)
    left = milli >> min(halvings, _MAX_HALVINGS)
    return left - left * rest_ms // (2 * half_life_ms)
