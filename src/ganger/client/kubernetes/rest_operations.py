"""REST requests carried out on a Kubernetes cluster with the caller's permissions.

What an object has is read from it and changed on it, so no controller is needed, and a user can do here what the same
user can do with kubectl. The controller answers what only it knows, through the API server's proxy.
"""

import time
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode

from ganger import __version__
from ganger.client.client_errors import ClientError
from ganger.client.kubernetes import apply_policy, change_job, cluster_objects, create_jobs, follow_objects, job_detail
from ganger.client.kubernetes.caller import Caller, not_in_cluster
from ganger.client.kubernetes.controller_requests import query_controller
from ganger.client.kubernetes.exec_in_pod import exec_command
from ganger.client.kubernetes.find_job import find_job
from ganger.client.kubernetes.job_row import row
from ganger.client.local.http import Request
from ganger.errors import RequestError
from ganger.gang_jobs.custom_resources import GANG_JOBS
from ganger.kubeapi.resources import ListOptions
from ganger.model.job import ENDED
from ganger.ports import JobFilter, label_terms

Record = dict[str, Any]
Query = dict[str, str]

_OF_CONTROLLER: Final = (
    "incidents",
    "fit",
    "defrag",
    "overview",
    "report",
    "queues",
    "nodes",
    "policy",
    "samples",
    "telemetry",
    "node-health",
)
"""Resources about which the controller answers GET requests."""
_DRY_RUN: Final = {"dryRun": "plan"}


async def respond(caller: Caller, request: Request) -> Any:
    """Return the response to a request: a JSON value, or the bytes of one.

    Raises ApiError, ClientError and RequestError.
    """
    path, _, parameters = request.target.partition("?")
    kind, *names = [unquote(part) for part in path.split("/")[1:]]
    query, call = dict(parse_qsl(parameters)), (request.method, *names)
    match kind:
        case "jobs" if len(names) < 2:
            return await _jobs(caller, call, query, request.body)
        case "jobs":
            return await _job(caller, call, query, request.body)
        case "batches":
            return {"items": await create_jobs.submit(caller, request.body), "next": None}
        case "events" if request.method == "GET":
            return await follow_objects.event_page(caller, query, query.pop("gang", None))
        case "server" if call == ("GET",):
            return await _server(caller)
        case "secrets":
            return await _secrets(caller, call, request.body)
        case "whoami":
            return {"user": await caller.user(), "context": caller.context, "namespace": caller.namespace}
        case "incidents" if "job" in query:
            query["job"] = (await find_job(caller, query["job"])).gang
            return await query_controller(caller, "GET", f"/incidents?{urlencode(query)}")
        case _ if request.method == "GET" and kind in _OF_CONTROLLER:
            return await query_controller(caller, "GET", request.target)
        case _:
            return await _cluster(caller, kind, call, query, request)


async def _jobs(caller: Caller, call: tuple[str, ...], query: Query, body: Any) -> Any:
    match call:
        case ("GET",):
            rows = [row(job) for job in await caller.api.list(GANG_JOBS, ListOptions(caller.namespace))]
            return {"items": _select_rows(rows, query), "next": None}
        case ("POST",) if query == _DRY_RUN:
            return await create_jobs.dry_run(caller, body)
        case ("POST",):
            return (await create_jobs.submit(caller, body))[0]
        case ("GET", id):
            return await job_detail.detail(caller, id)
        case ("PATCH", id):
            return await change_job.change(caller, id, body)
        case _:
            return await change_job.delete(caller, call[1])


async def _job(caller: Caller, call: tuple[str, ...], query: Query, body: Any) -> Any:
    match call:
        case ("POST", id, "stop"):
            if (now := query.get("now", "false")) not in ("true", "false"):
                raise RequestError("bad_request", f"now={now} is neither true nor false", caller.typed("stop", id), 400)
            return await change_job.stop(caller, id, now=now == "true")
        case ("POST", id, "retry"):
            return await create_jobs.retry(caller, id, (body or {}).get("params", {}))
        case ("POST", id, "clone"):
            return await create_jobs.clone(caller, id, body["overrides"])
        case ("GET", id, "explain"):
            return await job_detail.explanation(caller, id)
        case ("GET", id, "exec"):
            rank = int(query["rank"]) if "rank" in query else None
            return await exec_command(caller, id, rank, query.get("node"))
        case ("GET", id, "events"):
            return await follow_objects.event_page(caller, query, (await find_job(caller, id)).text)
        case ("GET", id, "elements" | "usage" | "stacks" | "metrics" as part):
            suffix = "&".join(f"{name}={value}" for name, value in query.items())
            return await job_detail.ask_about(caller, await find_job(caller, id), f"/{part}?{suffix}")
        case _:
            output = caller.typed("logs", call[1], "--all", "--tail", "100")
            raise not_in_cluster(f"{call[2]} of a job are not available from its pods, but its output is", output)


