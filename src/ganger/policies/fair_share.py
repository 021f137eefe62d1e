"""The queue that has had least of its share goes first; inside a queue the user who has; then priority and age.

Of sibling queues those below their guarantee come first, then by what they hold and have held of late over their
weight; so down the tree, and then the users of a queue. Shares are dominant and decay: `core.share`. Source: Slurm's
Fair Tree.
"""

from ganger.core.gang import Gang
from ganger.core.policy import Key, joined
from ganger.core.state import State
from ganger.model.units import MINUTE_MS

NAME = "fair_share"
PROMISES: tuple[str, ...] = ("work_conservation",)
ORDERS_RUNNING = False
STARVES_AFTER_MS: int | None = 30 * MINUTE_MS


def account_key(state: State, queue: str, user: str, now_ms: int) -> Key:
    """The place of the user in the queue among all."""
    return (*state.standings.rank(queue, user, now_ms), 0)


def gang_key(gang: Gang, now_ms: int) -> Key:
    """Priority, then order of submission."""
    return (-gang.job.spec.priority, gang.number)


def key(gang: Gang, state: State, now_ms: int) -> Key:
    """Smaller is earlier: queue, user, priority, age."""
    return joined(account_key(state, gang.queue, gang.job.user, now_ms), gang_key(gang, now_ms))


def turn_ms(gang: Gang, now_ms: int) -> int | None:
    """It is asked of orders of running gangs only."""
    return None
