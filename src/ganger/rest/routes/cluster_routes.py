"""Routes of /queues, /nodes and /maintenance: what there is, who may use how much of it, what is out of service."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final

from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict, Field

from ganger.model.queue import MAX_FIGURE, ROOT, Amount, Queue, UserLimits
from ganger.model.units import DAY_MS
from ganger.model.views.service_views import MaintenanceRow, NodeRow, QueueRow
from ganger.rest.body_types import Figures, Truth
from ganger.rest.etags import Expected, Versioned
from ganger.rest.responses import CHANGES, Served, answer, changed, documented, reads, shown

queues: Final = APIRouter(prefix="/queues", tags=["queues"])
nodes: Final = APIRouter(prefix="/nodes", tags=["nodes"])
maintenance: Final = APIRouter(prefix="/maintenance", tags=["nodes"])

LONGEST_NOTICE_MS: Final = 7 * DAY_MS


@dataclass(frozen=True, kw_only=True)
class QueueBody:
    """A queue without its name. What is left out has no figure: a queue is replaced, not merged."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    parent: str | None = ROOT
    weight: Annotated[int, Figures] = 1
    nominal: Annotated[Amount, Figures] = field(default_factory=Amount)
    borrowing: Annotated[Amount, Figures] = field(default_factory=Amount)
    lending: Annotated[Amount, Figures] = field(default_factory=Amount)
    user_limits: Annotated[UserLimits, Figures] = field(default_factory=UserLimits)
    default_time_ms: Annotated[int, Field(ge=1, le=MAX_FIGURE), Figures] | None = None


@dataclass(frozen=True, kw_only=True)
class NodeChange:
    """What may be changed of a node."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    cordoned: Truth
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Drain:
    """Why a node is drained, for the event log."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Preemption:
    """How long what runs on the node has to save its work."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    notice_ms: Annotated[int, Field(ge=0, le=LONGEST_NOTICE_MS), Figures]


@dataclass(frozen=True, kw_only=True)
class MaintenanceBody:
    """Nodes that are not there from a moment until another, in Unix ms."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    nodes: Annotated[tuple[str, ...], Field(min_length=1)]
    from_ms: Annotated[int, Field(ge=0, le=MAX_FIGURE), Figures]
    until_ms: Annotated[int, Field(ge=0, le=MAX_FIGURE), Figures]
    note: str = ""


@queues.get("", responses=reads(QueueRow, many=True))
def list_queues(service: Served, version: Versioned) -> Response:
    """Every queue with what it may use and what it uses, parents first."""
    return version.answer(lambda: {"items": service.queues(), "next": None})


@queues.get("/{name}", responses=reads(QueueRow, 404))
def get_queue(service: Served, version: Versioned, name: str) -> Response:
    """One queue."""
    return version.answer(lambda: service.queue(name))


@queues.put("/{name}", responses=shown(QueueRow, *CHANGES, 412))
async def put_queue(request: Request, service: Served, name: str, body: QueueBody, expected: Expected) -> Response:
    """Make a queue, or replace one."""
    queue = Queue(
        name=name,
        parent=None if name == ROOT and body.parent == ROOT else body.parent,
        weight=body.weight,
        nominal=body.nominal,
        borrowing=body.borrowing,
        lending=body.lending,
        user_limits=body.user_limits,
        default_time_ms=body.default_time_ms,
    )

    def change() -> QueueRow:
        with service.unchanged(f"queue/{name}", expected):
            return service.set_queue(queue)

    return answer(await changed(request, change))


@queues.delete(
    "/{name}", status_code=204, response_class=Response, responses=documented({}, 204, "It is gone", *CHANGES, 404, 412)
)
async def delete_queue(request: Request, service: Served, name: str, expected: Expected) -> Response:
    """Take an empty queue away."""

    def change() -> None:
        with service.unchanged(f"queue/{name}", expected):
            service.delete_queue(name)

    await changed(request, change)
    return Response(status_code=204)


@nodes.get("", responses=reads(NodeRow, many=True))
def list_nodes(service: Served, version: Versioned) -> Response:
    """Every node with what it has and what is free, in topology order."""
    return version.answer(lambda: {"items": service.nodes(), "next": None})


@nodes.patch("/{name}", responses=shown(NodeRow, *CHANGES, 404, 412))
async def patch_node(request: Request, service: Served, name: str, body: NodeChange, expected: Expected) -> Response:
    """Take a node out of service, or put it back. What runs there goes on."""

    def change() -> NodeRow:
        with service.unchanged(f"node/{name}", expected):
            return service.cordon(name, cordoned=body.cordoned, why=body.why)

    return answer(await changed(request, change))


@nodes.post("/{name}/drain", status_code=202, responses=shown(NodeRow, *CHANGES, 404, status=202))
async def drain_node(request: Request, service: Served, name: str, body: Drain) -> Response:
    """Take a node out of service; what runs there is stopped with notice, and starts again elsewhere."""
    return answer(await changed(request, lambda: service.drain(name, why=body.why)), 202)


@nodes.post("/{name}/fail", responses=shown(NodeRow, *CHANGES, 404))
async def fail_node(request: Request, service: Served, name: str) -> Response:
    """Make a node of this server fail, with all that runs on it, to see what becomes of that."""
    return answer(await changed(request, lambda: service.fail_node(name)))


@nodes.post("/{name}/return", responses=shown(NodeRow, *CHANGES, 404))
async def return_node(request: Request, service: Served, name: str) -> Response:
    """Bring a node back that was made to fail. One that is out of service stays so."""
    return answer(await changed(request, lambda: service.return_node(name)))


@nodes.post("/{name}/preempt", status_code=202, responses=shown(NodeRow, *CHANGES, 404, status=202))
async def preempt_node(request: Request, service: Served, name: str, body: Preemption) -> Response:
    """Take a node away after a notice, as the owner of a spot machine does; what runs there starts again elsewhere."""
    return answer(await changed(request, lambda: service.preempt_node(name, body.notice_ms)), 202)


@maintenance.get("", responses=reads(MaintenanceRow, many=True))
def list_maintenance(service: Served, version: Versioned) -> Response:
    """All maintenance that is not over, the first to begin first."""
    return version.answer(lambda: {"items": service.maintenance(), "next": None})


@maintenance.post("", status_code=201, responses=shown(MaintenanceRow, *CHANGES, 404, status=201))
async def set_maintenance(request: Request, service: Served, body: MaintenanceBody) -> Response:
    """Say when nodes are not there: what would still run there then does not start, what runs there is moved."""

    def change() -> MaintenanceRow:
        return service.maintain(body.nodes, body.from_ms, body.until_ms, note=body.note)

    return answer(await changed(request, change), 201)


@maintenance.delete(
    "/{id}", status_code=204, response_class=Response, responses=documented({}, 204, "It is over", *CHANGES, 404)
)
async def clear_maintenance(request: Request, service: Served, id: str) -> Response:
    """Call maintenance off, or end it before its time."""
    await changed(request, lambda: service.clear_maintenance(id))
    return Response(status_code=204)
