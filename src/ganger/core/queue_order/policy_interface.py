"""Interface of queue orders: what a module in `policies/` must have. `registry` finds these modules.

A key has two parts. The `account_key` depends on usage, is the same for all gangs of a user in a queue and changes with
every start. The `gang_key` belongs to the gang and changes with time alone. The last number of the one and the first of
the other are points, and are added: so an order may put accounts before gangs, add both up, or use one of them alone.
Smaller keys go first.
"""

from collections.abc import Hashable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from ganger.core.nodes.topology import Ints
from ganger.core.queues.share_bounds import Floats
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.policy import GUARANTEE, NONE, ORDER, QUEUE, Preemption, Reservations, Rules
from ganger.model.views.service_views import Factor

Key = tuple[Any, ...]


class LaneHeads(NamedTuple):
    """Pending gangs, one for each of L lanes.

    Attributes:
        owners: (queue, user), O of them.
        owner: (L,) the owner of each gang, by index.
        number: (L,) the number of each gang.
        submitted_ms: (L,) when each was submitted.
        priority: (L,) the priority of each.
        stays_ms: (L,) the least time that each may be granted.
    """

    owners: list[tuple[str, str]]
    owner: Ints
    number: Ints
    submitted_ms: Ints
    priority: Ints
    stays_ms: Ints


def join_key(account: Key, gang: Key) -> Key:
    """Return the key of a gang: (account ..., points of both, gang ...)."""
    return (*account[:-1], account[-1] + gang[0], *gang[1:])


class Policy(Protocol):
    """A queue order.

    Attributes:
        NAME: The name by which it is chosen.
        LIVENESS_GUARANTEES: Liveness laws that it keeps ("work_conservation", "no_starvation").
        ORDERS_RUNNING: Whether running gangs compete too, so that one may be preempted for another.
        STARVATION_AGE_MS: The age from which a pending gang starves unless `Rules.starvation` sets one; None for never.
        FIXED_RESERVATIONS: The limits of reservations if they are what the order is about; None for the policy
        document's.
        STRICT_ORDER: Whether a gang that waits for nodes, or for its queue's quota, keeps all later ones from starting.
    """

    NAME: str
    LIVENESS_GUARANTEES: tuple[str, ...]
    ORDERS_RUNNING: bool
    STARVATION_AGE_MS: int | None
    FIXED_RESERVATIONS: Reservations | None
    STRICT_ORDER: bool

    def account_key(self, state: State, queue: str, user: str, now_ms: int) -> Key:
        """Return the part of the key that depends on the usage of a user in a queue; it ends with points.

        It grows with usage and never falls while usage only grows, as in a cycle. Costs microseconds.
        """
        ...

    def gang_key(self, gang: Gang, state: State, now_ms: int) -> Key:
        """Return the gang's part of the key; it begins with points and ends with `gang.number`, so that keys are total.

        Of pending gangs of one class the older has the smaller one.
        """
        ...

    def key_lower_bound(self, heads: LaneHeads, state: State, now_ms: int) -> Floats:
        """Return (L,) for each gang a number that is at most the first of its key, computed on columns.

        A cycle computes exact keys only for gangs that may be the first; the closer the bounds, the fewer these are.
        """
        ...

    def fifo_class(self, gang: Gang) -> Hashable:
        """Return a class within which the older of two pending gangs of one user and queue always goes first.

        It changes only with the priority while a gang is pending.
        """
        ...

    def key(self, gang: Gang, state: State, now_ms: int) -> Key:
        """Return the gang's place in the order: both parts joined, smaller first."""
        ...

    def factors(self, gang: Gang, state: State, now_ms: int) -> tuple[Factor, ...]:
        """Return the key's factors, for users: raw values, and points if the order adds them up."""
        ...

    def next_key_change_ms(self, gang: Gang, now_ms: int) -> int | None:
        """Return when the gang's key changes although no event occurs, or None.

        Used if running gangs are ordered, for those that hold nodes and for the first of each lane.
        """
        ...


def starvation_age_ms(policy: Policy, rules: Rules, priority: int) -> int | None:
    """Return the age from which a gang of that priority starves, or None if it never does."""
    return rules.starvation.age_ms(priority, policy.STARVATION_AGE_MS)


def reservation_limits(policy: Policy, rules: Rules) -> Reservations | None:
    """Return the limits of reservations, or None if there are none.

    An order that preempts running gangs has none, since their ends cannot be predicted.
    """
    if policy.ORDERS_RUNNING or (policy.FIXED_RESERVATIONS is None and policy.STARVATION_AGE_MS is None):
        return None
    return policy.FIXED_RESERVATIONS or rules.reservations


def preemption_rules(policy: Policy, rules: Rules) -> Preemption | None:
    """Return the rules by which gangs are preempted, or None if nothing may be taken from any.

    Preemption needs reservations: what comes free is kept for the preemptor. The default order has rules unless the
    policy document sets others.
    """
    limits, is_default = reservation_limits(policy, rules), policy.NAME == ORDER
    reclaim = rules.preemption.reclaim or (GUARANTEE if is_default else NONE)
    priority = rules.preemption.priority or (QUEUE if is_default else NONE)
    if limits is None or limits.total == 0:
        return None
    return replace(rules.preemption, reclaim=reclaim, priority=priority)


def large_reservation_age_ms(policy: Policy, rules: Rules, gang: Gang) -> int | None:
    """Return the age from which a gang gets a reservation beside that of the first of its queue, or None for never."""
    limits = reservation_limits(policy, rules)
    if limits is None or limits.large.per_queue == 0 or gang.shape.all_nodes < limits.large.nodes:
        return None
    large = limits.large
    return starvation_age_ms(policy, rules, gang.job.spec.priority) if large.after_ms is None else large.after_ms
