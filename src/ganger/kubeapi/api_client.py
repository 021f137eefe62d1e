"""What can be asked of the API server, each as often as it takes: read, written, watched, bound.

Used by everything in this package that talks to the API server. A request that failed for a reason that passes (429,
5xx, a broken connection) is made again, with a growing pause and not before the server wants it. What is not idempotent
is not simply repeated: after an attempt whose end nobody knows, `create` and `bind` look what is true, and a JSON patch
is left to the caller. Concurrent writers are told apart by preconditions: a conflict is the caller's to resolve, who
reads again and decides again.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final, Self, TypeVar
from uuid import uuid4

from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.backoff import pause_s
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.http_exchange import ANSWER_S, HttpExchange
from ganger.kubeapi.objects import Bookmark, Meta, Object, Page, Pod, Seen, SeenObject
from ganger.kubeapi.request import (
    APPLY,
    JSON_PATCH,
    MERGE_PATCH,
    News,
    Place,
    Program,
    Request,
    Use,
    asking,
    decoded,
    telling,
    told,
)
from ganger.kubeapi.resources import EVERYTHING, PODS, Resource, Selection

T = TypeVar("T")

PAGE: Final = 500
"""Objects of a list that are asked for at once."""
WITHIN_S: Final = 30.0
FIRST_PAUSE_S: Final = 0.1
MOST_PAUSE_S: Final = 5.0


class Api:
    """The API server, as one identity. To be closed, or used with `async with`.

    Requests wait for one another when there are many: whoever may not wait (a lease) has an Api of its own. within_s:
    how long a request is made again and again, before it has failed; silent_s: how long nothing may come of an answer.
    """

    def __init__(
        self,
        access: Credentials,
        program: Program,
        *,
        within_s: float = WITHIN_S,
        silent_s: float = ANSWER_S,
        trial: bool = False,
    ) -> None:
        """trial: the server checks what is written, and keeps nothing of it."""
        self._access, self._program = access, program
        self._wire = HttpExchange(access, program, silent_s, trial=trial)
        self._within_s = within_s

    def trying(self) -> "Api":
        """Another one of the same identity, whose writes are only checked."""
        return Api(self._access, self._program, within_s=self._within_s, trial=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Drop all connections; what is under way fails."""
        await self._wire.close()

    @property
    def requests(self) -> Counter[Use]:
        """How many requests there were of each verb and resource, those that were made again included."""
        return self._wire.requests

    # -- reading -------------------------------------------------------------------------------------------------------

    async def get(self, resource: Resource[T], name: str, namespace: str = "") -> T:
        """One object. Raises ApiError."""
        request = asking("get", Place(resource, namespace, name))
        return decoded(request, await self._repeated(request), resource.read_as)

    async def text(self, place: Place[Any], query: Mapping[str, str]) -> str:
        """A part of an object that is plain text, as the log of a pod is. Raises ApiError."""
        return (await self._repeated(asking("get", place, query))).decode(errors="replace")

    async def pages(self, resource: Resource[T], which: Selection = EVERYTHING) -> AsyncGenerator[Page[T]]:
        """All objects, some at a time; of one moment, which the resource version of each page names.

        Raises ApiError; one that is `expired` when reading the pages took too long.
        """
        query = which.query() | {"limit": str(PAGE)}
        while True:
            request = asking("list", Place(resource, which.namespace), query)
            page = decoded(request, await self._repeated(request), resource.page)
            yield page
            if not page.metadata.continue_:
                return
            query["continue"] = page.metadata.continue_

    async def list(self, resource: Resource[T], which: Selection = EVERYTHING) -> list[T]:
        """All objects at once. Raises ApiError."""
        return [each async for page in self.pages(resource, which) for each in page.items or ()]

    async def version(self, resource: Resource[Any], namespace: str) -> int:
        """The resource version that a list of them has now. Raises ApiError."""
        request = asking("list", Place(resource, namespace), {"limit": "1"})
        return int(decoded(request, await self._repeated(request), resource.page).metadata.resource_version)

    async def watch(
        self, resource: Resource[T], which: Selection, since: str, *, lasts_s: float, silent_s: float
    ) -> AsyncGenerator[News[T]]:
        """What happens after resource version `since`; ends after about `lasts_s`, by the server's doing.

        Begins with a bookmark of `since`: the server has taken the question. Raises ApiError when it ends otherwise,
        and when nothing was heard for `silent_s`. It is not tried again here.
        """
        query = which.query() | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": since,
            "timeoutSeconds": str(round(lasts_s)),
        }
        request = asking("watch", Place(resource, which.namespace), query)
        rest = b""
        async with aclosing(self._wire.stream(request, silent_s)) as pieces:
            await anext(pieces)
            yield Bookmark(object=SeenObject(metadata=Seen(resource_version=since)))
            async for piece in pieces:
                *lines, rest = (rest + piece).split(b"\n")
                for news in told(request, lines, resource.read_as):
                    yield news

    async def serves(self, group: str, version: str) -> frozenset[str]:
        """Plural names of the resources that the server has in a version of a group; none if it has no such version.

        Raises ApiError.
        """
        path = f"/apis/{group}/{version}"
        request = Request(what=f"get {path}", use=Use("get", "", path), method="GET", path=path)
        try:
            found = decoded(request, await self._repeated(request), dict[str, Any])
        except ApiError as error:
            if error.missing:
                return frozenset()
            raise
        return frozenset(each["name"] for each in found["resources"])

    async def once(self, request: Request) -> bytes:
        """The answer to a request that was made ready elsewhere, asked once. Raises ApiError."""
        return await self._wire.exchange(request)

    # -- writing -------------------------------------------------------------------------------------------------------

    async def create(self, resource: Resource[T], body: Object) -> T:
        """Make an object; its metadata say its name and namespace. Raises ApiError.

        An annotation names the request, so that after an unclear end the object is known for ours, or not.
        """
        mark, metadata = uuid4().hex, body["metadata"]
        marked = body | {
            "metadata": metadata | {"annotations": {**metadata.get("annotations", {}), self._program.mark: mark}}
        }
        place = Place(resource, metadata.get("namespace", ""), metadata["name"])
        request = telling("create", place, marked)

        async def once() -> T:
            return decoded(request, await self._wire.exchange(request), resource.read_as)

        async def look() -> T | None:
            try:
                found: Any = await self.get(resource, place.name, place.namespace)
            except ApiError as error:
                if error.missing:
                    return None
                raise
            if found.metadata.annotations.get(self._program.mark) != mark:
                raise _conflict(request, "AlreadyExists", f"another {place.name} was made meanwhile")
            made: T = found
            return made

        return await _until_clear(once, look, self._within_s)

    async def ask(self, resource: Resource[T], body: Object) -> T:
        """The answer to a question that is put as an object and not kept, as a review is. Raises ApiError."""
        request = telling("create", Place(resource), body)
        return decoded(request, await self._repeated(request), resource.read_as)

    async def merge(self, place: Place[T], body: Object) -> T:
        """Change fields of an object, or of a part of it; null takes one away. With a resource version in its metadata
        it is refused when the object has changed since; that may be by this very change, sent twice: read again.

        Raises ApiError.
        """
        request = telling("patch", place, body, MERGE_PATCH)
        return decoded(request, await self._repeated(request), place.resource.read_as)

    async def patch(self, place: Place[T], steps: Sequence[Mapping[str, Any]]) -> T:
        """Change an object, or a part of it, by the steps of a JSON patch (RFC 6902).

        Raises ApiError; one that is `unclear` when it may have been done: it is not repeated, for a step may do more
        when it is done twice.
        """
        request = telling("patch", place, steps, JSON_PATCH)
        answer = await self._repeated(request, unless_unclear=True)
        return decoded(request, answer, place.resource.read_as)

    async def apply(self, resource: Resource[T], body: Object, part: str = "", manager: str = "") -> T:
        """Have an object be so (server-side apply): the fields in `body` are the manager's, by default the program's,
        whoever had them.

        Raises ApiError.
        """
        metadata = body["metadata"]
        place = Place(resource, metadata.get("namespace", ""), metadata["name"], part)
        request = telling("patch", place, body, APPLY, {"fieldManager": manager or self._program.name, "force": "true"})
        return decoded(request, await self._repeated(request), resource.read_as)

    async def delete(
        self, resource: Resource[Any], known: Meta, *, unchanged: bool = False, grace_s: int | None = None
    ) -> bool:
        """Delete that very object, and with `unchanged` only as it is known; what it owns goes with it, later.

        False: it was gone already. Raises ApiError; a conflict when there is another of that name, or it has changed.
        """
        wanted = {"uid": known.uid, "resourceVersion": known.resource_version if unchanged else ""}
        options: Object = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": "Background",
            "preconditions": {key: value for key, value in wanted.items() if value},
        }
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            await self._repeated(telling("delete", Place(resource, known.namespace, known.name), options))
        except ApiError as error:
            if error.missing:
                return False
            raise
        return True

    async def bind(self, pod: Meta, node: str, annotations: Mapping[str, str]) -> None:
        """Put a pod on a node, with annotations that the pod gets in the same write. Its uid is a precondition. It may
        be bound just so already: what a leader asked for that is dead by now may come late.

        Raises ApiError: a conflict when it is bound elsewhere, is being deleted, is gated, or is another by now.
        """
        about = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "annotations": annotations}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": about,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        request = telling("create", Place(PODS, pod.namespace, pod.name, "binding"), body)

        async def once() -> bool:
            await self._wire.exchange(request)
            return True

        async def look() -> bool | None:
            found = await self.get(PODS, pod.name, pod.namespace)
            if found.metadata.uid != pod.uid:
                raise _conflict(request, "Conflict", f"the pod of that name is another by now: {found.metadata.uid}")
            return _bound(request, found, node, annotations)

        await _until_clear(once, look, self._within_s, others_may=True)

    # -- again ---------------------------------------------------------------------------------------------------------

    async def _repeated(self, request: Request, *, unless_unclear: bool = False) -> bytes:
        """The answer to what may be asked as often as one likes; or at least while nothing has come of it."""
        patience = _Patience(self._within_s)
        while True:
            try:
                return await self._wire.exchange(request)
            except ApiError as error:
                if unless_unclear and error.unclear:
                    raise
                await patience.wait(error)


