"""A checkpoint is visible only when it is complete, and `latest` returns the newest that still is."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ganger import train
from ganger.train import complete_checkpoints
from tests.train.conftest import SOURCE, Rank, latest_step, save


def save_half(directory: Path) -> None:
    (directory / "model.pt").write_text("half")
    (directory / "no such directory" / "optimizer.pt").write_text("")


def manifest(rank: Rank, step: int) -> Any:
    return json.loads((rank.checkpoints / f"step-{step:09d}" / "ganger-checkpoint.json").read_text())


def test_checkpoint_is_visible_when_it_is_complete(rank: Rank) -> None:
    with train.checkpoint(12) as directory:
        (directory / "model.pt").write_text("weights")
        assert train.latest() is None
    assert train.latest() == train.Checkpoint(12, rank.checkpoints / "step-000000012")
    assert rank.names() == ["step-000000012"]


def test_manifest_has_sizes_and_checksums(rank: Rank) -> None:
    save(12)
    assert manifest(rank, 12) == {
        "step": 12,
        "job": "bert-7f3",
        "uid": "bert-7f3",
        "attempt": 2,
        "rank": 3,
        "files": {
            "model.pt": {"bytes": 7, "crc32": zlib.crc32(b"weights")},
            "optimizer/state.pt": {"bytes": 3000, "crc32": zlib.crc32(b"\0" * 3000)},
        },
    }


def test_checkpoint_is_reported(rank: Rank) -> None:
    save(12)
    begins, ends, record = rank.reports()
    assert (begins["phase"], ends["phase"]) == ("checkpoint", None)
    assert (record["checkpoint"], record["directory"]) == (12, str(rank.checkpoints / "step-000000012"))
    assert record["took_ms"] >= 0


def test_failed_block_leaves_nothing(rank: Rank) -> None:
    save(1)
    with pytest.raises(FileNotFoundError), train.checkpoint(2) as directory:
        save_half(directory)
    assert rank.names() == ["step-000000001"]
    assert [record["checkpoint"] for record in rank.reports() if "checkpoint" in record] == [1]


def test_complete_checkpoint_of_the_same_step_stays(rank: Rank) -> None:
    save(12, "first")
    save(12, "second")
    assert (rank.checkpoints / "step-000000012" / "model.pt").read_text() == "first"
    assert rank.names() == ["step-000000012"]


def test_broken_checkpoint_of_the_same_step_is_replaced(rank: Rank) -> None:
    save(12, "first")
    (rank.checkpoints / "step-000000012" / "model.pt").write_text("xxxxx")
    save(12, "second")
    assert (rank.checkpoints / "step-000000012" / "model.pt").read_text() == "second"
    assert latest_step() == 12
    assert rank.names() == ["step-000000012"]


def test_file_with_the_name_of_a_checkpoint_is_replaced(rank: Rank) -> None:
    rank.checkpoints.mkdir()
    (rank.checkpoints / "step-000000012").write_text("in the way")
    save(12)
    assert latest_step() == 12


def test_newest_is_by_step_not_by_name_or_time(rank: Rank) -> None:
    for step in (1_234_567_890, 7, 100):
        save(step)
    assert latest_step() == 1_234_567_890


def test_without_checkpoints_latest_is_none(rank: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.latest() is None
    for name in ("step-x", "step-", "other", ".step-000000001.a.1.b.2"):
        (rank.checkpoints / name).mkdir()
    assert train.latest() is None
    assert capsys.readouterr().err == ""


def test_outside_ganger_checkpoints_are_in_the_current_directory(tmp_path: Path) -> None:
    save(3)
    checkpoint = train.latest()
    assert checkpoint == train.Checkpoint(3, tmp_path / "checkpoints" / "step-000000003")


def test_directory_is_fixed_at_entry(rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank.set(GANGER_CHECKPOINT_DIR="relative")
    with train.checkpoint(3) as directory:
        (directory / "model.pt").write_text("weights")
        os.chdir("/")
    assert (tmp_path / "relative" / "step-000000003").exists()


# -- leftovers -------------------------------------------------------------------------------------------------------

SAVER = """
import sys, time
from ganger.train import checkpoint
with checkpoint(int(sys.argv[1])) as directory:
    (directory / "model.pt").write_text("half")
    print("in the middle", flush=True)
    time.sleep(600)
