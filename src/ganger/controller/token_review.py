"""Review of callers' tokens, by the API server itself.

Tokens of callers that come through the API server's proxy are those of `gang_jobs.controller_tokens`. A
metrics collector sends the token of its own service account, as to any component of Kubernetes.
"""

import base64
import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ganger.gang_jobs.controller_tokens import (
    ADMINISTERS_PREFIX,
    AGENT_ACCOUNT,
    ALL_JOBS_AUDIENCE,
    ALL_NAMESPACES_ADMINISTERED,
    CALLER_ACCOUNT,
    CONTROLLER_AUDIENCE,
    LISTS_PREFIX,
    SUBMITS_PREFIX,
    USER_PREFIX,
)
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import AccessReview, ApiStruct
from ganger.kubeapi.resources import Resource
from ganger.rest.problem_json import problem
from ganger.rest.proxy_identity import CallerIdentity, NotReviewedError

MAX_CHARACTERS: Final = 16 << 10
METRICS_PATH: Final = "/metrics"
"""Non-resource URL that a collector must be permitted to get, as for other components: roles of collectors have it."""
_METRICS_TARGET: Final = "/api/v1/metrics"
_NODE_NAME: Final = "authentication.kubernetes.io/node-name"
_DOTS_IN_JWT: Final = 2


class _User(ApiStruct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}  # noqa: RUF012  # msgspec copies it


class _ReviewStatus(ApiStruct, frozen=True):
    authenticated: bool = False
    user: _User = _User()


class _Review(ApiStruct, frozen=True):
    status: _ReviewStatus


_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews", _Review)
_ACCESS_REVIEWS: Final = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", AccessReview)


class TokenReviewer:
    """Reviews tokens with `api`. `namespace` is that of the tokens' service accounts."""

    def __init__(self, api: ApiClient, namespace: str) -> None:
        self._api, accounts = api, f"system:serviceaccount:{namespace}:"
        self._account, self._agent_account = f"{accounts}{CALLER_ACCOUNT}", f"{accounts}{AGENT_ACCOUNT}"

    async def identify(self, token: str) -> CallerIdentity | None:
        """Return the caller of a token; None if it is not valid here. Raises NotReviewedError."""
        user = await self._review(token, [CONTROLLER_AUDIENCE])
        return None if user is None or user.username != self._account else identity_of(_audiences(token))

    async def agent_node(self, token: str) -> str | None:
        """Return the node of the agent that has a token; None for one that is not an agent's. Raises NotReviewedError.

        The API server issues such a token for a pod, or for a node, and says on which node the pod is.
        """
        user = await self._review(token, [CONTROLLER_AUDIENCE])
        if user is None or user.username != self._agent_account:
            return None
        nodes = user.extra.get(_NODE_NAME, ())
        return nodes[0] if len(nodes) == 1 else None

    async def refuse_collector(self, token: str) -> Response | None:
        """Return why the holder of a token of the API server may not read the metrics; None if they may.

        Raises NotReviewedError.
        """
        user = await self._review(token, [])
        if user is None:
            detail = "the API server does not accept the token: it was not issued by it, or has expired"
            return problem(HTTPStatus.UNAUTHORIZED, "bad_token", detail, "kubectl create token NAME")
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups,
            "extra": user.extra,
            "nonResourceAttributes": {"path": METRICS_PATH, "verb": "get"},
        }
        try:
            review = await self._api.create_review(_ACCESS_REVIEWS, {"spec": spec})
        except ApiError as error:
            raise NotReviewedError(f"the API server did not review the rights of {user.username}: {error}") from None
        if review.status.allowed:
            return None
        detail = f"{user.username} may not get {METRICS_PATH}, a right that the ClusterRole ganger-metrics grants"
        binding = "kubectl create clusterrolebinding NAME --clusterrole=ganger-metrics --serviceaccount=NAMESPACE:NAME"
        return problem(HTTPStatus.FORBIDDEN, "no_metrics", detail, binding)

    async def _review(self, token: str, audiences: Sequence[str]) -> _User | None:
        """Return the user of a token for one of the audiences, by default the API server's; None if it is not valid."""
        if len(token) > MAX_CHARACTERS:
            return None
        try:
            spec = {"token": token, "audiences": audiences}
            result = (await self._api.create_review(_REVIEWS, {"spec": spec})).status
        except ApiError as error:
            raise NotReviewedError(f"the API server did not review the token: {error}") from None
        return result.user if result.authenticated else None


class MetricsGate:
    """`app` for collectors of metrics with a token of the API server; all other requests go to `default_app`."""

    def __init__(self, app: ASGIApp, default_app: ASGIApp, reviewer: TokenReviewer) -> None:
        self._app, self._default_app, self._reviewer = app, default_app, reviewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        is_scrape = scope["type"] == "http" and (scope["method"], scope["path"]) == ("GET", _METRICS_TARGET)
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ") if is_scrape else ("", "", "")
        if scheme.lower() != "bearer" or token.count(".") != _DOTS_IN_JWT:  # the controller's own tokens have no dot
            await self._default_app(scope, receive, send)
            return
        try:
            refusal = await self._reviewer.refuse_collector(token.strip())
        except NotReviewedError as error:
            refusal = problem(HTTPStatus.SERVICE_UNAVAILABLE, "no_review", str(error), "ask again in a while")
        await (refusal or self._app)(scope, receive, send)


def identity_of(audiences: Sequence[str]) -> CallerIdentity | None:
    """Return the caller whom the audiences of a token identify; None if they identify no single one."""
    names, namespaces, submits, lists = (
        [audience.removeprefix(prefix) for audience in audiences if audience.startswith(prefix)]
        for prefix in (USER_PREFIX, ADMINISTERS_PREFIX, SUBMITS_PREFIX, LISTS_PREFIX)
    )
    if len(names) != 1 or not names[0]:
        return None
    return CallerIdentity(
        names[0],
        sees_all=ALL_JOBS_AUDIENCE in audiences,
        administers=tuple(namespaces),
        submits=tuple(submits),
        lists=tuple(lists),
        administers_all=ALL_NAMESPACES_ADMINISTERED in audiences,
    )


def _audiences(token: str) -> Sequence[str]:
    """Return the audiences of a token whose signature the API server has verified (RFC 7519)."""
    payload = token.split(".")[1]
    audiences = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["aud"]
    return [audiences] if isinstance(audiences, str) else audiences
