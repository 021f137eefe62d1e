"""Points: for what a queue and a user have not used, for priority, for age, and for starving. The default.

The most go first. The function is in `core.queues.fair_share`, with what each factor is worth. Shares count, but
starvation has no end: every job comes first in the end. The factors are those that Slurm's multifactor priority has,
and `ganger explain` shows them as its sprio does."""

import numpy as np

from ganger.core.queue_order import priority_factors as of
from ganger.core.queue_order.policy_interface import Heads, Key, joined
from ganger.core.queues.fair_share import account_points, most_own_points, most_points, own_points
from ganger.core.queues.share_bounds import Floats
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.policy import Reservations
from ganger.model.units import MINUTE_MS
from ganger.model.views.service_views import Factor

NAME = "dynamic"
PROMISES: tuple[str, ...] = ("work_conservation", "no_starvation")
ORDERS_RUNNING = False
STARVES_AFTER_MS: int = 30 * MINUTE_MS
RESERVES: Reservations | None = None
BLOCKS = False


def account_key(state: State, queue: str, user: str, now_ms: int) -> Key:
    """The points of all jobs of the user in the queue."""
    return (-account_points(state.standings, state.rules.weights, queue, user, now_ms),)


def gang_key(gang: Gang, state: State, now_ms: int) -> Key:
    """Its own points, then order of submission. Age is since submission, whatever it did since, so that one that starts
    again keeps its place."""
    priority = gang.job.spec.priority
    points = own_points(state.rules.weights, priority, now_ms - gang.submitted_ms, _starves_after_ms(state, gang))
    return (-points, gang.number)


def early(heads: Heads, state: State, now_ms: int) -> Floats:
    """All points that they may have, as floats: a little more."""
    weights, standings = state.rules.weights, state.standings
    priorities, which = np.unique(heads.priority, return_inverse=True)
    starves_ms = [state.rules.starvation.age_ms(each, STARVES_AFTER_MS) for each in priorities.tolist()]
    after_ms = np.array([STARVES_AFTER_MS if ms is None else ms for ms in starves_ms], dtype=np.int64)[which]
    owned = most_points(standings, weights, heads.owners, now_ms)[heads.owner]
    return -(owned + most_own_points(weights, heads.priority, now_ms - heads.submitted_ms, after_ms))


def band(gang: Gang) -> int:
    """One for each priority: of equal ones the older has at least as many points."""
    return gang.job.spec.priority


def key(gang: Gang, state: State, now_ms: int) -> Key:
    """Smaller is earlier: the most points, then order of submission."""
    return joined(account_key(state, gang.queue, gang.job.user, now_ms), gang_key(gang, state, now_ms))


def factors(gang: Gang, state: State, now_ms: int) -> tuple[Factor, ...]:
    """The points that add up to its place."""
    weights = state.rules.weights
    return (
        of.priority(gang, weights.priority),
        of.queue_share(state, gang, now_ms, weights.queue),
        of.user_share(state, gang, now_ms, weights.user),
        of.age(gang, now_ms, weights.age_cap_ms, weights.age),
        of.starvation(gang, now_ms, _starves_after_ms(state, gang), weights.starvation),
    )


def turn_ms(gang: Gang, now_ms: int) -> int | None:
    """It is asked of orders of running gangs only."""
    return None


def _starves_after_ms(state: State, gang: Gang) -> int:
    after_ms = state.rules.starvation.age_ms(gang.job.spec.priority, STARVES_AFTER_MS)
    return STARVES_AFTER_MS if after_ms is None else after_ms
