"""What a person asks of a Kubernetes cluster: jobs made, listed, stopped and read as the person, by their kubeconfig.

The errand `gangjobs`, which `client.kubernetes.gang_jobs` runs: one request as JSON on stdin, answers as JSON lines on
stdout. {"answer": ...} is the last one, or {"error": ...}; before it there may be lines of a log. Nothing here has
rights of its own: the API server decides what this person may do, and says who they are.
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
from ganger.client.kubernetes import apply_policy, change_job, controller_requests, create_jobs, job_detail
from ganger.client.kubernetes.caller import NOT_FOUND, REFUSED, UNREACHABLE, USAGE, Caller, CannotError
from ganger.client.kubernetes.exec_in_pod import beside
from ganger.client.kubernetes.find_job import ENDED, FoundJob, chosen, whole, with_pods
from ganger.client.kubernetes.job_row import OVER, in_full, row
from ganger.engine.eventlog.job_filters import JobFilter, label_terms
from ganger.errors import RequestError
from ganger.kubeapi.api_client import Api
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.credentials import Credentials, NoFileError, Unusable
from ganger.kubeapi.objects import Fields, Key, Pod
from ganger.kubeapi.request import Place
from ganger.kubeapi.resources import PODS, Resource, Selection
from ganger.ports import LogLine, LogQuery
from ganger.settings import controller_namespace

Record = dict[str, Any]

DEFAULT: Final = "~/.kube/config"
WITHIN_S: Final = 8.0
"""How long a request is made again and again. A person waits; a controller has more patience."""
SILENT_S: Final = 10.0
"""How long the API server may be silent."""


class _Who(Fields, frozen=True):
    username: str


class _Known(Fields, frozen=True):
    user_info: _Who


class _Review(Fields, frozen=True):
    """What the API server says of whoever asks."""

    status: _Known


_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", _Review)


def ask(context: str, namespace: str | None) -> int:
    """Answer the request on stdin; gives the errand's exit code."""
    request = json.load(sys.stdin)
    try:
        files = os.environ.get("KUBECONFIG") or DEFAULT
        access = Credentials.of_files([Path(each) for each in files.split(":") if each], context)
        _tell({"answer": asyncio.run(_answer(access, context, namespace, request))})
    except NoFileError as error:
        _tell({"error": _error("bad_context", str(error), "export KUBECONFIG=FILE", USAGE)})
    except Unusable as error:
        _tell({"error": _error("bad_context", str(error), "kubectl config get-contexts", USAGE)})
    except RequestError as refused:
        _tell({"error": _error(refused.code, refused.detail, refused.next, USAGE)})
    except CannotError as error:
        _tell({"error": error.record})
    return 0


async def _answer(access: Credentials, context: str, namespace: str | None, request: Record) -> Any:
    """What the request asks for. Raises CannotError and Refused."""
    async with Api(access, PROGRAM, within_s=WITHIN_S, silent_s=SILENT_S) as api:
        space, controller = namespace or access.namespace or "default", controller_namespace(os.environ)
        who = Caller(api, context, space, chosen=namespace is not None, controller=controller)
        try:
            return await _Asked(who).do(request)
        except ApiError as error:
            raise await _explained(who, error, request.get("name", "")) from error


class _Asked:
    """One request of one person, about the jobs of one namespace. Raises ApiError, CannotError and Refused."""

    def __init__(self, who: Caller) -> None:
        self._who, self._api, self._namespace = who, who.api, who.namespace

    async def do(self, request: Record) -> Any:
        """The answer to it."""
        match request["do"]:
            case "submit":
                return await create_jobs.submit(self._who, await self._name(), request["request"])
            case "dry_run":
                return await create_jobs.dry_run(self._who, await self._name(), request["request"])
            case "list":
                wanted = _job_filter(request["query"])
                return _listed(map(row, await self._api.list(GANG_JOBS, Selection(self._namespace))), wanted)
            case "get":
                return in_full(await whole(self._who, request["name"], "shown"))
            case "detail" | "explain" | "elements":
                return await self._told(request)
            case "wait":
                return await change_job.ended(self._who, request["name"], request["timeout_s"])
            case "stop" | "suspend" | "resume" | "priority":
                return await self._change(request)
            case "exec":
                return await beside(self._who, request["name"], request["rank"], request["node"])
            case "ask":
                return await controller_requests.ask(self._who, await self._name(), request)
            case "apply_policy":
                return await apply_policy.write(self._who, request["proposal"])
            case _:
                return await self._logs(request["name"], request["query"], follow=request["follow"])

    async def _told(self, request: Record) -> Record:
        """What the controller knows of a job."""
        name, user = request["name"], await self._name()
        match request["do"]:
            case "detail":
                return await job_detail.detail(self._who, user, name)
            case "explain":
                return await job_detail.explanation(self._who, user, name)
            case _:
                return await job_detail.elements(self._who, user, name, request["query"])

    async def _change(self, request: Record) -> Record:
        name = request["name"]
        match request["do"]:
            case "stop":
                return await change_job.stop(self._who, name)
            case "suspend":
                return await change_job.suspend(self._who, name)
            case "resume":
                return await change_job.resume(self._who, name)
            case _:
                return await change_job.prioritise(self._who, name, request["priority"])

    async def _name(self) -> str:
        """By which the API server knows whoever asks."""
        known = await self._api.ask(_REVIEWS, {})
        return known.status.user_info.username

    async def _logs(self, name: str, asked: Record, *, follow: bool) -> Record:
        """Tells the lines, and gives the job as it was before."""
        its = await with_pods(self._who, name)
        query = LogQuery(job=its.gang, **asked)
        pods = _Pods(self._who, its, asyncio.get_running_loop())
        await pods.look()
        lines: Iterator[LogLine | None] = (
            pod_logs.follow(pods.known, query, pods.fetch, pods.over)
            if follow
            else pod_logs.lines(pods.known, query, pods.fetch)
        )
        await asyncio.to_thread(_tell_all, lines)
        return row(its.found)


