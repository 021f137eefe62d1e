"""The buffer between the threads of a follower that read and the one that prints."""

import threading

import pytest

from ganger.cli.output import follower
from ganger.cli.output.follower import _RecordBuffer
from tests.cli.world import line

DEADLINE_S = 60.0
RECORDS = 40


@pytest.mark.parametrize(("limit", "value"), [("MOST_AHEAD", 4), ("MOST_AHEAD_CHARACTERS", 4 * 100)])
def test_records_come_in_order_and_few_are_read_ahead(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    monkeypatch.setattr(follower, limit, value)
    buffer, handed_over = _RecordBuffer(), []

    def read() -> None:
        for number in range(RECORDS):
            handed_over.append(number)
            buffer.put("line", line("x" * 100, t=number))

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    for number in range(RECORDS):
        assert buffer.get(DEADLINE_S) == ("line", line("x" * 100, t=number))
        # As many as fit may wait and have been taken each, and one is in the reader's hand.
        assert len(handed_over) <= number + 2 * 4 + 1
    reading.join(DEADLINE_S)
    assert buffer.is_drained
    assert buffer.get(0) is None
