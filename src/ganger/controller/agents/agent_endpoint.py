"""Endpoint of the agents: `PUT /api/v1/agents/NODE` with a message of `agent.node_message`.

It is served by the REST listener, with its limits, to the holder of a token of the agents' service account: the API
server says on which node the holder's pod is, and no agent speaks for another node. Whatever is wrong with a message is
answered, and is in the log once for each node while it repeats.
"""

import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ganger.agent.node_message import MAX_BYTES, PATH, BadAgentMessageError, decode
from ganger.check_api.kernel_text import shown
from ganger.controller.agents.cluster_agents import ClusterAgents
from ganger.rest.problem_json import problem
from ganger.rest.proxy_identity import NotReviewedError

REVIEW_S: Final = 300.0
"""Time for which a token counts as reviewed: its pod may be deleted meanwhile."""
MAX_REVIEWS: Final = 20_000
MAX_NAME: Final = 253
"""Characters of a node's name."""
MAX_COMPLAINTS: Final = 1_000
_STRANGER: Final = "an unknown node"
"""Of all who have no token, which anybody may send."""
INSTALL: Final = "ganger install --dry-run --agent | kubectl apply -f -"
_log = logging.getLogger("ganger")

NodeOf = Callable[[str], Awaitable[str | None]]
"""Returns the node of a token; None for one that is not an agent's. Raises NotReviewedError."""


class AgentEndpoint:
    """The application of that path.

    Args:
        agents: take what is sent.
        node_of: reviews tokens.
    """

    def __init__(self, agents: ClusterAgents, node_of: NodeOf) -> None:
        self._agents, self._node_of = agents, node_of
        self._reviewed: dict[bytes, tuple[str, float]] = {}
        self._complaints: dict[str, str] = {}

    async def admits(self, scope: Scope) -> Response | None:
        """Return why a request is not admitted; None for that of the agent of the node."""
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        try:
            node = await self._reviewed_node(token.strip()) if scheme.lower() == "bearer" else None
        except NotReviewedError as error:
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, "no_review", str(error), "ask again in a while")
        named = node_of_path(scope)
        if node is None:
            detail = "the token was not issued by the API server for an agent and this controller, or has expired"
            return self._refused(_STRANGER, problem(HTTPStatus.UNAUTHORIZED, "bad_token", detail, INSTALL), detail)
        if node != named or not self._agents.has_node(node):
            return self._foreign(node, named)
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one admitted request."""
        node = node_of_path(scope)
        body = bytearray()
        has_more = True
        while has_more and len(body) <= MAX_BYTES:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            has_more = message.get("more_body", False)
        response = self._answer(node, body)
        if len(body) > MAX_BYTES:
            response.headers["Connection"] = "close"
        await response(scope, receive, send)

    def _answer(self, node: str, body: bytearray) -> Response:
        if len(body) > MAX_BYTES:
            detail = f"a message of more than {MAX_BYTES} bytes"
            refusal = problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large", detail, INSTALL)
            return self._refused(node, refusal, detail)
        if not self._agents.has_node(node):  # it was deleted meanwhile
            return self._foreign(node, node)
        try:
            self._agents.take(node, decode(body))
        except BadAgentMessageError as error:
            refusal = problem(HTTPStatus.BAD_REQUEST, "bad_agent_message", str(error), INSTALL)
            return self._refused(node, refusal, str(error))
        if self._complaints.pop(node, None) is not None:
            _log.info("the agent of %s is understood again", node)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    def _foreign(self, node: str, named: str) -> Response:
        detail = f"the token is of the agent of {node}, and {named} is another node, or none of this cluster"
        refusal = problem(HTTPStatus.FORBIDDEN, "not_your_node", detail, "kubectl get nodes")
        return self._refused(node, refusal, detail)

    def _refused(self, node: str, response: Response, reason: str) -> Response:
        """Return a response, after a line in the log, which is not repeated."""
        if self._complaints.get(node) != reason:
            if len(self._complaints) >= MAX_COMPLAINTS:
                self._complaints.clear()
            self._complaints[node] = reason
            _log.warning("refused the agent of %s: %s; not logged again while it repeats", node, shown(reason))
        return response

    async def _reviewed_node(self, token: str) -> str | None:
        """Return the node of a token, which is reviewed at intervals."""
        digest, now_s = hashlib.sha256(token.encode()).digest(), time.monotonic()
        known = self._reviewed.get(digest)
        if known is not None and now_s < known[1]:
            return known[0]
        node = await self._node_of(token)
        if node is None:
            self._reviewed.pop(digest, None)
            return None
        if len(self._reviewed) >= MAX_REVIEWS:
            self._reviewed.clear()
        self._reviewed[digest] = node, now_s + REVIEW_S
        return node


class AgentGate:
    """`default_app`, and before it the endpoint of the agents.

    endpoint_app: the endpoint, wrapped in what handles admitted requests.
    """

    def __init__(self, endpoint: AgentEndpoint, endpoint_app: ASGIApp, default_app: ASGIApp) -> None:
        self._endpoint, self._endpoint_app, self._default_app = endpoint, endpoint_app, default_app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        is_agent = scope["type"] == "http" and scope["method"] == "PUT" and scope["path"].startswith(PATH)
        if not is_agent:
            await self._default_app(scope, receive, send)
            return
        await (await self._endpoint.admits(scope) or self._endpoint_app)(scope, receive, send)


def node_of_path(scope: Scope) -> str:
    """Return the node that the path of a request names."""
    path: str = scope["path"]
    return path.removeprefix(PATH)[:MAX_NAME]
