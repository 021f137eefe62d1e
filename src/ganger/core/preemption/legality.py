"""Legality of preemption: whether a running gang may be stopped for a pending one, and by which rule.

1. `guarantee`: the queue of the pending gang stays within its guarantee with it, and the running gang is beyond that of
   its own, where their paths in the queue tree part.
2. `priority`: the pending gang has a priority that is higher by the gap of the policy, and the running one is not
   within the guarantee of another queue.

The gangs within a guarantee are those that fit in it together in the order of their starts. So a start takes the
guarantee from no gang that runs, and a gang that was started by rule 1 keeps it: no two gangs stop each other in turn.
"""

from collections.abc import Collection, Iterable
from itertools import chain

from ganger.core.queues.quota import RESOURCES, Vector
from ganger.core.state.gang import ACTIVE, Gang
from ganger.core.state.state import State
from ganger.model.decision import PreemptionRule
from ganger.model.policy import ALL, GUARANTEE, QUEUE
from ganger.model.shape import Shape


class Legality:
    """The legality of preemptions at one time.

    Attributes:
        running: The gangs that hold nodes, and are not about to leave them.
    """

    def __init__(
        self,
        state: State,
        now_ms: int,
        ending: Collection[str],
        starting: Iterable[Gang] = (),
        owners: Iterable[Gang] = (),
    ) -> None:
        """Create it for the state as it is.

        `ending` are gangs that the cycle stops already; those that it is `starting` may be stopped by a later one.
        `owners` are pending gangs for which others were stopped: they will use what is theirs.
        """
        self._state, self._now_ms, self._rules = state, now_ms, state.document.preemption
        self._owners = {gang.id: gang for gang in owners}
        gangs = (state.gangs[name] for name in state.allocations if name not in ending)
        self.running = [gang for gang in gangs if gang.state in ACTIVE]
        self._branches: dict[tuple[str, str], tuple[int, int] | None] = {}
        """By two queues, where their paths part."""
        self._reclaims: dict[tuple[int, Shape, str], bool] = {}
        """By queue, shape and owner, whether it stays within its guarantee with such a gang."""
        self._guaranteed: dict[int, dict[str, None]] = {}
        """By queue, the gangs in it and below it that are within its guarantee."""
        self._lowest: dict[str, int] = {}
        """By queue, the lowest priority of its running gangs."""
        for gang in chain(self.running, starting):
            priority = gang.job.spec.priority
            self._lowest[gang.queue] = min(priority, self._lowest.get(gang.queue, priority))

    def may_preempt(self, queue: str, priority: int) -> bool:
        """Return False if no gang of that priority in a queue may have any stopped: a check without the gangs."""
        tree, rules = self._state.tree, self._rules
        for other, lowest in self._lowest.items():
            is_in_scope = rules.priority == ALL or (rules.priority == QUEUE and self._parting(queue, other) is None)
            if is_in_scope and priority - lowest >= rules.priority_gap:
                return True
        if rules.reclaim != GUARANTEE or not tree.has_guarantees:
            return False
        return any(
            guaranteed > tree.usage[r][index]
            for index in tree.path_below_root[tree.index[queue]]
            for r, guaranteed in enumerate(tree.guaranteed[index])
        )

    def rule(self, preemptor: Gang, victim: Gang) -> PreemptionRule | None:
        """Return the rule by which a running gang may be stopped for a pending one, or None."""
        branches = self._parting(preemptor.queue, victim.queue)
        if branches is not None and self._state.tree.has_guarantees:
            if victim.id in self._within_guarantee(branches[1]):
                return None
            if self._rules.reclaim == GUARANTEE and self._may_reclaim(branches[0], preemptor):
                return PreemptionRule.GUARANTEE
        if self._rules.priority == ALL or (self._rules.priority == QUEUE and branches is None):
            gap = preemptor.job.spec.priority - victim.job.spec.priority
            return PreemptionRule.PRIORITY if gap >= self._rules.priority_gap else None
        return None

    def protected_until_ms(self, victim: Gang) -> int | None:
        """Return until when a running gang may not be stopped since it has started lately; None if it may be now."""
        until_ms = victim.attempt.began_ms + self._rules.min_run_ms
        return until_ms if until_ms > self._now_ms else None

    def _parting(self, queue: str, other: str) -> tuple[int, int] | None:
        if (queue, other) not in self._branches:
            self._branches[queue, other] = self._state.tree.branches(queue, other)
        return self._branches[queue, other]

    def _may_reclaim(self, index: int, gang: Gang) -> bool:
        key = index, gang.shape, gang.id if gang.id in self._owners else ""
        if key not in self._reclaims:
            self._reclaims[key] = self._stays_within(index, gang)
        return self._reclaims[key]

    def _stays_within(self, index: int, gang: Gang) -> bool:
        """Return whether a queue stays within its guarantee with a pending gang and the owners."""
        tree = self._state.tree
        wanted, has_other_types = tree.wanted(gang.shape), any(len(part.choices) > 1 for part in gang.shape.parts)
        if (has_other_types and self._has_types_alone(index)) or not self._is_of_guaranteed_types(index, wanted):
            return False
        below = tree.subtree(index)
        others = [other for other in self._owners.values() if other.id != gang.id and other.queue in below]
        demands = (wanted, *(tree.wanted(other.shape) for other in others))
        return tree.is_guaranteed(index, tuple(map(sum, zip(*demands, strict=True))))

    def _is_of_guaranteed_types(self, index: int, amounts: Vector) -> bool:
        """Return False for GPUs of other types than those of which a queue is guaranteed some, if it has no others."""
        tree = self._state.tree
        of_types = range(len(RESOURCES), len(tree.resources))
        covered = sum(amounts[r] for r in of_types if tree.guaranteed[index][r])
        return covered >= amounts[0] or not self._has_types_alone(index)

    def _has_types_alone(self, index: int) -> bool:
        """Return whether what a queue and those below it are guaranteed of GPUs is of certain types."""
        tree = self._state.tree
        return any(tree.guaranteed[index][len(RESOURCES) :]) and not any(
            tree.queues[tree.index[name]].nominal.gpus for name in tree.subtree(index)
        )

    def _within_guarantee(self, index: int) -> dict[str, None]:
        if index not in self._guaranteed:
            self._guaranteed[index] = self._find_within_guarantee(index)
        return self._guaranteed[index]

    def _find_within_guarantee(self, index: int) -> dict[str, None]:
        tree, guaranteed = self._state.tree, self._state.tree.guaranteed[index]
        if not any(guaranteed):
            return {}
        below = tree.subtree(index)
        members = sorted(
            (gang for gang in self.running if gang.queue in below),
            key=lambda gang: (gang.attempt.began_ms, gang.number),
        )
        used, within = [0] * len(guaranteed), dict[str, None]()
        for gang in members:
            charge = self._state.quota_charges[gang.id]
            limited = tree.limited(index, charge)
            if not limited or not self._is_of_guaranteed_types(index, charge):
                continue
            if all(used[r] + charge[r] <= guaranteed[r] for r in limited):
                within[gang.id] = None
                used = [before + amount for before, amount in zip(used, charge, strict=True)]
        return within
