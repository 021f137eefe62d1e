"""Shortest remaining time first: by what is left of the limit, running gangs included, which give way to shorter ones.

One without a limit comes last. A gang that gives way goes on from its newest checkpoint; what it must do again since is
not counted.
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

NAME = "srtf"
PROMISES: tuple[str, ...] = ("work_conservation",)
ORDERS_RUNNING = True
STARVES_AFTER_MS: int | None = None
RESERVES: Reservations | None = None
BLOCKS = False

account_key = fifo_defaults.account_key


def gang_key(gang: Gang, state: State, now_ms: int) -> Key:
    """What is left of its limit, then the order of submission."""
    rest_ms = of.left_ms(gang, now_ms)
    return (NEVER_MS if rest_ms is None else rest_ms, gang.number)


def early(heads: Heads, state: State, now_ms: int) -> Floats:
    """The least time that it may be granted: no more is left."""
    return heads.stays_ms.astype(np.float64)


def band(gang: Gang) -> int:
    """One for each time that may be left: of a waiting gang it stands still."""
    rest_ms = of.left_ms(gang, gang.began_ms)
    return NEVER_MS if rest_ms is None else rest_ms


def key(gang: Gang, state: State, now_ms: int) -> Key:
    """Smaller is earlier: the shortest, then the order of submission."""
    return joined(account_key(state, gang.queue, gang.job.user, now_ms), gang_key(gang, state, now_ms))


def factors(gang: Gang, state: State, now_ms: int) -> tuple[Factor, ...]:
    """What is left of its limit, then its age: one after the other, as they are compared."""
    aged = replace(of.age(gang, now_ms), weight=0, points=None)
    return of.shortness(of.left_ms(gang, now_ms), "what is left of its limit"), aged


def turn_ms(gang: Gang, now_ms: int) -> int | None:
    """What runs only comes nearer to the front: nobody's turn comes by time alone."""
    return None
