"""Foreign pods that ganger places: bare ones, those of batch Jobs, and those of upstream PodGroups.

A single pod is a gang of one; the pods of a group are one gang as soon as `minCount` of them exist without gates. They
have no GangJob and no launcher: they are bound as they are, and end when their pods do. Their only persistent state is
the pods, from which a restarted controller recovers the bound ones (`find_bound_gangs`;
docs/explanation/decisions/kubernetes.md, "Foreign pods as gangs")."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final

from ganger.backends.kubernetes.binding import Binder, is_over
from ganger.backends.kubernetes.foreign.adopted_pods import AdoptedGang
from ganger.backends.kubernetes.foreign.background_tasks import BackgroundTasks
from ganger.backends.kubernetes.foreign.foreign_gang import (
    FOREIGN_MARK,
    REQUEUED,
    ForeignGang,
    assignments_by_rank,
    end_events,
    failure,
    is_bound_at,
    running_gang,
)
from ganger.backends.kubernetes.foreign.foreign_job import (
    POD_GROUP,
    ClusterLookup,
    SchedulingUnit,
    UnsupportedPodError,
    asks_of,
    build_job,
    is_bindable,
    is_foreign,
    unit_of,
)
from ganger.backends.kubernetes.foreign.gang_owners import GangOwners, OwnerView
from ganger.backends.kubernetes.foreign.partial_bindings import PartialBindings, rejection_of
from ganger.backends.kubernetes.foreign.pending_units import FormedGang, PendingUnits
from ganger.backends.kubernetes.foreign.places.replacements import Replacements
from ganger.backends.kubernetes.foreign.pod_groups import PodGroup
from ganger.backends.kubernetes.foreign.suspensions import Suspensions
from ganger.backends.kubernetes.nodes.node_inventory import NodeInventory
from ganger.backends.kubernetes.nodes.node_room import is_late
from ganger.kubeapi.objects import Key, Pod
from ganger.model.decision import FAILURES, Cause, Start, Stop
from ganger.model.event import Cleared, Event, Failed, Started, StopRequested, Submitted
from ganger.ports import Report

_log = logging.getLogger(__name__)

REPLACE_S: Final = 30.0
"""Time for which the node of a killed pod is kept for the one that its owner creates instead."""
LEAVING_S: Final = 30.0
"""Time for which kubelets may go on to count pods of gangs that are over: as long as a pod is given to end."""
EXPECT_S: Final = 120.0
"""Time for which nodes are kept for pods that the first one of a gang creates when it runs."""


class ForeignPods:
    """The gangs of foreign pods.

    Args:
        binder: binds and deletes pods.
        pods: live view of the pods.
        owners: reads, suspends and resumes the owners of the pods.
        inventory: the nodes; it gets the pods that are placed here.
        explain: called with a pod and why it waits.
        leaving: returns the pods of gangs that are over on some nodes, which kubelets still count there.
    """

    def __init__(
        self,
        binder: Binder,
        pods: Mapping[Key, Pod],
        owners: GangOwners,
        inventory: NodeInventory,
        explain: Callable[[Key, str], None],
        leaving: Callable[[Collection[str]], set[Key]],
    ) -> None:
        self._binder, self._pods, self._owners, self._explain = binder, pods, owners, explain
        self._leaving, self._pod_over = leaving, asyncio.Event()
        self._stuck = set[Key]()
        """Pods that have been waited for in vain."""
        self._inventory = inventory
        self.lookup = ClusterLookup(inventory.level_of, binder.claims.request)
        self._loop = asyncio.get_running_loop()
        self._tasks, self._ids = BackgroundTasks(), itertools.count(1)
        self._run = self._tasks.run
        self._report: Report | None = None
        self._gangs: dict[str, ForeignGang] = {}
        self._gang_of: dict[str, ForeignGang] = {}
        self._suspensions = Suspensions(owners, self._report_events, self._run, self._delete)
        self._units = PendingUnits(owners, self._explain_all, self._claim, self._form)
        self._replacements = Replacements(inventory, self._gang_of)
        self._partial = PartialBindings(owners, binder)

    def adopt(self, gangs: Iterable[AdoptedGang]) -> None:
        """Add gangs that run already. Called before `open`."""
        for adopted in gangs:
            gang = self._gangs[adopted.job.id] = running_gang(adopted)
            self._gang_of |= dict.fromkeys(gang.nodes, gang)
            self._partial.note_adopted(gang, adopted.began_ms)

    def new_id(self, unit: SchedulingUnit) -> str:
        """Return a new gang id."""
        return f"{unit.name}{FOREIGN_MARK}{next(self._ids)}.{unit.key.namespace}"

    def open(self, report: Report) -> None:
        """Start with the existing pods. Gangs that run already are reported as started."""
        self._report, self._units.is_open = report, True
        for gang in list(self._gangs.values()):
            self._report_events(Started(gang=gang.id, generation=gang.generation, nodes=tuple(gang.left)))
        for pod in list(self._pods.values()):
            self.pod_changed(None, pod)
        self._run(self._suspensions.resume_others())
        self._run(self._undo_halves())

    def close(self) -> None:
        """Stop; pods stay as they are."""
        self._report = None
        self._units.close()
        self._suspensions.close()
        self._tasks.close()

    # -- changes in the cluster ----------------------------------------------------------------------------------------

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """Handle a pod that was added, changed or deleted."""
        pod, ended = after or before, after is None or is_over(after)
        if ended:
            self._pod_over.set()
        if pod is None or self._report is None or not is_foreign(pod):
            return
        unit = unit_of(pod)
        self._units.note(unit, pod, exists=not ended)
        if (gang := self._gang_of.get(pod.metadata.uid)) is not None:
            if ended or (pod.spec.node_name and gang.is_waiting):  # a previous leader may have bound it
                self._pod_ended(gang, pod)
        elif after is not None and is_bindable(after):
            self._units.add(unit, after)
            self._units.consider(unit)
        else:
            self._units.remove(unit, pod)
        self._tidy(unit)

    def group_changed(self, before: PodGroup | None, after: PodGroup | None) -> None:
        """Handle a PodGroup that was added, or whose minimum changed."""
        if after is not None and self._report is not None:
            self._units.consider(SchedulingUnit(POD_GROUP, after.metadata.key))

    def reconsider_all(self) -> None:
        """Reconsider all pending units after a change of the topology levels, or of devices."""
        self._units.reconsider_all()

    def _form(self, unit: SchedulingUnit, view: OwnerView, formed: FormedGang) -> bool:
        """Submit a gang, or give its pods to the suspended one that it was; return whether it takes them."""
        new = view.needs.expected.created_by(formed.pods[0]) if formed.is_base and view.needs.expected else ()
        pods, expected = (*formed.pods, *new), frozenset(pod.metadata.uid for pod in new)
        if formed.is_base and (suspended := self._suspensions.gang_of(view.target)) is not None:
            if not suspended.is_clear:
                return False  # what is left of it is being deleted
            if (ranks := suspended.in_rank_order(pods)) is not None:
                suspended.expected = expected
                self._give_pods(suspended, unit, ranks)
                return True
            self._suspensions.drop(suspended)  # its owner has changed
        id = self.new_id(unit)  # noqa: A001
        try:
            job, ordered = build_job(id, unit.name, pods, view.needs, self.lookup)
        except UnsupportedPodError as error:
            self._explain_all(formed.pods, str(error))
            return False
        shape = tuple(map(asks_of, ordered))
        gang = self._gangs[id] = ForeignGang(id, unit, ordered, shape, expected, is_base=formed.is_base)
        gang.queue = view.needs.queue
        self._gang_of |= {pod.metadata.uid: gang for pod in ordered}
        if self._report is not None:
            self._report(Submitted(job=job)).add_done_callback(
                lambda done: self._loop.call_soon_threadsafe(self._submitted, gang, done)
            )
        return True

    def _claim(self, unit: SchedulingUnit, pods: Sequence[Pod]) -> Sequence[Pod]:
        """Bind pods in the places that their gang keeps, of ended or expected pods; return the others."""
        for gang in self._gangs_of(unit):
            placed, pods = self._replacements.place(gang, pods)
            for pod in placed:
                self._units.remove(unit, pod)
            if placed:
                self._bind_in_background(gang, placed)
        return pods

    def _offer(self, gang: ForeignGang) -> None:
        """Withdraw the gangs that wait with a pod that could replace an ended one of this gang."""
        for other in self._gangs_of(gang.unit):
            if other.is_withdrawable and any(gang.replaceable(pod) for pod in other.pods):
                self._withdraw(other)  # its pods wait again when it has ended

    def _withdraw(self, gang: ForeignGang) -> None:
        """End a gang that is not what was submitted any more."""
        gang.is_broken = True
        self._pod_over.set()
        self._report_events(StopRequested(gang=gang.id))

    def _gangs_of(self, unit: SchedulingUnit) -> list[ForeignGang]:
        of_unit = (self._gang_of.get(member) for member in self._units.members(unit))
        return list({gang.id: gang for gang in of_unit if gang is not None}.values())

    def _submitted(self, gang: ForeignGang, done: Future[int]) -> None:
        """Handle the result of a submission. Rejected pods wait and are retried: their queue may be created later."""
        error = done.exception()
        if error is None or self._gangs.pop(gang.id, None) is None:
            return
        self._explain_all(gang.pods, f"{error}")
        self._partial.note_rejection(gang.unit)
        self._release(gang, [pod for pod in gang.pods if self._gang_of.get(pod.metadata.uid) is gang])

    def explain(self, id: str, message: str) -> None:
        """Show why a gang waits on its pods; of a suspended one, once they exist."""
        if (gang := self._gangs.get(id)) is not None and gang.is_waiting:
            gang.message = message
            self._explain_all(gang.pods, message)

    def _explain_all(self, pods: Iterable[Pod], message: str) -> None:
        for pod in (pod for pod in pods if pod.metadata.key in self._pods):
            unit = unit_of(pod)
            self._explain(pod.metadata.key, self._partial.explain(unit, self._units.count_bound(unit), message))

    # -- decisions of the core -----------------------------------------------------------------------------------------

    def start(self, start: Start) -> None:
        """Bind a gang to its nodes."""
        if (gang := self._gangs.get(start.gang)) is None:
            return
        if not gang.is_waiting:  # decided before the loss of a node was known
            self._report_events(Cleared(gang=gang.id, generation=start.generation, nodes=start.nodes))
            return
        gang.generation, gang.is_waiting = start.generation, False
        if gang.target is None:
            self._place(gang, start)
        else:
            self._suspensions.resume(gang, gang.target, start)

    def stop(self, stop: Stop) -> None:
        """Stop a gang: suspend its owner, or delete its pods, except after a failure, which their owner handles."""
        gang = self._gangs.get(stop.gang)
        if gang is not None and gang.generation == stop.generation:
            gang.stopping = stop
            self._pod_over.set()  # it may wait to be bound
            if not gang.is_placing:
                self._end(gang, stop)
            self._clear_vacant(gang, stop.generation)

    def forget(self, id: str) -> None:
        """Forget a gang that has ended: its unbound pods wait again."""
        if (gang := self._gangs.pop(id, None)) is not None:
            self._suspensions.forget(gang)
            self._partial.end(gang)
            self._release(gang, [pod for pod in gang.pods if self._gang_of.get(pod.metadata.uid) is gang])

    def _end(self, gang: ForeignGang, stop: Stop) -> None:
        if self._suspensions.is_resumed(gang):
            self._suspensions.end_resumed(gang, may_wait=stop.cause in REQUEUED)
        elif stop.cause not in FAILURES and not gang.is_broken:
            self._run(self._preempt(gang, stop))

    async def _preempt(self, gang: ForeignGang, stop: Stop) -> None:
        """Suspend the owner of a gang, or delete its bound pods."""
        if stop.cause in REQUEUED and await self._suspensions.suspend(gang):
            return
        await self._delete(gang.bound_pods)
        if stop.cause in REQUEUED and self._gangs.get(gang.id) is gang:
            self._report_events(StopRequested(gang=gang.id))  # what its owner creates instead is another gang

    def _give_pods(self, gang: ForeignGang, unit: SchedulingUnit, ranks: list[Pod]) -> None:
        """Give a suspended gang the pods that its owner has created, for the nodes that it has, or will have."""
        start = self._suspensions.forget(gang)
        gang.unit, gang.pods = unit, ranks
        self._gang_of |= {pod.metadata.uid: gang for pod in ranks}
        if start is not None:
            self._place(gang, start)
        else:
            self._explain_all(ranks, gang.message)

    async def _delete(self, pods: list[Pod]) -> None:
        await self._binder.delete([self._pods[pod.metadata.key] for pod in pods if pod.metadata.key in self._pods])

    # -- binding -------------------------------------------------------------------------------------------------------

    def _place(self, gang: ForeignGang, start: Start) -> None:
        assignments = assignments_by_rank(start)
        for rank, pod in enumerate(gang.pods):
            gang.nodes[pod.metadata.uid], gang.slots[pod.metadata.uid] = assignments[rank]
        self._inventory.adopt(filter(None, map(self._bindable, gang.pods)))
        self._partial.begin(gang)
        self._bind_in_background(gang, gang.existing)
        if gang.expected:
            self._loop.call_later(EXPECT_S, self._clear_vacant, gang, gang.generation)

    def _bind_in_background(self, gang: ForeignGang, pods: list[Pod]) -> None:
        gang.is_placing = True
        self._run(self._bind(gang, pods))

    async def _bind(self, gang: ForeignGang, pods: list[Pod]) -> None:
        """Bind pods to their nodes, then handle the events that arrived meanwhile."""
        uids = enumerate(pod.metadata.uid for pod in pods)
        assignments = {index: (gang.nodes[uid], gang.slots[uid]) for index, uid in uids}
        noted = {index: gang.notes | self._inventory.notes(pods[index], *at) for index, at in assignments.items()}
        timeout_s = self._partial.timeout_s(gang)
        await self._wait_for_kubelets({node for node, _ in assignments.values()}, gang)
        bound, error = await self._binder.bind(pods, assignments, noted, lambda: gang.is_wanted, timeout_s)
        for index in bound:
            gang.note_bound(pods[index].metadata.uid)
        gang.missing = [pod for index, pod in enumerate(pods) if index not in bound]
        if gang.missing:
            await self._handle_partial_binding(gang, error)
        else:
            gang.keep_places()
            self._partial.note_success(gang)
            if not gang.has_failed:
                self._report_events(Started(gang=gang.id, generation=gang.generation, nodes=tuple(gang.left)))
        gang.is_placing = False
        deferred, gang.deferred = gang.deferred, []
        for handle in deferred:
            handle()
        if gang.stopping is not None:
            self._end(gang, gang.stopping)
        self._offer(gang)
        self._units.consider(gang.unit)

    async def _wait_for_kubelets(self, nodes: Collection[str], gang: ForeignGang) -> None:
        """Wait until kubelets count no pod of a gang that is over there, for a while at most.

        A launcher reports that nothing is left of its ranks some time before its own pod is over. A kubelet rejects
        what does not fit beside that pod, and nobody creates a bare pod again.
        """
        try:
            async with asyncio.timeout(LEAVING_S):
                while gang.is_wanted and (left := self._leaving(nodes) - self._stuck):
                    _log.debug("%s: bound once kubelets count no more of %s", gang.id, ", ".join(map(str, left)))
                    self._pod_over.clear()
                    await self._pod_over.wait()
        except TimeoutError:
            stuck = self._leaving(nodes)
            _log.warning("%s is bound beside pods that do not end: %s", gang.id, ", ".join(map(str, sorted(stuck))))
            self._stuck = {key for key in self._stuck if key in self._pods} | stuck

    async def _handle_partial_binding(self, gang: ForeignGang, error: str) -> None:
        """Retry a partial binding, or undo it.

        Where no controller creates deleted pods again, and where a gang runs, bound pods stay on their nodes. Missing
        pods on these nodes are retried there, where their slots stay allocated. The others wait again.
        """
        self._partial.note_failure(gang, error)
        after_s: float | None = self._partial.backoff_s(gang.unit)
        rest = [pod for pod in gang.missing if gang.nodes[pod.metadata.uid] not in gang.left]
        if gang.is_wanted and await self._partial.is_undoable(gang):
            is_whole = all(self._bindable(pod) or self._is_bound(gang, pod) for pod in gang.missing)
            if not is_whole or (after_s := self._partial.retry_after_s(gang)) is None:
                await self._undo(gang, error)
                return
        elif rest:
            gang.missing = [pod for pod in gang.missing if pod not in rest]
            self._release_nodes(gang, rest, error)
            self._explain_all(rest, "binding is tried again")
        if gang.missing and gang.is_wanted and after_s is not None:
            self._explain_all(gang.missing, "binding is retried on the same node, where its slots stay allocated")
            self._loop.call_later(after_s, self._try_missing, gang)

    async def _undo_halves(self) -> None:
        """Give up the gangs that an earlier controller bound in part, and whose other pods are not bound soon."""
        async for gang in self._partial.find_halves(self._gangs_of):
            self._report_events(StopRequested(gang=gang.id))

    async def _undo(self, gang: ForeignGang, error: str) -> None:
        """Give up a gang that is bound in part: its owner creates the deleted pods again, and they are another gang."""
        node = gang.nodes[gang.missing[0].metadata.uid]
        gang.missing, gang.is_broken, gang.has_failed = [], True, True
        cause = Cause.START_FAILED
        self._report_events(Failed(gang=gang.id, generation=gang.generation, node=node, cause=cause, detail=error))
        unbound = await self._partial.undo(gang)
        cleared = gang.unbound_nodes()
        self._explain_all(unbound, "they are tried again, on the nodes that are best then")
        self._release(gang, [pod for pod in unbound if self._gang_of.get(pod.metadata.uid) is gang])
        self._report_events(*cleared)

    def _release_nodes(self, gang: ForeignGang, rest: list[Pod], error: str) -> None:
        """Release nodes without a bound pod. One of `rest` may be bound elsewhere, by a previous leader."""
        events: list[Event] = []
        if gang.stopping is None and not gang.is_broken:
            gang.has_failed = True
            events.append(failure(gang, gang.nodes[rest[0].metadata.uid], error))
        events += gang.unbound_nodes()
        self._explain_all(rest, "they are tried again, on the nodes that are best then")
        self._release(gang, rest)
        self._report_events(*events)

    def _try_missing(self, gang: ForeignGang) -> None:
        if self._report is None or gang.is_placing or self._gangs.get(gang.id) is not gang or not gang.is_wanted:
            return
        missing, gang.missing = gang.missing, []
        for pod in missing:
            if self._is_bound(gang, pod):
                gang.note_bound(pod.metadata.uid)  # by a request without a response
            elif self._bindable(pod) is not None or self._partial.timeout_s(gang) is not None:
                gang.missing.append(pod)
            else:
                self._release(gang, [pod])
        self._bind_in_background(gang, gang.missing)

    def _is_bound(self, gang: ForeignGang, pod: Pod) -> bool:
        """Return whether a pod is bound as planned, by the cache."""
        current, uid = self._pods.get(pod.metadata.key), pod.metadata.uid
        is_same = current is not None and current.metadata.uid == uid
        return is_same and current is not None and is_bound_at(current, gang.nodes[uid], gang.slots[uid])

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

    def _lose(self, gang: ForeignGang, node: str) -> None:
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
            self._withdraw(gang)  # these pods are not recreated: the gang does not wait for other nodes

    def _release_on_node(self, gang: ForeignGang, node: str) -> None:
        on_node = [pod for pod in gang.pods if gang.nodes.get(pod.metadata.uid) == node]
        gang.missing = [pod for pod in gang.missing if pod not in on_node]
        self._release(gang, [pod for pod in on_node if self._gang_of.get(pod.metadata.uid) is gang])

    def _release(self, gang: ForeignGang, pods: list[Pod]) -> None:
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
                self._units.add(gang.unit, pending)
        self._units.consider(gang.unit, self._partial.backoff_s(gang.unit))

    def _pod_ended(self, gang: ForeignGang, pod: Pod) -> None:
        """Handle the end of a pod of a gang."""
        uid = pod.metadata.uid
        if gang.is_placing:
            gang.deferred.append(lambda: self._pod_ended(gang, pod))
            return
        node = gang.nodes.get(uid, "")
        is_bound = uid in gang.left.get(node, ())
        if gang.is_waiting and not gang.is_broken:
            self._withdraw(gang)  # the other pods wait again
        elif is_bound and not gang.is_broken and is_late(pod, self._inventory.cluster(), self._pods.values()):
            self._run(self._undo_rejected(gang, pod))
        elif is_bound:
            self._bound_pod_ended(gang, pod, node)

    async def _undo_rejected(self, gang: ForeignGang, pod: Pod) -> None:
        """Give up a gang of which a node rejected a pod, since another scheduler was faster: the rest does nothing."""
        if await self._partial.is_rejection_undoable(gang, pod):
            for other in filter(lambda other: other.is_withdrawable, self._gangs_of(gang.unit)):
                self._withdraw(other)
            await self._undo(gang, rejection_of(pod))
        else:
            self._bound_pod_ended(gang, pod, gang.nodes[pod.metadata.uid])

    def _bound_pod_ended(self, gang: ForeignGang, pod: Pod, node: str) -> None:
        bound_here = gang.left.get(node, set())
        bound_here.discard(pod.metadata.uid)
        if pod.status.phase == "Failed":
            gang.failed[node] = f"the pod {pod.metadata.name} failed: {pod.status.message or pod.status.reason}"
        self._offer(gang)
        if not bound_here and gang.may_replace(pod):
            self._loop.call_later(REPLACE_S, self._clear_vacant, gang, gang.generation)
        elif not bound_here:
            self._clear(gang, node)
            if not any(gang.left.values()):
                self._clear_vacant(gang, gang.generation)

    def _clear_vacant(self, gang: ForeignGang, generation: int) -> None:
        """Clear the nodes on which all pods of an attempt have ended and were not replaced, or do not exist yet."""
        if self._report is None or self._gangs.get(gang.id) is not gang or gang.generation != generation:
            return
        if gang.is_placing or (gang.missing and gang.is_wanted):
            self._loop.call_later(REPLACE_S, self._clear_vacant, gang, generation)
            return
        for node in [node for node, bound in gang.left.items() if not bound]:
            self._clear(gang, node)

    def _clear(self, gang: ForeignGang, node: str) -> None:
        """Report that all pods of a gang on a node have ended."""
        events = end_events(gang, node)
        gang.left.pop(node, None)
        self._release_on_node(gang, node)
        generation = gang.generation
        if gang.target is not None and not gang.left:
            gang.reset()
        self._report_events(*events, Cleared(gang=gang.id, generation=generation, nodes=(node,)))
        self._tidy(gang.unit)

    def _tidy(self, unit: SchedulingUnit) -> None:
        if unit not in self._units:
            self._partial.forget(unit)

    def _report_events(self, *events: Event) -> None:
        if self._report is not None and events:
            self._report(*events)
