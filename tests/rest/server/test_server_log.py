"""The log of a server: repeated messages are counted, and the file stays short."""

import io
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ganger.server import server_log
from ganger.server.server_log import LINES_PER_MINUTE, ServerLog, shorten


@pytest.fixture
def log(tmp_path: Path) -> Iterator[tuple[ServerLog, io.StringIO]]:
    """Yield a log that writes to memory."""
    handler, written = ServerLog(tmp_path / "server.log"), io.StringIO()
    handler.setStream(written)
    yield handler, written
    handler.close()


def log_warning(handler: ServerLog, message: str, *names: object, line: int = 1) -> None:
    handler.handle(logging.LogRecord("ganger", logging.WARNING, "there.py", line, message, names, None))


def test_repeated_messages_are_counted_whatever_their_arguments(log: tuple[ServerLog, io.StringIO]) -> None:
    handler, written = log
    for number in range(1_000):
        log_warning(handler, "%s is not let in", number)
    assert len(written.getvalue().splitlines()) == LINES_PER_MINUTE
    log_warning(handler, "another", line=2)
    handler.close()
    *_, other, summary = written.getvalue().splitlines()
    assert other.endswith("WARNING ganger: another")
    assert summary.endswith("990 more like this in the last minute: 999 is not let in")


def test_a_minute_later_it_is_written_again(log: tuple[ServerLog, io.StringIO]) -> None:
    handler, written = log
    for _ in range(LINES_PER_MINUTE + 1):
        log_warning(handler, "again")
    minute = handler._minute
    assert minute is not None
    minute.function()  # what the timer calls when the minute is over
    assert written.getvalue().splitlines()[-1].endswith("1 more like this in the last minute: again")
    log_warning(handler, "again")
    assert written.getvalue().splitlines()[-1].endswith("WARNING ganger: again")


def test_many_different_messages_take_no_memory(log: tuple[ServerLog, io.StringIO]) -> None:
    handler, _ = log
    for number in range(10_000):
        log_warning(handler, f"message {number}")
    assert len(handler._counts) <= 1_000


def test_a_long_file_keeps_its_newest_lines(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    with path.open("ab") as file:
        for number in range(100_000):
            file.write(b"%099d\n" % number)
        file.flush()
        shorten(file.fileno(), path)
        file.write(b"after\n")
    lines = path.read_bytes().splitlines()
    assert lines[-2:] == [b"%099d" % 99_999, b"after"]
    assert len(set(map(len, lines[:-1]))) == 1, "no line is cut"
    assert server_log.KEPT_BYTES - 100 < path.stat().st_size <= server_log.KEPT_BYTES + 6


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_WRONLY | os.O_APPEND], ids=["not appended to", "another file"])
def test_another_file_is_left_alone(tmp_path: Path, flags: int) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"x\n" * server_log.MAX_BYTES)
    other = tmp_path / "other" if flags & os.O_APPEND else path
    other.write_bytes(path.read_bytes())
    descriptor = os.open(other, flags)
    shorten(descriptor, path)
    os.close(descriptor)
    assert path.stat().st_size == 2 * server_log.MAX_BYTES
