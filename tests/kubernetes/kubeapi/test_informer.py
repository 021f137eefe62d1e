"""An informer's cache equals the server whatever happens to its watch, and each change is reported once."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.informer import MAX_BACKOFF_S, WATCH_TIMEOUT_S, Informer
from ganger.kubeapi.objects import Pod
from ganger.kubeapi.resources import PODS
from tests.kubernetes.scripted import broken, pod, refused, run, serving

Watch = Callable[["Server", web.Request, web.StreamResponse], Awaitable[None]]


class Server:
    """A server with one list; each watch is the next of `watches`, and after them one that stays open."""

    def __init__(self, *watches: Watch | web.Response, version: int = 10) -> None:
        self.pods = {"a": pod("a", 1), "b": pod("b", 2)}
        self.version = version
        self.watches = list(watches)
        self.since: list[str] = []
        self.lists = 0

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            self.lists += 1
            return web.json_response(
                {"metadata": {"resourceVersion": str(self.version)}, "items": list(self.pods.values())}
            )
        self.since.append(request.query["resourceVersion"])
        assert request.query["allowWatchBookmarks"] == "true"
        assert 300 <= int(request.query["timeoutSeconds"]) <= 600
        watch = self.watches.pop(0) if self.watches else stays
        if isinstance(watch, web.Response):
            return web.Response(body=watch.body, status=watch.status)
        stream = web.StreamResponse()
        await stream.prepare(request)
        await watch(self, request, stream)
        return stream

    async def tell(self, stream: web.StreamResponse, kind: str, changes: Any) -> None:
        """Send an event, and apply it to the list."""
        self.version = int(changes["metadata"]["resourceVersion"])
        if kind == "DELETED":
            self.pods.pop(changes["metadata"]["name"], None)
        elif kind != "BOOKMARK":
            self.pods[changes["metadata"]["name"]] = changes
        await again(stream, kind, changes)


async def again(stream: web.StreamResponse, kind: str, changes: Any) -> None:
    await stream.write(json.dumps({"type": kind, "object": changes}).encode() + b"\n")


def expect_version(version: int) -> Any:
    return {"kind": "Pod", "metadata": {"resourceVersion": str(version), "creationTimestamp": None}}


async def stays(server: Server, request: web.Request, stream: web.StreamResponse) -> None:
    """Send nothing but bookmarks."""
    while True:
        await asyncio.sleep(60)
        await server.tell(stream, "BOOKMARK", expect_version(server.version))


def followed(server: Server, folder: Path, lasts_s: float = 300.0) -> tuple[Informer[Pod], list[tuple[str, str, str]]]:
    """Return an informer after that time, and its reports: name, version before and version after."""
    changes: list[tuple[str, str, str]] = []

    def changed(old: Pod | None, new: Pod | None) -> None:
        newest = new or old
        assert newest is not None
        old_version, new_version = (item.metadata.resource_version if item else "" for item in (old, new))
        changes.append((newest.metadata.name, old_version, new_version))

    async def follow() -> Informer[Pod]:
        async with serving(server, folder) as access, ApiClient(access, PROGRAM) as api:
            follower = Informer(api, PODS, changed)
            assert not follower.synced.is_set()
            following = asyncio.ensure_future(follower.run())
            await asyncio.sleep(lasts_s)
            assert follower.synced.is_set()
            assert not following.done(), following
            assert follower.lag_s <= WATCH_TIMEOUT_S
            following.cancel()
            return follower

    follower = run(follow())
    assert {key.name: actual.metadata.resource_version for key, actual in follower.objects.items()} == {
        name: stored["metadata"]["resourceVersion"] for name, stored in server.pods.items()
    }
    return follower, changes


FIRST = [("a", "", "1"), ("b", "", "2")]


def test_changes_are_reported(tmp_path: Path) -> None:
    async def watch(server: Server, request: web.Request, stream: web.StreamResponse) -> None:
        await server.tell(stream, "ADDED", pod("c", 11))
        await server.tell(stream, "MODIFIED", pod("a", 12))
        await server.tell(stream, "DELETED", pod("b", 13))
        await stays(server, request, stream)

    _, changes = followed(server := Server(watch), tmp_path)
    assert changes == [*FIRST, ("c", "", "11"), ("a", "1", "12"), ("b", "2", "")]
    assert server.since == ["10"]
    assert server.lists == 1


def test_a_cut_stream_goes_on_where_it_was(tmp_path: Path) -> None:
    async def cut(server: Server, request: web.Request, stream: web.StreamResponse) -> None:
        await server.tell(stream, "ADDED", pod("c", 11))
        await server.tell(stream, "BOOKMARK", expect_version(20))
        await stream.write(b'{"type":"ADDED","object":{"metadata":{"na')
        broken(request)

    _, changes = followed(server := Server(cut, cut), tmp_path)
    assert server.since == ["10", "20", "20"]
    assert server.lists == 1
    assert changes == [*FIRST, ("c", "", "11")]


def test_repeated_events_are_reported_once(tmp_path: Path) -> None:
    async def twice(server: Server, request: web.Request, stream: web.StreamResponse) -> None:
        events = [
            ("ADDED", pod("c", 11)),
            ("MODIFIED", pod("c", 12)),
            ("DELETED", pod("c", 13)),
            ("ADDED", pod("c", 14, uid="u2")),
        ]
        for event in events:
            await server.tell(stream, *event)
        for event in events:
            await again(stream, *event)
        await stays(server, request, stream)

    _, changes = followed(Server(twice), tmp_path)
    assert changes == [*FIRST, ("c", "", "11"), ("c", "11", "12"), ("c", "12", ""), ("c", "", "14")]


async def expires(server: Server, request: web.Request, stream: web.StreamResponse) -> None:
    await again(stream, "ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})


@pytest.mark.parametrize("end", [expires, refused(410, "Expired")], ids=["in the stream", "at once"])
def test_forgotten_changes_are_listed_again_and_reported(end: Any, tmp_path: Path) -> None:
    async def away(server: Server, request: web.Request, stream: web.StreamResponse) -> None:
        await asyncio.sleep(1)
        server.pods = {"a": pod("a", 41, uid="u2"), "c": pod("c", 42)}
        server.version = 50

    follower, changes = followed(server := Server(away, end), tmp_path)
    assert server.lists == 2
    assert server.since == ["10", "10", "50"]
    assert changes == [*FIRST, ("b", "2", ""), ("a", "1", ""), ("a", "", "41"), ("c", "", "42")]
    assert follower.last_error is None


def test_a_connection_that_died_without_a_word_is_noticed(tmp_path: Path) -> None:
    async def silent(server: Server, request: web.Request, stream: web.StreamResponse) -> None:
        server.pods["c"] = pod("c", 11)
        await asyncio.sleep(1e6)

    async def then(server: Server, request: web.Request, stream: web.StreamResponse) -> None:
        await again(stream, "ADDED", pod("c", 11))
        await stays(server, request, stream)

    _, changes = followed(server := Server(silent, then), tmp_path, lasts_s=90)
    assert changes == [*FIRST, ("c", "", "11")]
    assert server.since == ["10", "10"]


def test_an_hour_of_bookmarks(tmp_path: Path) -> None:
    _, changes = followed(server := Server(), tmp_path, lasts_s=3_600)
    assert changes == FIRST
    assert server.lists == len(server.since) == 1


def test_a_server_that_sends_no_bookmarks_is_not_taken_for_dead(tmp_path: Path) -> None:
    async def silent(server: Server, request: web.Request, stream: web.StreamResponse) -> None:
        await asyncio.sleep(1e6)

    async def follow() -> None:
        server = Server(*[silent] * 1_000)
        async with serving(server, tmp_path) as access, ApiClient(access, PROGRAM) as api:
            follower = Informer(api, PODS, lambda *_: None)
            following = asyncio.ensure_future(follower.run())
            await follower.synced.wait()
            for _ in range(3_600):
                await asyncio.sleep(1)
                assert follower.lag_s < 90
            assert server.lists == 1
            following.cancel()

    run(follow())


def test_versions_that_went_backwards_are_listed_again(tmp_path: Path) -> None:
    async def restored(server: Server, request: web.Request, stream: web.StreamResponse) -> None:
        server.pods = {"a": pod("a", 1)}
        await server.tell(stream, "BOOKMARK", expect_version(5))
        await stays(server, request, stream)

    _, changes = followed(server := Server(restored), tmp_path)
    assert changes == [*FIRST, ("b", "2", "")]
    assert server.since == ["10", "5"]


def test_a_server_that_cannot_go_on_there_is_asked_for_a_list(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query and request.query["resourceVersion"] == "10":
            server.version = 3
            return refused(504, "Timeout", "Too large resource version")
        return await server(request)

    server = Server()

    async def follow() -> None:
        async with serving(answer, tmp_path) as access, ApiClient(access, PROGRAM) as api:
            follower = Informer(api, PODS, lambda *_: None)
            following = asyncio.ensure_future(follower.run())
            await asyncio.sleep(120)
            assert follower.lag_s < WATCH_TIMEOUT_S
            assert follower.last_error is None
            following.cancel()

    run(follow())
    assert server.since == ["3"]


def test_what_is_forbidden_is_said_and_asked_for_seldom(tmp_path: Path) -> None:
    requests = []

    async def answer(request: web.Request) -> web.StreamResponse:
        requests.append(request)
        return refused(403, "Forbidden", "pods is forbidden: nobody may list them")

    async def follow() -> None:
        async with serving(answer, tmp_path) as access, ApiClient(access, PROGRAM) as api:
            follower = Informer(api, PODS, lambda *_: None)
            following = asyncio.ensure_future(follower.run())
            await asyncio.sleep(600)
            assert not follower.synced.is_set()
            assert (
                str(follower.last_error)
                == "could not list pods: 403 Forbidden: pods is forbidden: nobody may list them"
            )
            assert follower.lag_s == float("inf")
            following.cancel()

    run(follow())
    assert len(requests) <= 10 + 2 * 600 / MAX_BACKOFF_S


def test_lists_are_not_asked_for_one_after_the_other(tmp_path: Path) -> None:
    followed(server := Server(*[refused(410, "Expired")] * 1_000), tmp_path, lasts_s=600)
    assert server.lists <= 10 + 2 * 600 / MAX_BACKOFF_S


@pytest.mark.parametrize("is_delivered", [True, False], ids=["watch delivers", "watch is silent"])
def test_a_refresh_has_reported_what_was_before_it(is_delivered: bool, tmp_path: Path) -> None:
    """A watch that is late by any time delays it by less than a second: then the resource is listed again."""

    async def test() -> None:
        changed: asyncio.Queue[None] = asyncio.Queue()

        async def late(server: Server, request: web.Request, stream: web.StreamResponse) -> None:
            await changed.get()
            if is_delivered:
                await again(stream, "ADDED", server.pods["c"])
            await asyncio.sleep(60)

        server = Server(late)
        async with serving(server, tmp_path) as access, ApiClient(access, PROGRAM) as api:
            informer: Informer[Pod] = Informer(api, PODS, lambda *_: None)
            following = asyncio.ensure_future(informer.run())
            await informer.synced.wait()
            server.pods["c"], server.version = pod("c", 11), 11
            changed.put_nowait(None)
            await asyncio.wait_for(informer.refresh(), 1.0)
            assert {key.name for key in informer.objects} == {"a", "b", "c"}
            assert server.lists == (2 if is_delivered else 3), "one of them asks for the version"
            following.cancel()

    run(test())


def test_an_object_that_the_handler_fails_for_is_logged_once_and_keeps_no_other_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reported = list[str]()

    def changed(before: Pod | None, after: Pod | None) -> None:
        name, versions = (
            (after or before).metadata.name,
            [item.metadata.resource_version for item in (before, after) if item],
        )  # type: ignore[union-attr]  # one of them is given
        if name == "a":
            raise ValueError("a is bad")
        reported.append(f"{name}{versions}")

    async def watch(server: Server, request: web.Request, stream: web.StreamResponse) -> None:
        await server.tell(stream, "MODIFIED", pod("a", 11))
        await server.tell(stream, "MODIFIED", pod("a", 12, uid="u2"))
        await server.tell(stream, "MODIFIED", pod("b", 13))
        await server.tell(stream, "DELETED", pod("a", 14, uid="u2"))
        await server.tell(stream, "ADDED", pod("c", 15))
        await stays(server, request, stream)

    async def follow() -> None:
        server = Server(watch)
        async with serving(server, tmp_path) as access, ApiClient(access, PROGRAM) as api:
            follower: Informer[Pod] = Informer(api, PODS, changed)
            following = asyncio.ensure_future(follower.run())
            await asyncio.sleep(300)
            assert not following.done()
            assert {key.name: item.metadata.resource_version for key, item in follower.objects.items()} == {
                "b": "13",
                "c": "15",
            }
            assert (server.lists, server.since) == (1, ["10"])
            following.cancel()

    run(follow())
    assert reported == ["b['2']", "b['2', '13']", "c['15']"]
    assert caplog.text.count("a change of pods team/a could not be handled and is skipped") == 2, "two objects"
    assert "a is bad" in caplog.text
