"""Least attained service: gangs that have used little go before those that have used much, running ones included.

A gang is young until it has used one GPU-hour (a CPU gang: one node-hour), then old for good; young before old, inside
each first in first out. Two bands, so that gangs of like service do not take turns on each other's nodes. Source:
Tiresias (Gu et al., NSDI 2019), discretised two-dimensional LAS.
"""

from dataclasses import replace

import numpy as np

from ganger.core.queue_order import fifo_defaults
from ganger.core.queue_order import priority_factors as of
from ganger.core.queue_order.policy_interface import Heads, Key, joined
from ganger.core.queues.share_bounds import Floats
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.policy import Reservations
from ganger.model.units import HOUR_MS, MINUTE_MS
from ganger.model.views.service_views import Factor

NAME = "las"
PROMISES: tuple[str, ...] = ("work_conservation",)
ORDERS_RUNNING = True
STARVES_AFTER_MS: int | None = None
RESERVES: Reservations | None = None
BLOCKS = False
YOUNG_GPU_MS = HOUR_MS

account_key = fifo_defaults.account_key


def gang_key(gang: Gang, state: State, now_ms: int) -> Key:
    """Band, then order of submission."""
    return (int(of.attained_gpu_ms(gang, now_ms) >= YOUNG_GPU_MS), gang.number)


def early(heads: Heads, state: State, now_ms: int) -> Floats:
    """The first number says little: young or old."""
    return np.zeros(len(heads.number))


def band(gang: Gang) -> bool:
    """Old or young: what a waiting gang has used stands still."""
    return gang.ran_ms * of.width(gang) >= YOUNG_GPU_MS


def key(gang: Gang, state: State, now_ms: int) -> Key:
    """Smaller is earlier: the young, then the old."""
    return joined(account_key(state, gang.queue, gang.job.user, now_ms), gang_key(gang, state, now_ms))


def factors(gang: Gang, state: State, now_ms: int) -> tuple[Factor, ...]:
    """What it has used, then its age: one after the other, as they are compared."""
    used = of.attained_gpu_ms(gang, now_ms) // MINUTE_MS
    said = f"it has used {used} GPU-minutes; {YOUNG_GPU_MS // MINUTE_MS} make it old"
    attained = Factor(name="attained", value=used, unit="minutes", weight=0, points=None, sentence=said)
    return attained, replace(of.age(gang, now_ms), weight=0, points=None)


def turn_ms(gang: Gang, now_ms: int) -> int | None:
    """When a running gang stops being young."""
    left_gpu_ms = YOUNG_GPU_MS - of.attained_gpu_ms(gang, now_ms)
    return now_ms + -(-left_gpu_ms // of.width(gang)) if gang.holding and left_gpu_ms > 0 else None
