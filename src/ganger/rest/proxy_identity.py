"""Identity of callers who come through the API server of a Kubernetes cluster, and the requests they may make.

The API server's proxy strips credentials. So callers send a token of the API server in a header of ours, and the
controller has the API server review it. They only read here, send code that fits into no object, and have jobs moved,
which no object says: objects are changed at the API server, which knows their rights.
"""

import re
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Annotated, Final, NamedTuple
from urllib.parse import parse_qs

from fastapi import Depends, Request, Response
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ganger.model.job import ELSEWHERE
from ganger.rest.problem_json import problem
from ganger.rest.responses import IS_USER

_CALLER: Final = "ganger.caller"
_PUBLIC: Final = re.compile(
    r"GET /api/v1/(server|fit|policy|policy/versions|policy/versions/\d+)|POST /api/v1/policy/check"
)
"""Answers that name no job."""
_CODE: Final = re.compile(r"(GET|PUT) /api/v1/code/[0-9a-f]{64}")
"""Open to those who may create jobs in the namespace that the code is for."""
_JOB_DRY_RUN: Final = "POST /api/v1/jobs"
"""Open to every caller as a dry run: its answer is about their own job."""
_ALL_NAMESPACES: Final = re.compile(
    r"GET /api/v1/(events|incidents|overview|defrag|samples|telemetry|report|queues|queues/[^/]+)"
    r"|GET /api/v1/(node-health|nodes|nodes/[^/]+/telemetry)|POST /api/v1/policy/diff"
)
"""Answers about the jobs of all namespaces."""
_ONE_JOB: Final = re.compile(r"GET /api/v1/jobs/([^/]+)(/explain|/elements|/events|/usage|/stacks|/metrics)?")
"""Answers about one job: also for its owner."""
_REPORT: Final = "GET /api/v1/report"
"""Open to every caller about their own jobs."""
_EVENTS: Final = "GET /api/v1/events"
"""Open to every caller about one job of their own."""
_OPERATIONS: Final = re.compile(r"POST /api/v1/(defrag|nodes/[^/]+/(repair|retire)|node-health/reset-breaker)")
"""Open to those who may administer the jobs of all namespaces."""
_POLICY_DRY_RUN: Final = "PUT /api/v1/policy"


_WORD: Final = re.compile(rb"\\(?:u[0-9a-fA-F]{4}|.)|(?P<word>[\w~-]*\.[\w.~-]+)(\[\d+\])?|[\w~-]+")
"""An escape of JSON, whose letter is of no word, or a whole word that may be a job's id, also of one of foreign pods.

A part of a word is no id: the node `a.b.example.com` is not the job `a.b`. The last alternative takes a word without a
dot whole, so that it is read twice, and not once from each of its letters.
"""
_TEXTS: Final = (b"application/json", b"application/problem+json", b"text/event-stream")


class CallerIdentity(NamedTuple):
    """A user known to the API server.

    sees_all: they may list the jobs of all namespaces.
    administers: namespaces whose jobs they may administer.
    administers_all: they may administer those of all namespaces.
    submits: namespaces in which they may create jobs.
    lists: namespaces whose jobs they may list.
    """

    name: str
    sees_all: bool
    administers: tuple[str, ...] = ()
    administers_all: bool = False
    submits: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()


class NotReviewedError(Exception):
    """The API server did not review a token."""


OwnerOf = Callable[[str], str | None]
"""Returns the owner of a job, by id; None for a missing one."""
Identify = Callable[[str], Awaitable[CallerIdentity | None]]
"""Returns the owner of a token; None for an invalid one. Raises NotReviewedError."""


