"""Legality of preemption: whether a running gang may be stopped for a pending one, and by which rule.

1. `guarantee`: the queue of the pending gang stays within its guarantee with it, and the running gang is beyond that of
   its own, where their paths in the queue tree part.
2. `fair_share`: after it the queue of the pending gang has no greater share than that of the running one, over their
   weights, where their paths part, and the running gang is not within the guarantee of its own.
3. `priority`: the pending gang has a priority that is higher by the gap of the policy, and the running one is not
   within the guarantee of another queue, and was not passed over for long before it started.

The gangs within a guarantee are those that fit in it together in the order of their starts; one for which others were
stopped by rule 1 counts from that decision on. So a gang that was started by rule 1 keeps the guarantee, whatever has
started meanwhile, and no other start takes it from a gang that runs: no two gangs stop each other in turn.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ganger.core.queues.quota import Vector, need
from ganger.core.queues.quota_figures import RESOURCES
from ganger.core.queues.share_bounds import ZERO_VECTOR
from ganger.core.state.allocations.quota_charges import Beyond, Reclaimable
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.decision import PreemptionRule
from ganger.model.policy import ALL, FAIR_SHARE, NONE, QUEUE, Preemption
from ganger.model.shape import Shape


class Planned(NamedTuple):
    """The plans of a cycle so far.

    Attributes:
        ending: Gangs that it stops.
        starting: Gangs that it starts, which may be kept from it.
        owners: Pending gangs for which others were stopped: they will use what is theirs.
    """

    ending: Collection[str] = ()
    starting: Collection[str] = ()
    owners: Collection[Gang] = ()


class Legality:
    """The legality of preemptions at one time."""

    def __init__(self, state: State, now_ms: int, rules: Preemption, planned: Planned | None = None) -> None:
        """Create it for the state as it is."""
        self._state, self._now_ms, self._rules = state, now_ms, rules
        self._ending, self._starting, owners = planned or Planned()
        self._branches: dict[tuple[str, str], tuple[int, int] | None] = {}
        """By two queues, where their paths part."""
        self._owners_below: dict[int, tuple[tuple[str, Shape], ...]] = {}
        """By queue, the owners in it and below it, and their shapes."""
        self.renew(owners)

    def renew(self, owners: Collection[Gang]) -> None:
        """Take into account what the cycle has planned since, for these owners among others."""
        state, tree = self._state, self._state.tree
        self._owners = {gang.id: gang for gang in owners}
        self._owners_below.clear()
        leaving = (gang.id for gang in state.timers.in_transition.values() if not gang.may_be_preempted)
        gone: dict[int, list[str]] = {}
        for name in dict.fromkeys((*leaving, *self._ending)):
            for index in tree.path(tree.index[state.gangs[name].queue]):
                gone.setdefault(index, []).append(name)
        self._gone = {index: tuple(names) for index, names in gone.items()}
        """By queue, the gangs in it and below it that are not to stay."""
        self._held = state.quota_charges.held_by_priority(without=self._gone.get(0, ()))
        indices, first = np.unique(self._held[0], return_index=True)
        names = (tree.queues[index].name for index in indices.tolist())
        self._lowest = dict(zip(names, self._held[1, first].tolist(), strict=True))
        """By queue, the lowest priority of the gangs that hold nodes."""
        self._may_preempt: dict[tuple[str, int], bool] = {}
        self._most: dict[tuple[str, int, bool], int] = {}
        """By queue, highest priority of its victims, and whether others lose what they borrow, `most_gpu_milli`."""
        self._borrowed: dict[int, int] = {}
        """By queue, the GPUs, in thousandths, that those below it hold beyond the guarantee of each of its children."""
        self._guaranteed: dict[int, dict[str, None]] = {}
        """By queue, the gangs in it and below it that are within its guarantee."""

    def may_preempt(self, queue: str, priority: int) -> bool:
        """Return False if no gang of that priority in a queue may have any stopped: a check without the gangs."""
        if (queue, priority) not in self._may_preempt:
            self._may_preempt[queue, priority] = self._find_may_preempt(queue, priority)
        return self._may_preempt[queue, priority]

    def _find_may_preempt(self, queue: str, priority: int) -> bool:
        tree, rules = self._state.tree, self._rules
        if self._may_stop(queue, priority - rules.priority_gap).any():
            return True
        path = tree.path_below_root[tree.index[queue]]
        if rules.reclaim == FAIR_SHARE and any(
            self._share(other) > self._share(index) for index in path for other in tree.children[tree.parent[index]]
        ):
            return True
        return rules.reclaim != NONE and any(
            guaranteed > tree.usage[r][index] for index in path for r, guaranteed in enumerate(tree.guaranteed[index])
        )

    def _may_stop(self, queue: str, highest: int) -> NDArray[np.bool_]:
        """Return (N,) which of `_held` a gang of a queue may have stopped if their priority is at most `highest`."""
        scope, tree, (queues, priorities, _) = self._rules.priority, self._state.tree, self._held
        is_in_scope = np.full(len(tree.queues), scope == ALL)
        if scope == QUEUE:
            own = tree.index[queue]
            is_in_scope[[*tree.path(own), *(tree.index[name] for name in tree.subtree(own))]] = True
        may_stop: NDArray[np.bool_] = (priorities <= highest) & is_in_scope[queues]
        return may_stop

    def most_gpu_milli(self, preemptor: Gang) -> int:
        """Return the most GPUs, in thousandths, of all gangs that may be stopped for a pending one: a bound of them."""
        tree, rules, highest = self._state.tree, self._rules, preemptor.job.spec.priority - self._rules.priority_gap
        path = tree.path_below_root[tree.index[preemptor.queue]]
        may_reclaim = rules.reclaim == FAIR_SHARE or any(self._reclaimable_types(index, preemptor) for index in path)
        key = preemptor.queue, highest, may_reclaim
        if key not in self._most:
            most = int(self._held[2, self._may_stop(preemptor.queue, highest)].sum())
            for index in path if may_reclaim else ():
                if (parent := tree.parent[index]) not in self._borrowed:
                    self._borrowed[parent] = sum(map(self._beyond_milli, tree.children[parent]))
                most += self._borrowed[parent] - self._beyond_milli(index)
            self._most[key] = most
        return self._most[key]

    def _beyond_milli(self, index: int) -> int:
        """Return the GPUs, in thousandths, that gangs in a queue and below it hold beyond its guarantee."""
        names = (name for name in self._state.tree.subtree(index) if name in self._lowest)
        return sum(self._beyond(name, index).gpu_milli for name in names)

    def _has_priority(self, queue: str, priority: int, other: str) -> bool:
        """Return whether a gang of that priority in a queue may have one of another queue stopped by its priority."""
        scope = self._rules.priority
        is_in_scope = scope == ALL or (scope == QUEUE and self._parting(queue, other) is None)
        return is_in_scope and priority - self._lowest[other] >= self._rules.priority_gap

    def victims(self, preemptor: Gang) -> dict[str, PreemptionRule]:
        """Return the gangs that may be stopped for a pending one, or kept from starting, and by which rule."""
        found: dict[str, PreemptionRule] = {}
        highest = preemptor.job.spec.priority - self._rules.priority_gap
        takes_shares, gangs = self._rules.reclaim == FAIR_SHARE, self._state.gangs
        path = self._state.tree.path_below_root[self._state.tree.index[preemptor.queue]]
        reclaimable = {index: self._reclaimable_types(index, preemptor) for index in path}
        for queue in self._lowest:
            branches = self._parting(preemptor.queue, queue)
            may_reclaim = branches is not None and reclaimable[branches[0]]
            has_priority = self._has_priority(preemptor.queue, preemptor.job.spec.priority, queue)
            if not (may_reclaim or has_priority or takes_shares):
                continue
            names = self._beyond(queue, branches[1] if branches else None).preemptible
            if may_reclaim and len(may_reclaim) == len(preemptor.shape.gpu_types):
                found |= dict.fromkeys(names, PreemptionRule.GUARANTEE)
                continue
            for victim in map(gangs.__getitem__, names):
                if branches and may_reclaim and self._may_reclaim(branches[0], preemptor, victim):
                    found[victim.id] = PreemptionRule.GUARANTEE
                elif has_priority and victim.job.spec.priority <= highest and not self._was_passed_over(victim):
                    found[victim.id] = PreemptionRule.PRIORITY
                elif takes_shares and branches and self._may_lose(branches, preemptor, need(victim.shape)):
                    found[victim.id] = PreemptionRule.FAIR_SHARE
        return found

    def together(self, preemptor: Gang, victims: Iterable[Gang], rules: Mapping[str, PreemptionRule]) -> Iterator[Gang]:
        """Yield those of the victims, in their order, that may all be stopped; so may any of them.

        Reclaim to fair share ends: taken in rising order, the shares of the queues of one depth only grow. For that no
        queue that loses may have less afterwards than one that gains, and none that both are in may lose in all.
        """
        tree, lost = self._state.tree, dict[int, Vector]()
        for victim in victims:
            amounts, branches = need(victim.shape), self._parting(preemptor.queue, victim.queue)
            path = tree.path_below_root[tree.index[victim.queue]]
            after = {index: _add(lost.get(index, ZERO_VECTOR), amounts) for index in path}
            if branches and rules[victim.id] is PreemptionRule.FAIR_SHARE:
                shared, gained = path[: path.index(branches[1])], need(preemptor.shape)
                may_lose = self._may_lose(branches, preemptor, after[branches[1]])
                if not may_lose or any(self._share(at, gained, after[at]) < self._share(at) for at in shared):
                    continue
            lost |= after
            yield victim

    def _may_lose(self, branches: tuple[int, int], preemptor: Gang, amounts: Vector) -> bool:
        """Return whether a queue that loses that much has no less afterwards than that of the preemptor."""
        gaining, losing = branches
        below = self._state.tree.subtree(gaining)
        gained = need(preemptor.shape)
        for owner in self._owners.values():
            if owner.id != preemptor.id and owner.queue in below:
                gained = _add(gained, need(owner.shape))
        return self._share(gaining, gained) <= self._share(losing, lost=amounts)

    def _share(self, index: int, gained: Vector = ZERO_VECTOR, lost: Vector = ZERO_VECTOR) -> Fraction:
        """Return the weighted dominant share of a queue, with what it gains, without what it loses."""
        shares = self._state.fair_shares
        held = _add(shares.queues[index].held, gained)
        after = tuple(amount - less for amount, less in zip(held, lost, strict=True))
        return shares.weighted_dominant_share(self._state.tree.queues[index].name, after)

    def _beyond(self, queue: str, index: int | None) -> Beyond:
        """Return the gangs of a queue that no guarantee protects from those of the queue at which their paths part.

        They stay the same from cycle to cycle as long as no gang starts there, leaves, or is about to.
        """
        charges = self._state.quota_charges
        at = self._state.tree.index[queue] if index is None else index
        as_of, known = (charges.changes[at], self._gone.get(at, ())), charges.beyond.get((queue, index))
        if known is None or known.as_of != as_of:
            within = {} if index is None else self._within_guarantee(index)
            others = [gang for gang in self._holding(queue) if gang.id not in within]
            may_end = tuple(gang.id for gang in others if gang.job.spec.preemptible)
            names = tuple(gang.id for gang in others)
            known = Beyond(as_of, names, may_end, sum(charges[name][0] for name in names))
            charges.beyond[queue, index] = known
        return known

    def _holding(self, queue: str) -> list[Gang]:
        """Return the gangs of a queue that hold nodes and are not about to leave, and those that the cycle starts."""
        gangs = self._state.allocations.oldest(queue=queue)
        may_stay = (gang for gang in gangs if gang.id not in self._ending and not gang.attempt.lent)
        return [gang for gang in may_stay if gang.may_be_preempted or gang.id in self._starting]

    def _was_passed_over(self, victim: Gang) -> bool:
        """Return whether a gang was passed over for long when it started for the first time, and still runs.

        So it comes before any priority, in the end: else one that starts eventually would be stopped at once.
        """
        is_starting = victim.id in self._starting
        if victim.attempt.generation != (0 if is_starting else 1):
            return False
        began_ms = self._now_ms if is_starting else victim.attempt.began_ms
        return self._state.pending.passed_over_ms(victim, began_ms) >= self._state.document.weights.passed_over_after_ms

    def protected_until_ms(self, victim: Gang) -> int | None:
        """Return until when a gang may not be stopped since it has started lately; None if it may be now.

        One that the cycle starts may still be kept from it, unless others were stopped for it.
        """
        if victim.id in self._starting:
            reserved = self._state.reservations.get(victim.array or victim.id)
            return self._now_ms + max(1, self._rules.min_run_ms) if reserved and reserved.owned else None
        was_preempted, min_run_ms = victim.attempt.preempted_ms is not None, self._rules.min_run_ms
        until_ms = victim.attempt.began_ms + (max(min_run_ms, self._rules.cooldown_ms) if was_preempted else min_run_ms)
        return until_ms if until_ms > self._now_ms else None

    def _parting(self, queue: str, other: str) -> tuple[int, int] | None:
        if (queue, other) not in self._branches:
            self._branches[queue, other] = self._state.tree.branches(queue, other)
        return self._branches[queue, other]

    def _may_reclaim(self, index: int, gang: Gang, victim: Gang) -> bool:
        """Return whether a queue stays within its guarantee with a pending gang, of a GPU type that the victim has."""
        reclaimable, state = self._reclaimable_types(index, gang), self._state
        if len(reclaimable) == len(gang.shape.gpu_types):
            return True
        return any(state.type_of(share.node) in reclaimable for share in state.allocations[victim.id] if reclaimable)

    def _reclaimable_types(self, index: int, gang: Gang) -> tuple[str | None, ...]:
        """Return the GPU types with which a queue stays within its guarantee with a pending gang."""
        if self._rules.reclaim == NONE or not any(self._state.tree.guaranteed[index]):
            return ()
        known, key = self._known_types(index), (gang.shape, gang.id if gang.id in self._owners else "")
        if key not in known:
            known[key] = tuple(kind for kind in gang.shape.gpu_types if self._stays_within(index, gang, kind))
        return known[key]

    def _known_types(self, index: int) -> dict[tuple[Shape, str], tuple[str | None, ...]]:
        """Return what is known of a queue since its charges and owners have changed."""
        if index not in self._owners_below:
            below = self._state.tree.subtree(index)
            owners = (gang for gang in self._owners.values() if gang.queue in below)
            self._owners_below[index] = tuple((gang.id, gang.shape) for gang in owners)
        charges = self._state.quota_charges
        as_of, known = (charges.changes[index], self._owners_below[index]), charges.reclaimable.get(index)
        if known is None or known.as_of != as_of:
            known = charges.reclaimable[index] = Reclaimable(as_of, {})
        return known.types

    def _stays_within(self, index: int, gang: Gang, gpu_type: str | None) -> bool:
        """Return whether a queue stays within its guarantee with a pending gang on that GPU type and the owners."""
        tree = self._state.tree
        wanted = tree.wanted(replace(gang.shape, gpu_type=gpu_type, other_types=()))
        if not self._is_of_guaranteed_types(index, wanted):
            return False
        others = (shape for name, shape in self._owners_below[index] if name != gang.id)
        demands = (wanted, *map(tree.wanted, others))
        return tree.is_guaranteed(index, tuple(map(sum, zip(*demands, strict=True))))

    def _is_of_guaranteed_types(self, index: int, amounts: Vector) -> bool:
        """Return False for GPUs of other types than those of which a queue is guaranteed some, if it has no others."""
        tree = self._state.tree
        of_types = range(len(RESOURCES), len(RESOURCES) + len(tree.types))
        covered = sum(amounts[r] for r in of_types if tree.guaranteed[index][r])
        return covered >= amounts[0] or not self._has_types_alone(index)

    def _has_types_alone(self, index: int) -> bool:
        """Return whether what a queue and those below it are guaranteed of GPUs is of certain types."""
        tree = self._state.tree
        of_types = tree.guaranteed[index][len(RESOURCES) : len(RESOURCES) + len(tree.types)]
        return any(of_types) and not any(tree.queues[tree.index[name]].nominal.gpus for name in tree.subtree(index))

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
            (gang for queue in below for gang in self._holding(queue)),
            key=lambda gang: (gang.id in self._starting, _entitled_ms(gang), gang.number),
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


def _entitled_ms(gang: Gang) -> int:
    """Return from when a gang that runs has a right to what its queue is guaranteed."""
    return gang.attempt.began_ms if gang.retries.owner_since_ms is None else gang.retries.owner_since_ms


def _add(one: Vector, other: Vector) -> Vector:
    return tuple(map(sum, zip(one, other, strict=True)))
