"""Who comes through the API server of a Kubernetes cluster, and what they may ask. Put before the gate by `wiring`.

The API server keeps to itself what people show it. So they bring a token of its making in a header of ours, and the
controller asks it whose that is. They only read here: objects are changed at the API server, which knows their rights.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Final, NamedTuple
from urllib.parse import parse_qs

from fastapi import Depends, Request, Response
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ganger.rest.problem_json import problem

_USER: Final = "ganger.user"
_ANYBODY: Final = re.compile(r"GET /api/v1/(fit|policy|policy/versions|policy/versions/\d+)")
"""Answers that name no job."""
_PLAN: Final = "POST /api/v1/jobs"
"""For anybody as a trial: its answer says what their own job would be told."""
_WHO_SEES_ALL: Final = re.compile(
    r"GET /api/v1/(overview|samples|report|nodes|queues|queues/[^/]+)|POST /api/v1/policy/diff"
)
"""Answers about the jobs of all namespaces."""
_OF_JOB: Final = re.compile(r"GET /api/v1/jobs/([^/]+)(/explain|/elements)?")
"""Answers about one job: also for whoever it is of."""
_REPORT: Final = "GET /api/v1/report"
"""Also for anybody about their own jobs."""
_TRIAL: Final = "PUT /api/v1/policy"


class CallerIdentity(NamedTuple):
    """Somebody the API server knows. sees_all: they may list the jobs of all namespaces."""

    name: str
    sees_all: bool


class NotReviewedError(Exception):
    """The API server did not say whose a token is."""


OwnerOf = Callable[[str], str | None]
"""Whose a job is, by id; None of one that is not there."""
Identify = Callable[[str], Awaitable[CallerIdentity | None]]
"""Whose a token is; None: it is not good. Raises NotReviewedError."""


class ProxyIdentity:
    """`app` for people with a token of the API server's in that header; everybody else goes to `others`.
    trial: the name by which the parameter dryRun comes here."""

    def __init__(
        self, app: ASGIApp, others: ASGIApp, identify: Identify, owner_of: OwnerOf, *, header: str, trial: str
    ) -> None:
        self._app, self._others, self._identify, self._owner_of = app, others, identify, owner_of
        self._header, self._trial = header, trial.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection's request."""
        if scope["type"] != "http" or self._header not in Headers(scope=scope):
            await self._others(scope, receive, send)
            return
        scope = {**scope, "query_string": scope["query_string"].replace(self._trial + b"=", b"dryRun=")}
        scheme, _, token = Headers(scope=scope)[self._header].partition(" ")
        try:
            visitor = await self._identify(token.strip()) if scheme.lower() == "bearer" and token.strip() else None
        except NotReviewedError as error:
            refused: Response | None = problem(503, "no_review", str(error), "ask again in a while")
        else:
            refused = self._refusal(scope, visitor)
            scope = scope if visitor is None else {**scope, _USER: visitor.name}
        await (refused or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope, visitor: CallerIdentity | None) -> Response | None:
        """Why this is not answered; None when it is."""
        if visitor is None:
            why = "the token is none of the API server's for the controller, or has run out"
            return problem(401, "bad_token", why, "ganger --context NAME ...")
        asked = f"{scope['method']} {scope['path']}"
        if _ANYBODY.fullmatch(asked) or (asked == _PLAN and _is_trial(scope)):
            return None
        of_job = _OF_JOB.fullmatch(asked)
        if not of_job and not _WHO_SEES_ALL.fullmatch(asked) and not (asked == _TRIAL and _is_trial(scope)):
            why = "through the API server the controller answers questions, and changes nothing"
            return problem(
                403, "read_only", why, "change the objects themselves: kubectl api-resources --categories=ganger"
            )
        if visitor.sees_all or (asked == _REPORT and _given(scope).get("user") == [visitor.name]):
            return None
        if of_job:
            if self._owner_of(of_job[1]) == visitor.name:
                return None
            why = f"of a job it tells whose it is, and who may list the jobs of all namespaces; {visitor.name} may not"
            return problem(403, "not_your_job", why, "kubectl auth can-i list gangjobs.ganger.dev --all-namespaces")
        why = f"the answer is about jobs of all namespaces, which {visitor.name} may not list"
        next_ = "kubectl auth can-i list gangjobs.ganger.dev --all-namespaces"
        own = f"ganger --context NAME report --user {visitor.name}"
        return problem(403, "not_all_jobs", why, own if asked == _REPORT else next_)


def _given(scope: Scope) -> dict[str, list[str]]:
    return parse_qs(scope["query_string"].decode("latin-1"))


def _is_trial(scope: Scope) -> bool:
    return _given(scope).get("dryRun") == ["plan"]


async def _asking(request: Request) -> str | None:
    found: str | None = request.scope.get(_USER)
    return found


Asking = Annotated[str | None, Depends(_asking)]
"""Who asks, as a parameter of a route; None: whoever the server belongs to."""
