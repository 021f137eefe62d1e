"""What a policy file must have. Files in `policies/` are modules with these names; `registry` finds them.

A place in the order has two parts. What depends on usage is the same for all gangs of a user in a queue and changes
with every start (`account_key`); what does not is the gang's own and changes with time alone (`gang_key`). The last
number of the one and the first of the other are points, and are added: so a queue order may put accounts before gangs,
add both up, or look at one of them alone. Smaller is earlier.
"""

from collections.abc import Hashable
from typing import Any, NamedTuple, Protocol

from ganger.core.nodes.topology import Ints
from ganger.core.queues.share_bounds import Floats
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.policy import Reservations, Rules
from ganger.model.views.service_views import Factor

Key = tuple[Any, ...]


class Heads(NamedTuple):
    """Waiting gangs, one for each of L lines. owners: (queue, user), O of them; owner: (L,) by index whose it is;
    number, submitted_ms, priority, stays_ms: (L,) its own; the last: the least time that it may be granted."""

    owners: list[tuple[str, str]]
    owner: Ints
    number: Ints
    submitted_ms: Ints
    priority: Ints
    stays_ms: Ints


def joined(account: Key, gang: Key) -> Key:
    """The key of a gang: (account ..., points of both, gang ...)."""
    return (*account[:-1], account[-1] + gang[0], *gang[1:])


class Policy(Protocol):
    """A queue order.

    NAME: how it is chosen; PROMISES: liveness laws it keeps ("work_conservation", "no_starvation"); ORDERS_RUNNING:
    whether running gangs compete too, so that one may be stopped for another; STARVES_AFTER_MS: age from which nodes
    are held for a waiting gang where `Rules.starvation` does not say it, None for never (see `starves_after_ms`);
    RESERVES: for whom nodes are reserved, where that is what the order is about, None for as the policy document says;
    BLOCKS: whether one that waits for nodes, or for its queue's quota, keeps all that come after it from starting.
    """

    NAME: str
    PROMISES: tuple[str, ...]
    ORDERS_RUNNING: bool
    STARVES_AFTER_MS: int | None
    RESERVES: Reservations | None
    BLOCKS: bool

    def account_key(self, state: State, queue: str, user: str, now_ms: int) -> Key:
        """What usage says of a user's gangs in a queue; ends with points. It grows with what the account uses, and
        never becomes smaller while usage only grows, as in a round. Costs microseconds."""
        ...

    def gang_key(self, gang: Gang, state: State, now_ms: int) -> Key:
        """What a gang says for itself: begins with points, ends with `gang.number`, so that keys are total. Of waiting
        gangs of one class the older has the smaller one."""
        ...

    def early(self, heads: Heads, state: State, now_ms: int) -> Floats:
        """(L,) for each of these gangs a number that the first of its key is not below, at a look at columns: so that a
        round asks for the keys of those alone that may be the first. The nearer it is the fewer these are."""
        ...

    def band(self, gang: Gang) -> Hashable:
        """Of waiting gangs of the same user in the same queue and the same band the older always goes first. It does
        not change while a gang waits, but with its priority."""
        ...

    def key(self, gang: Gang, state: State, now_ms: int) -> Key:
        """The gang's place in the order: `joined` of the two, smaller is earlier."""
        ...

    def factors(self, gang: Gang, state: State, now_ms: int) -> tuple[Factor, ...]:
        """What the key is made of, for people: raw values, and points that add up where the order adds them."""
        ...

    def turn_ms(self, gang: Gang, now_ms: int) -> int | None:
        """When the gang's key changes although nothing happens; None: not. Asked where running gangs are ordered, of
        those that hold nodes and of the first of each line."""
        ...


def starves_after_ms(policy: Policy, rules: Rules, priority: int) -> int | None:
    """The age from which a gang of that priority starves; None: it never does."""
    return rules.starvation.age_ms(priority, policy.STARVES_AFTER_MS)


def reservations(policy: Policy, rules: Rules) -> Reservations | None:
    """For whom nodes are reserved; None: for nobody. Under an order that stops gangs for others nobody can say when
    they end."""
    if policy.ORDERS_RUNNING or (policy.RESERVES is None and policy.STARVES_AFTER_MS is None):
        return None
    return policy.RESERVES or rules.reservations


def large_after_ms(policy: Policy, rules: Rules, gang: Gang) -> int | None:
    """The age from which a gang has a reservation beside that of the first of its queue; None: it never has."""
    reserved = reservations(policy, rules)
    if reserved is None or reserved.large.per_queue == 0 or gang.shape.all_nodes < reserved.large.nodes:
        return None
    large = reserved.large
    return starves_after_ms(policy, rules, gang.job.spec.priority) if large.after_ms is None else large.after_ms
