"""Pods that somebody else made for ganger to place: bare ones, those of batch Jobs, and those of upstream PodGroups.

Fed by `backend` with changes of pods and PodGroups, on the event loop. A pod alone is a gang of one; those of a group
are one gang as soon as `minCount` of them are there without gates. No GangJob is made for them, and no launcher runs in
them: they are bound as they are, and end when their pods do. Nothing is kept but what pods say themselves, from which a
restarted controller knows those that are bound (`taken_over`; docs/explanation/decisions/kubernetes.md, "Foreign pods
as gangs")."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from ganger.backends.kubernetes.binding import Binder, NotLeadingError, is_over
from ganger.backends.kubernetes.foreign.adopted_pods import AdoptedGang
from ganger.backends.kubernetes.foreign.foreign_job import NotExpressible, Unit, is_of_others, job_of, unit_of, waits
from ganger.backends.kubernetes.foreign.pod_groups import PodGroup
from ganger.backends.kubernetes.nodes.node_inventory import Inventory, slots_of
from ganger.kubeapi.backoff import pause_s
from ganger.kubeapi.objects import Key, Pod
from ganger.model.decision import FAILURES, Cause, Start, Stop
from ganger.model.event import Cleared, Event, Failed, Finished, Started, StopRequested, Submitted
from ganger.ports import Report

MARK: Final = "~"
"""In the id of every gang of others, and of no job: objects cannot be called so."""
FIRST_PAUSE_S: Final = 0.5
MOST_PAUSE_S: Final = 30.0
"""Before what could not be bound is a gang again."""

_log = logging.getLogger(__name__)
Explain = Callable[[Key, str], None]


@dataclass(slots=True)
class _Gang:
    """pods: in rank order; nodes: where each is, or is being bound to, by UID; slots: which it gets there; left: which
    there are on each node; missing: which could not be bound, on nodes where others of it are; meanwhile: what came
    while some were being bound; has_failed: the core was told so."""

    id: str
    unit: Unit
    pods: list[Pod]
    generation: int = 0
    nodes: dict[str, str] = field(default_factory=dict)
    left: dict[str, set[str]] = field(default_factory=dict)
    slots: dict[str, tuple[int, ...]] = field(default_factory=dict)
    missing: list[Pod] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    meanwhile: list[Callable[[], None]] = field(default_factory=list)
    has_failed: bool = False
    is_placing: bool = False
    is_broken: bool = False
    stopping: Stop | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether its pods are to be bound. What is bound of one that failed stays, and so what is missing comes."""
        stays = self.stopping is None or (self.stopping.cause in FAILURES and bool(self.left))
        return stays and not self.is_broken


