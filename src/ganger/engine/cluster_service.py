"""The part of the service that is about queues and nodes: see `engine.service`, whose methods these are."""

from typing import Final

from ganger.engine.admission import nearest, wrong_with
from ganger.engine.loop import Loop
from ganger.engine.refusal import Refused
from ganger.engine.rows import node_rows, queue_rows
from ganger.model.cluster import NodeState
from ganger.model.event import NodeCordoned, NodeDrained, NodeUncordoned, QueueDeleted, QueueSet
from ganger.model.queue import DEFAULT, ROOT, Queue
from ganger.model.view import NodeRow, QueueRow

CORDONED: Final = (NodeState.CORDONED, NodeState.LOST_CORDONED)


class ClusterService:
    """What may be asked of queues and nodes. Safe from any thread."""

    def __init__(self, loop: Loop, user: str) -> None:
        """Over a loop that is open; `user` is who asks for every change."""
        self._loop, self._user = loop, user

    def queues(self) -> list[QueueRow]:
        """Every queue, parents first."""
        return queue_rows(self._loop.view())

    def queue(self, name: str) -> QueueRow:
        """One queue. Refused (no_such_queue, 404)."""
        rows = {row.name: row for row in self.queues()}
        if name not in rows:
            raise Refused("no_such_queue", f"there is no queue {name}", nearest(name, rows) or "ganger queue", 404)
        return rows[name]

    def set_queue(self, queue: Queue) -> QueueRow:
        """Make a queue, or replace one. Refused (bad_queue): a bad name or figure, no such parent, a cycle."""
        why = wrong_with(queue) or self._loop.view().refusal(QueueSet(queue=queue))
        if why:
            raise Refused("bad_queue", why, "see the queues there are: ganger queue")
        self._loop.ask(QueueSet(queue=queue, by=self._user))
        return self.queue(queue.name)

    def delete_queue(self, name: str) -> None:
        """Take an empty queue away. Refused (queue_in_use, 409): jobs or queues are in it, or it is always there."""
        self.queue(name)
        why = self._loop.view().refusal(QueueDeleted(queue=name))
        if why:
            limit = f"limit it instead: ganger queue set {name} --help"
            always = name in (ROOT, DEFAULT)
            raise Refused("queue_in_use", why, limit if always else "see what is in it: ganger queue; ganger ls", 409)
        self._loop.ask(QueueDeleted(queue=name, by=self._user))

    def nodes(self) -> list[NodeRow]:
        """Every node, in topology order."""
        return node_rows(self._loop.view())

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

    def _node(self, name: str) -> NodeRow:
        rows = {row.name: row for row in self.nodes()}
        if name not in rows:
            raise Refused("no_such_node", f"there is no node {name}", nearest(name, rows) or "ganger node", 404)
        return rows[name]