"""


def _start_saver(step: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", SAVER, str(step)]
    saver = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(SOURCE)}, stdout=subprocess.PIPE, text=True)
    assert saver.stdout is not None
    assert saver.stdout.readline() == "in the middle\n"
    return saver


def _kill(saver: "subprocess.Popen[str]") -> None:
    saver.send_signal(signal.SIGKILL)
    saver.communicate()


def test_draft_of_a_killed_process_is_invisible_and_removed_by_the_next(rank: Rank) -> None:
    _kill(_start_saver(7))
    assert train.latest() is None
    assert len(rank.names()) == 1
    save(8)
    assert rank.names() == ["step-000000008"]


def test_draft_of_a_live_process_is_kept(rank: Rank) -> None:
    saver = _start_saver(7)
    try:
        save(8)
        assert len(rank.names()) == 2
    finally:
        _kill(saver)


def test_draft_of_an_older_attempt_is_removed_on_any_machine(rank: Rank) -> None:
    for name in (".step-000000007.bert-7f3.1.0badcafe.1", ".step-000000007.bert-7f3.1.0badcafe.1.replaced"):
        (rank.checkpoints / name).mkdir(parents=True)
    save(8)
    assert rank.names() == ["step-000000008"]


@pytest.mark.parametrize(
    "name",
    [
        ".step-000000007.bert-7f3.2.0badcafe.1",  # this attempt, on another machine
        ".step-000000007.bert-7f3.3.0badcafe.1",
        ".step-000000007.other-1.1.0badcafe.1",
        ".step-notes",
        ".step-1.2.3",
    ],
)
def test_draft_that_may_be_in_use_is_kept(name: str, rank: Rank) -> None:
    (rank.checkpoints / name).mkdir(parents=True)
    save(8)
    assert name in rank.names()


def test_own_draft_of_the_same_step_is_recreated(rank: Rank) -> None:
    saving = train.checkpoint(8)
    draft = saving.__enter__()
    (draft / "left").touch()
    save(8)
    assert sorted(manifest(rank, 8)["files"]) == ["model.pt", "optimizer/state.pt"]


def test_unusable_directory_is_an_error(rank: Rank) -> None:
    rank.checkpoints.write_text("a file")
    with pytest.raises(FileExistsError), train.checkpoint(1):
        pass


@pytest.mark.parametrize(
    ("call", "code", "reason"),
    [
        ("mkdir", errno.EROFS, "Read-only file system"),
        ("makedirs", errno.EACCES, "Permission denied"),
        ("fsync", errno.ENOSPC, "No space left on device"),
        ("rename", errno.EDQUOT, "Disk quota exceeded"),
    ],
)
def test_error_has_step_and_directory_and_older_checkpoints_stay(
    call: str, code: int, reason: str, rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(1)

    def fails(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as broken:
        broken.setattr(os, call, fails)
        with pytest.raises(
            OSError, match=f"cannot save the checkpoint of step 2 in {rank.checkpoints}: {reason}"
        ) as raised:
            save(2)
    assert raised.value.errno == code
    assert rank.names() == ["step-000000001"]
    save(3)
    assert latest_step() == 3


def lose_directory(directory: Path) -> None:
    shutil.rmtree(directory.parent)
    (directory / "model.pt").write_text("")


def test_removed_directory_is_reported_and_recreated(rank: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    save(1)
    with pytest.raises(FileNotFoundError), train.checkpoint(2) as directory:
        lose_directory(directory)
    warning = f"ganger: the checkpoint of step 2 was not saved: {rank.checkpoints} was removed\n"
    assert capsys.readouterr().err == warning
    with pytest.raises(FileNotFoundError, match="cannot save the checkpoint of step 3 in"), train.checkpoint(3):
        shutil.rmtree(rank.checkpoints)
    save(4)
    assert latest_step() == 4


def test_full_disk_is_reported_whatever_the_script_raises(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = os.statvfs_result((4096, 4096, 9, 9, 3, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(ZeroDivisionError), train.checkpoint(2):
        raise ZeroDivisionError
    warning = f"ganger: the checkpoint of step 2 was not saved: {rank.checkpoints} is full (12288 bytes are free)\n"
    assert capsys.readouterr().err == warning


def test_error_of_the_script_does_not_blame_the_disk(rank: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), train.checkpoint(2):
        raise ZeroDivisionError
    assert capsys.readouterr().err == ""


def test_resumed_checkpoint_is_reported(rank: Rank) -> None:
    train.latest()
    save(1)
    save(2)
    (rank.checkpoints / "step-000000002" / "model.pt").write_text("weig")
    train.latest()
    reports = [report for report in rank.reports() if "resumed" in report]
    assert [(report["resumed"], report["skipped"]) for report in reports] == [
        (None, []),
        (1, [{"step": 2, "flaw": "model.pt has 4 bytes instead of 7"}]),
    ]


def test_latest_scans_again_if_a_checkpoint_is_removed_meanwhile(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save(1)
    examine = complete_checkpoints.examine

    def save_another(directory: str, step: int, most_bytes: float = complete_checkpoints.UNLIMITED) -> Any:
        if step == 1:
            monkeypatch.undo()
            rank.set(GANGER_CHECKPOINT_DIR=str(rank.checkpoints))
            shutil.rmtree(directory)
            save(2)
        return examine(directory, step, most_bytes)

    monkeypatch.setattr(complete_checkpoints, "examine", save_another)
    assert latest_step() == 2
    assert capsys.readouterr().err == ""


# -- several ranks ---------------------------------------------------------------------------------------------------


@pytest.fixture
def ranks(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """Return a function that enters `checkpoint(12)` as a rank.

    All ranks are this process, but their drafts have different names.
    """
    pid = os.getpid()

    def enter(number: int) -> Any:
        rank.set(GANGER_RANK=str(number))
        monkeypatch.setattr(os, "getpid", lambda: pid + number)
        return train.checkpoint(12)

    return enter


def test_block_that_writes_nothing_saves_nothing_and_warns_once(rank: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    save(1)
    for step in (2, 3):
        with train.checkpoint(step) as directory:
            (directory / "optimizer").mkdir()
            (directory / "done").touch()
    assert latest_step() == 1
    assert rank.names() == ["step-000000001"]
    assert [record["checkpoint"] for record in rank.reports() if "checkpoint" in record] == [1]
    assert capsys.readouterr().err == (
        "ganger: nothing was saved at step 2: rank 3 left checkpoint() without writing anything into its directory. "
        "Write the files into the directory that checkpoint() returns, before its block ends; if one rank writes for "
        "all, only that rank has to enter it\n"
    )


def test_of_four_ranks_the_one_that_writes_is_published(rank: Rank, ranks: Callable[[int], Any]) -> None:
    for number in (3, 1, 0, 2):
        with ranks(number) as directory:
            if number == 0:
                (directory / "model.pt").write_text("weights")
    assert sorted(manifest(rank, 12)["files"]) == ["model.pt"]
    assert latest_step() == 12
    assert rank.names() == ["step-000000012"]


def test_existing_empty_checkpoint_does_not_count(rank: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    save(1)
    empty = rank.checkpoints / "step-000000002"
    empty.mkdir()
    (empty / "ganger-checkpoint.json").write_text(json.dumps({"step": 2, "uid": "bert-7f3", "files": {}}))
    assert latest_step() == 1
    assert capsys.readouterr().err.endswith(": it contains no data\n")
    save(2)
    assert latest_step() == 2


def test_ranks_that_all_write_the_same_save_it_once(rank: Rank, ranks: Callable[[int], Any]) -> None:
    for number in range(4):
        with ranks(number) as directory:
            (directory / "model.pt").write_text(f"rank {number}")
    assert manifest(rank, 12)["rank"] == 0
    assert rank.names() == ["step-000000012"]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_ranks_that_each_write_a_part_save_nothing_and_get_an_error(
    count: int, rank: Rank, ranks: Callable[[int], Any]
) -> None:
    errors = []
    for number in range(count):
        try:
            with ranks(number) as directory:
                (directory / f"rank-{number}.pt").write_text("part")
        except ValueError as error:
            errors.append(str(error))
    assert len(errors) == count - 1
    assert errors[0] == (
        "the checkpoint of step 12 was not saved: rank 1 and rank 0 wrote different files, so that each has only a "
        "part; enter checkpoint(step, sharded=True) on all ranks, which gives them one common directory"
    )
    assert train.latest() is None
    rank.set(GANGER_ATTEMPT="3", GANGER_RANK="0")
    save(13)
    assert rank.names() == ["step-000000013"]


# -- checkpoints that an attempt failed on ---------------------------------------------------------------------------


def test_checkpoint_that_an_attempt_failed_on_is_skipped(rank: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (1, 2, 3):
        save(step)
    rank.set(GANGER_RESUME_SKIP="2,3", GANGER_ATTEMPT="3")
    assert latest_step() == 1
    assert [line.partition(": ")[2].partition(": ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "an attempt that resumed from it failed"
    ] * 2


def test_step_that_an_attempt_failed_on_is_saved_again(rank: Rank) -> None:
    save(1)
    save(2, "poisoned")
    rank.set(GANGER_RESUME_SKIP="2", GANGER_ATTEMPT="3")
    save(2, "sound")
    assert latest_step() == 2
    assert (rank.checkpoints / "step-000000002" / "model.pt").read_text() == "sound"
    save(2, "once more")
    assert (rank.checkpoints / "step-000000002" / "model.pt").read_text() == "sound"


def test_checkpoint_that_an_attempt_failed_on_is_the_last_resort(rank: Rank) -> None:
    for step in (1, 3):
        save(step)
    (rank.checkpoints / "step-000000001" / "model.pt").unlink()
    rank.set(GANGER_RESUME_SKIP="3", GANGER_ATTEMPT="3")
    assert (latest_step(), [flaw["step"] for flaw in rank.reports()[-1]["skipped"]]) == (3, [1])


def test_latest_is_that_of_the_job_that_it_resumes_from_until_it_has_saved_one(rank: Rank) -> None:
    other = rank.checkpoints.parent / "other"
    rank.set(GANGER_CHECKPOINT_DIR=str(other))
    rank.become_job("other")
    save(7)
    save(9)
    rank.become_job("bert-7f3")
    rank.set(GANGER_CHECKPOINT_DIR=str(rank.checkpoints))
    assert train.latest() is None
    source = {"job": "other", "directory": str(other), "pattern": None, "step": None, "by_index": False}
    rank.set(GANGER_RESUME_SOURCES=json.dumps([source]))
    assert train.latest() == train.Checkpoint(9, other / "step-000000009")
    report = rank.reports()[-1]
    assert (report["resumed"], report["source"]) == (9, "other")
    rank.set(GANGER_RESUME_SOURCES=json.dumps([source | {"step": 7}]))
    assert latest_step() == 7
    save(3)
    assert latest_step() == 3
    assert rank.reports()[-1]["source"] == ""
