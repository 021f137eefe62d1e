"""Lines of an answer, however the connection cuts it."""

import socket
from contextlib import closing
from http.client import HTTPConnection, IncompleteRead
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.client.local.http import Answer


def lines_of(chunks: list[bytes], end: bytes = b"0\r\n\r\n") -> list[bytes]:
    """Lines of an answer that comes in these chunks."""
    here, there = socket.socketpair()
    with closing(HTTPConnection("localhost")) as connection, there:
        connection.sock = here
        connection.request("GET", "/")
        there.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        there.sendall(b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + end)
        there.shutdown(socket.SHUT_WR)
        return list(Answer(connection.getresponse(), here).lines())


@given(
    st.lists(st.text("ab\r", max_size=5).map(str.encode)),
    st.binary(max_size=3).map(lambda rest: rest.hex().encode()),
    st.randoms(),
)
def test_lines_are_whole_wherever_they_are_cut(lines: list[bytes], rest: bytes, random: Random) -> None:
    body = b"".join(line + b"\n" for line in lines) + rest
    cuts = sorted(random.choices(range(len(body) + 1), k=4))
    chunks = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True) if start < end]
    assert lines_of(chunks) == [line.removesuffix(b"\r") for line in lines] + ([rest] if rest else [])


def test_a_line_longer_than_a_block() -> None:
    assert lines_of([b"x" * 100_000, b"y" * 100_000 + b"\nz\n"]) == [b"x" * 100_000 + b"y" * 100_000, b"z"]


def test_a_broken_connection_is_no_end() -> None:
    with pytest.raises(IncompleteRead):
        lines_of([b"one\ntwo"], end=b"")
