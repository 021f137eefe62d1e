"""Limits on connections without a token: the counting alone, and a launcher that connects despite many of them."""

import asyncio
import json
import resource
import socket
import ssl
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.launcher.protocol.messages import VERSION
from ganger.launcher_server.acceptor import (
    MAX_SILENT_OF_ADDRESS,
    MAX_SPEAKING_OF_ADDRESS,
    Acceptor,
    UnauthenticatedPeer,
)
from ganger.launcher_server.connection_limits import ConnectionLimits, counted_address
from tests.launcher.harness import GANG, TOKEN
from tests.launcher.remote_launchers import HOST, Authority, Controller, ListenFixture, StartFixture
from tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.long

MANY_CONNECTIONS = 1_100
LAUNCHERS = 64


@pytest.fixture
def open_files() -> Iterator[None]:
    """Allow both ends of every connection in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- the count -------------------------------------------------------------------------------------------------------


@given(
    st.integers(2, 8),
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["add", "add", "discard", "pop"]), st.integers(0, 60))),
)
def test_limits_hold_and_the_oldest_is_dropped(
    maximum: int, maximum_per_address: int, steps: list[tuple[str, str, int]]
) -> None:
    peers = ConnectionLimits[int](maximum, maximum_per_address)
    expected: dict[str, list[int]] = defaultdict(list)  # a simple reference implementation
    for number, (address, step, target) in enumerate(steps):
        before = max(map(len, expected.values()), default=0)
        match step:
            case "add":
                expected[address].append(number)
                evicted = peers.add(number, address)
                is_exceeded = len(expected[address]) > maximum_per_address or sum(map(len, expected.values())) > maximum
                assert (evicted is not None) == is_exceeded
                assert evicted != number
            case "discard":
                peers.discard(target, address)
                expected[address] = [peer for peer in expected[address] if peer != target]
                evicted = None
            case _:
                evicted = peers.pop()
                assert (evicted is None) == (before == 0)
        if evicted is not None:
            (source,) = (name for name, numbers in expected.items() if evicted in numbers)
            assert evicted == expected[source][0], "an older one of that address stays"
            is_own = step == "add" and len(expected[address]) > maximum_per_address
            assert source == address if is_own else len(expected[source]) == max(map(len, expected.values()))
            expected[source].remove(evicted)
        assert sorted(peers) == sorted(number for numbers in expected.values() for number in numbers)
        assert len(peers) == sum(map(len, expected.values())) <= maximum


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
    ],
)
def test_counted_address(host: str, counted: str) -> None:
    assert counted_address(host) == counted


# -- at the listener of the controller -------------------------------------------------------------------------------


Begin = Callable[[socket.socket, Authority], socket.socket]


def connect_many(stack: ExitStack, port: int, begin: Begin, authority: Authority) -> list[socket.socket]:
    """Open connections of one address that go as far as `begin` takes them, and no further."""
    connections = []
    for _ in range(MANY_CONNECTIONS):
        connection = begin(socket.create_connection((HOST, port), DEADLINE_S), authority)
        connections.append(stack.enter_context(connection))
    return connections


def silent(connection: socket.socket, authority: Authority) -> socket.socket:
    return connection


def in_the_handshake(connection: socket.socket, authority: Authority) -> socket.socket:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context_of(authority).wrap_bio(incoming, outgoing, server_hostname=HOST).do_handshake()
    connection.sendall(outgoing.read())
    return connection


def after_the_handshake(connection: socket.socket, authority: Authority) -> socket.socket:
    return context_of(authority).wrap_socket(connection, server_hostname=HOST)


@cache
def context_of(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.ca))


def is_open(connection: socket.socket) -> bool:
    """Return True if the other end still holds the connection; what it sent is read."""
    connection.setblocking(False)
    try:
        while connection.recv(65_536):
            pass
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except (ConnectionResetError, ssl.SSLError):
        return False
    return False


@pytest.mark.parametrize("begin", [silent, in_the_handshake, after_the_handshake])
def test_launcher_connects_despite_many_silent_connections(
    listens: ListenFixture, starts: StartFixture, authority: Authority, open_files: None, begin: Begin
) -> None:
    controller = listens()
    with ExitStack() as stack:
        connections = connect_many(stack, controller.port, begin, authority)
        pod = starts(controller)
        controller.run(pod.plan(["true"]))
        controller.wait("finished", "n1")
        are_open = [is_open(connection) for connection in connections]
    assert sum(are_open) <= (MAX_SILENT_OF_ADDRESS if begin is silent else MAX_SPEAKING_OF_ADDRESS)
    assert not are_open[0], "the oldest is dropped"


def test_limit_of_one_address_does_not_affect_others(
    listens: ListenFixture, authority: Authority, open_files: None
) -> None:
    controller = listens()
    with ExitStack() as stack:
        other_connection = socket.create_connection(
            (HOST, controller.port), DEADLINE_S, source_address=("127.0.0.2", 0)
        )
        stack.enter_context(other_connection)
        connections = connect_many(stack, controller.port, silent, authority)
        wait_until(lambda: sum(map(is_open, connections)) == MAX_SILENT_OF_ADDRESS, "the excess is dropped")
        assert is_open(other_connection)


def test_launchers_of_one_address_connect_at_once(
    listens: ListenFixture, authority: Authority, open_files: None
) -> None:
    controller = listens()
    names = [f"m{number}" for number in range(LAUNCHERS)]
    controller.tokens.update(dict.fromkeys(names, TOKEN))
    with ExitStack() as stack:
        connect_many(stack, controller.port, silent, authority)
        messages = asyncio.run(_welcomes(controller, authority, names))
    assert messages == ["welcome"] * LAUNCHERS


async def _welcomes(controller: Controller, authority: Authority, names: list[str]) -> list[str]:
    context = context_of(authority)

    async def first_message(node: str) -> str:
        reader, writer = await asyncio.open_connection(HOST, controller.port, ssl=context)
        hello = {"v": VERSION, "type": "hello", "token": TOKEN, "gang": GANG, "node": node}
        hello |= {"pid": 1, "start_ticks": 1, "generations": [], "generation": 1}
        writer.write(json.dumps(hello).encode() + b"\n")
        line = await reader.readline()
        writer.transport.abort()
        kind: str = json.loads(line)["type"]
        return kind

    return await asyncio.wait_for(asyncio.gather(*map(first_message, names)), DEADLINE_S)


class DroppedAsItsHandshakeEnds(asyncio.Protocol):
    """Drops the peer as a newcomer does that takes its slot in that very iteration of the event loop."""

    def __init__(self, peer: UnauthenticatedPeer, lost: asyncio.Event) -> None:
        self._peer, self._lost = peer, lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._peer.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._peer.release()
        self._lost.set()


def test_peer_dropped_as_its_handshake_ends_keeps_its_descriptor(authority: Authority) -> None:
    handshakes, errors = asyncio.run(_drop_three(authority))
    assert (handshakes, errors) == (3, [])


async def _drop_three(authority: Authority) -> tuple[int, list[str]]:
    """Return how many of three peers completed the handshake, and the errors on the event loop."""
    loop, lost, handshakes, errors = asyncio.get_running_loop(), asyncio.Event(), 0, list[str]()
    loop.set_exception_handler(lambda _, context: errors.append(str(context.get("exception") or context["message"])))
    listener = socket.create_server((HOST, 0))
    port = listener.getsockname()[1]
    acceptor = Acceptor(listener, lambda peer: DroppedAsItsHandshakeEnds(peer, lost), authority.context())
    try:
        for _ in range(3):
            raw = await asyncio.to_thread(socket.create_connection, (HOST, port), DEADLINE_S)
            with await asyncio.to_thread(after_the_handshake, raw, authority):
                handshakes += 1
                await asyncio.wait_for(lost.wait(), DEADLINE_S)
            lost.clear()
    finally:
        acceptor.close()
    return handshakes, errors
