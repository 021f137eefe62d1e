"""The buffer between the reading threads of a follower and the printing one."""

import threading

import pytest

from ganger.cli.output import follower
from ganger.cli.output.follower import _RecordBuffer
from tests.cli.world import line
from tests.waiting import DEADLINE_S

RECORDS = 40


@pytest.mark.parametrize(("limit", "value"), [("MAX_BUFFERED_RECORDS", 4), ("MAX_BUFFERED_CHARACTERS", 4 * 100)])
def test_the_buffer_keeps_order_and_is_bounded(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    monkeypatch.setattr(follower, limit, value)
    buffer, read_numbers = _RecordBuffer(), []

    def read() -> None:
        for number in range(RECORDS):
            read_numbers.append(number)
            buffer.put("line", line("x" * 100, t=number))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    for number in range(RECORDS):
        assert buffer.get(DEADLINE_S) == ("line", line("x" * 100, t=number))
        # Up to 4 records are buffered, up to 4 were taken at once, and one is held by the reader.
        assert len(read_numbers) <= number + 2 * 4 + 1
    reader.join(DEADLINE_S)
    assert buffer.is_drained
    assert buffer.get(0) is None
