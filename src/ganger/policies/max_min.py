"""Max-min fairness by progressive filling: the tenant with the least share at present goes first.

Tenants are users in their queues. A tenant's share is dominant, over the weight of its queue; past usage does not
count, unlike in `fair_share`. Running gangs are ordered too: a pending gang by what its tenant has, a running one by
what its tenant had when it started, which is what the tenant would have without it and later ones. So a gang is
preempted only for one whose tenant has less than the other would have left. The least share grows, no tenant falls to
what that one had, and preemptors precede their victims, so that none is preempted back. A tenant's own gangs go by
priority and age, and none of them is preempted for another.

Sources: dominant resource fairness (Ghodsi et al., NSDI 2011); max-min as in Gavel (Narayanan et al., OSDI 2020), with
whole gangs instead of fractions of time. There are no reservations: where large gangs must not wait long, use another
order.
"""

from dataclasses import replace

import numpy as np

from ganger.core.queue_order import max_min, priority_factors
from ganger.core.queue_order.policy_interface import Key, LaneHeads, join_key
from ganger.core.queues.share_bounds import SLACK, Floats
from ganger.core.state.gang import STAYING, Gang
from ganger.core.state.state import State
from ganger.model.policy import Reservations
from ganger.model.views.service_views import Factor

NAME = "max_min"
LIVENESS_GUARANTEES: tuple[str, ...] = ("work_conservation",)
ORDERS_RUNNING = True
STARVATION_AGE_MS: int | None = None
FIXED_RESERVATIONS: Reservations | None = None
STRICT_ORDER = False


def account_key(state: State, queue: str, user: str, now_ms: int) -> Key:
    """Return the tenant's share."""
    return (max_min.tenant_share(state, queue, user),)


def gang_key(gang: Gang, state: State, now_ms: int) -> Key:
    """Return what the tenant of a running gang got since it started, subtracted, so that the gang precedes equal ones.

    Then priority and the order of submission.
    """
    is_running = gang.state in STAYING
    gained = (
        max_min.tenant_share_before(state, gang) - max_min.tenant_share(state, gang.queue, gang.job.user)
        if is_running
        else 0
    )
    return (gained, not is_running, -gang.job.spec.priority, gang.number)


def key_lower_bound(heads: LaneHeads, state: State, now_ms: int) -> Floats:
    """Return each tenant's share, a little less."""
    shares = [float(max_min.tenant_share(state, queue, user)) for queue, user in heads.owners]
    bounds: Floats = np.array(shares, dtype=np.float64)[heads.owner] * (1 - SLACK)
    return bounds


def fifo_class(gang: Gang) -> int:
    """Return the priority."""
    return gang.job.spec.priority


def key(gang: Gang, state: State, now_ms: int) -> Key:
    """Return the key: the least share at present or at the start, then running gangs, priority, age."""
    return join_key(account_key(state, gang.queue, gang.job.user, now_ms), gang_key(gang, state, now_ms))


def factors(gang: Gang, state: State, now_ms: int) -> tuple[Factor, ...]:
    """Return the factors in the order in which they are compared."""
    ordered = (
        priority_factors.tenant_share(state, gang),
        priority_factors.priority(gang),
        priority_factors.age(gang, now_ms),
    )
    return tuple(replace(factor, weight=0, points=None) for factor in ordered)


def next_key_change_ms(gang: Gang, now_ms: int) -> int | None:
    """Return None: the order changes only when a gang starts or ends."""
    return None
