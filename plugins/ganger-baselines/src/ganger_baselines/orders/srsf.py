"""Shortest remaining service first: what is left of the time limit times the GPUs, running gangs included.

Gangs without a limit come last. Source: the two-dimensional shortest-remaining-time of Tiresias (Gu et al., NSDI 2019),
for gangs whose sizes differ as much as their times.
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

NAME = "srsf"
LIVENESS_GUARANTEES: tuple[str, ...] = ("work_conservation",)
ORDERS_RUNNING = True
STARVATION_AGE_MS: int | None = None
FIXED_RESERVATIONS: Reservations | None = None
STRICT_ORDER = False

account_key = fifo_defaults.account_key


def gang_key(gang: Gang, state: State, now_ms: int) -> Key:
    """Return the GPU time that is left of the limit (of a CPU gang: node time), then the order of submission."""
    left_gpu_ms = _left_gpu_ms(gang, now_ms)
    return (NEVER_MS if left_gpu_ms is None else left_gpu_ms, gang.number)


def key_lower_bound(heads: LaneHeads, state: State, now_ms: int) -> Floats:
    """Return the least time that each may be granted, which is at most its remaining service."""
    return heads.stays_ms.astype(np.float64)


def fifo_class(gang: Gang) -> int:
    """Return the remaining service, which is constant for a pending gang."""
    left_gpu_ms = _left_gpu_ms(gang, gang.attempt.began_ms)
    return NEVER_MS if left_gpu_ms is None else left_gpu_ms


def key(gang: Gang, state: State, now_ms: int) -> Key:
    """Return the key: the shortest first, then the order of submission."""
    return join_key(account_key(state, gang.queue, gang.job.user, now_ms), gang_key(gang, state, now_ms))


def factors(gang: Gang, state: State, now_ms: int) -> tuple[Factor, ...]:
    """Return the factors in the order in which they are compared: remaining service, age."""
    aged = replace(priority_factors.age(gang, now_ms), weight=0, points=None)
    return priority_factors.shortness(_left_gpu_ms(gang, now_ms), "GPU time that is left of its limit"), aged


def next_key_change_ms(gang: Gang, now_ms: int) -> int | None:
    """Return None: with time running gangs only move to the front, where they are."""
    return None


def _left_gpu_ms(gang: Gang, now_ms: int) -> int | None:
    left_ms = priority_factors.left_ms(gang, now_ms)
    return None if left_ms is None else left_ms * priority_factors.width(gang)