class ForeignPods:
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
        self._inventory = inventory
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

    def take_over(self, found: Iterable[AdoptedGang]) -> None:
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
            if ended or (pod.spec.node_name and not gang.generation):  # whoever led before us may have bound it
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
            job, ordered = job_of(name, unit.key.name, pods, group, self._inventory.level_of)
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
        if gang.generation:  # decided before it was known that it has lost a node, and is to stop
            self._tell(Cleared(gang=gang.id, generation=start.generation, nodes=start.nodes))
            return
        gang.generation = start.generation
        self._place(gang, start)

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

    def _place(self, gang: _Gang, start: Start) -> None:
        places = _places(start)
        for rank, pod in enumerate(gang.pods):
            gang.nodes[pod.metadata.uid], gang.slots[pod.metadata.uid] = places[rank]
        self._inventory.adopt(filter(None, map(self._waiting_now, gang.pods)))
        self._go_on(gang, gang.pods)

    def _go_on(self, gang: _Gang, pods: list[Pod]) -> None:
        gang.is_placing = True
        self._keep(self._loop.create_task(self._bind(gang, pods)))

    async def _bind(self, gang: _Gang, pods: list[Pod]) -> None:
        """Bind these to what was decided for them, and heed what came meanwhile."""
        places = {at: (gang.nodes[pod.metadata.uid], gang.slots[pod.metadata.uid]) for at, pod in enumerate(pods)}
        at, why = await self._binder.bind(pods, places, lambda: gang.is_wanted)
        gang.is_placing = False
        for index in at:
            self._is_bound(gang, pods[index].metadata.uid)
        gang.missing = [pod for index, pod in enumerate(pods) if index not in at]
        if gang.missing:
            self._placed_in_part(gang, why)
        else:
            self._failures.pop(gang.unit, None)
            self._unbound.pop(gang.unit, None)
            if not gang.has_failed:
                self._tell(Started(gang=gang.id, generation=gang.generation, nodes=tuple(gang.left)))
        meanwhile, gang.meanwhile = gang.meanwhile, []
        for each in meanwhile:
            each()
        if gang.stopping is not None:
            self._end(gang, gang.stopping)

    def _is_bound(self, gang: _Gang, uid: str) -> None:
        gang.left.setdefault(gang.nodes[uid], set()).add(uid)
        self._bound.setdefault(gang.unit, set()).add(uid)

    def _placed_in_part(self, gang: _Gang, why: str) -> None:
        """What is bound is its owner's, and may run by now: it stays, and holds its nodes. What is missing of these is
        tried again there: nobody else is given its slots. The rest waits anew."""
        _log.warning("%s: %d of %d pods could not be bound: %s", gang.id, len(gang.missing), len(gang.pods), why)
        self._unbound[gang.unit] = why
        self._failures[gang.unit] = self._failures.get(gang.unit, 0) + 1
        rest = [pod for pod in gang.missing if not gang.left.get(gang.nodes[pod.metadata.uid])]
        gang.missing = [pod for pod in gang.missing if pod not in rest]
        if rest:
            self._let_go(gang, rest, why)
        if gang.missing and gang.is_wanted:
            self._say(gang.missing, "tried again where its slots are kept")
            after_s = pause_s(self._failures[gang.unit], FIRST_PAUSE_S, MOST_PAUSE_S)
            self._loop.call_later(after_s, self._try_missing, gang)

    def _let_go(self, gang: _Gang, rest: list[Pod], why: str) -> None:
        """Of nodes where nothing of it is bound. One of `rest` may be bound elsewhere, by whoever led before us."""
        told: list[Event] = []
        if gang.stopping is None and not gang.is_broken:
            gang.has_failed = True
            told.append(_failure(gang, gang.nodes[rest[0].metadata.uid], why))
        nodes = dict.fromkeys(node for node in gang.nodes.values() if not gang.left.get(node))
        told += [Cleared(gang=gang.id, generation=gang.generation, nodes=(node,)) for node in nodes]
        self._give_back(gang, rest)
        self._tell(*told)

    def _try_missing(self, gang: _Gang) -> None:
        if self._report is None or gang.is_placing or self._gangs.get(gang.id) is not gang or not gang.is_wanted:
            return
        missing, gang.missing = gang.missing, []
        for pod in missing:
            uid, now = pod.metadata.uid, self._pods.get(pod.metadata.key)
            if self._waiting_now(pod) is not None:
                gang.missing.append(pod)
            elif now is not None and now.metadata.uid == uid and _is_at(now, gang.nodes[uid], gang.slots[uid]):
                self._is_bound(gang, uid)  # by a request that had no answer
            else:
                self._give_back(gang, [pod])
        self._go_on(gang, gang.missing)

    def _waiting_now(self, pod: Pod) -> Pod | None:
        """The pod as it is now, if it is there and may be bound."""
        now = self._pods.get(pod.metadata.key)
        return now if now is not None and now.metadata.uid == pod.metadata.uid and waits(now) else None

    def lose(self, node: str) -> None:
        """A node is gone, and the core has taken it from all gangs. What stands there all the same counts as use by
        others, should the node come back; what was to be bound there waits anew."""
        for gang in list(self._gangs.values()):
            self._lose(gang, node)

    def _lose(self, gang: _Gang, node: str) -> None:
        if gang.is_placing:
            gang.meanwhile.append(lambda: self._lose(gang, node))
            return
        if node not in gang.nodes.values():
            return
        gang.left.pop(node, None)
        self._give_back_on(gang, node)
        missing, gang.missing = gang.missing, []
        self._give_back(gang, missing)
        if not gang.is_broken:
            gang.is_broken = True  # nobody makes these pods again: it does not wait for other nodes
            self._tell(StopRequested(gang=gang.id))

    def _give_back_on(self, gang: _Gang, node: str) -> None:
        there = [pod for pod in gang.pods if gang.nodes.get(pod.metadata.uid) == node]
        gang.missing = [pod for pod in gang.missing if pod not in there]
        self._give_back(gang, [pod for pod in there if self._gang_of.get(pod.metadata.uid) is gang])

    def _give_back(self, gang: _Gang, pods: list[Pod]) -> None:
        """These are of no gang any more. Those that are there, and not bound, wait."""
        now = {pod.metadata.uid: pod for each in pods if (pod := self._pods.get(each.metadata.key)) is not None}
        uids = [pod.metadata.uid for pod in pods]
        self._inventory.abandon(now[uid] for uid in uids if uid in now)
        self._inventory.adopted.difference_update(uids)
        gang.pods = [pod for pod in gang.pods if pod.metadata.uid not in uids]
        for pod in pods:
            del self._gang_of[pod.metadata.uid]
            if (found := self._waiting_now(pod)) is not None:
                self._waiting.setdefault(gang.unit, {})[found.metadata.uid] = found
        if gang.unit in self._waiting and gang.unit not in self._soon:
            failures = self._failures.get(gang.unit, 0)
            self._soon.add(gang.unit)
            after_s = pause_s(failures, FIRST_PAUSE_S, MOST_PAUSE_S) if failures else 0.0
            self._loop.call_later(after_s, self._consider, gang.unit)

    def _ended(self, gang: _Gang, pod: Pod) -> None:
        """A pod of a gang is over, or gone."""
        uid = pod.metadata.uid
        if gang.is_placing:
            gang.meanwhile.append(lambda: self._ended(gang, pod))
            return
        node = gang.nodes.get(uid, "")
        there = gang.left.get(node, set())
        if not gang.generation and not gang.is_broken:
            gang.is_broken = True  # it is not what was submitted: the others wait anew
            self._tell(StopRequested(gang=gang.id))
        elif uid in there:
            there.discard(uid)
            if pod.status.phase == "Failed":
                gang.failed[node] = f"the pod {pod.metadata.name} failed: {pod.status.message or pod.status.reason}"
            if not there:
                self._clear(gang, node)

    def _clear(self, gang: _Gang, node: str) -> None:
        """All its pods on a node have ended."""
        told: list[Event] = []
        if (why := gang.failed.get(node)) is not None:
            told.append(_failure(gang, node, why.rstrip(": ")))
        elif gang.stopping is None:
            told.append(Finished(gang=gang.id, generation=gang.generation, nodes=(node,)))
        gang.left.pop(node, None)
        self._give_back_on(gang, node)
        self._tell(*told, Cleared(gang=gang.id, generation=gang.generation, nodes=(node,)))
        self._tidy(gang.unit)

    # -- its own ------------------------------------------------------------------------------------------------------

    def _tidy(self, unit: Unit) -> None:
        for kept in (self._waiting, self._bound):
            if unit in kept and not kept[unit]:
                del kept[unit]
        if unit not in self._waiting and unit not in self._bound:
            self._unbound.pop(unit, None)

    def _tell(self, event: Event, *beside: Event) -> None:
        if self._report is not None:
            self._report(event, *beside)

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


def _is_at(pod: Pod, node: str, slots: tuple[int, ...]) -> bool:
    """Whether it is where it was to be, and uses it."""
    return pod.spec.node_name == node and slots_of(pod) == slots and not is_over(pod)


def _failure(gang: _Gang, node: str, why: str) -> Failed:
    cause = Cause.START_FAILED if not gang.left else Cause.LAUNCHER_LOST
    return Failed(gang=gang.id, generation=gang.generation, node=node, cause=cause, detail=why)
