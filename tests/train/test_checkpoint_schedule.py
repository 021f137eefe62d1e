"""`should_checkpoint` follows the schedule that the launcher wrote, by steps or by calls."""

import importlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from ganger import train
from ganger.train import notices
from tests.train.conftest import Rank


class Launcher:
    """Writes the files of a launcher."""

    def __init__(self, rank: Rank) -> None:
        self.task = rank.task
        self.version = 0

    def write(self, *segments: list[Any], pending: list[Any] | None = None) -> None:
        self.version += 1
        new = self.task / "new"
        new.write_text(json.dumps({"segments": segments, "pending": pending}))
        os.utime(new, (self.version, self.version))
        new.rename(self.task / "schedule.json")

    def counts(self) -> tuple[int, int]:
        """Return the calls and the step that the rank has published."""
        record = (self.task / "rank-3.calls").read_bytes()
        return int.from_bytes(record[:8], "little"), int.from_bytes(record[8:], "little", signed=True)


@pytest.fixture
def launcher(rank: Rank) -> Launcher:
    return Launcher(rank)


def saves_at(steps: range) -> list[int]:
    """Return the steps at which a loop that calls once per step is to save."""
    due_steps = []
    for step in steps:
        train.report(step=step)
        if train.should_checkpoint():
            due_steps.append(step)
    return due_steps


def test_without_a_schedule_nothing_is_saved(launcher: Launcher) -> None:
    assert saves_at(range(5)) == []
    assert launcher.counts() == (5, 4)


def test_a_segment_holds_until_the_next(launcher: Launcher) -> None:
    launcher.write(["step", 3, 5, 4], ["step", 14, 20, 3])
    assert saves_at(range(30)) == [5, 9, 13, 20, 23, 26, 29]


def test_every_0_is_once(launcher: Launcher) -> None:
    launcher.write(["step", 2, 2, 0])
    assert saves_at(range(10)) == [2]


def test_a_rank_that_calls_each_tenth_step_saves_at_the_next_call(launcher: Launcher) -> None:
    launcher.write(["step", 1, 13, 50], ["step", 15, 95, 7])
    assert saves_at(range(0, 120, 10)) == [20, 100, 110]


def test_a_rank_whose_first_step_is_past_a_save_skips_it(launcher: Launcher) -> None:
    launcher.write(["step", 1, 13, 0])
    assert saves_at(range(14, 20)) == []


@pytest.mark.parametrize("saves", [True, False])
def test_a_save_is_announced_once_whether_or_not_this_rank_makes_it(saves: bool, launcher: Launcher) -> None:
    launcher.write(["step", 1, 1, 1])
    train.report(step=1)
    assert train.should_checkpoint()
    if saves:
        with train.checkpoint(1) as directory:
            (directory / "state").write_text("state")
    assert not train.should_checkpoint()
    train.report(step=2)
    assert train.should_checkpoint()


def test_calls_count_where_the_schedule_says_so(launcher: Launcher) -> None:
    launcher.write(["call", 2, 3, 2])
    assert [train.should_checkpoint() for _ in range(6)] == [False, False, True, False, True, False]
    assert launcher.counts() == (6, -1)


def test_calls_count_within_a_step(launcher: Launcher) -> None:
    launcher.write(["call", 2, 3, 2])
    train.report(step=7)
    assert [train.should_checkpoint() for _ in range(5)] == [False, False, True, False, True]


def test_any_later_segment_ends_one_though_steps_have_restarted(launcher: Launcher) -> None:
    launcher.write(["call", 1, 1, 1], ["step", 5, 5, 0], ["call", 8, 20, 0])
    assert saves_at(range(7)) == [0, 1, 2, 3, 4, 5]
    assert saves_at(range(4)) == []


def test_steps_that_restart_are_no_longer_published(launcher: Launcher) -> None:
    saves_at(range(4))
    assert launcher.counts() == (4, 3)
    saves_at(range(9))
    assert launcher.counts() == (13, -1)
    launcher.write(["step", 4, 5, 1], ["call", 14, 15, 0])
    assert saves_at(range(9, 12)) == [10]


@pytest.mark.parametrize("step", [-5, 1 << 60])
def test_a_step_out_of_range_is_not_published(step: int, launcher: Launcher) -> None:
    train.report(step=step)
    assert not train.should_checkpoint()
    assert launcher.counts() == (1, -1)


@pytest.mark.parametrize(("segments", "answer"), [([["step", 5, 5, 0]], True), ([], False)])
def test_a_rank_waits_at_the_start_of_a_proposal(segments: list[list[Any]], answer: bool, launcher: Launcher) -> None:
    launcher.write(pending=["step", 5])
    assert saves_at(range(5)) == []
    answers = []
    train.report(step=5)
    asking = threading.Thread(target=lambda: answers.append(train.should_checkpoint()))
    asking.start()
    while launcher.counts() != (6, 5):
        assert asking.is_alive()
    assert answers == []
    launcher.write(*segments)
    asking.join()
    assert answers == [answer]


def test_the_next_program_of_a_rank_counts_from_zero(launcher: Launcher) -> None:
    launcher.write(["call", 1, 2, 0])
    assert [train.should_checkpoint() for _ in range(3)] == [False, True, False]
    importlib.reload(notices)
    assert [train.should_checkpoint() for _ in range(2)] == [False, True]
    assert launcher.counts() == (2, -1)


def test_an_unusable_file_of_counts_is_opened_once(rank: Rank) -> None:
    os.mkfifo(rank.task / "rank-3.calls")
    assert not train.should_checkpoint()
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    assert not train.should_checkpoint()
    assert len(list(descriptors.iterdir())) == before


def test_a_rank_that_cannot_count_does_not_save(rank: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    rank.task.rmdir()
    assert not train.should_checkpoint()
    assert not train.should_checkpoint()
    assert capsys.readouterr().err.count("this rank cannot publish its count") == 1


def test_outside_ganger_it_is_never_time(tmp_path: Path) -> None:
    train.report(step=1)
    assert not train.should_checkpoint()
    assert list(tmp_path.iterdir()) == []
