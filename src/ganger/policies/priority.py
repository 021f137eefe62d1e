"""Priority and age: one point of priority is worth one minute of waiting.

So `high` (100) precedes `normal` (0) for an hour and forty minutes. Age has no cap, so that no gang waits for ever. Two
pending gangs never change places, because both age alike. Slurm has the same factors.
"""

import numpy as np

from ganger.core.queue_order import priority_factors
from ganger.core.queue_order.policy_interface import Key, LaneHeads, join_key
from ganger.core.queues.share_bounds import Floats
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.policy import Reservations
from ganger.model.units import MINUTE_MS
from ganger.model.views.service_views import Factor

NAME = "priority"
LIVENESS_GUARANTEES: tuple[str, ...] = ("work_conservation", "no_starvation")
ORDERS_RUNNING = False
STARVATION_AGE_MS: int | None = 30 * MINUTE_MS
FIXED_RESERVATIONS: Reservations | None = None
STRICT_ORDER = False
POINT_MS = MINUTE_MS


def account_key(state: State, queue: str, user: str, now_ms: int) -> Key:
    """Return a constant: usage does not matter."""
    return (0,)


def gang_key(gang: Gang, state: State, now_ms: int) -> Key:
    """Return the time of submission, less one minute for each point of priority."""
    return (gang.submitted_ms - gang.job.spec.priority * POINT_MS, gang.number)


def key_lower_bound(heads: LaneHeads, state: State, now_ms: int) -> Floats:
    """Return the first number itself."""
    return (heads.submitted_ms - heads.priority * POINT_MS).astype(np.float64)


def fifo_class(gang: Gang) -> int:
    """Return the priority."""
    return gang.job.spec.priority


def key(gang: Gang, state: State, now_ms: int) -> Key:
    """Return the key: submission and priority."""
    return join_key(account_key(state, gang.queue, gang.job.user, now_ms), gang_key(gang, state, now_ms))


def factors(gang: Gang, state: State, now_ms: int) -> tuple[Factor, ...]:
    """Return the factors: a point of priority is a minute of age."""
    return priority_factors.priority(gang), priority_factors.age(gang, now_ms)


def next_key_change_ms(gang: Gang, now_ms: int) -> int | None:
    """Return None: the order never changes."""
    return None
