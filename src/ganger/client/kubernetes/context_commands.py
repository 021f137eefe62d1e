"""Commands on a Kubernetes cluster with the permissions of the caller's kubeconfig context.

One request is read as JSON from stdin; responses are JSON lines on stdout: {"answer": ...} or {"error": ...} is the
last, after any lines of a log. `client.kubernetes.gang_jobs` runs it. It has no permissions of its own: the API server
decides what the caller may do, and who they are.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from ganger.backends.kubernetes import pod_logs
from ganger.backends.kubernetes.custom_resources import GANG_JOBS, GROUP, PROGRAM, VERSION
from ganger.backends.kubernetes.object_names import JOB
from ganger.backends.kubernetes.pod_template import CONTAINER
from ganger.client.kubernetes import change_job, controller_requests, create_jobs, job_detail
from ganger.client.kubernetes.caller import NOT_FOUND, REFUSED, UNREACHABLE, USAGE, Caller, CannotError
from ganger.client.kubernetes.exec_in_pod import exec_command
from ganger.client.kubernetes.find_job import ENDED, FoundJob, find_job, find_job_with_pods, find_whole_job
from ganger.client.kubernetes.job_row import OVER, in_full, row
from ganger.engine.eventlog.job_filters import JobFilter, label_terms
from ganger.errors import RequestError
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.credentials import Credentials, CredentialsError, NoKubeconfigError
from ganger.kubeapi.objects import ApiStruct, Key, Pod
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import PODS, ListOptions, Resource
from ganger.ports import LogLine, LogQuery
from ganger.settings import controller_namespace

Record = dict[str, Any]

DEFAULT_KUBECONFIG: Final = "~/.kube/config"
RETRY_FOR_S: Final = 8.0
"""Time for which a failing request is retried: a user waits, so shorter than for a controller."""
READ_TIMEOUT_S: Final = 10.0
"""Time for which the API server may be silent."""


class _User(ApiStruct, frozen=True):
    username: str


class _ReviewStatus(ApiStruct, frozen=True):
    user_info: _User


class _Review(ApiStruct, frozen=True):
    """The API server's review of the caller."""

    status: _ReviewStatus


_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", _Review)


def run_request(context: str, namespace: str | None) -> int:
    """Run the request on stdin and return the exit code."""
    request = json.load(sys.stdin)
    try:
        files = os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG
        credentials = Credentials.from_kubeconfig([Path(file) for file in files.split(":") if file], context)
        _print({"answer": asyncio.run(_respond(credentials, context, namespace, request))})
    except NoKubeconfigError as error:
        _print({"error": _error("bad_context", str(error), "export KUBECONFIG=FILE", USAGE)})
    except CredentialsError as error:
        _print({"error": _error("bad_context", str(error), "kubectl config get-contexts", USAGE)})
    except RequestError as error:
        _print({"error": _error(error.code, error.detail, error.next, USAGE)})
    except CannotError as error:
        _print({"error": error.record})
    return 0


async def _respond(credentials: Credentials, context: str, namespace: str | None, request: Record) -> Any:
    """Return the response to a request. Raises CannotError and RequestError."""
    async with ApiClient(credentials, PROGRAM, retry_for_s=RETRY_FOR_S, read_timeout_s=READ_TIMEOUT_S) as api:
        job_namespace = namespace or credentials.namespace or "default"
        controller = controller_namespace(os.environ)
        caller = Caller(api, context, job_namespace, has_namespace=namespace is not None, controller=controller)
        try:
            return await _Command(caller).run(request)
        except ApiError as error:
            raise await _explain_error(caller, error, request.get("name", "")) from error


