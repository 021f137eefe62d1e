"""Routes of /queues, /nodes and /maintenance: quotas and usage, capacity, and nodes out of service."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final

from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict, Field

from ganger.model.queue import MAX_FIGURE, ROOT, Amount, Queue, UserLimits
from ganger.model.units import DAY_MS
from ganger.model.views.queue_views import QueueRow
from ganger.model.views.service_views import MaintenanceRow, NodeRow
from ganger.rest.body_types import StrictBool, StrictNumber
from ganger.rest.etags import ExpectedSeq, VersionParam
from ganger.rest.responses import (
    CHANGE_STATUSES,
    ServiceParam,
    json_response,
    read_responses,
    response_docs,
    run_change,
    view_responses,
)

queues: Final = APIRouter(prefix="/queues", tags=["queues"])
nodes: Final = APIRouter(prefix="/nodes", tags=["nodes"])
maintenance: Final = APIRouter(prefix="/maintenance", tags=["nodes"])

MAX_NOTICE_MS: Final = 7 * DAY_MS


@dataclass(frozen=True, kw_only=True)
class QueueBody:
    """A queue without its name. An omitted field has its default: a queue is replaced, not merged."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    parent: str | None = ROOT
    weight: Annotated[int, StrictNumber] = 1
    nominal: Annotated[Amount, StrictNumber] = field(default_factory=Amount)
    borrowing: Annotated[Amount, StrictNumber] = field(default_factory=Amount)
    lending: Annotated[Amount, StrictNumber] = field(default_factory=Amount)
    user_limits: Annotated[UserLimits, StrictNumber] = field(default_factory=UserLimits)
    default_time_ms: Annotated[int, Field(ge=1, le=MAX_FIGURE), StrictNumber] | None = None


@dataclass(frozen=True, kw_only=True)
class NodeChange:
    """The fields of a node that can be changed."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    cordoned: StrictBool
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Drain:
    """The reason of a drain, for the event log."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Preemption:
    """The notice that running jobs get to save their work."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    notice_ms: Annotated[int, Field(ge=0, le=MAX_NOTICE_MS), StrictNumber]


@dataclass(frozen=True, kw_only=True)
class MaintenanceBody:
    """A maintenance window of nodes, in Unix ms."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    nodes: Annotated[tuple[str, ...], Field(min_length=1)]
    from_ms: Annotated[int, Field(ge=0, le=MAX_FIGURE), StrictNumber]
    until_ms: Annotated[int, Field(ge=0, le=MAX_FIGURE), StrictNumber]
    note: str = ""


@queues.get("", responses=read_responses(QueueRow, is_page=True))
def list_queues(service: ServiceParam, version: VersionParam) -> Response:
    """Return every queue with its quota and usage, parents first."""
    return version.respond(lambda: {"items": service.queues(), "next": None})


@queues.get("/{name}", responses=read_responses(QueueRow, 404))
def get_queue(service: ServiceParam, version: VersionParam, name: str) -> Response:
    """Return one queue."""
    return version.respond(lambda: service.queue(name))


@queues.put("/{name}", responses=view_responses(QueueRow, *CHANGE_STATUSES, 412))
async def put_queue(
    request: Request, service: ServiceParam, name: str, body: QueueBody, expected: ExpectedSeq
) -> Response:
    """Create a queue, or replace one."""
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

    return json_response(await run_change(request, change))


@queues.delete(
    "/{name}",
    status_code=204,
    response_class=Response,
    responses=response_docs({}, 204, "It is deleted", *CHANGE_STATUSES, 404, 412),
)
async def delete_queue(request: Request, service: ServiceParam, name: str, expected: ExpectedSeq) -> Response:
    """Delete an empty queue."""

    def change() -> None:
        with service.unchanged(f"queue/{name}", expected):
            service.delete_queue(name)

    await run_change(request, change)
    return Response(status_code=204)


@nodes.get("", responses=read_responses(NodeRow, is_page=True))
def list_nodes(service: ServiceParam, version: VersionParam) -> Response:
    """Return every node with its capacity and what is free, in topology order."""
    return version.respond(lambda: {"items": service.nodes(), "next": None})


@nodes.patch("/{name}", responses=view_responses(NodeRow, *CHANGE_STATUSES, 404, 412))
async def patch_node(
    request: Request, service: ServiceParam, name: str, body: NodeChange, expected: ExpectedSeq
) -> Response:
    """Take a node out of service, or put it back. Running jobs go on."""

    def change() -> NodeRow:
        with service.unchanged(f"node/{name}", expected):
            return service.cordon(name, cordoned=body.cordoned, reason=body.reason)

    return json_response(await run_change(request, change))


@nodes.post("/{name}/drain", status_code=202, responses=view_responses(NodeRow, *CHANGE_STATUSES, 404, status=202))
async def drain_node(request: Request, service: ServiceParam, name: str, body: Drain) -> Response:
    """Take a node out of service; running jobs are stopped with notice, and start again elsewhere."""
    return json_response(await run_change(request, lambda: service.drain(name, reason=body.reason)), 202)


@nodes.post("/{name}/fail", responses=view_responses(NodeRow, *CHANGE_STATUSES, 404))
async def fail_node(request: Request, service: ServiceParam, name: str) -> Response:
    """Make a node of this server fail, with all that runs on it, to test recovery."""
    return json_response(await run_change(request, lambda: service.fail_node(name)))


@nodes.post("/{name}/return", responses=view_responses(NodeRow, *CHANGE_STATUSES, 404))
async def return_node(request: Request, service: ServiceParam, name: str) -> Response:
    """Bring back a node that was made to fail. A cordoned one stays cordoned."""
    return json_response(await run_change(request, lambda: service.return_node(name)))


@nodes.post("/{name}/preempt", status_code=202, responses=view_responses(NodeRow, *CHANGE_STATUSES, 404, status=202))
async def preempt_node(request: Request, service: ServiceParam, name: str, body: Preemption) -> Response:
    """Remove a node after a notice, as a spot provider does; running jobs start again elsewhere."""
    return json_response(await run_change(request, lambda: service.preempt_node(name, body.notice_ms)), 202)


@maintenance.get("", responses=read_responses(MaintenanceRow, is_page=True))
def list_maintenance(service: ServiceParam, version: VersionParam) -> Response:
    """Return all maintenance windows that are not over, in order of their beginning."""
    return version.respond(lambda: {"items": service.maintenance(), "next": None})


@maintenance.post("", status_code=201, responses=view_responses(MaintenanceRow, *CHANGE_STATUSES, 404, status=201))
async def set_maintenance(request: Request, service: ServiceParam, body: MaintenanceBody) -> Response:
    """Set a maintenance window: jobs that would overlap it do not start, and running ones restart elsewhere."""

    def change() -> MaintenanceRow:
        return service.maintain(body.nodes, body.from_ms, body.until_ms, note=body.note)

    return json_response(await run_change(request, change), 201)


@maintenance.delete(
    "/{id}",
    status_code=204,
    response_class=Response,
    responses=response_docs({}, 204, "It is cancelled", *CHANGE_STATUSES, 404),
)
async def clear_maintenance(request: Request, service: ServiceParam, id: str) -> Response:
    """Cancel a maintenance window, or end it early."""
    await run_change(request, lambda: service.clear_maintenance(id))
    return Response(status_code=204)
