"""Max-min fairness: whoever has least of the cluster now goes first, running gangs included: progressive filling.

Tenants are users in their queues. What one has is its dominant share over the weight of its queue; of what it had
yesterday nothing counts, which is the difference to `fair_share`. A gang that waits comes in the order by what its
tenant has; one that runs by what its tenant had when its turn came, which is what its tenant would have without it and
those that began later. So a gang is stopped only for one whose tenant has less now than the other would have left: the
least share grows, nobody becomes as poor as that one was, and whoever was let in so comes before whoever gave way, so
that nobody is stopped back. A tenant's own gangs go by priority and age, and none of them is stopped for another.

Source: dominant resource fairness (Ghodsi et al., NSDI 2011); max-min as Gavel has it (Narayanan et al., OSDI 2020),
with whole gangs instead of parts of time. Nobody is promised a start: where large gangs must not wait for long it takes
another order.
"""

from dataclasses import replace

import numpy as np

from ganger.core.queue_order import max_min
from ganger.core.queue_order import priority_factors as of
from ganger.core.queue_order.policy_interface import Heads, Key, joined
from ganger.core.queues.share_bounds import SLACK, Floats
from ganger.core.state.gang import RUNS, Gang
from ganger.core.state.state import State
from ganger.model.policy import Reservations
from ganger.model.views.service_views import Factor

NAME = "max_min"
PROMISES: tuple[str, ...] = ("work_conservation",)
ORDERS_RUNNING = True
STARVES_AFTER_MS: int | None = None
RESERVES: Reservations | None = None
BLOCKS = False


def account_key(state: State, queue: str, user: str, now_ms: int) -> Key:
    """What the tenant has."""
    return (max_min.share(state, queue, user),)


def gang_key(gang: Gang, state: State, now_ms: int) -> Key:
    """Of one that runs, what its tenant got since its turn is taken off; of equals it goes first. Then priority, then
    the order of submission."""
    runs = gang.state in RUNS
    since = max_min.share_before(state, gang) - max_min.share(state, gang.queue, gang.job.user) if runs else 0
    return (since, not runs, -gang.job.spec.priority, gang.number)


def early(heads: Heads, state: State, now_ms: int) -> Floats:
    """What each tenant has, a little less."""
    has = [float(max_min.share(state, queue, user)) for queue, user in heads.owners]
    found: Floats = np.array(has, dtype=np.float64)[heads.owner] * (1 - SLACK)
    return found


def band(gang: Gang) -> int:
    """One for each priority."""
    return gang.job.spec.priority


def key(gang: Gang, state: State, now_ms: int) -> Key:
    """Smaller is earlier: the tenant that has or had least, then what runs, priority, age."""
    return joined(account_key(state, gang.queue, gang.job.user, now_ms), gang_key(gang, state, now_ms))


def factors(gang: Gang, state: State, now_ms: int) -> tuple[Factor, ...]:
    """One after the other, as they are compared."""
    told = (of.tenant_share(state, gang), of.priority(gang), of.age(gang, now_ms))
    return tuple(replace(factor, weight=0, points=None) for factor in told)


def turn_ms(gang: Gang, now_ms: int) -> int | None:
    """Time says nothing: the order changes when somebody starts or ends."""
    return None
