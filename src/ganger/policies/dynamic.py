"""Points for what a queue and a user have not used, for priority, for age, and for starvation; the default.

The most points go first. The function is in `core.queues.fair_share`, with what each factor is worth. Shares count, but
points for starvation have no limit, so that every job comes first eventually. The factors are those of Slurm's
multifactor priority; `ganger explain` shows them as its sprio does.
"""

import numpy as np

from ganger.core.queue_order import priority_factors
from ganger.core.queue_order.policy_interface import Key, LaneHeads, join_key
from ganger.core.queues.fair_share import account_points, gang_points, max_account_points, max_gang_points
from ganger.core.queues.share_bounds import Floats
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.policy import Reservations
from ganger.model.units import MINUTE_MS
from ganger.model.views.service_views import Factor

NAME = "dynamic"
LIVENESS_GUARANTEES: tuple[str, ...] = ("work_conservation", "no_starvation")
ORDERS_RUNNING = False
STARVATION_AGE_MS: int = 30 * MINUTE_MS
FIXED_RESERVATIONS: Reservations | None = None
STRICT_ORDER = False


def account_key(state: State, queue: str, user: str, now_ms: int) -> Key:
    """Return minus the points of all jobs of the user in the queue."""
    return (-account_points(state.fair_shares, state.rules.weights, queue, user, now_ms),)


def gang_key(gang: Gang, state: State, now_ms: int) -> Key:
    """Return minus the gang's own points, then the order of submission.

    Age counts from submission, whatever happened since, so that a gang that starts again keeps its place.
    """
    priority = gang.job.spec.priority
    points = gang_points(state.rules.weights, priority, now_ms - gang.submitted_ms, _starvation_age_ms(state, gang))
    return (-points, gang.number)


def key_lower_bound(heads: LaneHeads, state: State, now_ms: int) -> Floats:
    """Return minus an upper bound of all points, computed in floats."""
    weights, shares = state.rules.weights, state.fair_shares
    priorities, priority_index = np.unique(heads.priority, return_inverse=True)
    starves_ms = [state.rules.starvation.age_ms(priority, STARVATION_AGE_MS) for priority in priorities.tolist()]
    after_ms = np.array([STARVATION_AGE_MS if ms is None else ms for ms in starves_ms], dtype=np.int64)[priority_index]
    account_points = max_account_points(shares, weights, heads.owners, now_ms)[heads.owner]
    return -(account_points + max_gang_points(weights, heads.priority, now_ms - heads.submitted_ms, after_ms))


def fifo_class(gang: Gang) -> int:
    """Return the priority: with equal priorities the older gang has at least as many points."""
    return gang.job.spec.priority


def key(gang: Gang, state: State, now_ms: int) -> Key:
    """Return the key: the most points first, then the order of submission."""
    return join_key(account_key(state, gang.queue, gang.job.user, now_ms), gang_key(gang, state, now_ms))


def factors(gang: Gang, state: State, now_ms: int) -> tuple[Factor, ...]:
    """Return the factors of the gang's priority; their points add up to it."""
    weights = state.rules.weights
    return (
        priority_factors.priority(gang, weights.priority),
        priority_factors.queue_share(state, gang, now_ms, weights.queue),
        priority_factors.user_share(state, gang, now_ms, weights.user),
        priority_factors.age(gang, now_ms, weights.age_cap_ms, weights.age),
        priority_factors.starvation(gang, now_ms, _starvation_age_ms(state, gang), weights.starvation),
    )


def next_key_change_ms(gang: Gang, now_ms: int) -> int | None:
    """Return None: running gangs are not ordered."""
    return None


def _starvation_age_ms(state: State, gang: Gang) -> int:
    after_ms = state.rules.starvation.age_ms(gang.job.spec.priority, STARVATION_AGE_MS)
    return STARVATION_AGE_MS if after_ms is None else after_ms
