"""What a person asks of a Kubernetes cluster: jobs made, listed, stopped and read as the person, by their kubeconfig.

The errand `gangjobs`, which `faces.client.gang_jobs` runs: one request as JSON on stdin, answers as JSON lines on
stdout. {"answer": ...} is the last one, or {"error": ...}; before it there may be lines of a log. Nothing here has
rights of its own: the API server decides what this person may do, and says who they are.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import msgspec

from ganger.backends.kubernetes import pod_logs
from ganger.backends.kubernetes.access import Access, Unusable
from ganger.backends.kubernetes.api_error import ApiError
from ganger.backends.kubernetes.names import JOB, id_of
from ganger.backends.kubernetes.pods import CONTAINER
from ganger.backends.kubernetes.request import Place
from ganger.backends.kubernetes.resources import GANG_JOBS, PODS, Resource, Selection
from ganger.backends.kubernetes.transport import Api
from ganger.backends.kubernetes.types import GROUP, Custom, Fields, Key, Pod
from ganger.engine.ports import LogLine, LogQuery
from ganger.engine.refusal import Refused
from ganger.engine.spec import parse_spec, spec_from_dict, spec_to_dict
from ganger.engine.submission import new_id

Record = dict[str, Any]

DEFAULT: Final = "~/.kube/config"
VERSION: Final = "v1alpha1"
OVER: Final = ("Succeeded", "Failed", "Stopped", "Refused")
USAGE, NOT_FOUND, REFUSED, UNREACHABLE = 2, 3, 4, 5
"""Exit codes of the command line, as `faces.cli.exit_codes` has them."""


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
        access = Access.of_files([Path(each) for each in files.split(":") if each], context)
        asked = _Asked(access, context, namespace or access.namespace or "default")
        _tell({"answer": asyncio.run(asked.do(request))})
    except Unusable as error:
        _tell({"error": _error("bad_context", str(error), "kubectl config get-contexts", USAGE)})
    except Refused as refused:
        _tell({"error": _error(refused.code, refused.detail, refused.next, USAGE)})
    except _CannotError as error:
        _tell({"error": error.record})
    return 0


class _CannotError(Exception):
    """What the API server refused, for people."""

    def __init__(self, record: Record) -> None:
        super().__init__(record["detail"])
        self.record = record


class _Asked:
    """One request of one person, about the jobs of one namespace."""

    def __init__(self, access: Access, context: str, namespace: str) -> None:
        self._access, self._context, self._namespace = access, context, namespace

    async def do(self, request: Record) -> Any:
        """The answer to it. Raises _CannotError and Refused."""
        async with Api(self._access) as api:
            try:
                match request["do"]:
                    case "submit":
                        return await self._submit(api, request["request"])
                    case "list":
                        found = await api.list(GANG_JOBS, Selection(self._namespace))
                        return [_record(each) for each in found]
                    case "get":
                        return _record(await api.get(GANG_JOBS, request["name"], self._namespace))
                    case "stop":
                        return await self._stop(api, request["name"])
                    case _:
                        return await self._logs(api, request["name"], request["query"], follow=request["follow"])
            except ApiError as error:
                raise _CannotError(await self._explained(api, error, request.get("name", ""))) from error

    async def _submit(self, api: Api, request: Record) -> Record:
        if "spec_text" in request:
            spec = parse_spec(request["spec_text"], request["filename"], request["overrides"])
        else:
            spec = spec_from_dict(request["spec"], "the command line")
        who = await api.create(_REVIEWS, {"metadata": {"name": "me"}})
        written = {key: value for key, value in spec_to_dict(spec).items() if key != "name"}
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "GangJob",
            "metadata": {"name": new_id(spec.name, lambda _: False), "namespace": self._namespace},
            "spec": written | {"user": who.status.user_info.username},
        }
        return _record(await api.create(GANG_JOBS, body))

    async def _stop(self, api: Api, name: str) -> Record:
        phase = _status(await api.get(GANG_JOBS, name, self._namespace)).get("phase")
        if phase in OVER:
            next_ = f"ganger --context {self._context} explain {name}"
            raise _CannotError(_error("ended", f"{name} has ended already: {phase.lower()}", next_, REFUSED))
        place = Place(GANG_JOBS, self._namespace, name)
        return _record(await api.merge(place, {"spec": {"stop": True}}))

    async def _logs(self, api: Api, name: str, asked: Record, *, follow: bool) -> Record:
        """Tells the lines, and gives the job as it is then."""
        found = await api.get(GANG_JOBS, name, self._namespace)
        query = LogQuery(job=id_of(found.metadata.key), **asked)
        pods = _Pods(api, found.metadata.key, asyncio.get_running_loop())
        await pods.look()
        lines: Iterator[LogLine | None] = (
            pod_logs.follow(pods.known, query, pods.fetch, pods.over)
            if follow
            else pod_logs.lines(pods.known, query, pods.fetch)
        )
        await asyncio.to_thread(_tell_all, lines)
        return _record(await api.get(GANG_JOBS, name, self._namespace))

    async def _explained(self, api: Api, error: ApiError, name: str) -> Record:
        """What a refusal means for whoever typed the command, and what to type next."""
        kubectl, where = f"kubectl --context {self._context}", f"namespace {self._namespace}"
        match error.status:
            case 0:
                return _error("unreachable", str(error), f"{kubectl} cluster-info", UNREACHABLE)
            case HTTPStatus.UNAUTHORIZED:
                why = f"the API server does not know who you are: what context {self._context} shows has run out"
                return _error("unauthorized", f"{why}\n{error}", f"{kubectl} auth whoami", REFUSED)
            case HTTPStatus.FORBIDDEN:
                return _error("forbidden", str(error), f"{kubectl} auth can-i --list -n {self._namespace}", REFUSED)
            case HTTPStatus.NOT_FOUND if "gangjobs" not in await api.serves(GROUP, VERSION):
                why = f"ganger is not installed in the cluster of context {self._context}"
                return _error("not_installed", why, f"ganger install --dry-run | {kubectl} apply -f -", UNREACHABLE)
            case HTTPStatus.NOT_FOUND:
                detail = f"there is no job {name} in {where}" if name else str(error)
                return _error("not_found", detail, f"ganger --context {self._context} ls", NOT_FOUND)
            case HTTPStatus.BAD_REQUEST | HTTPStatus.UNPROCESSABLE_ENTITY:
                return _error("bad_spec", str(error), "kubectl explain gangjob.spec", USAGE)
            case HTTPStatus.CONFLICT:
                return _error("conflict", str(error), f"ganger --context {self._context} ls", REFUSED)
            case _:
                return _error("api_server", str(error), f"{kubectl} get --raw /readyz?verbose", UNREACHABLE)


class _Pods:
    """The pods of a job, for a reader on another thread than `loop`'s."""

    def __init__(self, api: Api, job: Key, loop: asyncio.AbstractEventLoop) -> None:
        self._api, self._job, self._loop = api, job, loop
        self.known: dict[Key, Pod] = {}

    async def look(self) -> None:
        """Find those that came."""
        found = await self._api.list(PODS, Selection(self._job.namespace, labels=f"{JOB}={self._job.name}"))
        self.known |= {pod.metadata.key: pod for pod in found}

    def over(self) -> bool:
        """Whether the job has ended; looks for pods that came."""
        job: Custom = self._wait(self._api.get(GANG_JOBS, self._job.name, self._job.namespace))
        self._wait(self.look())
        return _status(job).get("phase") in OVER

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


def _status(found: Custom) -> Record:
    status: Record | None = msgspec.json.decode(found.status)
    return status or {}


def _record(found: Custom) -> Record:
    """What people read of a GangJob."""
    status, spec = _status(found), msgspec.json.decode(found.spec)
    return {
        "name": found.metadata.name,
        "namespace": found.metadata.namespace,
        "user": spec.get("user", ""),
        "queue": spec.get("queue", "default"),
        "phase": status.get("phase", ""),
        "reason": status.get("reason") or "",
        "message": status.get("message") or "",
        "shape": status.get("shape", ""),
        "generation": status.get("generation", 0),
        "nodes": status.get("nodes") or [],
        "made": found.metadata.creation_timestamp,
        "started": status.get("startTime"),
        "ended": status.get("completionTime"),
        "exit_code": status.get("exitCode"),
    }


def _error(code: str, detail: str, next: str, exit_code: int) -> Record:
    return {"code": code, "detail": detail, "next": next, "exit_code": exit_code}
