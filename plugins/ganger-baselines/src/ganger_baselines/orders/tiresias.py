"""Two-dimensional least attained service in three queues, as in Tiresias: run times need not be known.

A gang begins in the first queue and moves to the second and third when it has used that many GPU-seconds. Queues go in
order, each first in, first out, running gangs included. The limits are those of published simulations. Source: Gu et
al., "Tiresias", NSDI 2019; `las` has two queues, for longer jobs.
"""

from dataclasses import replace

import numpy as np

from ganger.core.queue_order import fifo_defaults, priority_factors
from ganger.core.queue_order.policy_interface import Key, LaneHeads, join_key
from ganger.core.queues.share_bounds import Floats
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.policy import Reservations
from ganger.model.units import MINUTE_MS, SECOND_MS
from ganger.model.views.service_views import Factor

NAME = "tiresias"
LIVENESS_GUARANTEES: tuple[str, ...] = ("work_conservation",)
ORDERS_RUNNING = True
STARVATION_AGE_MS: int | None = None
FIXED_RESERVATIONS: Reservations | None = None
STRICT_ORDER = False
LIMITS_GPU_MS = (3_250 * SECOND_MS, 7_200 * SECOND_MS)

account_key = fifo_defaults.account_key


def gang_key(gang: Gang, state: State, now_ms: int) -> Key:
    """Return the gang's queue, then the order of submission."""
    return (_queue(priority_factors.attained_gpu_ms(gang, now_ms)), gang.number)


def key_lower_bound(heads: LaneHeads, state: State, now_ms: int) -> Floats:
    """Return zeros: the first number is one of three."""
    return np.zeros(len(heads.number))


def fifo_class(gang: Gang) -> int:
    """Return the gang's queue; a pending gang's service is constant."""
    return _queue(gang.ran_ms * priority_factors.width(gang))


def key(gang: Gang, state: State, now_ms: int) -> Key:
    """Return the key: the first queue first, then the order of submission."""
    return join_key(account_key(state, gang.queue, gang.job.user, now_ms), gang_key(gang, state, now_ms))


def factors(gang: Gang, state: State, now_ms: int) -> tuple[Factor, ...]:
    """Return the factors in the order in which they are compared: service, age."""
    used = priority_factors.attained_gpu_ms(gang, now_ms)
    sentence = (
        f"it has used {used // SECOND_MS} GPU-seconds: it is in queue {_queue(used) + 1} of {len(LIMITS_GPU_MS) + 1}"
    )
    attained = Factor(
        name="attained_service", value=used // MINUTE_MS, unit="minutes", weight=0, points=None, sentence=sentence
    )
    return attained, replace(priority_factors.age(gang, now_ms), weight=0, points=None)


def next_key_change_ms(gang: Gang, now_ms: int) -> int | None:
    """Return when a running gang moves to the next queue."""
    used = priority_factors.attained_gpu_ms(gang, now_ms)
    left_gpu_ms = next((limit - used for limit in LIMITS_GPU_MS if used < limit), None)
    return (
        now_ms + -(-left_gpu_ms // priority_factors.width(gang))
        if gang.holds_nodes and left_gpu_ms is not None
        else None
    )


def _queue(used_gpu_ms: int) -> int:
    return sum(used_gpu_ms >= limit for limit in LIMITS_GPU_MS)
