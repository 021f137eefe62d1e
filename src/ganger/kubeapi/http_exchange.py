"""One exchange with the API server: sent with fresh credentials, counted, and what went wrong said in one way.

Used by `transport`, which knows what is asked and when to ask again. Answers are asked for uncompressed: inside a
cluster, packing them costs the server more than sending them. No proxy is used.
"""

import ssl
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from http import HTTPStatus
from typing import Final

import aiohttp
from yarl import URL

from ganger.kubeapi.api_error import ApiError, refusal
from ganger.kubeapi.credentials import Credentials, Unusable
from ganger.kubeapi.request import JSON, Program, Request, Use

CONNECTIONS: Final = 64
"""How many requests are under way at once, watches not counted; the others wait here."""
CONNECT_S: Final = 10.0
ANSWER_S: Final = 30.0
"""How long nothing may come of an answer, if nothing else is said: a page of a list takes far less."""

_BEFORE_SENDING: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


class HttpExchange:
    """Connections to one API server. `requests` counts what was sent, tries and all. silent_s: how long nothing may
    come of an answer that is not a stream; trial: nothing that is written is kept."""

    def __init__(self, access: Credentials, program: Program, silent_s: float, *, trial: bool) -> None:
        self._access, self._program, self._silent_s, self._trial = access, program, silent_s, trial
        self._base = URL(access.url)
        self._session: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None
        self.requests: Counter[Use] = Counter()

    async def close(self) -> None:
        """Drop all connections."""
        for session in (self._session, self._streams):
            if session is not None:
                await session.close()

    async def exchange(self, request: Request) -> bytes:
        """The answer's body. Raises ApiError."""
        if self._session is None:
            self._session = _session(self._program, CONNECTIONS)
        async with self._answer(self._session, request, self._silent_s) as answer:
            return await answer.read()

    async def stream(self, request: Request, silent_s: float) -> AsyncGenerator[bytes]:
        """The answer piece by piece, as it comes; first an empty piece, when there is one at all.

        Raises ApiError, also when nothing comes for `silent_s`.
        """
        if self._streams is None:
            self._streams = _session(self._program, 0)
        async with self._answer(self._streams, request, silent_s) as answer:
            yield b""
            async for piece in answer.content.iter_any():
                yield piece

    @asynccontextmanager
    async def _answer(
        self, session: aiohttp.ClientSession, request: Request, silent_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer that says that it went well. Credentials that are refused are renewed, once."""
        try:
            credentials = await self._access.headers()
            async with self._sent(session, request, silent_s, credentials) as answer:
                if answer.status != HTTPStatus.UNAUTHORIZED or not self._access.refused(credentials):
                    await self._check(request, answer)
                    yield answer
                    return
            async with self._sent(session, request, silent_s, await self._access.headers()) as answer:
                await self._check(request, answer, may_be_renewed=self._access.is_kept_by_others)
                yield answer
        except Unusable as error:
            raise ApiError(request.what, 0, "NoCredential", str(error), passes=True) from error
        except (aiohttp.ClientSSLError, ssl.SSLError) as error:
            raise ApiError(request.what, 0, "Untrusted", f"{self._access.url}: {error}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            said = f"{self._access.url}: {str(error) or type(error).__name__}"
            unclear = not isinstance(error, _BEFORE_SENDING)
            raise ApiError(request.what, 0, "NoAnswer", said, unclear=unclear, passes=True) from error

    def _sent(
        self, session: aiohttp.ClientSession, request: Request, silent_s: float, credentials: Mapping[str, str]
    ) -> "aiohttp.client._RequestContextManager":
        self.requests[request.use] += 1
        url = self._base.joinpath(request.path.lstrip("/"), encoded=True)
        query = {**request.query, "dryRun": "All"} if self._trial and request.method != "GET" else request.query
        return session.request(
            request.method,
            url.with_query(query) if query else url,
            data=request.body,
            headers={
                **request.headers,
                **credentials,
                **({} if request.body is None else {"Content-Type": request.kind}),
            },
            ssl=self._access.ssl or True,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_S, sock_read=silent_s),
        )

    async def _check(self, request: Request, answer: aiohttp.ClientResponse, *, may_be_renewed: bool = False) -> None:
        """Raise ApiError when the request failed. may_be_renewed: other credentials may be there in a moment."""
        if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
            error = refusal(request.what, answer.status, await answer.read(), answer.headers.get("Retry-After", ""))
            passes = error.passes or (may_be_renewed and error.status == HTTPStatus.UNAUTHORIZED)
            raise replace(error, passes=passes, setup=self._program.setup)


def _session(program: Program, connections: int) -> aiohttp.ClientSession:
    """connections: how many at once; 0 for any number."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept": JSON, "Accept-Encoding": "identity", "User-Agent": program.name},
    )