async def _explained(who: Caller, error: ApiError, name: str) -> CannotError:
    """What a refusal means for whoever typed the command, and what to type next."""
    match error.status:
        case 0:
            return CannotError("unreachable", str(error), who.kubectl("cluster-info"), UNREACHABLE)
        case HTTPStatus.UNAUTHORIZED:
            why = f"the API server does not know who you are: what context {who.context} shows has run out"
            return CannotError("unauthorized", f"{why}\n{error}", who.kubectl("auth", "whoami"), REFUSED)
        case HTTPStatus.FORBIDDEN:
            next_ = who.kubectl("auth", "can-i", "--list", "-n", who.namespace)
            return CannotError("forbidden", str(error), next_, REFUSED)
        case HTTPStatus.NOT_FOUND if "gangjobs" not in await who.api.serves(GROUP, VERSION):
            why = f"ganger is not installed in the cluster of context {who.context}"
            next_ = f"ganger install --dry-run | {who.kubectl('apply', '-f', '-')}"
            return CannotError("not_installed", why, next_, UNREACHABLE)
        case HTTPStatus.NOT_FOUND:
            detail = f"there is no job {name} in namespace {who.namespace}" if name else str(error)
            return CannotError("not_found", detail, who.typed("ls"), NOT_FOUND)
        case HTTPStatus.BAD_REQUEST | HTTPStatus.UNPROCESSABLE_ENTITY:
            return CannotError("bad_spec", str(error), "kubectl explain gangjob.spec", USAGE)
        case HTTPStatus.CONFLICT:
            return CannotError("conflict", str(error), who.typed("ls"), REFUSED)
        case _:
            return CannotError("api_server", str(error), who.kubectl("get", "--raw", "/readyz?verbose"), UNREACHABLE)


class _Pods:
    """The pods of a job, for a reader on another thread than `loop`'s."""

    def __init__(self, who: Caller, its: FoundJob, loop: asyncio.AbstractEventLoop) -> None:
        self._who, self._api, self._its, self._loop = who, who.api, its, loop
        self.known: dict[Key, Pod] = {}

    async def look(self) -> None:
        """Find those that came."""
        job = self._its.found.metadata
        found = await self._api.list(PODS, Selection(job.namespace, labels=f"{JOB}={job.name}"))
        self.known |= {pod.metadata.key: pod for pod in found}

    def over(self) -> bool:
        """Whether the job, or the element, has ended; looks for pods that came."""
        its = self._wait(chosen(self._who, self._its.text))
        self._wait(self.look())
        return its.state in (*OVER, ENDED)

    def fetch(self, pod: Key, since: str) -> str:
        """The log of a pod, as `pod_logs` wants it."""
        query = {"container": CONTAINER, "timestamps": "true"} | ({"sinceTime": since} if since else {})
        try:
            text: str = self._wait(self._api.text(Place(PODS, pod.namespace, pod.name, "log"), query))
        except ApiError as error:
            if error.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND):
                return ""  # its container has not begun yet, or is gone
            raise pod_logs.Unread(str(error)) from None
        return text

    def _wait(self, asked: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result()


def _tell_all(lines: Iterator[LogLine | None]) -> None:
    for line in lines:
        if line is not None:
            _tell({"line": line._asdict()})


def _tell(told: Record, write: Callable[[str], object] = sys.stdout.write) -> None:
    write(json.dumps(told) + "\n")
    sys.stdout.flush()


def _error(code: str, detail: str, next: str, exit_code: int) -> Record:
    return {"code": code, "detail": detail, "next": next, "exit_code": exit_code}


def _job_filter(query: Record) -> JobFilter:
    """Return the filter for a query of state, user, queue, labels, since and until. Refused: invalid label selector."""
    return JobFilter(
        states=tuple(query["state"].split(",")) if query.get("state") else (),
        user=query.get("user"),
        queue=query.get("queue"),
        since_ms=query.get("since"),
        until_ms=query.get("until"),
        labels=label_terms(query.get("labels") or ""),
    )


def _listed(rows: Iterable[Record], wanted: JobFilter) -> list[Record]:
    """Return the matching rows, newest first."""
    found = [row for row in rows if _matches(row, wanted)]
    return sorted(found, key=lambda row: (row["submitted_ms"], row["id"]), reverse=True)


def _matches(row: Record, wanted: JobFilter) -> bool:
    ended_ms = row["ended_ms"]
    return (
        (not wanted.states or row["state"] in wanted.states)
        and wanted.user in (None, row["user"])
        and wanted.queue in (None, row["queue"])
        and (wanted.since_ms is None or ended_ms is None or ended_ms >= wanted.since_ms)
        and (wanted.until_ms is None or row["submitted_ms"] <= wanted.until_ms)
        and all((row["labels"].get(term.key) == term.value) is term.equal for term in wanted.labels)
    )
