"""The queue that uses least of its share goes first; inside a queue the user who holds least; then priority and age.

A queue's share is dominant: the largest, over resources, of what it uses over its quota (over the cluster where it has
none). Compared as fractions of integers. Source: dominant resource fairness (Ghodsi et al., NSDI 2011), without weights
and decay until issue 6.
"""

from fractions import Fraction

from ganger.core.gang import Gang
from ganger.core.queues import UNLIMITED
from ganger.core.state import State
from ganger.model.units import MINUTE_MS

NAME = "fair_share"
PROMISES: tuple[str, ...] = ("work_conservation",)
ORDERS_RUNNING = False
STARVES_AFTER_MS: int | None = 30 * MINUTE_MS


def key(gang: Gang, state: State, now_ms: int) -> tuple[Fraction | int, ...]:
    """Smaller is earlier: the queue's dominant share, GPUs the user holds in it, priority, age."""
    at = state.tree.index[gang.queue]
    gpus, _ = state.tree.users.get((at, gang.job.user), (0, 0))
    return (_dominant_share(state, at), gpus, -gang.job.spec.priority, gang.number)


def turn_ms(gang: Gang, now_ms: int) -> int | None:
    """Shares change with starts and ends only."""
    return None


def _dominant_share(state: State, at: int) -> Fraction:
    """The largest of usage over quota, or over what the cluster has where the queue has no quota of its own."""
    nodes = state.nodes
    capacity = (int(nodes.gpus.sum()), int(nodes.cpu_milli.sum()), int(nodes.memory_bytes.sum()))
    shares = [Fraction(0)]
    for r, total in enumerate(capacity):
        quota = state.tree.subtree[r][at]
        whole = quota if 0 < quota < UNLIMITED // 2 else total
        shares.append(Fraction(state.tree.usage[r][at], whole) if whole else Fraction(0))
    return max(shares)
