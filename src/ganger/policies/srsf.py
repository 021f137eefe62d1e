"""Shortest remaining service first: by what is left of the limit times the GPUs, running gangs included.

Source: the two-dimensional shortest-remaining-time of Tiresias (Gu et al., NSDI 2019), where sizes differ as much as
times. One without a limit comes last.
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

NAME = "srsf"
PROMISES: tuple[str, ...] = ("work_conservation",)
ORDERS_RUNNING = True
STARVES_AFTER_MS: int | None = None
RESERVES: Reservations | None = None
BLOCKS = False

account_key = fifo_defaults.account_key


def gang_key(gang: Gang, state: State, now_ms: int) -> Key:
    """GPU time that is left of its limit (a CPU gang: node time), then the order of submission."""
    left_gpu_ms = _left_gpu_ms(gang, now_ms)
    return (NEVER_MS if left_gpu_ms is None else left_gpu_ms, gang.number)


def early(heads: Heads, state: State, now_ms: int) -> Floats:
    """The least time that it may be granted: no service that is left is less."""
    return heads.stays_ms.astype(np.float64)


def band(gang: Gang) -> int:
    """One for each service that may be left: of a waiting gang it stands still."""
    left_gpu_ms = _left_gpu_ms(gang, gang.began_ms)
    return NEVER_MS if left_gpu_ms is None else left_gpu_ms


def key(gang: Gang, state: State, now_ms: int) -> Key:
    """Smaller is earlier: the shortest, then the order of submission."""
    return joined(account_key(state, gang.queue, gang.job.user, now_ms), gang_key(gang, state, now_ms))


def factors(gang: Gang, state: State, now_ms: int) -> tuple[Factor, ...]:
    """What is left of its limit, then its age: one after the other, as they are compared."""
    aged = replace(of.age(gang, now_ms), weight=0, points=None)
    return of.shortness(_left_gpu_ms(gang, now_ms), "GPU time that is left of its limit"), aged


def turn_ms(gang: Gang, now_ms: int) -> int | None:
    """What runs only comes nearer to the front: nobody's turn comes by time alone."""
    return None


def _left_gpu_ms(gang: Gang, now_ms: int) -> int | None:
    rest_ms = of.left_ms(gang, now_ms)
    return None if rest_ms is None else rest_ms * of.width(gang)
