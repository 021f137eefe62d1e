"""Pods that somebody else made for ganger to place: bare ones, those of batch Jobs, and those of upstream PodGroups.

Fed by `backend` with changes of pods and PodGroups, on the event loop. A pod alone is a gang of one; those of a group
are one gang as soon as `minCount` of them are there without gates. No GangJob is made for them, and no launcher runs in
them: they are bound as they are, and end when their pods do. Nothing is kept but what pods say themselves, from which
a restarted controller knows those that are bound (`taken_over`; docs/decisions/8-kubernetes.md, "Pods of others").
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from ganger.backends.kubernetes.backoff import pause_s
from ganger.backends.kubernetes.bind import Binder, NotLeadingError, is_over
from ganger.backends.kubernetes.derived import NotExpressible, Unit, is_of_others, job_of, unit_of, waits
from ganger.backends.kubernetes.nodes import Inventory
from ganger.backends.kubernetes.taken_over import TakenOver
from ganger.backends.kubernetes.types import Key, Pod, PodGroup
from ganger.engine.ports import Report
from ganger.model.decision import FAILURES, Cause, Start, Stop
from ganger.model.event import Cleared, Event, Failed, Finished, Started, StopRequested, Submitted

MARK: Final = "~"
"""In the id of every gang of others, and of no job: objects cannot be called so."""
FIRST_PAUSE_S: Final = 0.5
MOST_PAUSE_S: Final = 30.0
"""Before what could not be bound is a gang again."""

_log = logging.getLogger(__name__)
Explain = Callable[[Key, str], None]


@dataclass(slots=True)
class _Gang:
    """pods: in rank order; nodes: where each is, or is being bound to, by UID; left: which there are on each node;
    meanwhile: pods that ended while others were still being bound."""

    id: str
    unit: Unit
    pods: list[Pod]
    generation: int = 0
    nodes: dict[str, str] = field(default_factory=dict)
    left: dict[str, set[str]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    meanwhile: list[Pod] = field(default_factory=list)
    is_placing: bool = False
    is_broken: bool = False
    stopping: Stop | None = None


class Others:
    """pods, groups: as they are followed; inventory: what nodes there are, which is told of those that are placed
    here; explain: told of a pod why it waits."""

    def __init__(
        self,
        binder: Binder,
        pods: Mapping[Key, Pod],
        groups: Mapping[Key, PodGroup],
        inventory: Inventory,
        explain: Explain,
    ) -> None:
        self._binder, self._pods, self._groups, self._explain = binder, pods, groups, explain
        self._adopted, self._level_of = inventory.adopted, inventory.level_of
        self._loop = asyncio.get_running_loop()
        self._report: Report | None = None
        self._gangs: dict[str, _Gang] = {}
        self._gang_of: dict[str, _Gang] = {}
        self._waiting: dict[Unit, dict[str, Pod]] = {}
        self._bound: dict[Unit, set[str]] = {}
        self._failures: dict[Unit, int] = {}
        self._unbound: dict[Unit, str] = {}
        """Why what is missing of a unit could not be bound, when it was tried last."""
        self._soon: set[Unit] = set()
        self._numbers = itertools.count(1)
        self._work: set[asyncio.Task[None]] = set()

    def take_over(self, found: Iterable[TakenOver]) -> None:
        """Know these as gangs that run. Called before `open`."""
        for each in found:
            gang = _Gang(each.job.id, each.unit, list(each.pods), generation=each.start.generation)
            gang.nodes = {pod.metadata.uid: pod.spec.node_name for pod in each.pods}
            for uid, node in gang.nodes.items():
                gang.left.setdefault(node, set()).add(uid)
                self._gang_of[uid] = gang
            self._gangs[gang.id] = gang

    def name(self, unit: Unit) -> str:
        """An id that no gang has."""
        return f"{unit.key.name}{MARK}{next(self._numbers)}.{unit.key.namespace}"

    def open(self, report: Report) -> None:
        """Begin with what is there. Of those that run already it is said again that they do."""
        self._report = report
        for gang in list(self._gangs.values()):
            self._tell(Started(gang=gang.id, generation=gang.generation, nodes=tuple(gang.left)))
        for pod in list(self._pods.values()):
            self.pod_changed(None, pod)

    def close(self) -> None:
        """Break off; pods stay as they are."""
        self._report = None
        for task in self._work:
            task.cancel()

    # -- what there is ------------------------------------------------------------------------------------------------

    def pod_changed(self, before: Pod | None, now: Pod | None) -> None:
        """A pod came, changed, or is gone."""
        pod = now or before
        if pod is None or self._report is None or not is_of_others(pod):
            return
        uid, unit = pod.metadata.uid, unit_of(pod)
        ended = now is None or is_over(now)
        if pod.spec.node_name and not ended:
            self._bound.setdefault(unit, set()).add(uid)
        elif uid in self._bound.get(unit, ()):
            self._bound[unit].discard(uid)
        if (gang := self._gang_of.get(uid)) is not None:
            if ended:
                self._ended(gang, pod)
        elif now is not None and waits(now):
            self._waiting.setdefault(unit, {})[uid] = now
            self._consider_soon(unit)
        elif unit in self._waiting:
            self._waiting[unit].pop(uid, None)
            self._tidy(unit)

    def group_changed(self, before: PodGroup | None, now: PodGroup | None) -> None:
        """A PodGroup came, or needs another number of pods."""
        if now is not None and self._report is not None:
            self._consider_soon(Unit(is_group=True, key=now.metadata.key))

    def again(self) -> None:
        """The levels of the network are other ones: what could not be said before may be said now."""
        for unit in self._waiting:
            self._consider_soon(unit)

    def _consider_soon(self, unit: Unit) -> None:
        """Once everything has been told that came together."""
        if unit not in self._soon:
            self._soon.add(unit)
            self._loop.call_soon(self._consider, unit)

    def _consider(self, unit: Unit) -> None:
        """Make a gang of what waits, if it is enough."""
        self._soon.discard(unit)
        pods = list(self._waiting.get(unit, {}).values())
        if not pods or self._report is None:
            return
        group = self._groups.get(unit.key) if unit.is_group else None
        if unit.is_group and group is None:
            self._say(pods, f"the PodGroup {unit.key.name} is not there")
            return
        least = group.least if group is not None else 1
        there = len(pods) + len(self._bound.get(unit, ())) + self._under_way(unit)
        if there < least:
            self._say(
                pods, f"{there} of at least {least} pods of the PodGroup {unit.key.name} are there, without gates"
            )
            return
        name = self.name(unit)
        try:
            job, ordered = job_of(name, unit.key.name, pods, group, self._level_of)
        except NotExpressible as why:
            self._say(pods, str(why))
            return
        del self._waiting[unit]
        gang = self._gangs[name] = _Gang(name, unit, ordered)
        self._gang_of |= {pod.metadata.uid: gang for pod in ordered}
        if self._report is not None:
            self._report(Submitted(job=job)).add_done_callback(
                lambda done: self._loop.call_soon_threadsafe(self._submitted, gang, done)
            )

    def _submitted(self, gang: _Gang, done: Future[int]) -> None:
        """The answer to a submission. What is refused waits here, and is tried again: its queue may yet be made."""
        why = done.exception()
        if why is None or self._gangs.pop(gang.id, None) is None:
            return
        self._say(gang.pods, f"{why}")
        self._failures[gang.unit] = self._failures.get(gang.unit, 0) + 1
        self._give_back(gang, [pod for pod in gang.pods if self._gang_of.get(pod.metadata.uid) is gang])

    def _under_way(self, unit: Unit) -> int:
        gangs = [gang for gang in self._gangs.values() if gang.unit == unit] if unit.is_group else []
        bound = self._bound.get(unit, set())
        return sum(pod.metadata.uid not in bound for gang in gangs for pod in gang.pods)

    def explain(self, id: str, message: str) -> None:
        """Why a gang waits, for those who look at its pods."""
        if (gang := self._gangs.get(id)) is not None and not gang.generation:
            self._say(gang.pods, message)

    def _say(self, pods: Iterable[Pod], message: str) -> None:
        for pod in pods:
            unit = unit_of(pod)
            failed = self._unbound.get(unit)
            bound = f"{len(self._bound.get(unit, ()))} of its pods are bound and stay; " if failed else ""
            self._explain(pod.metadata.key, f"{bound}the rest could not be: {failed}; {message}" if bound else message)

    # -- what the core decides ----------------------------------------------------------------------------------------

    def start(self, start: Start) -> None:
        """Bind a gang where it was decided that it goes."""
        if (gang := self._gangs.get(start.gang)) is None:
            return
        gang.generation, gang.is_placing = start.generation, True
        task = self._loop.create_task(self._place(gang, start))
        self._keep(task)

    def stop(self, stop: Stop) -> None:
        """A gang has to go. Its pods are deleted, as by kube-scheduler's preemption; not because one of them failed,
        which is for their owner to answer."""
        gang = self._gangs.get(stop.gang)
        if gang is not None and gang.generation == stop.generation:
            gang.stopping = stop
            if not gang.is_placing:
                self._end(gang, stop)

    def forget(self, id: str) -> None:
        """A gang has ended: what of it was never bound waits again."""
        if (gang := self._gangs.pop(id, None)) is not None:
            self._give_back(gang, [pod for pod in gang.pods if self._gang_of.get(pod.metadata.uid) is gang])

    def _end(self, gang: _Gang, stop: Stop) -> None:
        if stop.cause in FAILURES or gang.is_broken:
            return
        uids = {uid for there in gang.left.values() for uid in there}
        pods = [pod for pod in gang.pods if pod.metadata.uid in uids]
        self._keep(self._loop.create_task(self._delete(pods)))

    async def _delete(self, pods: list[Pod]) -> None:
        found = [self._pods[pod.metadata.key] for pod in pods if pod.metadata.key in self._pods]
        await self._binder.delete(found)

    # -- binding ------------------------------------------------------------------------------------------------------

    async def _place(self, gang: _Gang, start: Start) -> None:
        places = _places(start)
        gang.nodes = {pod.metadata.uid: places[at][0] for at, pod in enumerate(gang.pods)}
        self._adopted.update(gang.nodes)
        at, why = await self._binder.bind(gang.pods, places, lambda: gang.stopping is None and not gang.is_broken)
        for index in at:
            uid = gang.pods[index].metadata.uid
            gang.left.setdefault(gang.nodes[uid], set()).add(uid)
            self._bound.setdefault(gang.unit, set()).add(uid)
        missing = [pod for index, pod in enumerate(gang.pods) if index not in at]
        gang.is_placing = False
        if missing:
            self._placed_in_part(gang, start, missing, why)
        else:
            self._failures.pop(gang.unit, None)
            self._unbound.pop(gang.unit, None)
            self._tell(Started(gang=gang.id, generation=gang.generation, nodes=start.nodes))
        meanwhile, gang.meanwhile = gang.meanwhile, []
        for pod in meanwhile:
            self._ended(gang, pod)
        if gang.stopping is not None:
            self._end(gang, gang.stopping)

    def _placed_in_part(self, gang: _Gang, start: Start, missing: list[Pod], why: str) -> None:
        """What is bound is its owner's, and may run by now: it stays, and holds its nodes. The rest waits again."""
        first = gang.nodes[missing[0].metadata.uid]
        _log.warning("%s: %d of %d pods could not be bound: %s", gang.id, len(missing), len(gang.pods), why)
        if gang.stopping is None and not gang.is_broken:
            self._tell(_failure(gang, first, why))
        for node in start.nodes:
            if not gang.left.get(node):
                self._tell(Cleared(gang=gang.id, generation=gang.generation, nodes=(node,)))
        self._adopted.difference_update(pod.metadata.uid for pod in missing)
        self._unbound[gang.unit] = why
        self._failures[gang.unit] = self._failures.get(gang.unit, 0) + 1
        gang.pods = [pod for pod in gang.pods if pod not in missing]
        self._give_back(gang, missing)

    def _give_back(self, gang: _Gang, pods: list[Pod]) -> None:
        """These are of no gang any more. Those that are there, and not bound, wait."""
        for pod in pods:
            del self._gang_of[pod.metadata.uid]
            now = self._pods.get(pod.metadata.key)
            if now is not None and now.metadata.uid == pod.metadata.uid and waits(now):
                self._waiting.setdefault(gang.unit, {})[now.metadata.uid] = now
        if gang.unit in self._waiting and gang.unit not in self._soon:
            failures = self._failures.get(gang.unit, 0)
            self._soon.add(gang.unit)
            after_s = pause_s(failures, FIRST_PAUSE_S, MOST_PAUSE_S) if failures else 0.0
            self._loop.call_later(after_s, self._consider, gang.unit)

    def _ended(self, gang: _Gang, pod: Pod) -> None:
        """A pod of a gang is over, or gone."""
        uid = pod.metadata.uid
        if gang.is_placing:
            gang.meanwhile.append(pod)
            return
        node = gang.nodes.get(uid, "")
        there = gang.left.get(node, set())
        if not gang.generation and not gang.is_broken:
            gang.is_broken = True  # it is not what was submitted: the others wait anew
            self._tell(StopRequested(gang=gang.id))
        elif uid in there:
            there.discard(uid)
            self._adopted.discard(uid)
            if pod.status.phase == "Failed":
                gang.failed[node] = f"the pod {pod.metadata.name} failed: {pod.status.message or pod.status.reason}"
            if not there:
                self._clear(gang, node)

    def _clear(self, gang: _Gang, node: str) -> None:
        """All its pods on a node have ended."""
        if (why := gang.failed.get(node)) is not None:
            self._tell(_failure(gang, node, why.rstrip(": ")))
        elif gang.stopping is None:
            self._tell(Finished(gang=gang.id, generation=gang.generation, nodes=(node,)))
        self._tell(Cleared(gang=gang.id, generation=gang.generation, nodes=(node,)))
        self._tidy(gang.unit)

    # -- its own ------------------------------------------------------------------------------------------------------

    def _tidy(self, unit: Unit) -> None:
        for kept in (self._waiting, self._bound):
            if unit in kept and not kept[unit]:
                del kept[unit]
        if unit not in self._waiting and unit not in self._bound:
            self._unbound.pop(unit, None)

    def _tell(self, event: Event) -> None:
        if self._report is not None:
            self._report(event)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._work.add(task)
        task.add_done_callback(self._over_with)

    def _over_with(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, NotLeadingError):
            _log.error("the pods of others: what was begun broke off", exc_info=error)


def is_gang_of_others(id: str) -> bool:
    """Whether a gang is pods that somebody else made, by its id."""
    return MARK in id


def _places(start: Start) -> dict[int, tuple[str, tuple[int, ...]]]:
    """The node of each rank, and its slots there: of a share all ranks ask for as many."""
    found = {}
    for share in start.shares:
        each = len(share.devices) // max(1, len(share.ranks))
        for at, rank in enumerate(share.ranks):
            found[rank] = share.node, tuple(share.devices[at * each : (at + 1) * each])
    return found


def _failure(gang: _Gang, node: str, why: str) -> Failed:
    cause = Cause.START_FAILED if not gang.left else Cause.LAUNCHER_LOST
    return Failed(gang=gang.id, generation=gang.generation, node=node, cause=cause, detail=why)
