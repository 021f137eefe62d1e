"""The gate of the TCP listener: it checks the token and the Host header.

A page in a browser can resolve its own name to 127.0.0.1 (DNS rebinding): so a Host that is a name is accepted only
when it is this machine's. The unix socket has no gate: its mode is the check.
"""

import ipaddress
import re
import socket
from typing import Final
from urllib.parse import parse_qs

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ganger.engine.api_tokens import USER
from ganger.engine.service import RequestError, Service
from ganger.rest.problem_json import problem
from ganger.rest.responses import IS_USER

_IS_REMOTE: Final = "ganger.remote"
_POLICY: Final = "/api/v1/policy"
_SHARED: Final = re.compile(rf"/api/v1/(queues|nodes|maintenance|server)(/.*)?|{_POLICY}/?")
_HOST: Final = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(:\d{1,5})?")


class TokenGate:
    """`app` for requests with a valid token. Other requests get a problem, which never repeats the token."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        """Put the gate in front of `app`; `service` knows the tokens."""
        self._app, self._service = app, service
        self._host_names = frozenset(name.lower() for name in ("localhost", socket.gethostname(), socket.getfqdn()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if not self._is_this_host(headers.getlist("host")):
            message = "the Host header does not name this machine"
            refusal = problem(403, "bad_host", message, "use the address that the server listens on, or localhost")
        elif scheme.lower() != "bearer" or not token:
            remedy = "send Authorization: Bearer TOKEN; `ganger token create NAME` makes one"
            refusal = problem(401, "no_token", "over TCP every request needs a token", remedy)
        elif (row := self._service.token(token.strip())) is None:
            remedy = "ganger token ls; ganger token create NAME"
            refusal = problem(401, "bad_token", "the token is unknown, was revoked or has expired", remedy)
        elif row.role == USER and _is_administrative(scope):
            message = f"the token {row.name} has the role user, which changes neither queues, nodes nor the policy"
            refusal = problem(403, "not_administrator", message, "ask an administrator")
        else:
            await self._app({**scope, _IS_REMOTE: True, IS_USER: row.role == USER}, receive, send)
            return
        if refusal.status_code == 401:
            refusal.headers["WWW-Authenticate"] = "Bearer"
        await refusal(scope, receive, send)

    def _is_this_host(self, hosts: list[str]) -> bool:
        """Return whether the one Host header is an address, or a name of this machine."""
        match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if match is None:
            return False
        name = match["name"].strip("[]").lower()
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._host_names
        return True


def _is_administrative(scope: Scope) -> bool:
    """Return whether a request changes what all users share. A dry run of a policy does not."""
    if _SHARED.fullmatch(scope["path"]) is None or scope["method"] in ("GET", "HEAD"):
        return False
    is_dry_run = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True).get("dryRun") == ["plan"]
    return not (is_dry_run and scope["path"] == _POLICY)


async def _require_local(request: Request) -> None:
    if request.scope.get(_IS_REMOTE):
        raise RequestError(
            "local_only", "this request is served on the unix socket only", "run it on the server's machine", 403
        )


LocalOnly = Depends(_require_local)
"""Dependency of routes that are not served over TCP."""
