"""The queue that has had least of its share goes first; inside a queue the user who has; then priority and age.

Of sibling queues those below their guarantee come first, then by what they hold and have held of late over their
weight; so down the tree, and then the users of a queue. Shares are dominant and decay: `core.queues.fair_share`.
Source: Slurm's Fair Tree."""

from dataclasses import replace

import numpy as np

from ganger.core.queue_order import priority_factors as of
from ganger.core.queue_order.policy_interface import Heads, Key, joined
from ganger.core.queues.share_bounds import Floats
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.policy import Reservations
from ganger.model.units import MINUTE_MS
from ganger.model.views.service_views import Factor

NAME = "fair_share"
PROMISES: tuple[str, ...] = ("work_conservation",)
ORDERS_RUNNING = False
STARVES_AFTER_MS: int | None = 30 * MINUTE_MS
RESERVES: Reservations | None = None
BLOCKS = False


def account_key(state: State, queue: str, user: str, now_ms: int) -> Key:
    """The place of the user in the queue among all."""
    return (*state.standings.rank(queue, user, now_ms), 0)


def gang_key(gang: Gang, state: State, now_ms: int) -> Key:
    """Priority, then order of submission."""
    return (-gang.job.spec.priority, gang.number)


def early(heads: Heads, state: State, now_ms: int) -> Floats:
    """The first number says little: whether a queue is below its guarantee."""
    return np.zeros(len(heads.number))


def band(gang: Gang) -> int:
    """One for each priority."""
    return gang.job.spec.priority


def key(gang: Gang, state: State, now_ms: int) -> Key:
    """Smaller is earlier: queue, user, priority, age."""
    return joined(account_key(state, gang.queue, gang.job.user, now_ms), gang_key(gang, state, now_ms))


def factors(gang: Gang, state: State, now_ms: int) -> tuple[Factor, ...]:
    """One after the other, as they are compared."""
    shares = of.queue_share(state, gang, now_ms), of.user_share(state, gang, now_ms)
    told = (*shares, of.priority(gang), of.age(gang, now_ms))
    return tuple(replace(factor, weight=0, points=None) for factor in told)


def turn_ms(gang: Gang, now_ms: int) -> int | None:
    """It is asked of orders of running gangs only."""
    return None
