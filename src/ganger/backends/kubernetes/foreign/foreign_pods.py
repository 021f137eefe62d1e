"""Foreign pods that ganger places: bare ones, those of batch Jobs, and those of upstream PodGroups.

A single pod is a gang of one; the pods of a group are one gang as soon as `minCount` of them exist without gates. They
have no GangJob and no launcher: they are bound as they are, and end when their pods do. Their only persistent state is
the pods, from which a restarted controller recovers the bound ones (`find_bound_gangs`;
docs/explanation/decisions/kubernetes.md, "Foreign pods as gangs")."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from ganger.backends.kubernetes.binding import Binder, NotLeadingError, is_over
from ganger.backends.kubernetes.foreign.adopted_pods import AdoptedGang
from ganger.backends.kubernetes.foreign.foreign_job import (
    SchedulingUnit,
    UnsupportedPodError,
    build_job,
    is_bindable,
    is_foreign,
    unit_of,
)
from ganger.backends.kubernetes.foreign.pod_groups import PodGroup
from ganger.backends.kubernetes.nodes.node_inventory import NodeInventory, slots_of
from ganger.kubeapi.backoff import backoff_s
from ganger.kubeapi.objects import Key, Pod
from ganger.model.decision import FAILURES, Cause, Start, Stop
from ganger.model.event import Cleared, Event, Failed, Finished, Started, StopRequested, Submitted
from ganger.ports import Report

FOREIGN_MARK: Final = "~"
"""Part of the id of every foreign gang, and of no job: names of objects cannot contain it."""
INITIAL_BACKOFF_S: Final = 0.5
MAX_BACKOFF_S: Final = 30.0
"""Backoff before pods that could not be bound form a gang again."""

_log = logging.getLogger(__name__)
Explain = Callable[[Key, str], None]


@dataclass(slots=True)
class _Gang:
    """A gang of foreign pods.

    Attributes:
        pods: in rank order.
        nodes: the node on which each pod is or is being bound, by UID.
        left: UIDs of the bound pods, by node.
        slots: the device slots of each pod, by UID.
        missing: pods that could not be bound, on nodes with others of the gang.
        failed: why a pod failed, by node.
        deferred: events that arrived while pods were being bound.
        has_failed: a failure was reported to the core.
        is_broken: the gang is not complete any more and ends.
    """

    id: str
    unit: SchedulingUnit
    pods: list[Pod]
    generation: int = 0
    nodes: dict[str, str] = field(default_factory=dict)
    left: dict[str, set[str]] = field(default_factory=dict)
    slots: dict[str, tuple[int, ...]] = field(default_factory=dict)
    missing: list[Pod] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    deferred: list[Callable[[], None]] = field(default_factory=list)
    has_failed: bool = False
    is_placing: bool = False
    is_broken: bool = False
    stopping: Stop | None = None

    @property
    def is_wanted(self) -> bool:
        """True while its pods are to be bound. Bound pods of a failed gang stay, so its missing pods are bound too."""
        stays = self.stopping is None or (self.stopping.cause in FAILURES and bool(self.left))
        return stays and not self.is_broken


class ForeignPods:
    """The gangs of foreign pods.

    Args:
        binder: binds and deletes pods.
        pods: live view of the pods.
        groups: live view of the PodGroups.
        inventory: the nodes; it gets the pods that are placed here.
        explain: called with a pod and why it waits.
    """

    def __init__(
        self,
        binder: Binder,
        pods: Mapping[Key, Pod],
        groups: Mapping[Key, PodGroup],
        inventory: NodeInventory,
        explain: Explain,
    ) -> None:
        self._binder, self._pods, self._groups, self._explain = binder, pods, groups, explain
        self._inventory = inventory
        self._loop = asyncio.get_running_loop()
        self._report: Report | None = None
        self._gangs: dict[str, _Gang] = {}
        self._gang_of: dict[str, _Gang] = {}
        self._pending: dict[SchedulingUnit, dict[str, Pod]] = {}
        self._bound: dict[SchedulingUnit, set[str]] = {}
        self._failures: dict[SchedulingUnit, int] = {}
        self._unbound: dict[SchedulingUnit, str] = {}
        """Causes for which the missing pods of a unit could not be bound in the last attempt."""
        self._scheduled: set[SchedulingUnit] = set()
        self._ids = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    def adopt(self, gangs: Iterable[AdoptedGang]) -> None:
        """Add gangs that run already. Called before `open`."""
        for adopted in gangs:
            gang = _Gang(adopted.job.id, adopted.unit, list(adopted.pods), generation=adopted.start.generation)
            gang.nodes = {pod.metadata.uid: pod.spec.node_name for pod in adopted.pods}
            for uid, node in gang.nodes.items():
                gang.left.setdefault(node, set()).add(uid)
                self._gang_of[uid] = gang
            self._gangs[gang.id] = gang

    def new_id(self, unit: SchedulingUnit) -> str:
        """Return a new gang id."""
        return f"{unit.key.name}{FOREIGN_MARK}{next(self._ids)}.{unit.key.namespace}"

    def open(self, report: Report) -> None:
        """Start with the existing pods. Gangs that run already are reported as started."""
        self._report = report
        for gang in list(self._gangs.values()):
            self._report_events(Started(gang=gang.id, generation=gang.generation, nodes=tuple(gang.left)))
        for pod in list(self._pods.values()):
            self.pod_changed(None, pod)

    def close(self) -> None:
        """Stop; pods stay as they are."""
        self._report = None
        for task in self._tasks:
            task.cancel()

    # -- changes in the cluster ----------------------------------------------------------------------------------------

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """Handle a pod that was added, changed or deleted."""
        pod = after or before
        if pod is None or self._report is None or not is_foreign(pod):
            return
        uid, unit = pod.metadata.uid, unit_of(pod)
        ended = after is None or is_over(after)
        if pod.spec.node_name and not ended:
            self._bound.setdefault(unit, set()).add(uid)
        elif uid in self._bound.get(unit, ()):
            self._bound[unit].discard(uid)
        if (gang := self._gang_of.get(uid)) is not None:
            if ended or (pod.spec.node_name and not gang.generation):  # a previous leader may have bound it
                self._pod_ended(gang, pod)
        elif after is not None and is_bindable(after):
            self._pending.setdefault(unit, {})[uid] = after
            self._consider_soon(unit)
        elif unit in self._pending:
            self._pending[unit].pop(uid, None)
            self._tidy(unit)

    def group_changed(self, before: PodGroup | None, after: PodGroup | None) -> None:
        """Handle a PodGroup that was added, or whose minimum changed."""
        if after is not None and self._report is not None:
            self._consider_soon(SchedulingUnit(is_group=True, key=after.metadata.key))

    def reconsider_all(self) -> None:
        """Reconsider all pending units after a change of the topology levels."""
        for unit in self._pending:
            self._consider_soon(unit)

    def _consider_soon(self, unit: SchedulingUnit) -> None:
        """Consider a unit once all changes of this moment have been handled."""
        if unit not in self._scheduled:
            self._scheduled.add(unit)
            self._loop.call_soon(self._consider, unit)

    def _consider(self, unit: SchedulingUnit) -> None:
        """Submit a gang of the pending pods if there are enough."""
        self._scheduled.discard(unit)
        pods = list(self._pending.get(unit, {}).values())
        if not pods or self._report is None:
            return
        group = self._groups.get(unit.key) if unit.is_group else None
        if unit.is_group and group is None:
            self._explain_all(pods, f"the PodGroup {unit.key.name} does not exist")
            return
        min_pods = group.min_pods if group is not None else 1
        count = len(pods) + len(self._bound.get(unit, ())) + self._count_unbound(unit)
        if count < min_pods:
            self._explain_all(
                pods, f"the PodGroup {unit.key.name} has {count} of at least {min_pods} pods, without gates"
            )
            return
        id = self.new_id(unit)  # noqa: A001
        try:
            job, ordered = build_job(id, unit.key.name, pods, group, self._inventory.level_of)
        except UnsupportedPodError as error:
            self._explain_all(pods, str(error))
            return
        del self._pending[unit]
        gang = self._gangs[id] = _Gang(id, unit, ordered)
        self._gang_of |= {pod.metadata.uid: gang for pod in ordered}
        if self._report is not None:
            self._report(Submitted(job=job)).add_done_callback(
                lambda done: self._loop.call_soon_threadsafe(self._submitted, gang, done)
            )

    def _submitted(self, gang: _Gang, done: Future[int]) -> None:
        """Handle the result of a submission. Rejected pods wait and are retried: their queue may be created later."""
        error = done.exception()
        if error is None or self._gangs.pop(gang.id, None) is None:
            return
        self._explain_all(gang.pods, f"{error}")
        self._failures[gang.unit] = self._failures.get(gang.unit, 0) + 1
        self._release(gang, [pod for pod in gang.pods if self._gang_of.get(pod.metadata.uid) is gang])

    def _count_unbound(self, unit: SchedulingUnit) -> int:
        gangs = [gang for gang in self._gangs.values() if gang.unit == unit] if unit.is_group else []
        bound = self._bound.get(unit, set())
        return sum(pod.metadata.uid not in bound for gang in gangs for pod in gang.pods)

    def explain(self, id: str, message: str) -> None:
        """Show why a gang waits on its pods."""
        if (gang := self._gangs.get(id)) is not None and not gang.generation:
            self._explain_all(gang.pods, message)

    def _explain_all(self, pods: Iterable[Pod], message: str) -> None:
        for pod in pods:
            unit = unit_of(pod)
            if (error := self._unbound.get(unit)) is not None:
                count = len(self._bound.get(unit, ()))
                message = f"{count} of its pods are bound and stay; the rest could not be: {error}; {message}"
            self._explain(pod.metadata.key, message)

    # -- decisions of the core -----------------------------------------------------------------------------------------

    def start(self, start: Start) -> None:
        """Bind a gang to its nodes."""
        if (gang := self._gangs.get(start.gang)) is None:
            return
        if gang.generation:  # decided before the loss of a node was known
            self._report_events(Cleared(gang=gang.id, generation=start.generation, nodes=start.nodes))
            return
        gang.generation = start.generation
        self._place(gang, start)

    def stop(self, stop: Stop) -> None:
        """Stop a gang.

        Its pods are deleted, as in kube-scheduler's preemption, except after a failure of one of them, which their
        owner handles.
        """
        gang = self._gangs.get(stop.gang)
        if gang is not None and gang.generation == stop.generation:
            gang.stopping = stop
            if not gang.is_placing:
                self._end(gang, stop)

    def forget(self, id: str) -> None:
        """Forget a gang that has ended: its unbound pods wait again."""
        if (gang := self._gangs.pop(id, None)) is not None:
            self._release(gang, [pod for pod in gang.pods if self._gang_of.get(pod.metadata.uid) is gang])

    def _end(self, gang: _Gang, stop: Stop) -> None:
        if stop.cause in FAILURES or gang.is_broken:
            return
        uids = {uid for bound in gang.left.values() for uid in bound}
        pods = [pod for pod in gang.pods if pod.metadata.uid in uids]
        self._track(self._loop.create_task(self._delete(pods)))

    async def _delete(self, pods: list[Pod]) -> None:
        await self._binder.delete([self._pods[pod.metadata.key] for pod in pods if pod.metadata.key in self._pods])

    # -- binding -------------------------------------------------------------------------------------------------------

    def _place(self, gang: _Gang, start: Start) -> None:
        assignments = _assignments_by_rank(start)
        for rank, pod in enumerate(gang.pods):
            gang.nodes[pod.metadata.uid], gang.slots[pod.metadata.uid] = assignments[rank]
        self._inventory.adopt(filter(None, map(self._bindable, gang.pods)))
        self._bind_in_background(gang, gang.pods)

    def _bind_in_background(self, gang: _Gang, pods: list[Pod]) -> None:
        gang.is_placing = True
        self._track(self._loop.create_task(self._bind(gang, pods)))

    async def _bind(self, gang: _Gang, pods: list[Pod]) -> None:
        """Bind pods to their nodes, then handle the events that arrived meanwhile."""
        assignments = {
            index: (gang.nodes[pod.metadata.uid], gang.slots[pod.metadata.uid]) for index, pod in enumerate(pods)
        }
        bound, error = await self._binder.bind(pods, assignments, lambda: gang.is_wanted)
        gang.is_placing = False
        for index in bound:
            self._note_bound(gang, pods[index].metadata.uid)
        gang.missing = [pod for index, pod in enumerate(pods) if index not in bound]
        if gang.missing:
            self._handle_partial_binding(gang, error)
        else:
            self._failures.pop(gang.unit, None)
            self._unbound.pop(gang.unit, None)
            if not gang.has_failed:
                self._report_events(Started(gang=gang.id, generation=gang.generation, nodes=tuple(gang.left)))
        deferred, gang.deferred = gang.deferred, []
        for handle in deferred:
            handle()
        if gang.stopping is not None:
            self._end(gang, gang.stopping)

    def _note_bound(self, gang: _Gang, uid: str) -> None:
        gang.left.setdefault(gang.nodes[uid], set()).add(uid)
        self._bound.setdefault(gang.unit, set()).add(uid)

    def _handle_partial_binding(self, gang: _Gang, error: str) -> None:
        """Handle a partial binding.

        Bound pods belong to their owner and may run by now: they stay on their nodes. Missing pods on these nodes are
        retried there, where their slots stay allocated. The others wait again.
        """
        _log.warning("%s: %d of %d pods could not be bound: %s", gang.id, len(gang.missing), len(gang.pods), error)
        self._unbound[gang.unit] = error
        self._failures[gang.unit] = self._failures.get(gang.unit, 0) + 1
        rest = [pod for pod in gang.missing if not gang.left.get(gang.nodes[pod.metadata.uid])]
        gang.missing = [pod for pod in gang.missing if pod not in rest]
        if rest:
            self._release_nodes(gang, rest, error)
        if gang.missing and gang.is_wanted:
            self._explain_all(gang.missing, "binding is retried on the same node, where its slots stay allocated")
            after_s = backoff_s(self._failures[gang.unit], INITIAL_BACKOFF_S, MAX_BACKOFF_S)
            self._loop.call_later(after_s, self._try_missing, gang)

    def _release_nodes(self, gang: _Gang, rest: list[Pod], error: str) -> None:
        """Release nodes without a bound pod. One of `rest` may be bound elsewhere, by a previous leader."""
        events: list[Event] = []
        if gang.stopping is None and not gang.is_broken:
            gang.has_failed = True
            events.append(_failure(gang, gang.nodes[rest[0].metadata.uid], error))
        nodes = dict.fromkeys(node for node in gang.nodes.values() if not gang.left.get(node))
        events += [Cleared(gang=gang.id, generation=gang.generation, nodes=(node,)) for node in nodes]
        self._release(gang, rest)
        self._report_events(*events)

    def _try_missing(self, gang: _Gang) -> None:
        if self._report is None or gang.is_placing or self._gangs.get(gang.id) is not gang or not gang.is_wanted:
            return
        missing, gang.missing = gang.missing, []
        for pod in missing:
            uid, current = pod.metadata.uid, self._pods.get(pod.metadata.key)
            if self._bindable(pod) is not None:
                gang.missing.append(pod)
            elif (
                current is not None
                and current.metadata.uid == uid
                and _is_bound_at(current, gang.nodes[uid], gang.slots[uid])
            ):
                self._note_bound(gang, uid)  # by a request without a response
            else:
                self._release(gang, [pod])
        self._bind_in_background(gang, gang.missing)

    def _bindable(self, pod: Pod) -> Pod | None:
        """Return the cached pod of that UID if it can still be bound, or None."""
        current = self._pods.get(pod.metadata.key)
        if current is None or current.metadata.uid != pod.metadata.uid or not is_bindable(current):
            return None
        return current

    def lose(self, node: str) -> None:
        """Handle the loss of a node, which the core has removed from all gangs.

        Pods that are still there count as foreign usage if the node returns; unbound ones wait again.
        """
        for gang in list(self._gangs.values()):
            self._lose(gang, node)

    def _lose(self, gang: _Gang, node: str) -> None:
        if gang.is_placing:
            gang.deferred.append(lambda: self._lose(gang, node))
            return
        if node not in gang.nodes.values():
            return
        gang.left.pop(node, None)
        self._release_on_node(gang, node)
        missing, gang.missing = gang.missing, []
        self._release(gang, missing)
        if not gang.is_broken:
            gang.is_broken = True  # these pods are not recreated: the gang does not wait for other nodes
            self._report_events(StopRequested(gang=gang.id))

    def _release_on_node(self, gang: _Gang, node: str) -> None:
        on_node = [pod for pod in gang.pods if gang.nodes.get(pod.metadata.uid) == node]
        gang.missing = [pod for pod in gang.missing if pod not in on_node]
        self._release(gang, [pod for pod in on_node if self._gang_of.get(pod.metadata.uid) is gang])

    def _release(self, gang: _Gang, pods: list[Pod]) -> None:
        """Remove pods from their gang. Those that exist unbound wait again."""
        current = [self._pods[pod.metadata.key] for pod in pods if pod.metadata.key in self._pods]
        by_uid = {pod.metadata.uid: pod for pod in current}
        uids = [pod.metadata.uid for pod in pods]
        self._inventory.abandon(by_uid[uid] for uid in uids if uid in by_uid)
        self._inventory.adopted.difference_update(uids)
        gang.pods = [pod for pod in gang.pods if pod.metadata.uid not in uids]
        for pod in pods:
            del self._gang_of[pod.metadata.uid]
            if (pending := self._bindable(pod)) is not None:
                self._pending.setdefault(gang.unit, {})[pending.metadata.uid] = pending
        if gang.unit in self._pending and gang.unit not in self._scheduled:
            failures = self._failures.get(gang.unit, 0)
            self._scheduled.add(gang.unit)
            after_s = backoff_s(failures, INITIAL_BACKOFF_S, MAX_BACKOFF_S) if failures else 0.0
            self._loop.call_later(after_s, self._consider, gang.unit)

    def _pod_ended(self, gang: _Gang, pod: Pod) -> None:
        """Handle the end of a pod of a gang."""
        uid = pod.metadata.uid
        if gang.is_placing:
            gang.deferred.append(lambda: self._pod_ended(gang, pod))
            return
        node = gang.nodes.get(uid, "")
        bound_here = gang.left.get(node, set())
        if not gang.generation and not gang.is_broken:
            gang.is_broken = True  # it is not what was submitted: the other pods wait again
            self._report_events(StopRequested(gang=gang.id))
        elif uid in bound_here:
            bound_here.discard(uid)
            if pod.status.phase == "Failed":
                gang.failed[node] = f"the pod {pod.metadata.name} failed: {pod.status.message or pod.status.reason}"
            if not bound_here:
                self._clear(gang, node)

    def _clear(self, gang: _Gang, node: str) -> None:
        """Report that all pods of a gang on a node have ended."""
        events: list[Event] = []
        if (error := gang.failed.get(node)) is not None:
            events.append(_failure(gang, node, error.rstrip(": ")))
        elif gang.stopping is None:
            events.append(Finished(gang=gang.id, generation=gang.generation, nodes=(node,)))
        gang.left.pop(node, None)
        self._release_on_node(gang, node)
        self._report_events(*events, Cleared(gang=gang.id, generation=gang.generation, nodes=(node,)))
        self._tidy(gang.unit)

    # -- internals -----------------------------------------------------------------------------------------------------

    def _tidy(self, unit: SchedulingUnit) -> None:
        for by_unit in (self._pending, self._bound):
            if unit in by_unit and not by_unit[unit]:
                del by_unit[unit]
        if unit not in self._pending and unit not in self._bound:
            self._unbound.pop(unit, None)

    def _report_events(self, event: Event, *more: Event) -> None:
        if self._report is not None:
            self._report(event, *more)

    def _track(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, NotLeadingError):
            _log.error("foreign pods: a task failed", exc_info=error)


def is_foreign_gang(id: str) -> bool:
    """Return whether an id is of a gang of foreign pods."""
    return FOREIGN_MARK in id


def _assignments_by_rank(start: Start) -> dict[int, tuple[str, tuple[int, ...]]]:
    """Return the node and slots of each rank; all ranks of a share have as many slots."""
    assignments = {}
    for share in start.shares:
        count = len(share.devices) // max(1, len(share.ranks))
        for index, rank in enumerate(share.ranks):
            assignments[rank] = share.node, tuple(share.devices[index * count : (index + 1) * count])
    return assignments


def _is_bound_at(pod: Pod, node: str, slots: tuple[int, ...]) -> bool:
    """Return whether a pod is bound as planned, and has not ended."""
    return pod.spec.node_name == node and slots_of(pod) == slots and not is_over(pod)


def _failure(gang: _Gang, node: str, detail: str) -> Failed:
    cause = Cause.START_FAILED if not gang.left else Cause.LAUNCHER_LOST
    return Failed(gang=gang.id, generation=gang.generation, node=node, cause=cause, detail=detail)