def _bound(request: Request, pod: Pod, node: str, annotations: Mapping[str, str]) -> bool | None:
    """Whether it is bound as it was to be; None while it is not bound. Raises ApiError when it is bound otherwise."""
    if not pod.spec.node_name:
        return None
    if pod.spec.node_name == node and annotations.items() <= pod.metadata.annotations.items():
        return True
    raise _conflict(request, "Conflict", f"somebody else has bound it to {pod.spec.node_name}")


def _conflict(request: Request, reason: str, message: str) -> ApiError:
    return ApiError(request.what, HTTPStatus.CONFLICT, reason, message)


async def _until_clear(
    once: Callable[[], Awaitable[T]],
    look: Callable[[], Awaitable[T | None]],
    within_s: float,
    *,
    others_may: bool = False,
) -> T:
    """What must not be done twice. `look` gives what has come of it, None when nothing has, and raises when something
    else is there instead. others_may: a conflict may be with somebody who has done the very same."""
    patience = _Patience(within_s)
    unclear = others_may
    while True:
        try:
            return await once()
        except ApiError as error:
            unclear |= error.unclear
            if unclear and (error.unclear or error.conflict) and (found := await look()) is not None:
                return found
            await patience.wait(error)


class _Patience:
    """How often, and for how long, one request is made again."""

    def __init__(self, within_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._until_s = self._loop.time() + within_s
        self._failures = 0

    async def wait(self, error: ApiError) -> None:
        """Until the next attempt. Raises the error when there is to be none."""
        self._failures += 1
        pause = error.retry_after_s + pause_s(self._failures, FIRST_PAUSE_S, MOST_PAUSE_S)
        if not error.passes or self._loop.time() + pause > self._until_s:
            raise error
        await asyncio.sleep(pause)