class _Command:
    """One request of a caller, about the jobs of one namespace. Raises ApiError, CannotError and RequestError."""

    def __init__(self, caller: Caller) -> None:
        self._caller, self._api, self._namespace = caller, caller.api, caller.namespace

    async def run(self, request: Record) -> Any:
        """Return the response."""
        match request["do"]:
            case "submit":
                return await create_jobs.submit(self._caller, await self._user(), request["request"])
            case "dry_run":
                return await create_jobs.dry_run(self._caller, await self._user(), request["request"])
            case "list":
                rows = map(row, await self._api.list(GANG_JOBS, ListOptions(self._namespace)))
                return _select_rows(rows, _job_filter(request["query"]))
            case "get":
                return in_full(await find_whole_job(self._caller, request["name"], "shown"))
            case "detail" | "explain" | "elements":
                return await self._query_controller(request)
            case "wait":
                return await change_job.wait_until_ended(self._caller, request["name"], request["timeout_s"])
            case "stop" | "suspend" | "resume" | "priority":
                return await self._change(request)
            case "exec":
                return await exec_command(self._caller, request["name"], request["rank"], request["node"])
            case "ask":
                return await controller_requests.query_controller(self._caller, await self._user(), request)
            case "apply_policy":
                from ganger.client.kubernetes import apply_policy  # checks policies with the core, which takes long

                return await apply_policy.write(self._caller, request["proposal"])
            case _:
                return await self._logs(request["name"], request["query"], follow=request["follow"])

    async def _query_controller(self, request: Record) -> Record:
        """Return what the controller knows of a job."""
        name, user = request["name"], await self._user()
        match request["do"]:
            case "detail":
                return await job_detail.detail(self._caller, user, name)
            case "explain":
                return await job_detail.explanation(self._caller, user, name)
            case _:
                return await job_detail.elements(self._caller, user, name, request["query"])

    async def _change(self, request: Record) -> Record:
        name = request["name"]
        match request["do"]:
            case "stop":
                return await change_job.stop(self._caller, name)
            case "suspend":
                return await change_job.suspend(self._caller, name)
            case "resume":
                return await change_job.resume(self._caller, name)
            case _:
                return await change_job.prioritise(self._caller, name, request["priority"])

    async def _user(self) -> str:
        """Return the API server's name of the caller."""
        review = await self._api.create_review(_REVIEWS, {})
        return review.status.user_info.username

    async def _logs(self, name: str, query_fields: Record, *, follow: bool) -> Record:
        """Print the lines, and return the job as it was before."""
        job = await find_job_with_pods(self._caller, name)
        query = LogQuery(job=job.gang, **query_fields)
        pods = _Pods(self._caller, job, asyncio.get_running_loop())
        await pods.refresh()
        lines: Iterator[LogLine | None] = (
            pod_logs.follow(pods.known, query, pods.fetch, pods.has_ended)
            if follow
            else pod_logs.lines(pods.known, query, pods.fetch)
        )
        await asyncio.to_thread(_print_lines, lines)
        return row(job.gang_job)


async def _explain_error(caller: Caller, error: ApiError, name: str) -> CannotError:
    """Return the error for the user, with the next command to type."""
    match error.status:
        case 0:
            return CannotError("unreachable", str(error), caller.kubectl("cluster-info"), UNREACHABLE)
        case HTTPStatus.UNAUTHORIZED:
            detail = f"the API server does not accept the credentials of context {caller.context}: they have expired"
            return CannotError("unauthorized", f"{detail}\n{error}", caller.kubectl("auth", "whoami"), REFUSED)
        case HTTPStatus.FORBIDDEN:
            next_step = caller.kubectl("auth", "can-i", "--list", "-n", caller.namespace)
            return CannotError("forbidden", str(error), next_step, REFUSED)
        case HTTPStatus.NOT_FOUND if "gangjobs" not in await caller.api.list_resources(GROUP, VERSION):
            detail = f"ganger is not installed in the cluster of context {caller.context}"
            next_step = f"ganger install --dry-run | {caller.kubectl('apply', '-f', '-')}"
            return CannotError("not_installed", detail, next_step, UNREACHABLE)
        case HTTPStatus.NOT_FOUND:
            detail = f"there is no job {name} in namespace {caller.namespace}" if name else str(error)
            return CannotError("not_found", detail, caller.typed("ls"), NOT_FOUND)
        case HTTPStatus.BAD_REQUEST | HTTPStatus.UNPROCESSABLE_ENTITY:
            return CannotError("bad_spec", str(error), "kubectl explain gangjob.spec", USAGE)
        case HTTPStatus.CONFLICT:
            return CannotError("conflict", str(error), caller.typed("ls"), REFUSED)
        case _:
            return CannotError("api_server", str(error), caller.kubectl("get", "--raw", "/readyz?verbose"), UNREACHABLE)


