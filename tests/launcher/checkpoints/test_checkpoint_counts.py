"""Counts of calls, proposals and schedules in the launcher: messages, and failures of disk or server."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ganger.launcher.ranks.checkpoint_counts import OPEN_S, CheckpointCounts
from ganger.train.checkpoint_schedule import CheckpointSchedule
from tests.launcher.harness import Server, Task
from tests.waiting import wait_until

ASKS = """
import os, time
from ganger import train

with open("answers", "a", buffering=1) as out:
    for step in range(int(os.environ["GANGER_RANK"]), 1_000_000):
        while not os.path.exists(f"may-{step}"):
            time.sleep(0.005)
        train.report(step=step)
        print(step, train.should_checkpoint(), file=out)
"""


RESERVED = """
import os, time
from ganger import train

while not os.path.exists("go"):
    time.sleep(0.01)
path = os.path.join(os.environ["GANGER_TASK_DIR"], f"rank-{os.environ['GANGER_RANK']}.calls")
before = os.stat(path).st_size
train.should_checkpoint()
print(before, os.stat(path).st_size, file=open("sizes", "w"))
"""


class RecordingSender:
    """Stands for the message sender."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def send_state(self, kind: str, **fields: Any) -> None:
        self.messages.append({"type": kind, **fields})


def counts_in(directory: Path, sender: RecordingSender, *, polls: bool = False) -> CheckpointCounts:
    return CheckpointCounts(str(directory), sender, polls=polls, now=0.0)  # type: ignore[arg-type]  # it has `send_state`


def schedule_in(directory: Path) -> dict[str, Any]:
    schedule = json.loads((directory / "schedule.json").read_text())
    assert isinstance(schedule, dict)
    return schedule


def test_a_rank_waits_until_a_proposal_is_decided(server: Server, task: Task) -> None:
    every = {"GANGER_CHECKPOINT_EVERY_S": "60"}
    task.plan([sys.executable, "-c", ASKS])
    plan = json.loads((task.path / "plan-1.json").read_text())
    plan["environment"].update(every)
    (task.path / "plan-1.json").write_text(json.dumps(plan))
    task.start()

    def allow(step: int) -> None:
        (task.work / f"may-{step}").touch()

    def answers() -> list[str]:
        return (task.work / "answers").read_text().splitlines()

    server.wait("checkpoint_counts", calling_ranks=0, schedule={"id": 0, "segments": []})
    allow(0)
    server.wait("checkpoint_counts", calling_ranks=1, stepping_ranks=1, step=0, call=1, reply_to=0)
    server.send("propose", generation=1, id=7, unit="step", begin=1)
    server.wait("checkpoint_counts", reply_to=7, pending=7, step=0)
    allow(1)
    wait_until(
        lambda: server.send("get_counts", generation=1, id=8) or server.messages[-1].get("step") == 1, "it gets there"
    )
    assert answers() == ["0 False"]
    server.send("agree", generation=1, id=7, segments=[["step", 1, 1, 0]])
    wait_until(lambda: answers() == ["0 False", "1 True"], "it is told to save")
    server.send("propose", generation=1, id=9, unit="call", begin=3)
    server.wait("checkpoint_counts", reply_to=9, pending=9)
    allow(2)
    server.send("withdraw", generation=1, id=9)
    wait_until(lambda: answers() == ["0 False", "1 True", "2 False"], "it goes on")
    server.hang_up()
    server.wait("checkpoint_counts", pending=0, call=3, schedule={"id": 7, "segments": [["step", 1, 1, 0]]}, reply_to=0)
    server.stop(1)
    server.wait("cleared")


def test_the_counts_of_a_rank_have_disk_space_before_it_runs(server: Server, task: Task) -> None:
    task.plan([sys.executable, "-c", RESERVED])
    task.start()
    server.wait("checkpoint_counts", calling_ranks=0)
    (task.work / "go").touch()
    server.wait("finished")
    assert (task.work / "sizes").read_text() == "16 16\n"


