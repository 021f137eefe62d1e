"""Shortest job first, by time limit; a gang that does not fit is passed, and long ones wait while short ones arrive.

Gangs without a limit come last. Running gangs are not preempted.
"""

from dataclasses import replace

import numpy as np

from ganger.core.queue_order import fifo_defaults, priority_factors
from ganger.core.queue_order.policy_interface import Key, LaneHeads, join_key
from ganger.core.queues.share_bounds import Floats
from ganger.core.state.gang import Gang
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import State
from ganger.model.policy import Reservations
from ganger.model.views.service_views import Factor

NAME = "sjf"
LIVENESS_GUARANTEES: tuple[str, ...] = ("work_conservation",)
ORDERS_RUNNING = False
STARVATION_AGE_MS: int | None = None
FIXED_RESERVATIONS: Reservations | None = None
STRICT_ORDER = False

account_key = fifo_defaults.account_key


def gang_key(gang: Gang, state: State, now_ms: int) -> Key:
    """Return the time limit, then the order of submission."""
    return (_limit_ms(gang), gang.number)


def key_lower_bound(heads: LaneHeads, state: State, now_ms: int) -> Floats:
    """Return the least time that each may be granted, which is at most its limit."""
    return heads.stays_ms.astype(np.float64)


def fifo_class(gang: Gang) -> int:
    """Return the time limit."""
    return _limit_ms(gang)


def key(gang: Gang, state: State, now_ms: int) -> Key:
    """Return the key: the shortest first, then the order of submission."""
    return join_key(account_key(state, gang.queue, gang.job.user, now_ms), gang_key(gang, state, now_ms))


def factors(gang: Gang, state: State, now_ms: int) -> tuple[Factor, ...]:
    """Return the factors in the order in which they are compared: limit, age."""
    aged = replace(priority_factors.age(gang, now_ms), weight=0, points=None)
    return priority_factors.shortness(gang.time_ms, "its limit"), aged


def next_key_change_ms(gang: Gang, now_ms: int) -> int | None:
    """Return None: the order never changes."""
    return None


def _limit_ms(gang: Gang) -> int:
    return NEVER_MS if gang.time_ms is None else gang.time_ms
