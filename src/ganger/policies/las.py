"""Least attained service: gangs that have used little precede those that have used much, running ones included.

A gang is young until it has used one GPU-hour (a CPU gang: one node-hour), then old for good. Young gangs precede old
ones, and each of these two classes is first in, first out. With two classes gangs of similar service do not keep
preempting each other. Source: Tiresias (Gu et al., NSDI 2019), discretised two-dimensional LAS.
"""

from dataclasses import replace

import numpy as np

from ganger.core.queue_order import fifo_defaults, priority_factors
from ganger.core.queue_order.policy_interface import Key, LaneHeads, join_key
from ganger.core.queues.share_bounds import Floats
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.policy import Reservations
from ganger.model.units import HOUR_MS, MINUTE_MS
from ganger.model.views.service_views import Factor

NAME = "las"
LIVENESS_GUARANTEES: tuple[str, ...] = ("work_conservation",)
ORDERS_RUNNING = True
STARVATION_AGE_MS: int | None = None
FIXED_RESERVATIONS: Reservations | None = None
STRICT_ORDER = False
YOUNG_GPU_MS = HOUR_MS

account_key = fifo_defaults.account_key


def gang_key(gang: Gang, state: State, now_ms: int) -> Key:
    """Return the class, then the order of submission."""
    return (int(priority_factors.attained_gpu_ms(gang, now_ms) >= YOUNG_GPU_MS), gang.number)


def key_lower_bound(heads: LaneHeads, state: State, now_ms: int) -> Floats:
    """Return zeros: the first number is one of two."""
    return np.zeros(len(heads.number))


def fifo_class(gang: Gang) -> bool:
    """Return the class, which is constant for a pending gang."""
    return priority_factors.attained_gpu_ms(gang, gang.since_ms) >= YOUNG_GPU_MS


def key(gang: Gang, state: State, now_ms: int) -> Key:
    """Return the key: young before old, then the order of submission."""
    return join_key(account_key(state, gang.queue, gang.job.user, now_ms), gang_key(gang, state, now_ms))


def factors(gang: Gang, state: State, now_ms: int) -> tuple[Factor, ...]:
    """Return the factors in the order in which they are compared: service, age."""
    used = priority_factors.attained_gpu_ms(gang, now_ms) // MINUTE_MS
    sentence = f"it has used {used} GPU-minutes; from {YOUNG_GPU_MS // MINUTE_MS} on it is old"
    attained = Factor(name="attained_service", value=used, unit="minutes", weight=0, points=None, sentence=sentence)
    return attained, replace(priority_factors.age(gang, now_ms), weight=0, points=None)


def next_key_change_ms(gang: Gang, now_ms: int) -> int | None:
    """Return when a running gang becomes old."""
    left_gpu_ms = YOUNG_GPU_MS - priority_factors.attained_gpu_ms(gang, now_ms)
    return now_ms + -(-left_gpu_ms // priority_factors.width(gang)) if gang.holds_nodes and left_gpu_ms > 0 else None
