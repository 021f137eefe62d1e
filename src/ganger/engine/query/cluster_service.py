"""The part of the service about queues and nodes: see `engine.service`, which inherits these methods."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from ganger.core.explain.defrag_plan import defrag_plan
from ganger.core.explain.max_fit import SizeRequest, largest_sizes
from ganger.core.fold.fold import refusal
from ganger.core.preemption.consolidation import Consolidation
from ganger.core.queues.quota_figures import normalize_gpu_types
from ganger.engine.loop import Loop
from ganger.engine.query.cluster_overview import overview
from ganger.engine.query.listing_rows import node_rows, queue_rows
from ganger.engine.query.live_usage import LiveUsage
from ganger.engine.query.state_replica import TrialReplica
from ganger.engine.submit.quota_check import contradicts, invalid_figure, nearest
from ganger.errors import RequestError
from ganger.model.cluster import NodeState
from ganger.model.decision import Move
from ganger.model.event import (
    DefragRequested,
    MaintenanceCleared,
    MaintenanceSet,
    NodeCordoned,
    NodeDrained,
    NodePreempted,
    NodeUncordoned,
    QueueDeleted,
    QueueSet,
)
from ganger.model.job import Job, JobSpec, Origin
from ganger.model.job_sections.retry_spec import Limits
from ganger.model.node_health.health_event import NodeReturnRequested
from ganger.model.queue import DEFAULT, ROOT, Queue
from ganger.model.units import MINUTE_MS, SECOND_MS, format_duration
from ganger.model.views.overview import DefragPlan, Order, Overview, Sizes
from ganger.model.views.queue_views import QueueRow
from ganger.model.views.service_views import MaintenanceRow, NodeRow
from ganger.ports import Backend, NotSupported

CORDONED: Final = (NodeState.CORDONED, NodeState.LOST_CORDONED)
LOST: Final = (NodeState.LOST, NodeState.LOST_CORDONED)
JUST_NOW_MS: Final = MINUTE_MS
"""Tolerance for a start "now" that arrives late."""
NODE_CHANGE_TIMEOUT_S: Final = 5.0
"""Time for which a request waits for a node that was made to fail, or to return."""


class ClusterService:
    """The service's methods for queues and nodes. Safe from any thread."""

    _trial_replica: TrialReplica
    live_usage: LiveUsage
    _is_administrator = True

    def __init__(self, loop: Loop, backend: Backend, user: str) -> None:
        """Take a loop that is open, and its backend; `user` is the author of every change."""
        self._loop, self._backend, self._user = loop, backend, user

    def overview(self, order: Order = "policy") -> Overview:
        """Return the overview of the cluster and its queues, with pending jobs in that order."""
        with self._trial_replica.state() as (state, now_ms):
            result = overview(state, now_ms, self._loop.policy, order)
            return replace(result, queues=tuple(self.live_usage.with_idle_jobs(result.queues, state)))

    def sizes(self, queue: str, request: SizeRequest, time_ms: int | None = None, user: str | None = None) -> Sizes:
        """Return the largest gangs that would start now in a queue, for `user`, by default the server's.

        Raise RequestError (no_such_queue, no_such_gpu_type; 404).
        """
        self.queue(queue)
        self._check_gpu_type(request.gpu_type)
        spec = JobSpec(queue=queue, limits=Limits(time_ms=time_ms), run="true")
        job = Job(id=" ", user=user or self._user, spec=spec, origin=Origin(directory="/"))
        with self._trial_replica.state() as (state, now_ms):
            request = replace(request, is_administrator=self._is_administrator)
            return largest_sizes(state, job, request, now_ms, self._loop.policy)

    def defrag(self, level: str | None = None, budget_ms: int | None = None) -> DefragPlan:
        """Return the moves of running jobs after which a larger one fits, in one domain of a level (default: lowest).

        They waste no more GPU time than the budget. Raise RequestError (no_such_level).
        """
        return self._plan_defrag(level, budget_ms)[0]

    def apply_defrag(
        self, level: str | None = None, budget_ms: int | None = None, user: str | None = None
    ) -> DefragPlan:
        """Carry out the moves that `defrag` returns for `user`, by default the server's: all or none; return them.

        Raise RequestError (no_such_level; conflict: the cluster has changed meanwhile).
        """
        plan, found = self._plan_defrag(level, budget_ms)
        if found is None:
            return plan
        moves = tuple(
            Move(gang=move.gang.id, generation=move.gang.attempt.generation, shares=move.shares) for move in found.moves
        )
        event = DefragRequested(moves=moves, gang=found.goal.id, by=user or self._user)
        self._loop.ask(event)
        with self._loop.view() as state:
            moving = [name for move in moves if (name := move.gang) in state.gangs and state.gangs[name].attempt.target]
        if not moving:
            message = "nothing was moved: the cluster has changed meanwhile"
            raise RequestError("conflict", message, "see what is possible now: ganger defrag", 409)
        return plan

    def _plan_defrag(self, level: str | None, budget_ms: int | None) -> tuple[DefragPlan, Consolidation | None]:
        with self._trial_replica.state() as (state, now_ms):
            levels = state.nodes.topology.levels
            if level is not None and level not in levels:
                message = f"the network has no level {level}; levels here, outermost first: {', '.join(levels)}"
                raise RequestError("no_such_level", message, nearest(level, levels) or "ganger node")
            lowest = levels[-1] if levels else ""
            return defrag_plan(state, lowest if level is None else level, budget_ms, now_ms, self._loop.policy)

    def queues(self) -> list[QueueRow]:
        """Return every queue, parents first."""
        with self._loop.view() as state:
            return self.live_usage.with_idle_jobs(queue_rows(state), state)

    def queue(self, name: str) -> QueueRow:
        """Return one queue. Raise RequestError (no_such_queue, 404)."""
        rows = {row.name: row for row in self.queues()}
        if name not in rows:
            raise RequestError("no_such_queue", f"there is no queue {name}", nearest(name, rows) or "ganger queue", 404)
        return rows[name]

    def set_queue(self, queue: Queue) -> QueueRow:
        """Create a queue, or replace one.

        Raise RequestError (bad_queue): an invalid name or amount, no such parent, a cycle, more guaranteed below it
        than it has, an unknown type of GPU.
        """
        with self._loop.view() as state:
            present = state.tree.queues[state.tree.index[queue.name]] if queue.name in state.tree.index else queue
            queue = normalize_gpu_types(replace(queue, idle=present.idle))  # only a policy document sets it
            reason = invalid_figure(queue) or refusal(state, QueueSet(queue=queue)) or contradicts(state, queue)
        if reason:
            raise RequestError("bad_queue", reason, "list the queues: ganger queue")
        self._loop.ask(QueueSet(queue=queue, by=self._user))
        return self.queue(queue.name)

    def delete_queue(self, name: str) -> None:
        """Delete an empty queue. Raise RequestError (queue_in_use, 409): it has jobs or queues, or is permanent."""
        self.queue(name)
        with self._loop.view() as state:
            reason = refusal(state, QueueDeleted(queue=name))
        if reason:
            limit = f"limit it instead: ganger queue set {name} --help"
            is_permanent = name in (ROOT, DEFAULT)
            raise RequestError(
                "queue_in_use", reason, limit if is_permanent else "see what is in it: ganger queue; ganger ls", 409
            )
        self._loop.ask(QueueDeleted(queue=name, by=self._user))

    def nodes(self) -> list[NodeRow]:
        """Return every node, in topology order."""
        with self._loop.view() as state:
            return node_rows(state)

    def cordon(self, name: str, *, cordoned: bool, reason: str = "") -> NodeRow:
        """Take a node out of service, or put it back. Raise RequestError (no_such_node, 404)."""
        if (self._node(name).state in CORDONED) is not cordoned:
            event = NodeCordoned(node=name, by=self._user, reason=reason)
            self._loop.ask(event if cordoned else NodeUncordoned(node=name, by=self._user))
        return self._node(name)

    def drain(self, name: str, *, reason: str = "") -> NodeRow:
        """Take a node out of service; running jobs are stopped with notice and start again elsewhere.

        That spends no attempt. The row's `gangs` are those not gone yet. Raise RequestError (no_such_node, 404).
        """
        row = self._node(name)
        if row.gangs or row.state not in CORDONED:
            self._loop.ask(NodeDrained(node=name, by=self._user, reason=reason))
        return self._node(name)

    def maintenance(self) -> list[MaintenanceRow]:
        """Return all maintenance windows that are not over, in order of their beginning."""
        now_ms = self._loop.now_ms()
        with self._loop.view() as state:
            windows = [window for window in state.maintenance.values() if window.until_ms > now_ms]
        return [
            MaintenanceRow(
                id=window.id,
                nodes=window.nodes,
                from_ms=window.from_ms,
                until_ms=window.until_ms,
                note=window.note,
                by=window.by,
            )
            for window in sorted(windows, key=lambda window: (window.from_ms, window.id))
        ]

    def maintain(self, nodes: tuple[str, ...], from_ms: int, until_ms: int, *, note: str = "") -> MaintenanceRow:
        """Set a maintenance window: jobs that would overlap it do not start, and running ones restart elsewhere.

        Raise RequestError (no_such_node, 404; bad_maintenance): it ends before it begins, lies in the past, or a node
        is in another window at that time.
        """
        for name in nodes:
            self._node(name)
        now_ms = self._loop.now_ms()
        with self._loop.view() as state:
            event = MaintenanceSet(
                id=f"m{state.seq + 1}",
                nodes=tuple(dict.fromkeys(nodes)),
                from_ms=from_ms,
                until_ms=until_ms,
                note=note,
                by=self._user,
            )
            reason = refusal(state, event)
        if (late_ms := now_ms - from_ms) > JUST_NOW_MS:
            message = f"the maintenance would have begun {format_duration(late_ms // SECOND_MS * SECOND_MS)} ago"
            raise RequestError(
                "bad_maintenance", message, "begin at once: --from now; or later: --from 2h, --from 22:00"
            )
        if until_ms <= from_ms:
            raise RequestError(
                "bad_maintenance", "the maintenance would end before it begins", "say how long it lasts: --for 2h"
            )
        if reason:
            raise RequestError("bad_maintenance", reason, "see what is planned: ganger node maintenance")
        self._loop.ask(event)
        return next(row for row in self.maintenance() if row.id == event.id)

    def clear_maintenance(self, name: str) -> None:
        """Cancel a window, or end it early. Raise RequestError (no_such_maintenance, 404)."""
        rows = {row.id: row for row in self.maintenance()}
        if name not in rows:
            hint = nearest(name, rows) or "ganger node maintenance"
            raise RequestError("no_such_maintenance", f"there is no maintenance {name}", hint, 404)
        self._loop.ask(MaintenanceCleared(id=name, by=self._user))

    def fail_node(self, name: str) -> NodeRow:
        """Make a node fail with all that runs on it, to try out the consequences.

        Raise RequestError (no_such_node, 404; conflict where nodes are not ganger's own).
        """
        if self._node(name).state not in LOST:
            with _not_supported_as_conflict():
                self._backend.lose_node(name)
        return self._wait_for_node(name, lost=True)

    def return_node(self, name: str) -> NodeRow:
        """Bring back a node: test one that is out of service because of its health, restore one that was made to fail.

        A cordoned one stays cordoned. Raise RequestError (no_such_node, 404; conflict where nodes are not ganger's own,
        or while the node is repaired).
        """
        row = self._node(name)
        with self._loop.view() as state:
            is_out = name in state.health.out
        if is_out:
            self._loop.ask(NodeReturnRequested(node=name, by=self._user))
            return self._node(name)
        if row.state in LOST:
            with _not_supported_as_conflict():
                self._backend.return_node(name)
        return self._wait_for_node(name, lost=False)

    def preempt_node(self, name: str, notice_ms: int) -> NodeRow:
        """Remove a node `notice_ms` from now, as the owner of a spot machine does.

        Running jobs get the notice, spend no attempt by it, and start again elsewhere. Raise RequestError
        (no_such_node, 404).
        """
        if self._node(name).state not in LOST:
            self._loop.ask(NodePreempted(node=name, notice_ms=notice_ms, by=self._user))
        return self._node(name)

    def _wait_for_node(self, name: str, *, lost: bool) -> NodeRow:
        """Return the node, as soon as it is lost, or is not."""
        until_s = time.monotonic() + NODE_CHANGE_TIMEOUT_S
        while ((row := self._node(name)).state in LOST) is not lost and time.monotonic() < until_s:
            self._loop.wait(self._loop.wait(-1, 0), 0.1)
        return row

    def _check_gpu_type(self, name: str) -> None:
        """Raise RequestError (no_such_gpu_type, 404) for a type that no node has."""
        with self._loop.view() as state:
            gpu_types = sorted({gpu_type: None for gpu_type in state.nodes.attributes.gpu_types if gpu_type})
        if name and name not in gpu_types:
            message = f"no node has {name} GPUs; types here: {', '.join(gpu_types) or 'none'}"
            raise RequestError("no_such_gpu_type", message, nearest(name, gpu_types) or "ganger node", 404)

    def _node(self, name: str) -> NodeRow:
        rows = {row.name: row for row in self.nodes()}
        if name not in rows:
            raise RequestError("no_such_node", f"there is no node {name}", nearest(name, rows) or "ganger node", 404)
        return rows[name]


@contextmanager
def _not_supported_as_conflict() -> Iterator[None]:
    """Turn NotSupported of the backend into RequestError (conflict)."""
    try:
        yield
    except NotSupported as error:
        raise RequestError("conflict", str(error), error.next) from None