def test_an_undecided_proposal_is_withdrawn(tmp_path: Path) -> None:
    counts = counts_in(tmp_path, RecordingSender())
    counts.handle({"type": "propose", "id": 3, "unit": "step", "begin": 5}, 100.0)
    assert schedule_in(tmp_path)["pending"] == ["step", 5]
    assert counts.due == 100.0 + OPEN_S
    counts.tick(100.0 + OPEN_S)
    assert schedule_in(tmp_path)["pending"] is None
    assert counts.due == float("inf")


def test_a_proposal_is_not_reported_open_on_a_full_disk(tmp_path: Path) -> None:
    sender = RecordingSender()
    (tmp_path / "schedule.json.tmp").symlink_to("/dev/full")
    counts_in(tmp_path, sender).handle({"type": "propose", "id": 3, "unit": "step", "begin": 5}, 0.0)
    assert (sender.messages[-1]["reply_to"], sender.messages[-1]["pending"]) == (3, 0)


def test_a_schedule_is_written_once_the_disk_has_space(tmp_path: Path) -> None:
    (tmp_path / "schedule.json.tmp").symlink_to("/dev/full")
    counts = counts_in(tmp_path, RecordingSender())
    counts.handle({"type": "agree", "id": 3, "segments": [["call", 5, 6, 7]]}, 0.0)
    assert not (tmp_path / "schedule.json").exists()
    (tmp_path / "schedule.json.tmp").unlink()
    counts.tick(counts.due)
    assert schedule_in(tmp_path)["segments"] == [["call", 5, 6, 7]]


def test_ranks_that_begin_to_call_after_a_notice_are_reported(tmp_path: Path) -> None:
    sender = RecordingSender()
    counts = counts_in(tmp_path, sender)
    rank = CheckpointSchedule(str(tmp_path), 0)
    rank.count(4)
    counts.tick(10.0)
    assert [message["calling_ranks"] for message in sender.messages] == [0]
    counts.notice(10.0)
    assert [message["calling_ranks"] for message in sender.messages] == [0, 1]
    another = CheckpointSchedule(str(tmp_path), 1)
    another.count(4)
    counts.tick(counts.due)
    assert [message["calling_ranks"] for message in sender.messages] == [0, 1, 2]
    rank.close()
    another.close()


def test_counts_of_an_ended_program_are_ignored(tmp_path: Path) -> None:
    ended, runs = CheckpointSchedule(str(tmp_path), 7), CheckpointSchedule(str(tmp_path), 0)
    ended.count(10_000)
    runs.count(4)
    sender = RecordingSender()
    counts = counts_in(tmp_path, sender)
    ended.close()
    counts.announce()
    assert [(message["calling_ranks"], message["step"]) for message in sender.messages] == [(2, 10_000), (1, 4)]
    again = CheckpointSchedule(str(tmp_path), 7)
    again.count(5)
    counts.announce()
    assert (sender.messages[-1]["calling_ranks"], sender.messages[-1]["step"]) == (2, 5)
    runs.close()
    again.close()


def test_invalid_count_files_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "rank-0.calls").write_bytes(b"\xff" * 16)
    (tmp_path / "rank-1.calls").write_bytes(b"short")
    (tmp_path / "rank-2.calls").mkdir()
    (tmp_path / "rank-3.calls").symlink_to("nowhere")
    os.mkfifo(tmp_path / "rank-4.calls")
    rank = CheckpointSchedule(str(tmp_path), 5)
    rank.count(4)
    sender = RecordingSender()
    counts_in(tmp_path, sender).close()
    assert [(message["calling_ranks"], message["step"], message["call"]) for message in sender.messages] == [(1, 4, 1)]
    rank.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "get_counts", "id": "x"},
        {"type": "propose", "id": 1, "unit": "epoch", "begin": 1},
        {"type": "propose", "id": 1, "unit": "step", "begin": -1},
        {"type": "agree", "id": 1, "segments": {}},
        {"type": "agree", "id": 1, "segments": [["step", 1, 2]]},
        {"type": "agree", "id": 1, "segments": [["step", 1, 2, 1.5]]},
    ],
)
def test_invalid_messages_change_nothing(wrong: dict[str, Any], tmp_path: Path) -> None:
    counts = counts_in(tmp_path, RecordingSender())
    with pytest.raises(ValueError, match="is not a"):
        counts.handle(wrong, 0.0)
    assert list(tmp_path.iterdir()) == []
