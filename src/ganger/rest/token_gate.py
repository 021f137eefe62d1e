"""The gate of the TCP listener: who comes through shows a token, and means this host. Put before the app by `wiring`.

A page in a browser can make its own name lead to 127.0.0.1 (DNS rebinding): so a Host that is a name is taken only when
it is this machine's. The unix socket has no gate: its mode is the check.
"""

import ipaddress
import re
import socket
from typing import Final

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ganger.engine.service import RequestError, Service
from ganger.rest.problem_json import problem

_REMOTE: Final = "ganger.remote"
_HOST: Final = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(:\d{1,5})?")


class TokenGate:
    """`app` for requests with a good token. Refuses all others with a problem; what it says never repeats the token."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        """In front of `app`; `service` knows the tokens."""
        self._app, self._service = app, service
        self._names = frozenset(name.lower() for name in ("localhost", socket.gethostname(), socket.getfqdn()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection's request."""
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if not self._is_here(headers.getlist("host")):
            why = "the Host header does not name this machine"
            refused = problem(403, "bad_host", why, "send the address that the server listens at, or localhost")
        elif scheme.lower() != "bearer" or not token:
            remedy = "send Authorization: Bearer TOKEN; `ganger token create NAME` makes one"
            refused = problem(401, "no_token", "over TCP every request shows a token", remedy)
        elif self._service.token_holder(token.strip()) is None:
            remedy = "ganger token ls; ganger token create NAME"
            refused = problem(401, "bad_token", "the token is unknown, was revoked or has expired", remedy)
        else:
            await self._app({**scope, _REMOTE: True}, receive, send)
            return
        if refused.status_code == 401:
            refused.headers["WWW-Authenticate"] = "Bearer"
        await refused(scope, receive, send)

    def _is_here(self, hosts: list[str]) -> bool:
        """Whether the one Host header is an address, or a name of this machine."""
        found = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if found is None:
            return False
        name = found["name"].strip("[]").lower()
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return True


async def _local(request: Request) -> None:
    if request.scope.get(_REMOTE):
        raise RequestError(
            "local_only", "this can only be asked over the unix socket", "run it on the server's machine", 403
        )


Local = Depends(_local)
"""A dependency of routes that nobody may ask for over TCP."""
