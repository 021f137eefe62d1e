"""Priority and age. One point of priority is worth one minute of waiting.

So `high` (100) passes `normal` (0) for an hour and forty minutes, and nobody waits for ever: age has no cap. Two
waiting gangs never change places, because both age alike; the factors are those that Slurm calls priority and age.
"""

import numpy as np

from ganger.core.queue_order import priority_factors as of
from ganger.core.queue_order.policy_interface import Heads, Key, joined
from ganger.core.queues.share_bounds import Floats
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.policy import Reservations
from ganger.model.units import MINUTE_MS
from ganger.model.views.service_views import Factor

NAME = "priority"
PROMISES: tuple[str, ...] = ("work_conservation", "no_starvation")
ORDERS_RUNNING = False
STARVES_AFTER_MS: int | None = 30 * MINUTE_MS
RESERVES: Reservations | None = None
BLOCKS = False
POINT_MS = MINUTE_MS


def account_key(state: State, queue: str, user: str, now_ms: int) -> Key:
    """Usage says nothing."""
    return (0,)


def gang_key(gang: Gang, state: State, now_ms: int) -> Key:
    """The moment of submission, put back by one minute for each point of priority."""
    return (gang.submitted_ms - gang.job.spec.priority * POINT_MS, gang.number)


def early(heads: Heads, state: State, now_ms: int) -> Floats:
    """The first number itself."""
    return (heads.submitted_ms - heads.priority * POINT_MS).astype(np.float64)


def band(gang: Gang) -> int:
    """One for each priority."""
    return gang.job.spec.priority


def key(gang: Gang, state: State, now_ms: int) -> Key:
    """Smaller is earlier: submission and priority."""
    return joined(account_key(state, gang.queue, gang.job.user, now_ms), gang_key(gang, state, now_ms))


def factors(gang: Gang, state: State, now_ms: int) -> tuple[Factor, ...]:
    """A point of priority is a minute of age."""
    return of.priority(gang), of.age(gang, now_ms)


def turn_ms(gang: Gang, now_ms: int) -> int | None:
    """The order never changes."""
    return None
