"""Client of the API server: get, list, watch, create, patch, delete and bind, each with retries.

A request that failed for a transient reason (429, 5xx, a broken connection) is retried with exponential backoff, and
not before the server's Retry-After. Requests that are not idempotent are not simply repeated: after an attempt with an
unknown outcome, `create` and `bind` read the object to find out, and a JSON patch is left to the caller. Concurrent
writers are detected by preconditions; a conflict is returned to the caller, who reads the object again and decides
again.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final, Self, TypeVar
from uuid import uuid4

from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.backoff import backoff_s
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.http_exchange import READ_TIMEOUT_S, HttpExchange
from ganger.kubeapi.objects import Bookmark, BookmarkMeta, BookmarkObject, Key, Object, ObjectMeta, Page, Pod
from ganger.kubeapi.pod_exec import EXEC_READ_TIMEOUT_S, PROTOCOLS, output
from ganger.kubeapi.request import (
    APPLY,
    JSON_PATCH,
    MERGE_PATCH,
    ObjectRef,
    Permission,
    Program,
    Request,
    WatchEvent,
    decode_response,
    read_request,
    watch_events,
    write_request,
)
from ganger.kubeapi.resources import EVERYTHING, PODS, ListOptions, Resource

T = TypeVar("T")

PAGE_SIZE: Final = 500
"""Objects per chunk of a list."""
RETRY_FOR_S: Final = 30.0
INITIAL_BACKOFF_S: Final = 0.1
MAX_BACKOFF_S: Final = 5.0


class ApiClient:
    """Client of the API server with one identity. Use it with `async with`, or close it.

    Requests wait for a free connection when there are many: a caller that cannot wait (a lease) needs its own client.
    """

    def __init__(
        self,
        credentials: Credentials,
        program: Program,
        *,
        retry_for_s: float = RETRY_FOR_S,
        read_timeout_s: float = READ_TIMEOUT_S,
        dry_run: bool = False,
    ) -> None:
        """Create a client; it connects with its first request.

        Args:
            credentials: how to reach the API server, and as whom.
            program: user agent, field manager and creation annotation.
            retry_for_s: how long a failing request is retried.
            read_timeout_s: how long a response may be silent.
            dry_run: the server validates writes without storing them.
        """
        self._credentials, self._program = credentials, program
        self._http = HttpExchange(credentials, program, read_timeout_s, dry_run=dry_run)
        self._retry_for_s = retry_for_s

    def dry_run_client(self) -> "ApiClient":
        """Return a client of the same identity whose writes are only validated."""
        return ApiClient(self._credentials, self._program, retry_for_s=self._retry_for_s, dry_run=True)

    def fence(self, may_write: Callable[[], bool]) -> None:
        """Send a write from now on, also one that is retried, only while `may_write` returns True."""
        self._http.may_write = may_write

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Drop all connections; requests in flight fail."""
        await self._http.close()

    @property
    def requests(self) -> Counter[Permission]:
        """Requests sent by verb and resource, retries included."""
        return self._http.requests

    @property
    def requests_in_flight(self) -> int:
        """Number of requests without a response; watches are not counted."""
        return self._http.in_flight

    # -- reading -------------------------------------------------------------------------------------------------------

    async def get(self, resource: Resource[T], name: str, namespace: str = "") -> T:
        """Return one object. Raises ApiError."""
        request = read_request("get", ObjectRef(resource, namespace, name))
        return decode_response(request, await self._send(request), resource.object_type)

    async def text(self, ref: ObjectRef[Any], query: Mapping[str, str]) -> str:
        """Return a plain text subresource, such as a pod's log. Raises ApiError."""
        return (await self._send(read_request("get", ref, query))).decode(errors="replace")

    async def pages(self, resource: Resource[T], options: ListOptions = EVERYTHING) -> AsyncGenerator[Page[T]]:
        """List objects in chunks of one snapshot, whose resource version each chunk has.

        Raises ApiError, with `expired` set when reading the chunks took too long.
        """
        query = options.query() | {"limit": str(PAGE_SIZE)}
        while True:
            request = read_request("list", ObjectRef(resource, options.namespace), query)
            page = decode_response(request, await self._send(request), resource.page_type)
            yield page
            if not page.metadata.continue_:
                return
            query["continue"] = page.metadata.continue_

    async def list(self, resource: Resource[T], options: ListOptions = EVERYTHING) -> list[T]:
        """Return all objects. Raises ApiError."""
        return [item async for page in self.pages(resource, options) for item in page.items or ()]

    async def list_version(self, resource: Resource[Any], namespace: str) -> int:
        """Return the current resource version of a list. Raises ApiError."""
        request = read_request("list", ObjectRef(resource, namespace), {"limit": "1"})
        return int(decode_response(request, await self._send(request), resource.page_type).metadata.resource_version)

    async def watch(
        self, resource: Resource[T], options: ListOptions, since: str, *, timeout_s: float, read_timeout_s: float
    ) -> AsyncGenerator[WatchEvent[T]]:
        """Yield what happens after resource version `since`; the server ends the watch after about `timeout_s`.

        The first event is a bookmark of `since`: the server has accepted the watch. Raises ApiError when the watch ends
        otherwise, or when nothing was received for `read_timeout_s`. It is not retried here.
        """
        query = options.query() | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": since,
            "timeoutSeconds": str(round(timeout_s)),
        }
        request = read_request("watch", ObjectRef(resource, options.namespace), query)
        partial_line = b""
        async with aclosing(self._http.stream(request, read_timeout_s)) as pieces:
            await anext(pieces)
            yield Bookmark(object=BookmarkObject(metadata=BookmarkMeta(resource_version=since)))
            async for piece in pieces:
                *lines, partial_line = (partial_line + piece).split(b"\n")
                for event in watch_events(request, lines, resource.object_type):
                    yield event

    async def list_resources(self, group: str, version: str) -> frozenset[str]:
        """Return the plural names of the resources in a group version; empty if the server does not have it.

        Raises ApiError.
        """
        path = f"/apis/{group}/{version}"
        request = Request(description=f"get {path}", permission=Permission("get", "", path), method="GET", path=path)
        try:
            resources = decode_response(request, await self._send(request), dict[str, Any])["resources"]
        except ApiError as error:
            if error.missing:
                return frozenset()
            raise
        return frozenset(resource["name"] for resource in resources)

    async def send(self, request: Request) -> bytes:
        """Send a prepared request without retries and return the response body. Raises ApiError."""
        return await self._http.send(request)

    async def command_output(self, pod: Key, container: str, command: Sequence[str]) -> AsyncGenerator[bytes]:
        """Run a command in a container, and yield its output as it arrives.

        Raises ApiError, and CommandError if it did not end with 0. Needs the permission to `get` `pods/exec`, and to
        `create` it with servers from 1.35 on. It is not retried.
        """
        ref, streams = ObjectRef(PODS, pod.namespace, pod.name, "exec"), {"stdout": "true", "stderr": "true"}
        request = read_request("get", ref, {"container": container, "command": command, **streams})
        async with self._http.websocket(request, PROTOCOLS, EXEC_READ_TIMEOUT_S) as websocket:
            async for data in output(request, websocket):
                yield data

    # -- writing -------------------------------------------------------------------------------------------------------

    async def create(self, resource: Resource[T], body: Object) -> T:
        """Create an object; its metadata has its name and namespace. Raises ApiError.

        An annotation identifies the request, so that after an unknown outcome the object is recognized as created by
        it.
        """
        request_id, metadata = uuid4().hex, body["metadata"]
        annotated = body | {
            "metadata": metadata | {"annotations": {**metadata.get("annotations", {}), self._program.mark: request_id}}
        }
        ref = ObjectRef(resource, metadata.get("namespace", ""), metadata["name"])
        request = write_request("create", ref, annotated)

        async def send() -> T:
            return decode_response(request, await self._http.send(request), resource.object_type)

        async def read_outcome() -> T | None:
            try:
                known: Any = await self.get(resource, ref.name, ref.namespace)
            except ApiError as error:
                if error.missing:
                    return None
                raise
            if known.metadata.annotations.get(self._program.mark) != request_id:
                raise _conflict_error(request, "AlreadyExists", f"another {ref.name} was created meanwhile")
            created: T = known
            return created

        return await _send_once(send, read_outcome, self._retry_for_s)

    async def create_review(self, resource: Resource[T], body: Object) -> T:
        """Create a review, which the server answers and does not store. Raises ApiError."""
        request = write_request("create", ObjectRef(resource), body)
        return decode_response(request, await self._send(request), resource.object_type)

    async def merge(self, ref: ObjectRef[T], body: Object) -> T:
        """Merge-patch an object or a subresource; null removes a field. Raises ApiError.

        With a resource version in its metadata the patch conflicts when the object has changed since, perhaps by this
        very patch, sent twice: read it again.
        """
        request = write_request("patch", ref, body, MERGE_PATCH)
        return decode_response(request, await self._send(request), ref.resource.object_type)

    async def patch(self, ref: ObjectRef[T], steps: Sequence[Mapping[str, Any]]) -> T:
        """Apply the steps of a JSON patch (RFC 6902) to an object or a subresource.

        Raises ApiError, with `outcome_unknown` set when the patch may have been applied: it is not retried, because a
        step may have another effect the second time.
        """
        request = write_request("patch", ref, steps, JSON_PATCH)
        answer = await self._send(request, unless_outcome_unknown=True)
        return decode_response(request, answer, ref.resource.object_type)

    async def apply(self, resource: Resource[T], body: Object) -> T:
        """Apply an object server-side, forcing conflicts: its fields belong to the program. Raises ApiError."""
        metadata = body["metadata"]
        ref = ObjectRef(resource, metadata.get("namespace", ""), metadata["name"])
        query = {"fieldManager": self._program.name, "force": "true"}
        request = write_request("patch", ref, body, APPLY, query)
        return decode_response(request, await self._send(request), resource.object_type)

    async def delete(
        self, resource: Resource[Any], known: ObjectMeta, *, unchanged: bool = False, grace_s: int | None = None
    ) -> bool:
        """Delete this very object by its UID; its dependents are collected later. Return False if it was gone already.

        With `unchanged`, delete it only at the known resource version. Raises ApiError; a conflict when another object
        has the name, or the object has changed.
        """
        preconditions = {"uid": known.uid, "resourceVersion": known.resource_version if unchanged else ""}
        options: Object = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": "Background",
            "preconditions": {key: value for key, value in preconditions.items() if value},
        }
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            await self._send(write_request("delete", ObjectRef(resource, known.namespace, known.name), options))
        except ApiError as error:
            if error.missing:
                return False
            raise
        return True

    async def bind(self, pod: ObjectMeta, node: str, annotations: Mapping[str, str]) -> None:
        """Bind a pod to a node and set annotations in the same write. The pod's UID is a precondition.

        The pod may be bound exactly so already: a request of a leader that is dead by now may arrive late. Raises
        ApiError; a conflict when the pod is bound elsewhere, is being deleted, is gated, or was replaced.
        """
        metadata = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "annotations": annotations}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        request = write_request("create", ObjectRef(PODS, pod.namespace, pod.name, "binding"), body)

        async def send() -> bool:
            await self._http.send(request)
            return True

        async def read_outcome() -> bool | None:
            bound_pod = await self.get(PODS, pod.name, pod.namespace)
            if bound_pod.metadata.uid != pod.uid:
                raise _conflict_error(request, "Conflict", f"the pod was replaced by {bound_pod.metadata.uid}")
            return _is_bound(request, bound_pod, node, annotations)

        await _send_once(send, read_outcome, self._retry_for_s, accept_conflict=True)

    # -- retries -------------------------------------------------------------------------------------------------------

    async def _send(self, request: Request, *, unless_outcome_unknown: bool = False) -> bytes:
        """Send a request with retries; with `unless_outcome_unknown`, only while it cannot have been carried out."""
        retries = _Retries(self._retry_for_s)
        while True:
            try:
                return await self._http.send(request)
            except ApiError as error:
                if unless_outcome_unknown and error.outcome_unknown:
                    raise
                await retries.wait(error)


