"""The order of submission, for policies that differ from `fifo` in reservations and in who may pass.

Their files in `policies` use these functions as their own; see `core.queue_order.policy_interface`.
"""

import numpy as np

from ganger.core.queue_order import priority_factors
from ganger.core.queue_order.policy_interface import Key, LaneHeads, join_key
from ganger.core.queues.share_bounds import Floats
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.views.service_views import Factor


def account_key(state: State, queue: str, user: str, now_ms: int) -> Key:
    """Return a constant: usage does not matter."""
    return (0,)


def gang_key(gang: Gang, state: State, now_ms: int) -> Key:
    """Return the order of submission."""
    return (0, gang.number)


def key_lower_bound(heads: LaneHeads, state: State, now_ms: int) -> Floats:
    """Return the first number of every key, which is the same for all."""
    return np.zeros(len(heads.number))


def fifo_class(gang: Gang) -> int:
    """Return the same class for all gangs."""
    return 0


def key(gang: Gang, state: State, now_ms: int) -> Key:
    """Return the order of submission."""
    return join_key(account_key(state, gang.queue, gang.job.user, now_ms), gang_key(gang, state, now_ms))


def factors(gang: Gang, state: State, now_ms: int) -> tuple[Factor, ...]:
    """Return the age."""
    return (priority_factors.age(gang, now_ms),)


def next_key_change_ms(gang: Gang, now_ms: int) -> int | None:
    """Return None: the order never changes."""
    return None
