"""`report`, `phase`, `notice` and `world`, in a rank and outside ganger."""

import json
import math
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ganger import train
from ganger.train import progress_report
from tests.train.conftest import Rank


class OneElement:
    """Stands for a tensor of one element."""

    def __float__(self) -> float:
        return 0.25

    def __int__(self) -> int:
        return 7


def test_report_is_one_line_with_its_time(rank: Rank) -> None:
    before_ms = time.time_ns() // 1_000_000
    train.report(step=12, loss=2.5, lr=1)
    (record,) = rank.reports()
    assert before_ms <= record.pop("t") <= time.time_ns() // 1_000_000
    assert record == {"step": 12, "metrics": {"loss": 2.5, "lr": 1.0}}


def test_anything_float_accepts_is_a_number(rank: Rank) -> None:
    train.report(step=OneElement(), loss=OneElement(), text="1e-3", flag=True)  # type: ignore[arg-type]
    assert rank.reports()[0]["step"] == 7
    assert rank.reports()[0]["metrics"] == {"loss": 0.25, "text": 0.001, "flag": 1.0}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_number_that_is_not_finite_is_null(number: float, rank: Rank) -> None:
    train.report(step=1, loss=number)
    assert rank.reports()[0]["metrics"] == {"loss": None}


@pytest.mark.parametrize("bad", ["high", None, [1, 2], object()])
def test_invalid_metric_never_raises_and_warns(bad: Any, rank: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    train.report(step=1, loss=bad)
    train.report(step=bad)
    train.report(step=2)
    assert [record["step"] for record in rank.reports()] == [2]
    assert capsys.readouterr().err.startswith("ganger: a report was dropped: ")


def test_warning_is_printed_once(rank: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        train.report(step=1, loss=None)
    assert capsys.readouterr().err.count("ganger:") == 1


def test_report_survives_a_removed_directory(rank: Rank) -> None:
    rank.task.rmdir()
    train.report(step=1)
    train.phase("eval")


def test_report_survives_a_full_disk(rank: Rank) -> None:
    (rank.task / "rank-3.report").symlink_to("/dev/full")
    train.report(step=1)
    train.report(step=2)


def test_many_processes_append_whole_lines(rank: Rank) -> None:
    code = "from ganger.train import report\nfor step in range(500): report(step=step, who={who}, pad={who})"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", code.format(who=who)],
            env={**os.environ, "PYTHONPATH": "src"},
            cwd=Path(__file__).parents[2],
        )
        for who in range(3)
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    for who in range(3):
        assert [r["step"] for r in rank.reports() if r["metrics"]["who"] == who] == list(range(500))


def test_forked_child_reports_too(rank: Rank) -> None:
    train.report(step=1)
    child = multiprocessing.get_context("fork").Process(target=train.report, kwargs={"step": 2})
    child.start()
    child.join()
    assert [record["step"] for record in rank.reports()] == [1, 2]


def test_phase_as_block_and_as_call(rank: Rank) -> None:
    train.phase("warmup")
    with train.phase("eval"), train.phase("save"):
        train.report(step=1)
    assert [record.get("phase", "-") for record in rank.reports()] == ["warmup", "eval", "save", "-", "eval", "warmup"]


def test_first_phase_ends_in_none(rank: Rank) -> None:
    with pytest.raises(RuntimeError), train.phase("eval"):
        raise RuntimeError
    assert [record["phase"] for record in rank.reports()] == ["eval", None]


def test_notice_has_cause_and_deadline(rank: Rank) -> None:
    assert train.notice() is None
    assert not (rank.task / "rank-3.noticed").exists()
    rank.notify("spot_reclaim", 1_700_000_000_500)
    assert train.notice() == ("spot_reclaim", 1_700_000_000.5)
    assert (rank.task / "rank-3.noticed").exists()


def test_rank_that_cannot_record_that_it_knows_of_a_notice_does_not_get_it(
    rank: Rank, capsys: pytest.CaptureFixture[str]
) -> None:
    rank.notify("suspended", 1_700_000_000_500)
    (rank.task / "rank-3.noticed").mkdir()  # stands for a full disk
    assert train.notice() is None
    assert "this rank cannot record that it knows of it" in capsys.readouterr().err


def test_world_of_a_rank(rank: Rank) -> None:
    assert train.world() == train.World(
        rank=3,
        world_size=4,
        local_rank=1,
        node_rank=1,
        nodes=2,
        attempt=2,
        job="bert-7f3",
        checkpoint_dir=rank.checkpoints,
    )


def test_outside_ganger_nothing_happens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train.report(step=1, loss=object())
    with train.phase("eval"):
        pass
    assert train.notice() is None
    assert not train.should_checkpoint()
    assert train.world() == train.World(0, 1, 0, 0, 1, 1, "", Path("checkpoints"))
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


def test_outside_ganger_torchrun_sets_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert (train.world().rank, train.world().world_size) == (5, 8)


def test_public_names() -> None:
    assert {name: getattr(train, name) is not None for name in train.__all__} == dict.fromkeys(train.__all__, True)
    with pytest.raises(AttributeError, match="no attribute 'resport'"):
        _ = train.resport  # type: ignore[attr-defined]


def test_report_of_another_rank_has_its_own_file(rank: Rank) -> None:
    train.report(step=1)
    rank.set(GANGER_RANK="4")
    train.report(step=2)
    assert [record["step"] for record in rank.reports()] == [1]
    assert json.loads((rank.task / "rank-4.report").read_text())["step"] == 2
    assert progress_report.report is train.report


def test_first_line_has_the_pid_and_the_last_the_exit(rank: Rank) -> None:
    code = """
import multiprocessing
from ganger import train

train.report(step=0)
child = multiprocessing.get_context("fork").Process(target=train.report, kwargs={"step": 1})
child.start()
child.join()
train.report(step=2)
"""
    for exit_count, last_line in ((2, ""), (1, "import os; os._exit(0)")):
        rank.forget()
        subprocess.run([sys.executable, "-c", code + last_line], check=True)
        lines = rank.lines()
        assert [line["step"] for line in lines if "step" in line] == [0, 1, 2]
        assert ["pid" in line for line in lines if "step" in line] == [True, True, False]
        pids = [line["pid"] for line in lines if "pid" in line]
        assert [line["end"] for line in lines if "end" in line] == [pids[1], pids[0]][:exit_count]
