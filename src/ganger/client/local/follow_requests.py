"""What takes more than one request: a repeat after a restart of the server, lines and events that are followed across
it, the wait for a job's end. Written once, as coroutines over a `Link`, for the command line and both kinds of SDK.

Over a link that blocks nothing ever suspends: `at_once` and `each_at_once` run a coroutine to its end with no event
loop, so they work in a thread that has one too, as in a notebook.
"""

import json
import time
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import aclosing
from typing import Any, Final, Protocol, TypeVar

from ganger.client.client_errors import TimedOut, Unreachable, maybe_made, unreachable
from ganger.client.local.http import ANSWER_S, Request, query_of, quoted
from ganger.client.local.log_position import LogPosition, Query
from ganger.model.job import ENDED

Record = dict[str, Any]
"""One JSON object; `model.views.service_views` has its class."""
_MAYBE_DONE: Final = ("timeout", "internal_error", "no_problem")
"""Codes of answers, or of none, after which a request may have been carried out."""
T = TypeVar("T")


class Link(Protocol):
    """A way to the server. It blocks, or it suspends whoever awaits it."""

    async def connect(self) -> None:
        """Find the server; start one if there is none."""

    async def came_back(self) -> bool:
        """Wait for a server that restarts; False when there is none any more."""

    async def ask(self, request: Request) -> bytes:
        """The body of the answer."""

    def lines(self, request: Request, deadline: float | None = None) -> AsyncGenerator[bytes, None]:
        """Lines of the answer as they come, without their ends. TimedOut at `deadline`, of time.monotonic."""


async def ask(link: Link, request: Request) -> Any:
    """The JSON of an answer. What may be asked twice outlives a restart of the server."""
    try:
        content = await link.ask(request)
    except Unreachable:
        if not request.repeatable or not await link.came_back():
            raise
        content = await link.ask(request)
    return json.loads(content) if content else None


async def made(link: Link, request: Request) -> Any:
    """The JSON of an answer to what makes a job, under its key: asked again of a server that is found or started when
    the first went away. The error says so where nobody knows whether it was heard."""
    sent, found = False, True
    try:
        try:
            return json.loads(await link.ask(request))
        except Unreachable as lost:
            if lost.code != "unreachable" or lost.is_final:
                raise
            sent, found = lost.sent, False
            await link.connect()
            found = True
            return json.loads(await link.ask(request))
    except (Unreachable, TimedOut) as error:
        if sent or error.code in _MAYBE_DONE or (isinstance(error, Unreachable) and error.sent):
            raise maybe_made(error, "ganger ls" if found else "") from None
        raise


async def job_of(link: Link, id: str) -> Record:
    """A job in full, by id or name."""
    job: Record = await ask(link, Request("GET", f"/jobs/{quoted(id)}"))
    return job


async def events(
    link: Link, after: int, gang: str | None = None, deadline: float | None = None
) -> AsyncGenerator[Record, None]:
    """Every event after `after` as it comes, over restarts of the server; only those of one job, if its id is given."""
    while True:
        request = Request("GET", "/stream" + query_of({"after": after, "gang": gang}))
        try:
            async with aclosing(link.lines(request, deadline)) as lines:
                async for line in lines:
                    if line.startswith(b"data: "):
                        event = json.loads(line[6:])
                        after = event["seq"]
                        yield event
            raise unreachable("the server ended the stream")
        except Unreachable:
            if not await link.came_back():
                raise


async def log_lines(link: Link, id: str, query: Query, *, follow: bool) -> AsyncGenerator[Record, None]:
    """Lines that ranks wrote. A follower ends with the job and outlives a restart of the server; it waits for an
    attempt that may still come."""
    logs, seen, rest = f"/jobs/{quoted(id)}/logs", LogPosition(), query
    while True:
        request = Request(
            "GET", logs + query_of({"follow": follow or None, **rest}), timeout_s=None if follow else ANSWER_S
        )
        try:
            async with aclosing(link.lines(request)) as lines:
                async for line in lines:
                    # Decoded before: json.loads would look for the encoding of each line.
                    if line and seen.is_new(record := json.loads(line.decode())):
                        yield record
            if not follow:
                return
            if (await job_of(link, id))["row"]["state"] in ENDED:
                if rest.get("attempt") is not None:  # the job may have ended before that one came
                    await ask(link, Request("GET", logs + query_of({"attempt": rest["attempt"], "tail": 0})))
                return
            # The job lives: it was the server that ended, and the stream with it.
        except Unreachable:
            if not follow or not await link.came_back():
                raise
        rest = seen.resumed(rest)


async def ended(link: Link, id: str, timeout_s: float | None = None) -> Record | None:
    """The job as soon as it has ended; None when that takes longer than `timeout_s`."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    seq = (await ask(link, Request("GET", "/server")))["seq"]
    job = await job_of(link, id)
    found = job["row"]["id"]
    try:
        async with aclosing(events(link, seq, deadline=deadline)) as news:
            while job["row"]["state"] not in ENDED:
                if _may_end(await anext(news), found):
                    job = await job_of(link, found)
    except TimedOut:
        if deadline is None:  # it was the server that said nothing
            raise
        return None
    return job


def _may_end(event: Record, id: str) -> bool:
    """Whether a job may have come to its end by an event: one of its own, of its elements or, an element, of its array;
    or one of a node. Each round of the scheduler names the gangs that it decided on."""
    if event["kind"] == "decided":
        decisions = event["data"].get("plan", {}).get("decisions", ())
        return any(_belongs(decision.get("gang"), id) for decision in decisions)
    return event["job"] is None or _belongs(event["job"], id)


def _belongs(gang: str | None, id: str) -> bool:
    return gang is not None and (gang == id or gang.partition("[")[0] == id or id.partition("[")[0] == gang)


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine over a blocking link gives."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    coroutine.close()
    raise RuntimeError("a link that blocks does not suspend")


def each_at_once(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """What an asynchronous generator over a blocking link gives, one by one."""
    try:
        while True:
            try:
                item = at_once(items.__anext__())
            except StopAsyncIteration:
                return
            yield item
    finally:
        at_once(items.aclose())