async def _cluster(caller: Caller, kind: str, call: tuple[str, ...], query: Query, request: Request) -> Any:
    match kind, *call:
        case "queues", "PUT" | "DELETE" as method, name:
            await cluster_objects.write_queue(caller, name, request.body if method == "PUT" else None)
            return await query_controller(caller, "GET", request.target) if method == "PUT" else None
        case (
            ("defrag", "POST")
            | ("policy", "POST", "diff")
            | ("nodes", "POST", _, "repair" | "retire")
            | ("node-health", "POST", "reset-breaker")
        ):
            return await query_controller(caller, "POST", request.target, request.body)
        case "policy", "PUT":
            if query == _DRY_RUN:
                return await query_controller(caller, "PUT", request.target, request.body)
            return await _apply_policy(caller, request.body)
        case "nodes", "PATCH", name:
            return await cluster_objects.cordon(caller, name, request.body)
        case "nodes", "POST", name, "drain":
            return await cluster_objects.drain(caller, name, request.body)
        case _:
            raise _not_in_cluster(caller, kind, call)


async def _secrets(caller: Caller, call: tuple[str, ...], body: Any) -> Any:
    match call:
        case "PUT", name:
            return await cluster_objects.set_secret(caller, name, body["value"], time.time_ns() // 1_000_000)
        case "DELETE", name:
            return await cluster_objects.delete_secret(caller, name)
        case _:
            return {"items": await cluster_objects.secrets(caller), "next": None}


def _not_in_cluster(caller: Caller, kind: str, call: tuple[str, ...]) -> ClientError:
    match kind, *call:
        case "nodes" | "maintenance", *_:
            remedy = caller.typed("node", "drain", call[1] if len(call) > 1 else "NODE")
            return not_in_cluster("nodes of a cluster do not fail on request, and have no maintenance windows", remedy)
        case "tokens", *_:
            return not_in_cluster("tokens of a cluster are the API server's", caller.kubectl("create", "token", "NAME"))
        case _:
            remedy = caller.kubectl("-n", caller.controller, "get", "deployment", "ganger-controller")
            return not_in_cluster(f"{call[0]} /{kind} needs a ganger server", remedy)


async def _server(caller: Caller) -> Any:
    """Return what the controller says of itself; without one, followers start from the objects as they are."""
    try:
        return await query_controller(caller, "GET", "/server")
    except ClientError as error:
        return {"version": __version__, "seq": 0, "health": error.detail}


async def _apply_policy(caller: Caller, proposal: Record) -> Record:
    """Write the objects of a document and return their names, once they are in force."""
    for key in ("force", "note", "if_version"):
        if proposal.get(key) not in (None, "", False):
            kept = "kubectl get queues,schedulingpolicies -o yaml --show-managed-fields"
            flag = f"--{key.replace('_', '-')}"
            raise not_in_cluster(
                f"{flag} needs a ganger server, which keeps versions; here the policy is objects", kept
            )
    keys = ("text", "filename", "document", "version")
    return await apply_policy.write(caller, {key: proposal[key] for key in keys if key in proposal})


def _select_rows(rows: Iterable[Record], query: Query) -> list[Record]:
    """Return the matching rows, newest first; without a filter, all live ones and the newest ended ones."""
    job_filter = JobFilter(
        states=tuple(query["state"].split(",")) if "state" in query else (),
        user=query.get("user"),
        queue=query.get("queue"),
        name=query.get("name"),
        since_ms=int(query["since"]) if "since" in query else None,
        until_ms=int(query["until"]) if "until" in query else None,
        labels=label_terms(query.get("labels", "")),
    )
    newest = sorted(rows, key=lambda row: (row["submitted_ms"], row["id"]), reverse=True)
    matching = [row for row in newest if _matches(row, job_filter)]
    if query.get("all") == "true" or job_filter != JobFilter():
        return matching
    ended = [row["id"] for row in matching if row["state"] in ENDED]
    hidden = set(ended[max(0, int(query.get("limit", "50")) - len(matching) + len(ended)) :])
    return [row for row in matching if row["id"] not in hidden]


def _matches(row: Record, job_filter: JobFilter) -> bool:
    ended_ms = row["ended_ms"]
    return (
        (not job_filter.states or row["state"] in job_filter.states)
        and job_filter.user in (None, row["user"])
        and job_filter.queue in (None, row["queue"])
        and job_filter.name in (None, row["name"], row["id"])
        and (job_filter.since_ms is None or ended_ms is None or ended_ms >= job_filter.since_ms)
        and (job_filter.until_ms is None or row["submitted_ms"] <= job_filter.until_ms)
        and all((row["labels"].get(term.key) == term.value) is term.equal for term in job_filter.labels)
    )
