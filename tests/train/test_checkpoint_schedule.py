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
    """Writes what the launcher would."""

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
        """Calls and step that the rank has published."""
        record = (self.task / "rank-3.calls").read_bytes()
        return int.from_bytes(record[:8], "little"), int.from_bytes(record[8:], "little", signed=True)


@pytest.fixture
def launcher(rank: Rank) -> Launcher:
    return Launcher(rank)


def told(steps: range) -> list[int]:
    """The steps at which a loop that asks once a step is told to save."""
    found = []
    for step in steps:
        train.report(step=step)
        if train.should_checkpoint():
            found.append(step)
    return found


def test_without_a_schedule_nothing_is_to_be_saved(launcher: Launcher) -> None:
    assert told(range(5)) == []
    assert launcher.counts() == (5, 4)


def test_a_segment_holds_from_its_beginning_until_the_next(launcher: Launcher) -> None:
    launcher.write(["step", 3, 5, 4], ["step", 14, 20, 3])
    assert told(range(30)) == [5, 9, 13, 20, 23, 26, 29]


def test_every_0_is_once(launcher: Launcher) -> None:
    launcher.write(["step", 2, 2, 0])
    assert told(range(10)) == [2]


def test_a_rank_that_asks_each_tenth_step_saves_at_the_next_of_them(launcher: Launcher) -> None:
    launcher.write(["step", 1, 13, 50], ["step", 15, 95, 7])
    assert told(range(0, 120, 10)) == [20, 100, 110]


def test_a_rank_whose_first_step_is_past_a_save_is_not_told_of_it(launcher: Launcher) -> None:
    launcher.write(["step", 1, 13, 0])
    assert told(range(14, 20)) == []


def test_each_call_at_a_step_has_one_answer_until_it_is_saved(launcher: Launcher) -> None:
    launcher.write(["step", 1, 1, 1])
    train.report(step=1)
    assert train.should_checkpoint()
    assert train.should_checkpoint()
    with pytest.raises(ZeroDivisionError), train.checkpoint(1):
        raise ZeroDivisionError
    assert train.should_checkpoint()
    with train.checkpoint(1) as directory:
        (directory / "state").write_text("state")
    assert not train.should_checkpoint()
    train.report(step=2)
    assert train.should_checkpoint()


def test_calls_count_where_the_schedule_says_so(launcher: Launcher) -> None:
    launcher.write(["call", 2, 3, 2])
    assert [train.should_checkpoint() for _ in range(6)] == [False, False, True, False, True, False]
    assert launcher.counts() == (6, -1)


def test_a_due_call_is_answered_for_the_rest_of_its_step(launcher: Launcher) -> None:
    launcher.write(["call", 2, 3, 0])
    train.report(step=7)
    assert [train.should_checkpoint() for _ in range(5)] == [False, False, True, True, True]
    train.report(step=8)
    assert not train.should_checkpoint()


def test_steps_that_begin_anew_are_not_published_any_more(launcher: Launcher) -> None:
    told(range(4))
    assert launcher.counts() == (4, 3)
    told(range(9))
    assert launcher.counts() == (13, -1)
    launcher.write(["step", 4, 5, 1], ["call", 14, 15, 0])
    assert told(range(9, 12)) == [10]


@pytest.mark.parametrize("step", [-5, 1 << 60])
def test_a_step_that_is_no_count_is_not_published(step: int, launcher: Launcher) -> None:
    train.report(step=step)
    assert not train.should_checkpoint()
    assert launcher.counts() == (1, -1)


@pytest.mark.parametrize(("segments", "answer"), [([["step", 5, 5, 0]], True), ([], False)])
def test_a_rank_waits_where_a_proposal_begins(segments: list[list[Any]], answer: bool, launcher: Launcher) -> None:
    launcher.write(pending=["step", 5])
    assert told(range(5)) == []
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


def test_the_next_program_of_a_rank_goes_on_counting(launcher: Launcher) -> None:
    train.should_checkpoint()
    importlib.reload(notices)
    train.should_checkpoint()
    assert launcher.counts() == (2, -1)


def test_a_rank_that_cannot_count_is_not_told_to_save(rank: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    rank.task.rmdir()
    assert not train.should_checkpoint()
    assert not train.should_checkpoint()
    assert capsys.readouterr().err.count("this rank cannot tell how far it is") == 1


def test_outside_ganger_it_is_never_time(tmp_path: Path) -> None:
    train.report(step=1)
    assert not train.should_checkpoint()
    assert list(tmp_path.iterdir()) == []
