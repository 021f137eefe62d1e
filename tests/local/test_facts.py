"""Messages and exit records of launchers as events."""

import json
import os
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings

from ganger.backends.local.job_files import TaskDirectory
from ganger.engine.eventlog import codec
from ganger.launcher_server import message_schema
from ganger.launcher_server.message_events import ending, event, is_done, newest_report
from ganger.launcher_server.message_schema import BadMessage
from ganger.model.decision import Cause
from ganger.model.event import Failed, Finished
from tests.launcher.forged import EXIT_RECORD, MANY, SEEDS, forged, written


def records(tmp_path: Path, *exits: dict) -> TaskDirectory:
    """Return a task whose generation 1 had ranks 4 and 5."""
    task = TaskDirectory(tmp_path)
    task.generation(1).mkdir()
    (tmp_path / "plan-1.json").write_text(json.dumps({"ranks": [{"rank": 4}, {"rank": 5}]}))
    for record in exits:
        (task.generation(1) / f"rank-{record['rank']}.exit").write_text(json.dumps({"pid": 9, "tail": []} | record))
    return task


def test_all_ranks_ended_well(tmp_path: Path) -> None:
    task = records(tmp_path, {"rank": 4, "exit_code": 0, "at_ms": 1}, {"rank": 5, "exit_code": 0, "at_ms": 2})
    assert ending(task, "job", 1, "n1") == Finished(gang="job", generation=1, nodes=("n1",))


def test_one_rank_did_not_end(tmp_path: Path) -> None:
    assert ending(records(tmp_path, {"rank": 4, "exit_code": 0, "at_ms": 1}), "job", 1, "n1") is None


def test_no_records_on_disk(tmp_path: Path) -> None:
    assert ending(TaskDirectory(tmp_path), "job", 1, "n1") is None


def test_torn_record_is_none(tmp_path: Path) -> None:
    task = records(tmp_path, {"rank": 4, "exit_code": 0, "at_ms": 1})
    (task.generation(1) / "rank-5.exit").write_text('{"rank": 5, "exit_')
    assert ending(task, "job", 1, "n1") is None


def test_first_failure_counts(tmp_path: Path) -> None:
    task = records(tmp_path, {"rank": 4, "exit_code": 1, "at_ms": 20}, {"rank": 5, "signal": 11, "at_ms": 10})
    failed = ending(task, "job", 1, "n1")
    assert isinstance(failed, Failed)
    assert (failed.rank, failed.signal, failed.exit_code) == (5, 11, None)
    assert failed.detail == "rank 5 on n1 was killed by signal 11 (SIGSEGV)"


def test_rank_that_never_began(tmp_path: Path) -> None:
    task = records(tmp_path, {"rank": 4, "exit_code": 127, "at_ms": 1, "tail": ["there is no program x"]})
    path = task.generation(1) / "rank-4.exit"
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != "pid"}))
    failed = ending(task, "job", 1, "n1")
    assert isinstance(failed, Failed)
    assert (failed.cause, failed.exit_code, failed.detail) == (Cause.START_FAILED, 127, "there is no program x")


def test_rank_that_may_fail_counts_as_ended(tmp_path: Path) -> None:
    task = records(tmp_path, {"rank": 4, "exit_code": 0, "at_ms": 1}, {"rank": 5, "signal": 9, "at_ms": 2})
    plan = {"ranks": [{"rank": 4}, {"rank": 5, "on_failure": "ignore"}]}
    (tmp_path / "plan-1.json").write_text(json.dumps(plan))
    assert isinstance(ending(task, "job", 1, "n1"), Finished)


@pytest.mark.parametrize(
    ("ends", "exits", "is_job_done"),
    [
        ([], [], False),
        ([4], [], False),
        ([4], [{"rank": 4, "exit_code": 0}], True),
        ([4], [{"rank": 4, "exit_code": 1}], False),
        ([4], [{"rank": 5, "exit_code": 0}], False),
        ([4, 5], [{"rank": 4, "exit_code": 0}], False),
        ([4, 5], [{"rank": 4, "exit_code": 0}, {"rank": 5, "signal": 9}], False),
        ([4, 5], [{"rank": 4, "exit_code": 0}, {"rank": 5, "exit_code": 0}], True),
    ],
)
def test_job_is_done_when_all_that_count_ended_well(tmp_path: Path, ends: list, exits: list, is_job_done: bool) -> None:
    task = records(tmp_path, *exits)
    (tmp_path / "plan-1.json").write_text(
        json.dumps({"ranks": [{"rank": rank, "ends": rank in ends} for rank in (4, 5)]})
    )
    assert is_done([task, TaskDirectory(tmp_path / "never-begun")], 1) is is_job_done


@pytest.mark.parametrize(("number", "name"), [(9, "signal 9 (SIGKILL)"), (35, "signal 35")])
def test_signal_names(number: int, name: str) -> None:
    sent = {"v": 2, "type": "rank_failed", "gang": "job", "node": "n1", "generation": 1, "rank": 0, "signal": number}
    failed = event(message_schema.message(json.dumps({**sent, "tail": ["x"] * 50}).encode()), "job", "n1")
    assert isinstance(failed, Failed)
    assert name in failed.detail
    assert len(failed.tail) == 20


def test_a_step_without_a_time_gets_the_time_of_arrival() -> None:
    message = {"type": "progressed", "step": 7, "metrics": {"loss": 2.5}, "milestone": False}
    assert newest_report(message, 1_000) == {"step": 7, "metrics": {"loss": 2.5}, "t": 1_000, "phase": None}


def test_record_that_is_a_pipe_or_of_another_rank_is_ignored(tmp_path: Path) -> None:
    task = records(tmp_path, {"rank": 4, "exit_code": 3, "at_ms": 1})
    (task.generation(1) / "rank-4.exit").rename(task.generation(1) / "rank-5.exit")
    os.mkfifo(task.generation(1) / "rank-4.exit")
    assert task.exits(1) == []


class Forged:
    """Records of one node whose plan and exit record are arbitrary JSON."""

    node = "n1"

    def __init__(self, random: Random) -> None:
        plan = {"ranks": [{"rank": 0, "ends": True, "on_failure": "ignore", "environment": {}}], "environment": {}}
        self._plan = forged(random, plan) if random.random() < 0.5 else written(plan)
        self._exit = forged(random, EXIT_RECORD)

    def planned(self, generation: int) -> list[dict] | None:
        with suppress(BadMessage):
            return message_schema.plan(self._plan)["ranks"]
        return None

    def exits(self, generation: int) -> list[dict]:
        with suppress(BadMessage):
            return [message_schema.exit_record(self._exit)]
        return []

    def cleared(self, generation: int) -> bool:
        return False


@settings(max_examples=MANY)
@given(seed=SEEDS)
def test_forged_records_and_plans_end_nothing(seed: int) -> None:
    task = Forged(Random(seed))
    end_event = ending(task, "job", 1, "n1")
    assert end_event is None or codec.encode_checked(end_event) != b""
    assert is_done([task], 1) in (True, False)
