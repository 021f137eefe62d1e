"""Limits on connections without a token: the count alone, and a launcher that comes in past a crowd of them."""

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
from ganger.launcher_server.acceptor import MOST_SILENT_OF_ADDRESS, MOST_SPEAKING_OF_ADDRESS, Acceptor, Stranger
from ganger.launcher_server.connection_limits import ConnectionLimits, counted_address
from tests.launcher.afar import DEADLINE_S, HOST, Authority, Controller, Listens, Starts, eventually
from tests.launcher.harness import GANG, TOKEN

CROWD = 1_100
LAUNCHERS = 64


@pytest.fixture
def open_files() -> Iterator[None]:
    """Both ends of every connection are in this process."""
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
def test_limits_hold_and_the_oldest_goes(most: int, most_of_address: int, steps: list[tuple[str, str, int]]) -> None:
    strangers = ConnectionLimits[int](most, most_of_address)
    there: dict[str, list[int]] = defaultdict(list)  # the same, counted in the simplest way
    for number, (address, step, which) in enumerate(steps):
        before = max(map(len, there.values()), default=0)
        match step:
            case "add":
                there[address].append(number)
                gone = strangers.add(number, address)
                exceeds = len(there[address]) > most_of_address or sum(map(len, there.values())) > most
                assert (gone is not None) == exceeds
                assert gone != number
            case "discard":
                strangers.discard(which, address)
                there[address] = [each for each in there[address] if each != which]
                gone = None
            case _:
                gone = strangers.pop()
                assert (gone is None) == (before == 0)
        if gone is not None:
            (whose,) = (each for each, those in there.items() if gone in those)
            assert gone == there[whose][0], "an older one of that address stays"
            of_its_own = step == "add" and len(there[address]) > most_of_address
            assert whose == address if of_its_own else len(there[whose]) == max(map(len, there.values()))
            there[whose].remove(gone)
        assert sorted(strangers) == sorted(each for those in there.values() for each in those)
        assert len(strangers) == sum(map(len, there.values())) <= most


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
    ],
)
def test_address_that_a_peer_counts_for(host: str, counted: str) -> None:
    assert counted_address(host) == counted


# -- at the listener of the controller -------------------------------------------------------------------------------


Begin = Callable[[socket.socket, Authority], socket.socket]


def crowd(stack: ExitStack, port: int, begin: Begin, authority: Authority) -> list[socket.socket]:
    """Connections of one address that go as far as `begin` takes them, and no further."""
    there = []
    for _ in range(CROWD):
        connection = begin(socket.create_connection((HOST, port), DEADLINE_S), authority)
        there.append(stack.enter_context(connection))
    return there


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
    """Whether the other end still holds it; whatever it sent is read."""
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
def test_launcher_comes_in_past_a_crowd(
    listens: Listens, starts: Starts, authority: Authority, open_files: None, begin: Begin
) -> None:
    controller = listens()
    with ExitStack() as stack:
        there = crowd(stack, controller.port, begin, authority)
        pod = starts(controller)
        controller.run(pod.plan(["true"]))
        controller.wait("finished", "n1")
        left = [is_open(connection) for connection in there]
    assert sum(left) <= (MOST_SILENT_OF_ADDRESS if begin is silent else MOST_SPEAKING_OF_ADDRESS)
    assert not left[0], "the oldest went"


def test_limit_of_one_address_leaves_the_others_alone(listens: Listens, authority: Authority, open_files: None) -> None:
    controller = listens()
    with ExitStack() as stack:
        other = socket.create_connection((HOST, controller.port), DEADLINE_S, source_address=("127.0.0.2", 0))
        stack.enter_context(other)
        there = crowd(stack, controller.port, silent, authority)
        eventually(lambda: sum(map(is_open, there)) == MOST_SILENT_OF_ADDRESS, "all but as many as may are dropped")
        assert is_open(other)


def test_launchers_of_one_address_all_come_in_at_once(listens: Listens, authority: Authority, open_files: None) -> None:
    controller = listens()
    names = [f"m{at}" for at in range(LAUNCHERS)]
    controller.tokens.update(dict.fromkeys(names, TOKEN))
    with ExitStack() as stack:
        crowd(stack, controller.port, silent, authority)
        heard = asyncio.run(_welcomes(controller, authority, names))
    assert heard == ["welcome"] * LAUNCHERS


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
    """As when a newcomer takes the stranger's place in that very turn of the event loop."""

    def __init__(self, stranger: Stranger, lost: asyncio.Event) -> None:
        self._stranger, self._lost = stranger, lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._stranger.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stranger.release()
        self._lost.set()


def test_stranger_dropped_as_its_handshake_ends_leaves_its_descriptor_whole(authority: Authority) -> None:
    handshakes, errors = asyncio.run(_dropped_one_after_another(authority))
    assert (handshakes, errors) == (3, [])


async def _dropped_one_after_another(authority: Authority) -> tuple[int, list[str]]:
    """How many of three strangers came as far as the end of the handshake, and the errors on the event loop."""
    loop, lost, handshakes, errors = asyncio.get_running_loop(), asyncio.Event(), 0, list[str]()
    loop.set_exception_handler(lambda _, context: errors.append(str(context.get("exception") or context["message"])))
    listener = socket.create_server((HOST, 0))
    port = listener.getsockname()[1]
    acceptor = Acceptor(listener, lambda stranger: DroppedAsItsHandshakeEnds(stranger, lost), authority.context())
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