def _is_bound(request: Request, pod: Pod, node: str, annotations: Mapping[str, str]) -> bool | None:
    """Return True if the pod is bound as requested, None if it is unbound; raise ApiError if it is bound otherwise."""
    if not pod.spec.node_name:
        return None
    if pod.spec.node_name == node and annotations.items() <= pod.metadata.annotations.items():
        return True
    raise _conflict_error(request, "Conflict", f"the pod is already bound to {pod.spec.node_name}")


def _conflict_error(request: Request, reason: str, message: str) -> ApiError:
    return ApiError(request.description, HTTPStatus.CONFLICT, reason, message)


async def _send_once(
    send: Callable[[], Awaitable[T]],
    read_outcome: Callable[[], Awaitable[T | None]],
    retry_for_s: float,
    *,
    accept_conflict: bool = False,
) -> T:
    """Retry a request that must not be carried out twice.

    Args:
        send: send the request.
        read_outcome: return the result if the request was carried out, None if not; raises if something else is there.
        retry_for_s: how long to retry.
        accept_conflict: a conflict may be with another client that did the same.
    """
    retries = _Retries(retry_for_s)
    outcome_unknown = accept_conflict
    while True:
        try:
            return await send()
        except ApiError as error:
            outcome_unknown |= error.outcome_unknown
            is_unclear = outcome_unknown and (error.outcome_unknown or error.conflict)
            if is_unclear and (outcome := await read_outcome()) is not None:
                return outcome
            await retries.wait(error)


class _Retries:
    """Retry budget and backoff of one request."""

    def __init__(self, retry_for_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._until_s = self._loop.time() + retry_for_s
        self._failures = 0

    async def wait(self, error: ApiError) -> None:
        """Wait until the next attempt. Raises the error when there is to be none."""
        self._failures += 1
        pause = error.retry_after_s + backoff_s(self._failures, INITIAL_BACKOFF_S, MAX_BACKOFF_S)
        if not error.is_retryable or self._loop.time() + pause > self._until_s:
            raise error
        await asyncio.sleep(pause)
