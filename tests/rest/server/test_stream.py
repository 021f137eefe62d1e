"""The stream of events of a real server: filters, resuming, slow readers and readers that disconnect."""

import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from typing import Any

import psutil
import pytest

from ganger.client import Client, ClientError
from tests.rest.serving import ServerHome, frames, streaming
from tests.waiting import DEADLINE_S, wait_until

LONG_NOTE = "x" * 16_000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerHome]:
    """Yield a server on which nothing starts, so that only the tests make events."""
    place = ServerHome(tmp_path_factory.mktemp("streamed"))
    place.client.connect()
    for node in place.client.nodes():
        place.client.cordon(node["name"], cordoned=True)
    yield place
    place.close()


def logged(place: ServerHome, after: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = place.client.events(after=after, limit=2_000)["items"]
    return items


def note(place: ServerHome, name: str, text: str) -> None:
    place.client._ask("PATCH", f"/jobs/{name}", {"notes": text})


def links(place: ServerHome) -> int:
    """Return the number of open sockets of the server."""
    return len(psutil.Process(place.pid).net_connections("unix"))


def test_each_subscriber_gets_the_events_of_its_filter(served: ServerHome) -> None:
    start = served.client.server()["seq"]
    first, second = served.submit(["true"]), served.submit(["true"])
    filters: dict[str, Any] = {
        "": lambda row: True,
        f"&gang={first}": lambda row: row["job"] == first,
        "&kinds=submitted": lambda row: row["kind"] == "submitted",
        f"&kinds=described,stop_requested&gang={second}": lambda row: (
            row["job"] == second and row["kind"] in ("described", "stop_requested")
        ),
    }
    with ExitStack() as stack:
        streams = {query: stack.enter_context(streaming(served, f"/stream?after={start}{query}")) for query in filters}
        for name in (first, second, first, second):
            note(served, name, "a note")
        for name in (first, second):
            served.client.stop(name)
        served.client.wait(second, DEADLINE_S)
        rows = logged(served, start)
        for query, is_match in filters.items():
            expected = [row for row in rows if is_match(row)]
            assert [row for _, row in islice(frames(streams[query]), len(expected))] == expected, query


def test_a_reader_that_reconnects_repeatedly_misses_and_repeats_nothing(served: ServerHome) -> None:
    start = served.client.server()["seq"]
    name = served.submit(["true"])
    chance, received, cuts = random.Random(4), list[dict[str, Any]](), 0
    with ThreadPoolExecutor() as pool:
        changes = pool.submit(lambda: [note(served, name, f"note {number}") for number in range(200)])
        while not received or received[-1]["data"].get("notes") != "note 199":
            after = received[-1]["seq"] if received else start
            with streaming(served, "/stream?after=0", f"Last-Event-ID: {after}\r\n") as lines:
                for _, row in islice(frames(lines), chance.randint(1, 20)):
                    received.append(row)
                    if row["data"].get("notes") == "note 199":
                        break
            cuts += 1
        changes.result()
    assert received == logged(served, start)
    assert cuts > 10


def test_a_slow_reader_delays_no_other_and_misses_nothing(served: ServerHome) -> None:
    name = served.submit(["true"])
    start = served.client.server()["seq"]
    with streaming(served, f"/stream?after={start}") as slow, streaming(served, f"/stream?after={start}") as quick:
        assert next(slow) == next(quick) == b": connected"
        ready = frames(quick)
        for number in range(1, 501):
            note(served, name, f"{number} {LONG_NOTE}")
            assert next(ready)[0] == start + number
        assert [seq for seq, _ in islice(frames(slow), 500)] == list(range(start + 1, start + 501))


def test_readers_that_disconnect_are_released(served: ServerHome) -> None:
    name = served.submit(["true"])
    before = links(served)
    with ExitStack() as stack:
        for _ in range(50):
            assert next(stack.enter_context(streaming(served, "/stream"))) == b": connected"
        assert links(served) >= before + 49
    note(served, name, "a note")
    wait_until(lambda: links(served) <= before, "the connections are closed")
    assert served.client.server()["health"] == "ok"


def test_a_reader_that_disconnects_in_the_middle_of_a_frame_is_released(served: ServerHome) -> None:
    name = served.submit(["true"])
    start = served.client.server()["seq"]
    for number in range(100):
        note(served, name, f"{number} {LONG_NOTE}")
    before = links(served)
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(served.home.socket("server")))
            link.sendall(f"GET /api/v1/stream?after={start} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert link.recv(200).startswith(b"HTTP/1.1 200")
    wait_until(lambda: links(served) <= before, "the connections are closed")
    assert "incident" not in served.home.server_log.read_text()


@pytest.mark.parametrize(("query", "headers"), [("?after=x", ""), ("?kinds=none", ""), ("", "Last-Event-ID: -1\r\n")])
def test_an_invalid_stream_is_refused(served: ServerHome, query: str, headers: str) -> None:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(DEADLINE_S)
        link.connect(str(served.home.socket("server")))
        link.sendall(f"GET /api/v1/stream{query} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n".encode())
        with link.makefile("rb") as answer:
            response = answer.read()
    assert response.startswith(b"HTTP/1.1 422")
    assert b"invalid_request" in response


def test_the_client_survives_a_restart_of_the_server(served: ServerHome) -> None:
    start = served.client.server()["seq"]
    name = served.submit(["true"])
    stream = Client(served.home).connect().stream(start)
    first = next(stream)
    served.client.restart()
    note(served, name, "after the restart")
    received = [first, *(next(stream) for _ in range(len(logged(served, start)) - 1))]
    assert received == logged(served, start)[: len(received)]
    assert [row["job"] for row in received if row["kind"] in ("submitted", "described")] == [name, name]
    with pytest.raises(ClientError, match="no answer in time"):
        list(Client(served.home).connect().stream(start, deadline=0.0))
