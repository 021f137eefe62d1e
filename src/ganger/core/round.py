"""One round as it goes: what it is about, and the room it keeps for gangs that cannot start yet from those after them.

Made by `core.plan`, handed to `core.preempt`. Room is kept for a gang that starves and for one that others are stopped
for. A gang keeps what it would use of each limit it is within, and of the one that binds whatever there is: its
owner's allowance, then quota, then nodes. So what ends goes to it, and nobody is kept from what it cannot use yet. That
it owns the room from the moment of the decision is HiveD's idea (reference: scheduling, section 2).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from ganger.core.fit import ask, fit, where
from ganger.core.gang import Gang
from ganger.core.policy import Policy
from ganger.core.queues import Vector, need
from ganger.core.state import Shares, State
from ganger.model.reason import Reason, Why

CURABLE: Final = (Why.USER_GPUS, Why.USER_JOBS, Why.USER_NODE_TIME, Why.OVER_QUOTA, Why.NO_CAPACITY)
"""Reasons that end when other gangs do."""
MOST_CLAIMS: Final = 20
"""For how many gangs room is kept at a time; for the others when these have started."""
MOST_IN_QUEUE: Final = 5
"""Of these, how many of one queue."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Room kept for a gang: its owner's allowance, that much of each resource of its queue, these nodes."""

    gang: Gang
    quota: Vector
    nodes: tuple[str, ...]


@dataclass(slots=True)
class Round:
    """state (inside a trial), now_ms, policy: what is planned; ending: gangs that the round stops, for whatever reason;
    victims: those of them that give way to another; begun: gangs that it starts; elements: how many of each array;
    claims: room kept, by gang."""

    state: State
    now_ms: int
    policy: Policy
    ending: dict[str, None] = field(default_factory=dict)
    victims: list[Gang] = field(default_factory=list)
    begun: dict[str, Gang] = field(default_factory=dict)
    elements: dict[str, int] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)

    def keep(self, gang: Gang, why: Why, shares: Shares) -> None:
        """Keep room for a gang that waits because of `why` and would start on `shares`, until the round is over."""
        tree, wanted = self.state.tree, self.state.tree.counted(gang.shape)
        quota, nodes = (0,) * len(wanted), tuple(share.node for share in shares)
        if why in (Why.OVER_QUOTA, Why.NO_CAPACITY):
            at = tree.index[gang.queue]
            quota = tuple(min(amount, max(0, tree.available(at, r))) for r, amount in enumerate(wanted))
        self.claims[gang.id] = Claim(gang, quota, nodes if why is Why.NO_CAPACITY else ())
        self._count(self.claims[gang.id], +1)

    def fit(self, gang: Gang) -> Shares | Reason:
        """Where it may start as the round stands, or what binds; room kept for itself is not in its way."""
        with self.state.trial():
            if gang.id in self.claims:
                self._count(self.claims[gang.id], -1)
            return fit(self.state, ask(gang), self.now_ms)

    def may_keep(self, queue: str) -> bool:
        """Whether room may be kept for one more gang, of that queue."""
        there = sum(claim.gang.queue == queue for claim in self.claims.values())
        return len(self.claims) < MOST_CLAIMS and there < MOST_IN_QUEUE

    def kept_out(self, gangs: Iterable[Gang]) -> dict[str, None]:
        """Ids of those that would start if no room were kept."""
        if not self.claims:
            return {}
        with self.state.trial():
            self._lift(self.claims.values())
            return {gang.id: None for gang in gangs if not self._bars(gang)}

    def behind(self, gang: Gang) -> Reason | None:
        """The answer for a gang that would start but for room kept for others, naming those others."""
        others = [claim for claim in self.claims.values() if claim.gang is not gang]
        if not others:
            return None
        with self.state.trial():
            self._lift(self.claims.values())
            if self._bars(gang):
                return None
            bars: list[Gang] = []
            for claim in others:
                mark = self.state.undo.mark()
                self._count(claim, +1)
                if self._bars(gang):
                    self.state.undo.back_to(mark)
                    bars.append(claim.gang)
        mine = self._key(gang)
        before = [other for other in bars if self._key(other) < mine] or bars
        return Reason(why=Why.HELD, holders=tuple(other.id for other in before)) if before else None

    def _key(self, gang: Gang) -> tuple[Any, ...]:
        return self.policy.key(gang, self.state, self.now_ms)

    def _bars(self, gang: Gang) -> bool:
        return not where(self.state, ask(gang))

    def _lift(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            self._count(claim, -1)

    def _count(self, claim: Claim, sign: int) -> None:
        gang, tree = claim.gang, self.state.tree
        tree.charge_user(gang.queue, gang.job.user, sign * need(gang.shape)[0], sign * gang.node_ms, sign)
        tree.charge(gang.queue, tuple(sign * amount for amount in claim.quota))
        self.state.nodes.hold(claim.nodes, held=sign > 0)
