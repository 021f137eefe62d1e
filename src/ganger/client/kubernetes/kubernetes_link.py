"""The link to a Kubernetes cluster: REST requests, carried out at the API server with a kubeconfig context.

Requests run on one event loop on a thread of its own, so callers need none, and connections are kept.
"""

import asyncio
import json
import os
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote

from ganger.client.client_errors import USAGE, client_error, timed_out
from ganger.client.kubernetes import follow_objects
from ganger.client.kubernetes.caller import Caller, client_error_of
from ganger.client.kubernetes.exec_in_pod import fetch_files
from ganger.client.kubernetes.rest_operations import respond
from ganger.client.local.http import Request
from ganger.errors import RequestError
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.credentials import Credentials, CredentialsError, NoKubeconfigError
from ganger.kubeapi.resources import EVERYTHING, ListOptions, Resource
from ganger.settings import controller_namespace

T = TypeVar("T")

DEFAULT_KUBECONFIG: Final = "~/.kube/config"
RETRY_FOR_S: Final = 8.0
"""Time for which a failing request is retried: a user waits, so shorter than for a controller."""
READ_TIMEOUT_S: Final = 10.0
"""Time for which the API server may be silent."""
CLOSE_S: Final = 1.0


class KubernetesLink:
    """A blocking link to the cluster of a context. Thread-safe. namespace: None is the context's own."""

    def __init__(self, context: str, namespace: str | None = None) -> None:
        """Create a link without connecting. Raises ClientError for a context that does not exist."""
        files = os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG
        try:
            credentials = Credentials.from_kubeconfig([Path(file) for file in files.split(":") if file], context)
        except CredentialsError as error:
            missing = isinstance(error, NoKubeconfigError)
            next_step = "export KUBECONFIG=FILE" if missing else "kubectl config get-contexts"
            raise client_error("bad_context", str(error), next_step, USAGE) from None
        api = ApiClient(credentials, PROGRAM, retry_for_s=RETRY_FOR_S, read_timeout_s=READ_TIMEOUT_S)
        weakref.finalize(self, _close, api)
        self.caller = Caller(
            api,
            context,
            namespace or credentials.namespace or "default",
            has_namespace=namespace is not None,
            controller=controller_namespace(os.environ),
        )

    def read(self, kind: Resource[T], name: str, namespace: str = "") -> T | None:
        """Return an object, None if there is none, or no such resource; raise ClientError."""

        async def read() -> T | None:
            try:
                return await self.caller.api.get(kind, name, namespace)
            except ApiError as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
                return None

        return self._wait(read())

    def read_all(self, kind: Resource[T], options: ListOptions = EVERYTHING) -> list[T]:
        """Return the objects of a resource; raise ClientError."""
        return self._wait(self.caller.api.list(kind, options))

    def review(self, kind: Resource[T], spec: dict[str, Any]) -> T:
        """Return the API server's review of a question; raise ClientError."""
        return self._wait(self.caller.api.create_review(kind, spec))

    async def connect(self) -> None:
        """Do nothing: each request finds its connection."""

    async def came_back(self) -> bool:
        """Return False: requests have been retried already."""
        return False

    async def bring(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a submission as it is: its code is packed when its GangJob is created."""
        return request

    async def ask(self, request: Request) -> bytes:
        """Return the body of the response."""
        response = self._wait(respond(self.caller, request))
        if isinstance(response, bytes):
            return response
        return b"" if response is None else json.dumps(response).encode()

    async def blocks(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Yield files of a job as they arrive, and any other response at once."""
        path, _, parameters = request.target.partition("?")
        if not path.endswith("/files"):
            yield await self.ask(request)
            return
        for block in self._each(
            fetch_files(self.caller, unquote(path.split("/")[2]), dict(parse_qsl(parameters)).get("path"))
        ):
            yield block

    async def lines(self, request: Request, deadline: float | None = None) -> AsyncGenerator[bytes, None]:
        """Yield lines of the response as they arrive; raise TimedOut at `deadline`."""
        path, _, parameters = request.target.partition("?")
        query = dict(parse_qsl(parameters))
        if path == "/stream":
            events = follow_objects.events(self.caller, int(query["after"]), query.get("gang"))
            for event in self._each(events, deadline):
                yield b": idle" if event is None else b"data: " + json.dumps(event).encode()
        elif path.endswith("/logs"):
            with self._client_errors():
                for line in follow_objects.log_lines(self.caller, unquote(path.split("/")[2]), query, _result):
                    yield json.dumps(line).encode()
        else:
            for part in (await self.ask(request)).splitlines():
                yield part

    def _each(self, items: AsyncGenerator[T, None], deadline: float | None = None) -> Iterator[T]:
        """Yield the items of a generator that runs on the event loop."""
        try:
            while True:
                try:
                    yield self._wait(anext(items), deadline)
                except StopAsyncIteration:
                    return
        finally:
            asyncio.run_coroutine_threadsafe(items.aclose(), _loop())

    def _wait(self, work: Coroutine[Any, Any, T], deadline: float | None = None) -> T:
        """Return the result of a coroutine that runs on the event loop; raise ClientError for errors of requests."""
        with self._client_errors():
            return _result(work, deadline)

    @contextmanager
    def _client_errors(self) -> Iterator[None]:
        """Raise ClientError for errors of requests."""
        try:
            yield
        except ApiError as error:
            raise _result(client_error_of(self.caller, error)) from error
        except RequestError as error:
            raise client_error(error.code, error.detail, error.next, USAGE) from None


def _result(work: Coroutine[Any, Any, T], deadline: float | None = None) -> T:
    """Return the result of a coroutine that runs on the event loop; raise TimedOut at `deadline`."""
    future = asyncio.run_coroutine_threadsafe(_awaited(work), _loop())
    try:
        result: T = future.result(None if deadline is None else max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        raise timed_out("no event in time") from None
    finally:
        future.cancel()
    return result


async def _awaited(work: Any) -> Any:
    return await work


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all links, which runs until the process ends."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="ganger-kubernetes", daemon=True).start()
    return loop


def _close(api: ApiClient) -> None:
    """Close the connections of a link that is no longer used."""
    if not _loop.cache_info().currsize:
        return  # it was never used
    with suppress(TimeoutError):
        asyncio.run_coroutine_threadsafe(api.close(), _loop()).result(CLOSE_S)
