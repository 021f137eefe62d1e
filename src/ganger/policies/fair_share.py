"""The queue with the least share goes first; inside a queue the user with the least; then priority and age.

Of sibling queues those below their guarantee come first, then those with the least share over weight; so down the tree,
then the users of a queue. Shares are dominant and decay: `core.queues.fair_share`. Source: Slurm's Fair Tree.
"""

from dataclasses import replace

import numpy as np

from ganger.core.queue_order import priority_factors
from ganger.core.queue_order.policy_interface import Key, LaneHeads, join_key
from ganger.core.queues.share_bounds import Floats
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.policy import Reservations
from ganger.model.units import MINUTE_MS
from ganger.model.views.service_views import Factor

NAME = "fair_share"
LIVENESS_GUARANTEES: tuple[str, ...] = ("work_conservation",)
ORDERS_RUNNING = False
STARVATION_AGE_MS: int | None = 30 * MINUTE_MS
FIXED_RESERVATIONS: Reservations | None = None
STRICT_ORDER = False


def account_key(state: State, queue: str, user: str, now_ms: int) -> Key:
    """Return the place of the user in the queue among all."""
    return (*state.fair_shares.rank(queue, user, now_ms), 0)


def gang_key(gang: Gang, state: State, now_ms: int) -> Key:
    """Return priority, then the order of submission."""
    return (-gang.job.spec.priority, gang.number)


def key_lower_bound(heads: LaneHeads, state: State, now_ms: int) -> Floats:
    """Return zeros: the first number only says whether a queue is below its guarantee."""
    return np.zeros(len(heads.number))


def fifo_class(gang: Gang) -> int:
    """Return the priority."""
    return gang.job.spec.priority


def key(gang: Gang, state: State, now_ms: int) -> Key:
    """Return the key: queue, user, priority, age."""
    return join_key(account_key(state, gang.queue, gang.job.user, now_ms), gang_key(gang, state, now_ms))


def factors(gang: Gang, state: State, now_ms: int) -> tuple[Factor, ...]:
    """Return the factors in the order in which they are compared."""
    shares = priority_factors.queue_share(state, gang, now_ms), priority_factors.user_share(state, gang, now_ms)
    ordered = (*shares, priority_factors.priority(gang), priority_factors.age(gang, now_ms))
    return tuple(replace(factor, weight=0, points=None) for factor in ordered)


def next_key_change_ms(gang: Gang, now_ms: int) -> int | None:
    """Return None: running gangs are not ordered."""
    return None
