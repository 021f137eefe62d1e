"""Operations of several requests: retries across a restart, followed lines and events, waits for a job's end.

They are coroutines over a `Link`, written once for the command line and both SDK clients. Over a blocking link nothing
suspends: `at_once` and `each_at_once` run a coroutine to its end without an event loop, so they also work in a thread
that runs one, such as a notebook.
"""

import json
import time
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import aclosing
from typing import Any, Final, Protocol, TypeVar

from ganger.client.client_errors import TimedOut, Unreachable, followed, maybe_made, unreachable
from ganger.client.local.http import ANSWER_S, Request, query_of, quoted
from ganger.client.local.log_position import LogPosition, Query
from ganger.model.job import ENDED

Record = dict[str, Any]
"""A JSON object; `model.views.service_views` has its class."""
_MAYBE_DONE: Final = ("timeout", "internal_error", "no_problem")
"""Codes of errors after which the request may have been carried out."""
T = TypeVar("T")


class Link(Protocol):
    """A link to the server, which blocks or suspends its caller."""

    async def connect(self) -> None:
        """Find the server, and start one if there is none."""

    async def came_back(self) -> bool:
        """Wait for a server that restarts or is started in place of one that died; return False if there is none."""

    async def bring(self, request: Record) -> Record:
        """Return a submission as it is sent, once the server has the code that it names."""

    async def ask(self, request: Request) -> bytes:
        """Return the body of the response."""

    def blocks(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Yield the body of the response as it arrives."""

    def lines(self, request: Request, deadline: float | None = None) -> AsyncGenerator[bytes, None]:
        """Yield lines of the response as they arrive, without their ends; raise TimedOut at `deadline`."""


async def ask(link: Link, request: Request) -> Any:
    """Return the JSON of a response; repeatable requests are retried across a restart of the server."""
    try:
        content = await link.ask(request)
    except Unreachable as lost:
        if not request.repeatable:
            raise
        if not await link.came_back():
            lost.is_final = True
            raise
        content = await link.ask(request)
    return json.loads(content) if content else None


async def made(link: Link, request: Request) -> Any:
    """Return the JSON of the response to a request that creates a job, under its idempotency key.

    It is sent again to a server that is found or started if the first one went away. The error says so if it is unknown
    whether the request was carried out.
    """
    was_sent, is_reachable = False, True
    try:
        try:
            return json.loads(await link.ask(request))
        except Unreachable as lost:
            if lost.code != "unreachable" or lost.is_final:
                raise
            was_sent, is_reachable = lost.sent, False
            await link.connect()
            is_reachable = True
            return json.loads(await link.ask(request))
    except (Unreachable, TimedOut) as error:
        if was_sent or error.code in _MAYBE_DONE or (isinstance(error, Unreachable) and error.sent):
            raise maybe_made(error, "ganger ls" if is_reachable else "") from None
        raise


async def job_of(link: Link, id: str) -> Record:
    """Return a job with all its details, by id or name."""
    job: Record = await ask(link, Request("GET", f"/jobs/{quoted(id)}"))
    return job


async def events(
    link: Link, after: int, gang: str | None = None, deadline: float | None = None
) -> AsyncGenerator[Record, None]:
    """Yield every event after `after` as it happens, across restarts of the server; `gang`: only those of that job."""
    async with aclosing(events_or_idle(link, after, gang, deadline)) as items:
        async for event in items:
            if event is not None:
                yield event


async def events_or_idle(
    link: Link, after: int, gang: str | None = None, deadline: float | None = None
) -> AsyncGenerator[Record | None, None]:
    """Yield events as `events` does, and None now and then while there are none.

    A follower that waits for a state of a job looks again then: on Kubernetes the state that clients read is
    written to the object after the event.
    """
    while True:
        request = Request("GET", "/stream" + query_of({"after": after, "gang": gang}))
        try:
            async with aclosing(link.lines(request, deadline)) as lines:
                async for line in lines:
                    if line.startswith(b"data: "):
                        event = json.loads(line[6:])
                        after = event["seq"]
                        yield event
                    elif line.startswith(b":"):
                        yield None
            raise unreachable("the server ended the stream")
        except Unreachable as lost:
            await _resume(link, lost, gang)


async def _resume(link: Link, lost: Unreachable, id: str | None) -> None:
    """Wait until the server of a follower is back; raise the error that says that job `id` continues if it is not."""
    try:
        if not lost.is_final and await link.came_back():
            return
    except Unreachable as failure:
        lost = failure
    raise (followed(lost, id) if id else lost) from None


async def log_lines(link: Link, id: str, query: Query, *, follow: bool) -> AsyncGenerator[Record, None]:
    """Yield lines that ranks wrote.

    A follower ends with the job, survives a restart of the server, and waits for an attempt that has not started yet.
    """
    logs, position, next_query = f"/jobs/{quoted(id)}/logs", LogPosition(), query
    while True:
        request = Request(
            "GET", logs + query_of({"follow": follow or None, **next_query}), timeout_s=None if follow else ANSWER_S
        )
        try:
            async with aclosing(link.lines(request)) as lines:
                async for line in lines:
                    # Decoded before: json.loads would look for the encoding of each line.
                    if line and position.is_new(record := json.loads(line.decode())):
                        yield record
            if not follow:
                return
            # Asked once: if the server has gone, the job may end before the next one is found, and lines be missed.
            if json.loads(await link.ask(Request("GET", f"/jobs/{quoted(id)}")))["row"]["state"] in ENDED:
                if next_query.get("attempt") is not None:  # the job may have ended before that one came
                    await ask(link, Request("GET", logs + query_of({"attempt": next_query["attempt"], "tail": 0})))
                return
            # The job lives: it was the source of the lines that ended.
        except Unreachable as lost:
            if not follow:
                raise
            await _resume(link, lost, id)
        next_query = position.resumed(next_query)


async def ended(link: Link, id: str, timeout_s: float | None = None) -> Record | None:
    """Return the job as soon as it has ended, None if that takes longer than `timeout_s`."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    seq = (await ask(link, Request("GET", "/server")))["seq"]
    job = await job_of(link, id)
    job_id = job["row"]["id"]
    try:
        async with aclosing(events_or_idle(link, seq, deadline=deadline)) as items:
            while job["row"]["state"] not in ENDED:
                event = await anext(items)
                if event is None or _may_end(event, job_id):
                    job = await job_of(link, job_id)
    except TimedOut:
        if deadline is None:  # it was the server that said nothing
            raise
        return None
    except Unreachable as lost:
        raise followed(lost, job_id) from None
    return job


def _may_end(event: Record, id: str) -> bool:
    """Return whether an event may have ended a job.

    That is one of the job, of its elements or of its array; of a node; or a scheduling cycle that decided on one of
    these.
    """
    if event["kind"] == "decided":
        decisions = event["data"].get("plan", {}).get("decisions", ())
        return any(_belongs(decision.get("gang"), id) for decision in decisions)
    return event["job"] is None or _belongs(event["job"], id)


def _belongs(gang: str | None, id: str) -> bool:
    return gang is not None and (gang == id or gang.partition("[")[0] == id or id.partition("[")[0] == gang)


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine over a blocking link."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    coroutine.close()
    raise RuntimeError("a link that blocks does not suspend")


def each_at_once(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yield the items of an asynchronous generator over a blocking link."""
    try:
        while True:
            try:
                item = at_once(items.__anext__())
            except StopAsyncIteration:
                return
            yield item
    finally:
        at_once(items.aclose())
