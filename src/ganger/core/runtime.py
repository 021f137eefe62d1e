"""How long a gang holds its nodes, as far as that is known: by its limit. Without one, for ever.

Asked by `core.promises` and `core.backfill`.
"""

from ganger.core.gang import Gang
from ganger.core.profile import NEVER_MS


def runs_for_ms(gang: Gang) -> int:
    """How long its next generation, or the one that runs, holds its nodes at most."""
    limit_ms = gang.job.spec.limits.time_ms
    return NEVER_MS if limit_ms is None else max(1, limit_ms - gang.ran_ms)