class _Pods:
    """Pods of a job, for a reader on another thread than the event loop's."""

    def __init__(self, caller: Caller, job: FoundJob, loop: asyncio.AbstractEventLoop) -> None:
        self._caller, self._api, self._job, self._loop = caller, caller.api, job, loop
        self.known: dict[Key, Pod] = {}

    async def refresh(self) -> None:
        """Find new pods."""
        metadata = self._job.gang_job.metadata
        pods = await self._api.list(PODS, ListOptions(metadata.namespace, labels=f"{JOB}={metadata.name}"))
        self.known |= {pod.metadata.key: pod for pod in pods}

    def has_ended(self) -> bool:
        """Return whether the job or element has ended, after looking for new pods."""
        job = self._wait(find_job(self._caller, self._job.text))
        self._wait(self.refresh())
        return job.state in (*OVER, ENDED)

    def fetch(self, pod: Key, since: str) -> str:
        """Return the log of a pod, for `pod_logs`."""
        query = {"container": CONTAINER, "timestamps": "true"} | ({"sinceTime": since} if since else {})
        try:
            text: str = self._wait(self._api.text(ObjectRef(PODS, pod.namespace, pod.name, "log"), query))
        except ApiError as error:
            if error.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND):
                return ""  # its container has not started yet, or is gone
            raise pod_logs.LogUnavailableError(str(error)) from None
        return text

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _print_lines(lines: Iterator[LogLine | None]) -> None:
    for line in lines:
        if line is not None:
            _print({"line": line._asdict()})


def _print(record: Record, write: Callable[[str], object] = sys.stdout.write) -> None:
    write(json.dumps(record) + "\n")
    sys.stdout.flush()


def _error(code: str, detail: str, next: str, exit_code: int) -> Record:
    return {"code": code, "detail": detail, "next": next, "exit_code": exit_code}


def _job_filter(query: Record) -> JobFilter:
    """Return the filter of a query by state, user, queue, labels, since and until. Raises RequestError."""
    return JobFilter(
        states=tuple(query["state"].split(",")) if query.get("state") else (),
        user=query.get("user"),
        queue=query.get("queue"),
        since_ms=query.get("since"),
        until_ms=query.get("until"),
        labels=label_terms(query.get("labels") or ""),
    )


def _select_rows(rows: Iterable[Record], job_filter: JobFilter) -> list[Record]:
    """Return the matching rows, newest first."""
    matching = [row for row in rows if _matches(row, job_filter)]
    return sorted(matching, key=lambda row: (row["submitted_ms"], row["id"]), reverse=True)


def _matches(row: Record, job_filter: JobFilter) -> bool:
    ended_ms = row["ended_ms"]
    return (
        (not job_filter.states or row["state"] in job_filter.states)
        and job_filter.user in (None, row["user"])
        and job_filter.queue in (None, row["queue"])
        and (job_filter.since_ms is None or ended_ms is None or ended_ms >= job_filter.since_ms)
        and (job_filter.until_ms is None or row["submitted_ms"] <= job_filter.until_ms)
        and all((row["labels"].get(term.key) == term.value) is term.equal for term in job_filter.labels)
    )
