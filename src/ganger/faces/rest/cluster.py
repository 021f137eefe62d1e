"""Routes of /queues and /nodes: what there is, who may use how much of it, what is out of service."""

from dataclasses import dataclass, field
from typing import ClassVar, Final

from fastapi import APIRouter, Response
from pydantic import ConfigDict

from ganger.faces.rest.answers import Served, answer, documented, shown
from ganger.model.queue import ROOT, Amount, Queue, UserLimits
from ganger.model.view import NodeRow, QueueRow

queues: Final = APIRouter(prefix="/queues", tags=["queues"])
nodes: Final = APIRouter(prefix="/nodes", tags=["nodes"])


@dataclass(frozen=True, kw_only=True)
class QueueBody:
    """A queue without its name. What is left out has no figure: a queue is replaced, not merged."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    parent: str | None = ROOT
    nominal: Amount = field(default_factory=Amount)
    borrowing: Amount = field(default_factory=Amount)
    lending: Amount = field(default_factory=Amount)
    user_limits: UserLimits = field(default_factory=UserLimits)


@dataclass(frozen=True, kw_only=True)
class NodeChange:
    """What may be changed of a node."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    cordoned: bool
    why: str = ""


@queues.get("", responses=shown(QueueRow, many=True))
def list_queues(service: Served) -> Response:
    """Every queue with what it may use and what it uses, parents first."""
    return answer({"items": service.queues(), "next": None})


@queues.get("/{name}", responses=shown(QueueRow))
def get_queue(service: Served, name: str) -> Response:
    """One queue."""
    return answer(service.queue(name))


@queues.put("/{name}", responses=shown(QueueRow))
def put_queue(service: Served, name: str, body: QueueBody) -> Response:
    """Make a queue, or replace one."""
    queue = Queue(
        name=name,
        parent=None if name == ROOT else body.parent,
        nominal=body.nominal,
        borrowing=body.borrowing,
        lending=body.lending,
        user_limits=body.user_limits,
    )
    return answer(service.set_queue(queue))


@queues.delete("/{name}", status_code=204, responses=documented({}, 204, "It is gone"))
def delete_queue(service: Served, name: str) -> Response:
    """Take an empty queue away."""
    service.delete_queue(name)
    return Response(status_code=204)


@nodes.get("", responses=shown(NodeRow, many=True))
def list_nodes(service: Served) -> Response:
    """Every node with what it has and what is free, in topology order."""
    return answer({"items": service.nodes(), "next": None})


@nodes.patch("/{name}", responses=shown(NodeRow))
def patch_node(service: Served, name: str, body: NodeChange) -> Response:
    """Take a node out of service, or put it back. What runs there goes on."""
    return answer(service.cordon(name, cordoned=body.cordoned, why=body.why))