class ProxyIdentity:
    """`app` for callers with a token of the API server in that header; all others go to `default_app`.

    dry_run_parameter: the name under which the parameter dryRun arrives here.
    """

    def __init__(
        self,
        app: ASGIApp,
        default_app: ASGIApp,
        identify: Identify,
        owner_of: OwnerOf,
        *,
        header: str,
        dry_run_parameter: str,
    ) -> None:
        self._app, self._default_app, self._identify, self._owner_of = app, default_app, identify, owner_of
        self._header, self._dry_run_parameter = header, dry_run_parameter.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or self._header not in Headers(scope=scope):
            await self._default_app(scope, receive, send)
            return
        scope = {**scope, "query_string": scope["query_string"].replace(self._dry_run_parameter + b"=", b"dryRun=")}
        scheme, _, token = Headers(scope=scope)[self._header].partition(" ")
        try:
            caller = await self._identify(token.strip()) if scheme.lower() == "bearer" and token.strip() else None
        except NotReviewedError as error:
            refusal: Response | None = problem(503, "no_review", str(error), "ask again in a while")
        else:
            refusal = self._refusal(scope, caller)
            if caller is not None and not caller.sees_all:
                send = self._without_names(send, caller)
            scope = scope if caller is None else {**scope, _CALLER: caller, IS_USER: True}
        await (refusal or self._app)(scope, receive, send)

    def _without_names(self, send: Send, caller: CallerIdentity) -> Send:
        """Return a `send` that replaces the ids of jobs that a caller may not list, in whatever sentence they are.

        A reason, a dry run or an event may name any job that is in the way. What is no id of a job stays. An answer
        is one piece, and an event of a stream another.
        """
        is_text = False

        @cache  # a reason names the same jobs again and again, and each look-up is a query
        def is_hidden(job: str) -> bool:
            return job.rpartition(".")[2] not in caller.lists and self._owner_of(job) not in (None, caller.name)

        def name(found: re.Match[bytes]) -> bytes:
            job = (found["word"] or b"").strip(b".-")  # of the sentence around it
            if b"." not in job or not is_hidden(job.decode()):
                return found[0]
            before, _, after = found["word"].partition(job)
            return before + ELSEWHERE.encode() + after

        async def send_without(message: Message) -> None:
            nonlocal is_text
            if message["type"] == "http.response.start":
                headers = message["headers"]
                is_text = any(key == b"content-type" and value.startswith(_TEXTS) for key, value in headers)
                if is_text:  # of another length
                    headers = [(key, value) for key, value in headers if key != b"content-length"]
                    message = {**message, "headers": headers}
            elif is_text and message.get("body"):
                message = {**message, "body": _WORD.sub(name, message["body"])}
            await send(message)

        return send_without

    def _refusal(self, scope: Scope, caller: CallerIdentity | None) -> Response | None:
        """Return why the request is not answered; None when it is."""
        if caller is None:
            message = "the token was not issued by the API server for the controller, or has expired"
            return problem(401, "bad_token", message, "ganger --context NAME ...")
        request = f"{scope['method']} {scope['path']}"
        if _PUBLIC.fullmatch(request) or (request == _JOB_DRY_RUN and _is_dry_run(scope)):
            return None
        if _CODE.fullmatch(request):
            namespaces = _query(scope).get("namespace", [])
            if len(namespaces) == 1 and namespaces[0] in caller.submits:
                return None
            namespace = " or ".join(namespaces) or "an unnamed one"
            message = f"code is kept for the jobs of a namespace, and {caller.name} may create none in {namespace}"
            next_ = "kubectl auth can-i create gangjobs.ganger.dev -n NAMESPACE"
            return problem(403, "not_your_namespace", message, next_)
        if _OPERATIONS.fullmatch(request):
            message = f"jobs of all namespaces may be moved by it, and {caller.name} may not administer them"
            next_ = "kubectl auth can-i administer gangjobs.ganger.dev --all-namespaces"
            return None if caller.administers_all else problem(403, "not_administrator", message, next_)
        one_job = _ONE_JOB.fullmatch(request)
        if (
            not one_job
            and not _ALL_NAMESPACES.fullmatch(request)
            and not (request == _POLICY_DRY_RUN and _is_dry_run(scope))
        ):
            message = "through the API server's proxy the controller serves read-only requests"
            return problem(
                403, "read_only", message, "change the objects themselves: kubectl api-resources --categories=ganger"
            )
        if caller.sees_all or (request == _REPORT and _query(scope).get("user") == [caller.name]):
            return None
        gangs = _query(scope).get("gang", []) if request == _EVENTS else []
        job_id = one_job[1] if one_job else gangs[0] if len(gangs) == 1 else ""
        if job_id:
            if self._owner_of(job_id) == caller.name:
                return None
            message = (
                f"only its owner and users who may list the jobs of all namespaces see a job; {caller.name} may not"
            )
            return problem(403, "not_your_job", message, "kubectl auth can-i list gangjobs.ganger.dev --all-namespaces")
        message = f"the answer is about jobs of all namespaces, which {caller.name} may not list"
        next_ = "kubectl auth can-i list gangjobs.ganger.dev --all-namespaces"
        own_report = f"ganger --context NAME report --user {caller.name}"
        return problem(403, "not_all_jobs", message, own_report if request == _REPORT else next_)


def _query(scope: Scope) -> dict[str, list[str]]:
    """Return all values of each parameter: of several a route takes the last, also an empty one."""
    return parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _is_dry_run(scope: Scope) -> bool:
    return _query(scope).get("dryRun") == ["plan"]


async def _caller(request: Request) -> CallerIdentity | None:
    caller: CallerIdentity | None = request.scope.get(_CALLER)
    return caller


CallerParam = Annotated[CallerIdentity | None, Depends(_caller)]
"""The caller who comes through the API server, as a parameter of a route; None: another one."""


async def _caller_name(caller: CallerParam) -> str | None:
    return None if caller is None else caller.name


CallerName = Annotated[str | None, Depends(_caller_name)]
"""The name of that caller."""
