"""Shortest job first: by time limit. Whoever does not fit is passed; long ones wait while short ones come.

One without a limit comes last. Running gangs are left alone.
"""

from dataclasses import replace

import numpy as np

from ganger.core.queue_order import fifo_defaults
from ganger.core.queue_order import priority_factors as of
from ganger.core.queue_order.policy_interface import Heads, Key, joined
from ganger.core.queues.share_bounds import Floats
from ganger.core.state.gang import Gang
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import State
from ganger.model.policy import Reservations
from ganger.model.views.service_views import Factor

NAME = "sjf"
PROMISES: tuple[str, ...] = ("work_conservation",)
ORDERS_RUNNING = False
STARVES_AFTER_MS: int | None = None
RESERVES: Reservations | None = None
BLOCKS = False

account_key = fifo_defaults.account_key


def gang_key(gang: Gang, state: State, now_ms: int) -> Key:
    """Its limit, then the order of submission."""
    return (_limit_ms(gang), gang.number)


def early(heads: Heads, state: State, now_ms: int) -> Floats:
    """The least time that it may be granted: no limit is less."""
    return heads.stays_ms.astype(np.float64)


def band(gang: Gang) -> int:
    """One for each limit."""
    return _limit_ms(gang)


def key(gang: Gang, state: State, now_ms: int) -> Key:
    """Smaller is earlier: the shortest, then the order of submission."""
    return joined(account_key(state, gang.queue, gang.job.user, now_ms), gang_key(gang, state, now_ms))


def factors(gang: Gang, state: State, now_ms: int) -> tuple[Factor, ...]:
    """Its limit, then its age: one after the other, as they are compared."""
    aged = replace(of.age(gang, now_ms), weight=0, points=None)
    return of.shortness(gang.time_ms, "its limit"), aged


def turn_ms(gang: Gang, now_ms: int) -> int | None:
    """The order never changes."""
    return None


def _limit_ms(gang: Gang) -> int:
    return NEVER_MS if gang.time_ms is None else gang.time_ms
