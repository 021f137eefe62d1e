"""Priority and age: the default. One point of priority is worth one minute of waiting.

So `high` (100) passes `normal` (0) for an hour and forty minutes, and nobody waits for ever: age has no cap. Two
waiting gangs never change places, because both age alike; the factors are those that Slurm calls priority and age.
"""

from ganger.core.gang import Gang
from ganger.core.state import State
from ganger.model.units import MINUTE_MS

NAME = "priority"
PROMISES: tuple[str, ...] = ("work_conservation", "no_starvation")
ORDERS_RUNNING = False
STARVES_AFTER_MS: int | None = 30 * MINUTE_MS
POINT_MS = MINUTE_MS


def key(gang: Gang, state: State, now_ms: int) -> tuple[int, ...]:
    """Smaller is earlier: the moment of submission, put back by one minute for each point of priority."""
    return (gang.submitted_ms - gang.job.spec.priority * POINT_MS, gang.number)


def turn_ms(gang: Gang, now_ms: int) -> int | None:
    """The order never changes."""
    return None
