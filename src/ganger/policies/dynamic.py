"""Points for what a queue and a user have not used, for priority, and for being passed over; the default.

The most points go first; of equals the one submitted first. The shares of queues weigh most, so that under any backlog
each queue gets its share, whatever the number of its users, and inside a queue each user; a queue that has had too
little gets points for its lag until that is made up for. A job is passed over while none starts that was submitted
before it: after a day it gets points for that, without a limit, so that every job starts eventually. The function is in
`core.queues.fair_share`, with what each factor is worth; `ganger explain` shows the factors as Slurm's sprio does.
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
    return (-account_points(state.fair_shares, state.document.weights, queue, user, now_ms),)


def gang_key(gang: Gang, state: State, now_ms: int) -> Key:
    """Return minus the gang's own points, then the order of submission, which a gang that starts again keeps."""
    points = gang_points(state.document.weights, gang.job.spec.priority, state.pending.passed_over_ms(gang, now_ms))
    return (-points, gang.number)


def key_lower_bound(heads: LaneHeads, state: State, now_ms: int) -> Floats:
    """Return minus an upper bound of all points, computed in floats."""
    weights, shares = state.document.weights, state.fair_shares
    passed_over_ms = now_ms - np.maximum(heads.submitted_ms, state.pending.first_starts.all_since_ms(heads.number))
    account_points = max_account_points(shares, weights, heads.owners, now_ms)[heads.owner]
    return -(account_points + max_gang_points(weights, heads.priority, passed_over_ms))


def fifo_class(gang: Gang) -> int:
    """Return the priority: with equal priorities the older gang has at least as many points."""
    return gang.job.spec.priority


def key(gang: Gang, state: State, now_ms: int) -> Key:
    """Return the key: the most points first, then the order of submission."""
    return join_key(account_key(state, gang.queue, gang.job.user, now_ms), gang_key(gang, state, now_ms))


def factors(gang: Gang, state: State, now_ms: int) -> tuple[Factor, ...]:
    """Return the factors of the gang's priority; their points add up to it."""
    weights = state.document.weights
    return (
        priority_factors.priority(gang, weights.priority),
        priority_factors.queue_share(state, gang, now_ms, weights.queue),
        priority_factors.queue_lag(state, gang, now_ms, weights),
        priority_factors.user_share(state, gang, now_ms, weights.user),
        priority_factors.passed_over(
            state.pending.passed_over_ms(gang, now_ms), weights.passed_over_after_ms, weights.passed_over
        ),
    )


def next_key_change_ms(gang: Gang, now_ms: int) -> int | None:
    """Return None: running gangs are not ordered."""
    return None
