"""Foreign pods that wait until enough of their gang exist, and the forming of gangs from them.

A gang forms as soon as each of its roles has the fewest pods that its owner asks for. Pods beyond that are surplus:
each is a gang by itself, so that it neither delays the others nor is preempted with them.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ganger.backends.kubernetes.foreign.foreign_job import POD_GROUP, SchedulingUnit
from ganger.backends.kubernetes.foreign.gang_kinds import SINGLE, GangNeeds, GangSpecError, find_kind, role_of
from ganger.backends.kubernetes.foreign.gang_owners import GangOwners, OwnerView
from ganger.kubeapi.objects import Pod

RECHECK_S: Final = 15.0
"""Interval at which the owner of an incomplete gang is read again: it may ask for fewer pods by then."""


class FormedGang(NamedTuple):
    """Pods that are placed together. is_base: the fewest that their owner asks for, rather than surplus."""

    pods: tuple[Pod, ...]
    is_base: bool


def form_gangs(needs: GangNeeds, pending: Sequence[Pod], members: Iterable[Pod]) -> tuple[list[FormedGang], str]:
    """Return the gangs that pending pods form, and what is missing of the others, as `3 of at least 4 pods`.

    `members` are all pods of the unit that have not ended, with pending ones.
    """
    existing = Counter(map(role_of, members))
    by_role: dict[str, list[Pod]] = {}
    for pod in pending:
        by_role.setdefault(role_of(pod), []).append(pod)
    gangs, missing = list[FormedGang](), list[str]()
    for group in needs.groups:
        waiting = {role: by_role.pop(role, []) for role in group}
        short = [role for role in group if existing[role] < needs.roles[role].minimum]
        if short and any(waiting.values()):
            missing.append(_missing_text(needs, group, existing, short))
        if short:
            continue
        base = list[Pod]()
        for role, pods in waiting.items():
            required = max(0, needs.roles[role].minimum - (existing[role] - len(pods)))
            base += pods[:required]
            by_role[role] = pods[required:]
        gangs += [FormedGang(tuple(base), is_base=True)] if base else []
    gangs += [FormedGang((pod,), is_base=False) for pods in by_role.values() for pod in pods]
    return gangs, "; ".join(missing)


def _missing_text(needs: GangNeeds, group: tuple[str, ...], existing: Mapping[str, int], short: Sequence[str]) -> str:
    count, least = sum(existing[role] for role in group), needs.minimum_of(group)
    by_role = ", ".join(f"{role}: {existing[role]} of {needs.roles[role].minimum}" for role in short if role)
    return f"{count} of at least {least} pods, without gates{f' ({by_role})' if by_role else ''}"


class PendingUnits:
    """The units with foreign pods.

    Args:
        owners: reads the owners.
        explain: called with pods and why they wait.
        claim: called with a unit and its pending pods; returns those for which their gang keeps no place.
        form: called with a unit, what its owner asks for and pods that form a gang; returns whether it takes them.
    """

    def __init__(
        self,
        owners: GangOwners,
        explain: Callable[[Iterable[Pod], str], None],
        claim: Callable[[SchedulingUnit, Sequence[Pod]], Sequence[Pod]],
        form: Callable[[SchedulingUnit, OwnerView, FormedGang], bool],
    ) -> None:
        self._owners, self._explain, self._claim, self._form = owners, explain, claim, form
        self._loop = asyncio.get_running_loop()
        self._members: dict[SchedulingUnit, dict[str, Pod]] = {}
        self._pending: dict[SchedulingUnit, dict[str, Pod]] = {}
        self._views: dict[SchedulingUnit, OwnerView] = {}
        """Demands of the owners of units with pending pods."""
        self._scheduled: set[SchedulingUnit] = set()
        self._rechecks: set[SchedulingUnit] = set()
        """Units whose owners are read again after `RECHECK_S`."""
        self._reads: dict[SchedulingUnit, asyncio.Task[None]] = {}
        self.is_open = False

    def __iter__(self) -> Iterator[SchedulingUnit]:
        """Iterate over the units with pending pods."""
        return iter(list(self._pending))

    def __contains__(self, unit: SchedulingUnit) -> bool:
        """Return whether a unit has pods."""
        return unit in self._members

    def close(self) -> None:
        """Stop; nothing forms any more."""
        self.is_open = False
        for task in self._reads.values():
            task.cancel()

    def members(self, unit: SchedulingUnit) -> Iterable[str]:
        """Return the UIDs of the pods of a unit that count towards it."""
        return self._members.get(unit, ())

    def count_bound(self, unit: SchedulingUnit) -> int:
        """Return the number of bound pods of a unit."""
        return sum(bool(pod.spec.node_name) for pod in self._members.get(unit, {}).values())

    def note(self, unit: SchedulingUnit, pod: Pod, *, exists: bool) -> None:
        """Record whether a pod counts towards its unit: one that is being deleted or has gates does not."""
        if exists and pod.metadata.deletion_timestamp is None and not pod.spec.scheduling_gates:
            self._members.setdefault(unit, {})[pod.metadata.uid] = pod
        elif (members := self._members.get(unit)) is not None:
            members.pop(pod.metadata.uid, None)
            if not members:
                del self._members[unit]

    def add(self, unit: SchedulingUnit, pod: Pod) -> None:
        """Add a pending pod, or a newer version of it."""
        self._pending.setdefault(unit, {})[pod.metadata.uid] = pod

    def remove(self, unit: SchedulingUnit, pod: Pod) -> None:
        """Remove a pod that is not pending any more."""
        if (pending := self._pending.get(unit)) is not None:
            pending.pop(pod.metadata.uid, None)
            self._tidy(unit)

    def consider(self, unit: SchedulingUnit, after_s: float = 0.0) -> None:
        """Consider a unit once all changes of this moment have been handled, or later."""
        if unit in self._pending and unit not in self._scheduled:
            self._scheduled.add(unit)
            if after_s:
                self._loop.call_later(after_s, self._consider, unit)
            else:
                self._loop.call_soon(self._consider, unit)

    def reconsider_all(self) -> None:
        """Consider all units, after their backoff: something changed for which they may wait."""
        for unit in self:
            self.consider(unit)

    def _consider(self, unit: SchedulingUnit) -> None:
        """Form the gangs for which there are enough pods."""
        self._scheduled.discard(unit)
        pods: Sequence[Pod] = list(self._pending.get(unit, {}).values())
        if not pods or not self.is_open or not (pods := self._claim(unit, pods)):
            return
        if (view := self._view(unit, pods)) is None:
            return
        gangs, missing = form_gangs(view.needs, pods, self._members.get(unit, {}).values())
        for gang in gangs:
            if self._form(unit, view, gang):
                for pod in gang.pods:
                    self._pending.get(unit, {}).pop(pod.metadata.uid, None)
        self._tidy(unit)
        if missing and unit in self._pending:
            self._explain(self._pending[unit].values(), f"the {unit.kind} {unit.name} has {missing}")
            if unit.kind != POD_GROUP:  # those are watched
                self._recheck_later(unit)

    def _view(self, unit: SchedulingUnit, pods: Sequence[Pod]) -> OwnerView | None:
        """Return what a unit's owner asks for; None while it is read, or if there is none."""
        if not unit.kind:
            return OwnerView(SINGLE)
        if unit.kind == POD_GROUP:
            if (group := self._owners.groups.get(unit.key)) is not None:
                return OwnerView(group.needs)
            self._explain(pods, f"the PodGroup {unit.key.name} does not exist")
            return None
        view = self._views.get(unit)
        if view is None and unit not in self._reads:
            self._reads[unit] = self._loop.create_task(self._read(unit, pods))
        return view

    async def _read(self, unit: SchedulingUnit, pods: Sequence[Pod]) -> None:
        try:
            kind = find_kind(pods[0])
            assert kind is not None  # noqa: S101  # it gave the unit its kind
            self._views[unit] = await self._owners.read(kind, pods[0])
        except GangSpecError as error:
            self._explain(self._pending.get(unit, {}).values(), str(error))
            self._recheck_later(unit)
        else:
            self._loop.call_soon(self._consider, unit)
        finally:
            del self._reads[unit]

    def _recheck_later(self, unit: SchedulingUnit) -> None:
        if unit not in self._rechecks:
            self._rechecks.add(unit)
            self._loop.call_later(RECHECK_S, self._reread, unit)

    def _reread(self, unit: SchedulingUnit) -> None:
        self._rechecks.discard(unit)
        self._views.pop(unit, None)
        self.consider(unit)

    def _tidy(self, unit: SchedulingUnit) -> None:
        """Forget what is known of a unit that has no pending pods."""
        if not self._pending.get(unit, True):
            del self._pending[unit]
            self._views.pop(unit, None)
