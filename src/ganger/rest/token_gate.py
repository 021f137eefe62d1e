"""The gate of the TCP listener: it checks the token, its scope and the Host header.

A page in a browser can resolve its own name to 127.0.0.1 (DNS rebinding): so a Host that is a name is accepted only
when it is this machine's. Over TLS the certificate prevents that. The unix socket has no gate: its mode is the check.

A response that takes long, such as a stream, ends with its token: when that is revoked, or expires.
"""

import asyncio
import ipaddress
import re
import socket
from collections import defaultdict
from typing import Final
from urllib.parse import parse_qs

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ganger.engine.service import RequestError, Service, TokenRow, TokenScope
from ganger.rest.broken_response import break_off
from ganger.rest.problem_json import problem
from ganger.rest.responses import HOLDER

MAX_REQUESTS: Final = 256
"""Requests of one token at one time: a stream takes a connection, and 0.4 MB over TLS, as long as it is read."""
_POLICY: Final = "/api/v1/policy"
_UNSHARED: Final = re.compile(r"/api/v1/(jobs|batches|code|secrets|server|tokens)(/.*)?", re.DOTALL)
"""Paths that need no more than `submit`, or are `LocalOnly`. All others do, whatever path a router takes them for."""
_HOST: Final = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(:\d{1,5})?")


class TokenGate:
    """`app` for requests with a valid token. Other requests get a problem, which never repeats the token."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        """Put the gate in front of `app`; `service` knows the tokens."""
        self._app, self._service = app, service
        self._loop = asyncio.get_running_loop()
        self._responses = defaultdict[str, set[_Response]](set)
        """Responses in progress, by the name of their token."""
        service.on_token_revoked(lambda name: self._loop.call_soon_threadsafe(self._end_responses, name))
        self._host_names = frozenset(name.lower() for name in ("localhost", socket.gethostname(), socket.getfqdn()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scope["scheme"] != "https" and not self._is_this_host(headers.getlist("host")):
            message = "the Host header does not name this machine"
            refusal = problem(403, "bad_host", message, "use the address that the server listens on, or localhost")
        elif scheme.lower() != "bearer" or not token:
            remedy = "send Authorization: Bearer TOKEN; `ganger token create NAME` makes one"
            refusal = problem(401, "no_token", "over TCP every request needs a token", remedy)
        elif (row := self._service.token(token.strip())) is None:
            remedy = "for a new one, on the server's machine: ganger token create NAME"
            refusal = problem(401, "bad_token", "the token is unknown, was revoked or has expired", remedy)
        elif not row.allows(needed := _needed_scope(scope)):
            message = f"the token {row.name} has the scope {row.scope}, and this request needs {needed}"
            remedy = f"ask for another token: ganger token create NAME --scope {needed}"
            refusal = problem(403, "insufficient_scope", message, remedy)
        elif len(self._responses.get(row.name, ())) >= MAX_REQUESTS:
            message = f"{MAX_REQUESTS} requests with the token {row.name} are being answered, the most at one time"
            refusal = problem(503, "too_many_requests", message, "end some of them, such as followers of logs")
        else:
            await self._answer(row, scope, receive, send)
            return
        if refusal.status_code == 401:
            refusal.headers["WWW-Authenticate"] = "Bearer"
        await refusal(scope, receive, send)

    async def _answer(self, row: TokenRow, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an accepted request; close the connection if its response has not ended when its token does."""
        expires_s = None if row.expires_ms is None else self._loop.time() + self._service.until_s(row.expires_ms)

        async def send_watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                response.begin()
            await send(message)

        timeout = asyncio.timeout(None)
        try:
            async with timeout:
                response = _Response(timeout, expires_s)
                self._responses[row.name].add(response)
                try:
                    await self._app({**scope, HOLDER: row}, receive, send_watched)
                finally:
                    self._forget(row.name, response)
        except TimeoutError:
            if not timeout.expired():
                raise
            await break_off(scope, receive)

    def _forget(self, name: str, response: "_Response") -> None:
        self._responses[name].discard(response)
        if not self._responses[name]:
            del self._responses[name]

    def _end_responses(self, name: str) -> None:
        for response in self._responses.get(name, ()):
            response.end_at(self._loop.time())

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


class _Response:
    """A response that has begun ends with its token; before that, a change that was accepted is carried out."""

    def __init__(self, timeout: asyncio.Timeout, end_s: float | None) -> None:
        self._timeout, self._end_s = timeout, end_s
        self._has_begun = False

    def begin(self) -> None:
        self._has_begun = True
        self._timeout.reschedule(self._end_s)

    def end_at(self, end_s: float) -> None:
        self._end_s = end_s
        if self._has_begun:
            self._timeout.reschedule(end_s)


def _needed_scope(scope: Scope) -> TokenScope:
    """Return the scope of a token that a request needs. A dry run of a policy changes nothing."""
    path, method = scope["path"], scope["method"]
    if method in ("GET", "HEAD") or path in (f"{_POLICY}/check", f"{_POLICY}/diff"):
        return "read"
    is_dry_run = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True).get("dryRun") == ["plan"]
    if path == _POLICY and is_dry_run:
        return "read"
    return "submit" if _UNSHARED.fullmatch(path) else "admin"


async def _require_local(request: Request) -> None:
    if request.scope.get(HOLDER):
        raise RequestError(
            "local_only", "this request is served on the unix socket only", "run it on the server's machine", 403
        )


LocalOnly = Depends(_require_local)
"""Dependency of routes that are not served over TCP."""
