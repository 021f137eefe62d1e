"""Two-dimensional least attained service in three queues, as Tiresias has it: durations need not be known.

A gang comes into the first queue and leaves it for the second, and that for the third, when it has used so many
GPU-seconds; queues go in order, inside each first in first out, running gangs included. The limits are those of the
simulations that the field compares with. Source: Gu et al., "Tiresias", NSDI 2019; `las` has two queues, for longer
jobs.
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
from ganger.model.units import MINUTE_MS, SECOND_MS
from ganger.model.views.service_views import Factor

NAME = "tiresias"
PROMISES: tuple[str, ...] = ("work_conservation",)
ORDERS_RUNNING = True
STARVES_AFTER_MS: int | None = None
RESERVES: Reservations | None = None
BLOCKS = False
LIMITS_GPU_MS = (3_250 * SECOND_MS, 7_200 * SECOND_MS)

account_key = fifo_defaults.account_key


def gang_key(gang: Gang, state: State, now_ms: int) -> Key:
    """Its queue, then order of submission."""
    return (_queue(of.attained_gpu_ms(gang, now_ms)), gang.number)


def early(heads: Heads, state: State, now_ms: int) -> Floats:
    """The first number says little: there are three."""
    return np.zeros(len(heads.number))


def band(gang: Gang) -> int:
    """Its queue: what a waiting gang has used stands still."""
    return _queue(gang.ran_ms * of.width(gang))


def key(gang: Gang, state: State, now_ms: int) -> Key:
    """Smaller is earlier: the first queue, then the others."""
    return joined(account_key(state, gang.queue, gang.job.user, now_ms), gang_key(gang, state, now_ms))


def factors(gang: Gang, state: State, now_ms: int) -> tuple[Factor, ...]:
    """What it has used, then its age: one after the other, as they are compared."""
    used = of.attained_gpu_ms(gang, now_ms)
    said = f"it has used {used // SECOND_MS} GPU-seconds: it is in queue {_queue(used) + 1} of {len(LIMITS_GPU_MS) + 1}"
    attained = Factor(name="attained", value=used // MINUTE_MS, unit="minutes", weight=0, points=None, sentence=said)
    return attained, replace(of.age(gang, now_ms), weight=0, points=None)


def turn_ms(gang: Gang, now_ms: int) -> int | None:
    """When a running gang comes into the next queue."""
    used = of.attained_gpu_ms(gang, now_ms)
    left_gpu_ms = next((limit - used for limit in LIMITS_GPU_MS if used < limit), None)
    return now_ms + -(-left_gpu_ms // of.width(gang)) if gang.holding and left_gpu_ms is not None else None


def _queue(used_gpu_ms: int) -> int:
    return sum(used_gpu_ms >= limit for limit in LIMITS_GPU_MS)
