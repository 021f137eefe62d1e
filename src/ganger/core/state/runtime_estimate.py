"""How long a gang holds its nodes, as far as that is known: by its limit. Without one as long as its user's jobs did of
late (`core.state.runtime_history`), and where that tells nothing, for ever.

Asked by all that look ahead: `core.reservations.capacity_forecast`, `core.reservations.reservations`,
`core.cycle.cycle`, `core.cycle.pending`. That a job may be granted less time than it asks for, so that it fits before a
promise, is Slurm's (`--time-min`)."""

from typing import Final

from ganger.core.state.gang import Gang

NEVER_MS: Final = 1 << 62
"""A moment, and a time, beyond all others."""


def runs_for_ms(gang: Gang) -> int:
    """How long its next generation, or the one that runs, holds its nodes: by its limit, or without as is expected."""
    limit_ms = gang.time_ms
    if limit_ms is None:
        return NEVER_MS if gang.expected is None else max(1, gang.expected.run_ms - gang.ran_ms)
    return max(1, limit_ms - gang.ran_ms)


def least_ms(gang: Gang) -> int:
    """The least time that its next generation may be granted: all that is left of its limit, unless less will do."""
    enough_ms = gang.job.spec.limits.time_min_ms
    return runs_for_ms(gang) if enough_ms is None else min(runs_for_ms(gang), enough_ms)
