"""The carrier of followed lines, without a server."""

import asyncio
from collections.abc import Callable, Iterator
from threading import Event

import pytest
from fastapi import FastAPI

from ganger.errors import BrokenStreamError
from ganger.rest.stream_feed import StreamFeed


@pytest.fixture
def feed(app: FastAPI) -> StreamFeed:
    fed: StreamFeed = app.state.feed
    return fed


def followed(feed: StreamFeed, source: Callable[[], Iterator[int | None]], *, closed_after: int = 1_000) -> bytes:
    """Return what was carried; the server stops once so many bytes are there."""

    async def carried() -> bytes:
        parts = b""
        async for part in feed.follow(source):
            parts += part
            if len(parts) >= closed_after:
                feed.close()
        return parts

    return asyncio.run(carried())


def test_a_stream_is_complete_at_the_end_of_its_source(feed: StreamFeed) -> None:
    assert followed(feed, lambda: iter((1, None, 2, None, 3))) == b"1\n2\n3\n"


def test_a_server_that_stops_breaks_the_stream_off(feed: StreamFeed) -> None:
    """An end would say that the job has ended."""
    is_over = Event()

    def source() -> Iterator[int | None]:
        yield 1
        yield None
        is_over.wait()

    try:
        with pytest.raises(BrokenStreamError):
            followed(feed, source, closed_after=1)
    finally:
        is_over.set()


def test_an_error_of_the_source_is_raised_where_it_is_read(feed: StreamFeed) -> None:
    def source() -> Iterator[int | None]:
        yield 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        followed(feed, source)
