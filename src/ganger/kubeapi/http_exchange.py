"""HTTP exchanges with the API server: fresh credentials, request counts, and errors as ApiError.

Responses are requested uncompressed: inside a cluster, compressing costs the server more than sending. The only proxy
is that of the kubeconfig file.
"""

import ssl
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final

import aiohttp
from aiohttp import hdrs
from multidict import CIMultiDict
from yarl import URL

from ganger.kubeapi.api_error import ApiError, error_from_response
from ganger.kubeapi.credentials import Credentials, CredentialsError
from ganger.kubeapi.request import JSON, Permission, Program, Request

MAX_CONNECTIONS: Final = 64
"""Concurrent requests, watches not counted; more wait here."""
CONNECT_TIMEOUT_S: Final = 10.0
READ_TIMEOUT_S: Final = 30.0
"""Default limit of silence within a response: a chunk of a list takes far less."""

_BEFORE_SENDING: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


class HttpExchange:
    """Connections to one API server.

    Attributes:
        may_write: returns whether this client may still write; called before each write.
        requests: requests sent, retries included.
        in_flight: number of requests being sent or without a response.
    """

    def __init__(self, credentials: Credentials, program: Program, read_timeout_s: float, *, dry_run: bool) -> None:
        self._credentials, self._program, self._read_timeout_s, self._dry_run = (
            credentials,
            program,
            read_timeout_s,
            dry_run,
        )
        self._base = URL(credentials.url)
        self._session: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None
        self.requests: Counter[Permission] = Counter()
        self.in_flight = 0
        self.may_write: Callable[[], bool] = lambda: True

    async def close(self) -> None:
        """Drop all connections."""
        for session in (self._session, self._streams):
            if session is not None:
                await session.close()

    async def send(self, request: Request) -> bytes:
        """Send a request and return the response body. Raises ApiError."""
        if self._session is None:
            self._session = self._open_session(MAX_CONNECTIONS)
        self.in_flight += 1
        try:
            timeout_s = request.response_timeout_s or self._read_timeout_s
            async with self._response(self._session, request, timeout_s) as response:
                return await response.read()
        finally:
            self.in_flight -= 1

    async def stream(self, request: Request, read_timeout_s: float) -> AsyncGenerator[bytes]:
        """Yield the response in pieces as they arrive, after an empty piece when it begins.

        Raises ApiError, also when nothing arrives for `read_timeout_s`.
        """
        async with self._response(self._stream_session(), request, read_timeout_s) as response:
            yield b""
            async for piece in response.content.iter_any():
                yield piece

    @asynccontextmanager
    async def websocket(
        self, request: Request, protocols: Sequence[str], read_timeout_s: float
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Yield a WebSocket, with the first of the protocols that the server has.

        Raises ApiError, also when nothing arrives for `read_timeout_s`.
        """
        self.requests[request.permission] += 1
        with self._api_errors(request):
            async with self._stream_session().ws_connect(
                self._url(request, request.query),
                protocols=protocols,
                headers=[("Accept", "*/*"), *(await self._credentials.headers()).items()],
                ssl=self._credentials.ssl or True,
                server_hostname=self._credentials.server_name,
                proxy_headers=self._credentials.proxy_headers,
                timeout=aiohttp.ClientWSTimeout(ws_receive=read_timeout_s),
            ) as websocket:
                yield websocket

    def _open_session(self, connections: int) -> aiohttp.ClientSession:
        """Open a session with at most `connections` connections; 0 means any number."""
        return aiohttp.ClientSession(
            connector=_FencedConnector(connections, lambda: self.may_write()),  # noqa: PLW0108  # it is set later
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=self._credentials.proxy,
            headers={"Accept": JSON, "Accept-Encoding": "identity", "User-Agent": self._program.name},
        )

    def _stream_session(self) -> aiohttp.ClientSession:
        if self._streams is None:
            self._streams = self._open_session(0)
        return self._streams

    @asynccontextmanager
    async def _response(
        self, session: aiohttp.ClientSession, request: Request, read_timeout_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield a successful response. Credentials that are rejected are renewed once."""
        with self._api_errors(request):
            headers = await self._credentials.headers()
            async with self._request(session, request, read_timeout_s, headers) as response:
                if response.status != HTTPStatus.UNAUTHORIZED or not self._credentials.invalidate(headers):
                    await self._check(request, response)
                    yield response
                    return
            async with self._request(session, request, read_timeout_s, await self._credentials.headers()) as response:
                await self._check(request, response, may_be_renewed=self._credentials.is_renewed_externally)
                yield response

    @contextmanager
    def _api_errors(self, request: Request) -> Iterator[None]:
        """Raise ApiError for errors of a connection or of the credentials."""
        try:
            yield
        except CredentialsError as error:
            raise ApiError(request.description, 0, "NoCredential", str(error), is_retryable=True) from error
        except _FencedError as error:
            message = "this process may not write any more: another one may lead"
            raise ApiError(request.description, 0, "Fenced", message) from error
        except (aiohttp.ClientSSLError, ssl.SSLError) as error:
            raise ApiError(
                request.description, 0, "Untrusted", f"{self._credentials.url}: {_cause_of(error)}"
            ) from error
        except aiohttp.ClientHttpProxyError as error:
            # Not the error itself, which has the headers that were sent to the proxy.
            message = f"{self._credentials.url}: the proxy answered {error.status}"
            raise ApiError(request.description, 0, "NoAnswer", message, is_retryable=True) from None
        except aiohttp.WSServerHandshakeError as error:
            raise error_from_response(request.description, error.status, b"") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            message = f"{self._credentials.url}: {_cause_of(error)}"
            outcome_unknown = not isinstance(error, _BEFORE_SENDING)
            raise ApiError(
                request.description, 0, "NoAnswer", message, outcome_unknown=outcome_unknown, is_retryable=True
            ) from error

    def _request(
        self, session: aiohttp.ClientSession, request: Request, read_timeout_s: float, headers: CIMultiDict[str]
    ) -> "aiohttp.client._RequestContextManager":
        self.requests[request.permission] += 1
        query = {**request.query, "dryRun": "All"} if self._dry_run and request.method != "GET" else request.query
        return session.request(
            request.method,
            self._url(request, query),
            data=request.body,
            headers=[
                *request.headers.items(),
                *headers.items(),
                *([] if request.body is None else [("Content-Type", request.content_type)]),
            ],
            ssl=self._credentials.ssl or True,
            server_hostname=self._credentials.server_name,
            proxy_headers=self._credentials.proxy_headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, sock_read=read_timeout_s),
        )

    def _url(self, request: Request, query: Mapping[str, str | Sequence[str]]) -> URL:
        url = self._base.joinpath(request.path.lstrip("/"), encoded=True)
        return url.with_query(query) if query else url

    async def _check(self, request: Request, response: aiohttp.ClientResponse, *, may_be_renewed: bool = False) -> None:
        """Raise ApiError if the request failed. `may_be_renewed`: valid credentials may be there in a moment."""
        if response.status >= HTTPStatus.MULTIPLE_CHOICES:
            error = error_from_response(
                request.description, response.status, await response.read(), response.headers.get("Retry-After", "")
            )
            is_retryable = error.is_retryable or (may_be_renewed and error.status == HTTPStatus.UNAUTHORIZED)
            raise replace(error, is_retryable=is_retryable, setup=self._program.setup)


def _cause_of(error: Exception) -> str:
    """Return what is wrong with a connection; aiohttp also prints the host again, and the SSL context as an object."""
    if isinstance(error, aiohttp.ClientConnectorError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


class _FencedError(aiohttp.ClientError):
    """A write that was not sent, because its client may not write any more."""


class _FencedConnector(aiohttp.TCPConnector):
    """Connections on which nothing is written without permission.

    The check comes when there is a connection, and the request is sent next: until then it may have waited for one, or
    for its next attempt, while this process was stopped.
    """

    def __init__(self, connections: int, may_write: Callable[[], bool]) -> None:
        super().__init__(limit=connections)
        self._may_write = may_write

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  # the signature is aiohttp's
    ) -> aiohttp.connector.Connection:
        """Return a connection for a request. Raises _FencedError."""
        connection = await super().connect(req, traces, timeout)
        if req.method != hdrs.METH_GET and not self._may_write():
            connection.release()
            raise _FencedError
        return connection
