"""The part of the service that is about queues and nodes: see `engine.service`, whose methods these are."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ganger.core.explain.max_fit import SizeRequest, sizes
from ganger.core.fold.fold import refusal
from ganger.core.queues.quota import normalize_gpu_types
from ganger.engine.loop import Loop
from ganger.engine.query.cluster_overview import overview
from ganger.engine.query.listing_rows import node_rows, queue_rows
from ganger.engine.query.state_replica import TrialReplica
from ganger.engine.submit.quota_check import contradicts, invalid_figure, nearest
from ganger.errors import RequestError
from ganger.model.cluster import NodeState
from ganger.model.event import (
    MaintenanceCleared,
    MaintenanceSet,
    NodeCordoned,
    NodeDrained,
    NodePreempted,
    NodeUncordoned,
    QueueDeleted,
    QueueSet,
)
from ganger.model.job import Job, JobSpec, Limits, Origin
from ganger.model.queue import DEFAULT, ROOT, Queue
from ganger.model.units import MINUTE_MS, SECOND_MS, format_duration
from ganger.model.views.overview import Order, Overview, Sizes
from ganger.model.views.service_views import MaintenanceRow, NodeRow, QueueRow
from ganger.ports import Backend, NotSupported

CORDONED: Final = (NodeState.CORDONED, NodeState.LOST_CORDONED)
LOST: Final = (NodeState.LOST, NodeState.LOST_CORDONED)
JUST_NOW_MS: Final = MINUTE_MS
"""What is to begin now may be asked for so late."""
FAILS_WITHIN_S: Final = 5.0
"""How long an answer waits for a node that was made to fail, or to return."""


class ClusterService:
    """What may be asked of queues and nodes. Safe from any thread."""

    _trial_replica: TrialReplica

    def __init__(self, loop: Loop, backend: Backend, user: str) -> None:
        """Over a loop that is open, and its backend; `user` is who asks for every change."""
        self._loop, self._backend, self._user = loop, backend, user

    def overview(self, order: Order = "turn") -> Overview:
        """The cluster and the queue at one glance; those who wait in that order."""
        with self._trial_replica.state() as (state, now_ms):
            return overview(state, now_ms, self._loop.policy, order)

    def sizes(self, queue: str, wanted: SizeRequest, time_ms: int | None = None, user: str | None = None) -> Sizes:
        """The largest gangs that would start now in a queue, of `user`, else of the server's own. Refused
        (no_such_queue, no_such_gpu_type; 404)."""
        self.queue(queue)
        self._see_type(wanted.gpu_type)
        spec = JobSpec(queue=queue, limits=Limits(time_ms=time_ms), run="true")
        job = Job(id=" ", user=user or self._user, spec=spec, origin=Origin(directory="/"))
        with self._trial_replica.state() as (state, now_ms):
            return sizes(state, job, wanted, now_ms, self._loop.policy)

    def queues(self) -> list[QueueRow]:
        """Every queue, parents first."""
        with self._loop.view() as state:
            return queue_rows(state)

    def queue(self, name: str) -> QueueRow:
        """One queue. Refused (no_such_queue, 404)."""
        rows = {row.name: row for row in self.queues()}
        if name not in rows:
            raise RequestError("no_such_queue", f"there is no queue {name}", nearest(name, rows) or "ganger queue", 404)
        return rows[name]

    def set_queue(self, queue: Queue) -> QueueRow:
        """Make a queue, or replace one. Refused (bad_queue): a bad name or figure, no such parent, a cycle, more
        guaranteed below it than it has, a type of GPU that is not there."""
        queue = normalize_gpu_types(queue)
        with self._loop.view() as state:
            why = invalid_figure(queue) or refusal(state, QueueSet(queue=queue)) or contradicts(state, queue)
        if why:
            raise RequestError("bad_queue", why, "see the queues there are: ganger queue")
        self._loop.ask(QueueSet(queue=queue, by=self._user))
        return self.queue(queue.name)

    def delete_queue(self, name: str) -> None:
        """Take an empty queue away. Refused (queue_in_use, 409): jobs or queues are in it, or it is always there."""
        self.queue(name)
        with self._loop.view() as state:
            why = refusal(state, QueueDeleted(queue=name))
        if why:
            limit = f"limit it instead: ganger queue set {name} --help"
            always = name in (ROOT, DEFAULT)
            raise RequestError(
                "queue_in_use", why, limit if always else "see what is in it: ganger queue; ganger ls", 409
            )
        self._loop.ask(QueueDeleted(queue=name, by=self._user))

    def nodes(self) -> list[NodeRow]:
        """Every node, in topology order."""
        with self._loop.view() as state:
            return node_rows(state)

    def cordon(self, name: str, *, cordoned: bool, why: str = "") -> NodeRow:
        """Take a node out of service, or put it back. Refused (no_such_node, 404)."""
        if (self._node(name).state in CORDONED) is not cordoned:
            out = NodeCordoned(node=name, by=self._user, why=why)
            self._loop.ask(out if cordoned else NodeUncordoned(node=name, by=self._user))
        return self._node(name)

    def drain(self, name: str, *, why: str = "") -> NodeRow:
        """Take a node out of service; what runs there is stopped with notice, spends no attempt by it, and starts again
        elsewhere. The answer's `gangs` are those that are not gone yet. Refused (no_such_node, 404)."""
        row = self._node(name)
        if row.gangs or row.state not in CORDONED:
            self._loop.ask(NodeDrained(node=name, by=self._user, why=why))
        return self._node(name)

    def maintenance(self) -> list[MaintenanceRow]:
        """All maintenance that is not over, the first to begin first."""
        now_ms = self._loop.now_ms()
        with self._loop.view() as state:
            there = [each for each in state.windows.values() if each.until_ms > now_ms]
        return [
            MaintenanceRow(
                id=each.id,
                nodes=each.nodes,
                from_ms=each.from_ms,
                until_ms=each.until_ms,
                note=each.note,
                by=each.by,
            )
            for each in sorted(there, key=lambda each: (each.from_ms, each.id))
        ]

    def maintain(self, nodes: tuple[str, ...], from_ms: int, until_ms: int, *, note: str = "") -> MaintenanceRow:
        """Nodes are not there from a moment until another: what would still run there does not start, what runs there
        at the beginning starts again elsewhere. Refused (no_such_node, 404; bad_maintenance): over before it begins, in
        the past, of a node that is in another in that time."""
        for name in nodes:
            self._node(name)
        now_ms = self._loop.now_ms()
        with self._loop.view() as state:
            asked = MaintenanceSet(
                id=f"m{state.seq + 1}",
                nodes=tuple(dict.fromkeys(nodes)),
                from_ms=from_ms,
                until_ms=until_ms,
                note=note,
                by=self._user,
            )
            why = refusal(state, asked)
        if (late_ms := now_ms - from_ms) > JUST_NOW_MS:
            past = f"it would have begun {format_duration(late_ms // SECOND_MS * SECOND_MS)} ago"
            raise RequestError("bad_maintenance", past, "begin at once: --from now; or later: --from 2h, --from 22:00")
        if until_ms <= from_ms:
            raise RequestError("bad_maintenance", "it would end before it begins", "say how long it lasts: --for 2h")
        if why:
            raise RequestError("bad_maintenance", why, "see what is planned: ganger node maintenance")
        self._loop.ask(asked)
        return next(row for row in self.maintenance() if row.id == asked.id)

    def clear_maintenance(self, name: str) -> None:
        """Call one off, or end it before its time. Refused (no_such_maintenance, 404)."""
        rows = {row.id: row for row in self.maintenance()}
        if name not in rows:
            there = nearest(name, rows) or "ganger node maintenance"
            raise RequestError("no_such_maintenance", f"there is no maintenance {name}", there, 404)
        self._loop.ask(MaintenanceCleared(id=name, by=self._user))

    def fail_node(self, name: str) -> NodeRow:
        """Make a node fail with all that runs on it, to see what becomes of that. Refused (no_such_node, 404; conflict
        where nodes are not ganger's own)."""
        if self._node(name).state not in LOST:
            with _in_this_world():
                self._backend.lose_node(name)
        return self._once(name, lost=True)

    def return_node(self, name: str) -> NodeRow:
        """Bring a node back that was made to fail; one that was taken out of service stays so. Refused (no_such_node,
        404; conflict where nodes are not ganger's own)."""
        if self._node(name).state in LOST:
            with _in_this_world():
                self._backend.return_node(name)
        return self._once(name, lost=False)

    def preempt_node(self, name: str, notice_ms: int) -> NodeRow:
        """Take a node away `notice_ms` from now, as the owner of a spot machine does: what runs there is told, spends
        no attempt by it, and starts again elsewhere. Refused (no_such_node, 404)."""
        if self._node(name).state not in LOST:
            self._loop.ask(NodePreempted(node=name, notice_ms=notice_ms, by=self._user))
        return self._node(name)

    def _once(self, name: str, *, lost: bool) -> NodeRow:
        """The node, as soon as it is lost, or is not."""
        until_s = time.monotonic() + FAILS_WITHIN_S
        while ((row := self._node(name)).state in LOST) is not lost and time.monotonic() < until_s:
            self._loop.wait(self._loop.wait(-1, 0), 0.1)
        return row

    def _see_type(self, name: str) -> None:
        """Refused (no_such_gpu_type, 404) for a type that no node has."""
        with self._loop.view() as state:
            there = sorted({kind: None for kind in state.nodes.gpu_types if kind})
        if name and name not in there:
            what = f"no node has {name} GPUs; types here: {', '.join(there) or 'none'}"
            raise RequestError("no_such_gpu_type", what, nearest(name, there) or "ganger node", 404)

    def _node(self, name: str) -> NodeRow:
        rows = {row.name: row for row in self.nodes()}
        if name not in rows:
            raise RequestError("no_such_node", f"there is no node {name}", nearest(name, rows) or "ganger node", 404)
        return rows[name]


@contextmanager
def _in_this_world() -> Iterator[None]:
    """Refused where the backend cannot."""
    try:
        yield
    except NotSupported as error:
        raise RequestError("conflict", str(error), error.next) from None
