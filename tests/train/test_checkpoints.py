"""A checkpoint is seen only when it is whole, and `latest` finds the newest that still is."""

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
from tests.train.conftest import Rank

SOURCE = Path(__file__).parents[2] / "src"


def save(step: int, text: str = "weights") -> None:
    with train.checkpoint(step) as directory:
        (directory / "model.pt").write_text(text)
        (directory / "optimizer").mkdir()
        (directory / "optimizer" / "state.pt").write_bytes(b"\0" * 3000)


def half_saved(directory: Path) -> None:
    (directory / "model.pt").write_text("half")
    (directory / "no such directory" / "optimizer.pt").write_text("")


def manifest(rank: Rank, step: int) -> Any:
    return json.loads((rank.checkpoints / f"step-{step:09d}" / "ganger-checkpoint.json").read_text())


def latest_step() -> int | None:
    found = train.latest()
    return found.step if found else None


def test_checkpoint_is_seen_when_it_is_whole(rank: Rank) -> None:
    with train.checkpoint(12) as directory:
        (directory / "model.pt").write_text("weights")
        assert train.latest() is None
    assert train.latest() == train.Checkpoint(12, rank.checkpoints / "step-000000012")
    assert rank.names() == ["step-000000012"]


def test_manifest_tells_sizes_and_checksums(rank: Rank) -> None:
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


def test_failure_leaves_nothing(rank: Rank) -> None:
    save(1)
    with pytest.raises(FileNotFoundError), train.checkpoint(2) as directory:
        half_saved(directory)
    assert rank.names() == ["step-000000001"]
    assert [record["checkpoint"] for record in rank.reports() if "checkpoint" in record] == [1]


def test_whole_checkpoint_of_the_same_step_stays(rank: Rank) -> None:
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


def test_file_in_the_place_of_a_checkpoint_is_replaced(rank: Rank) -> None:
    rank.checkpoints.mkdir()
    (rank.checkpoints / "step-000000012").write_text("in the way")
    save(12)
    assert latest_step() == 12


def test_newest_is_by_step_not_by_name_or_time(rank: Rank) -> None:
    for step in (1_234_567_890, 7, 100):
        save(step)
    assert latest_step() == 1_234_567_890


def _shorten(directory: Path) -> None:
    (directory / "model.pt").write_text("weig")


def _flip(directory: Path) -> None:
    (directory / "optimizer" / "state.pt").write_bytes(b"\0" * 2999 + b"\1")


def _lose(directory: Path) -> None:
    (directory / "model.pt").unlink()


def _no_manifest(directory: Path) -> None:
    (directory / "ganger-checkpoint.json").unlink()


def _broken_manifest(directory: Path) -> None:
    (directory / "ganger-checkpoint.json").write_text('{"step": 2')


def _odd_manifest(directory: Path) -> None:
    (directory / "ganger-checkpoint.json").write_text('{"step": 2, "files": [1]}')


def _wrong_step(directory: Path) -> None:
    directory.rename(directory.with_name("step-000000003"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_shorten, "model.pt has 4 bytes instead of 7"),
        (_flip, "optimizer/state.pt does not have the contents it was saved with (its CRC-32 differs)"),
        (_lose, "model.pt cannot be read (No such file or directory)"),
        (_no_manifest, "ganger-checkpoint.json cannot be read (No such file or directory)"),
        (_broken_manifest, "its ganger-checkpoint.json is broken"),
        (_odd_manifest, "its ganger-checkpoint.json is broken"),
        (_wrong_step, "its ganger-checkpoint.json is of step 2"),
    ],
)
def test_damaged_newest_is_passed_over_and_said_so(
    damage: Any, said: str, rank: Rank, capsys: pytest.CaptureFixture[str]
) -> None:
    save(1)
    save(2)
    damage(rank.checkpoints / "step-000000002")
    assert latest_step() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ganger: the checkpoint {rank.checkpoints}/step-00000000")
    assert line.endswith(f" is passed over: {said}")


def test_no_checkpoint_is_none(rank: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.latest() is None
    for name in ("step-x", "step-", "other", ".step-000000001.a.1.b.2"):
        (rank.checkpoints / name).mkdir()
    assert train.latest() is None
    assert capsys.readouterr().err == ""


def test_resume_never_sees_only_its_own_job(rank: Rank) -> None:
    rank.is_job("older", GANGER_ATTEMPT="1")
    save(100)
    rank.is_job("bert-7f3", GANGER_RESUME="never")
    assert train.latest() is None
    save(5)
    rank.set(GANGER_ATTEMPT="2")
    assert latest_step() == 5
    rank.set(GANGER_RESUME="auto")
    assert latest_step() == 100


def test_resume_never_replaces_what_another_job_left_at_a_step(rank: Rank) -> None:
    rank.is_job("older")
    save(5, "old")
    rank.is_job("bert-7f3", GANGER_RESUME="never")
    save(5, "new")
    assert (rank.checkpoints / "step-000000005" / "model.pt").read_text() == "new"
    assert rank.names() == ["step-000000005"]


def test_outside_ganger_checkpoints_lie_in_the_directory_at_hand(tmp_path: Path) -> None:
    save(3)
    found = train.latest()
    assert found == train.Checkpoint(3, tmp_path / "checkpoints" / "step-000000003")


def test_directory_is_the_one_at_entry_though_the_script_moves(
    rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def _saver_in_the_middle(step: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", SAVER, str(step)]
    saver = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(SOURCE)}, stdout=subprocess.PIPE, text=True)
    assert saver.stdout is not None
    assert saver.stdout.readline() == "in the middle\n"
    return saver


def _end(saver: "subprocess.Popen[str]") -> None:
    saver.send_signal(signal.SIGKILL)
    saver.communicate()


def test_killed_in_the_middle_nothing_is_seen_and_the_next_one_clears_up(rank: Rank) -> None:
    _end(_saver_in_the_middle(7))
    assert train.latest() is None
    assert len(rank.names()) == 1
    save(8)
    assert rank.names() == ["step-000000008"]


def test_draft_of_a_living_process_is_left_alone(rank: Rank) -> None:
    saver = _saver_in_the_middle(7)
    try:
        save(8)
        assert len(rank.names()) == 2
    finally:
        _end(saver)


def test_draft_of_an_older_attempt_is_removed_wherever_it_ran(rank: Rank) -> None:
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
def test_draft_that_may_be_alive_is_left_alone(name: str, rank: Rank) -> None:
    (rank.checkpoints / name).mkdir(parents=True)
    save(8)
    assert name in rank.names()


def test_own_draft_of_the_same_step_is_begun_anew(rank: Rank) -> None:
    saving = train.checkpoint(8)
    draft = saving.__enter__()
    (draft / "left").touch()
    save(8)
    assert sorted(manifest(rank, 8)["files"]) == ["model.pt", "optimizer/state.pt"]


def test_disk_that_does_not_take_it_is_an_error(rank: Rank) -> None:
    rank.checkpoints.write_text("a file")
    with pytest.raises(FileExistsError), train.checkpoint(1):
        pass


@pytest.mark.parametrize(
    ("call", "number", "why"),
    [
        ("mkdir", errno.EROFS, "Read-only file system"),
        ("makedirs", errno.EACCES, "Permission denied"),
        ("fsync", errno.ENOSPC, "No space left on device"),
        ("rename", errno.EDQUOT, "Disk quota exceeded"),
    ],
)
def test_error_names_step_and_directory_and_older_checkpoints_stay(
    call: str, number: int, why: str, rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(1)

    def fails(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr(os, call, fails)
        with pytest.raises(
            OSError, match=f"the checkpoint of step 2 cannot be saved in {rank.checkpoints}: {why}"
        ) as told:
            save(2)
    assert told.value.errno == number
    assert rank.names() == ["step-000000001"]
    save(3)
    assert latest_step() == 3


def lost(directory: Path) -> None:
    shutil.rmtree(directory.parent)
    (directory / "model.pt").write_text("")


def test_directory_that_vanishes_while_it_is_written_is_named_and_comes_back(
    rank: Rank, capsys: pytest.CaptureFixture[str]
) -> None:
    save(1)
    with pytest.raises(FileNotFoundError), train.checkpoint(2) as directory:
        lost(directory)
    said = f"ganger: the checkpoint of step 2 is not saved: {rank.checkpoints} was removed meanwhile\n"
    assert capsys.readouterr().err == said
    with pytest.raises(FileNotFoundError, match="step 3 cannot be saved in"), train.checkpoint(3):
        shutil.rmtree(rank.checkpoints)
    save(4)
    assert latest_step() == 4


def test_disk_that_is_full_is_named_whatever_the_script_raises(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = os.statvfs_result((4096, 4096, 9, 9, 3, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(ZeroDivisionError), train.checkpoint(2):
        raise ZeroDivisionError
    said = f"ganger: the checkpoint of step 2 is not saved: {rank.checkpoints} is full (12288 bytes are free)\n"
    assert capsys.readouterr().err == said


def test_error_of_the_script_itself_says_nothing_of_the_disk(rank: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), train.checkpoint(2):
        raise ZeroDivisionError
    assert capsys.readouterr().err == ""


def test_what_is_resumed_from_is_reported(rank: Rank) -> None:
    train.latest()
    save(1)
    save(2)
    _shorten(rank.checkpoints / "step-000000002")
    train.latest()
    told = [report for report in rank.reports() if "resumed" in report]
    assert [(report["resumed"], report["passed"]) for report in told] == [
        (None, []),
        (1, [{"step": 2, "flaw": "model.pt has 4 bytes instead of 7"}]),
    ]


def test_newest_that_is_removed_while_it_is_looked_at_is_not_the_end(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save(1)
    examine = complete_checkpoints.examine

    def another_is_saved(directory: str, step: int, most_bytes: float = complete_checkpoints.UNLIMITED) -> Any:
        if step == 1:
            monkeypatch.undo()
            rank.set(GANGER_CHECKPOINT_DIR=str(rank.checkpoints))
            shutil.rmtree(directory)
            save(2)
        return examine(directory, step, most_bytes)

    monkeypatch.setattr(complete_checkpoints, "examine", another_is_saved)
    assert latest_step() == 2
    assert capsys.readouterr().err == ""


# -- several ranks ---------------------------------------------------------------------------------------------------


@pytest.fixture
def ranks(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """Enter `checkpoint(12)` as a rank. All are this process, but their drafts are apart."""
    pid = os.getpid()

    def enter(number: int) -> Any:
        rank.set(GANGER_RANK=str(number))
        monkeypatch.setattr(os, "getpid", lambda: pid + number)
        return train.checkpoint(12)

    return enter


def test_block_that_writes_nothing_saves_nothing_and_says_so_once(
    rank: Rank, capsys: pytest.CaptureFixture[str]
) -> None:
    save(1)
    for step in (2, 3):
        with train.checkpoint(step) as directory:
            (directory / "optimizer").mkdir()
            (directory / "done").touch()
    assert latest_step() == 1
    assert rank.names() == ["step-000000001"]
    assert [record["checkpoint"] for record in rank.reports() if "checkpoint" in record] == [1]
    assert capsys.readouterr().err == (
        "ganger: nothing is saved at step 2: rank 3 left checkpoint() without having written anything into its "
        "directory. Write the files into the directory that checkpoint() gives, before its block ends; where one rank "
        "writes for all, only that one has to enter it\n"
    )


def test_of_four_ranks_the_one_that_writes_is_not_hidden_by_the_others(rank: Rank, ranks: Callable[[int], Any]) -> None:
    for number in (3, 1, 0, 2):
        with ranks(number) as directory:
            if number == 0:
                (directory / "model.pt").write_text("weights")
    assert sorted(manifest(rank, 12)["files"]) == ["model.pt"]
    assert latest_step() == 12
    assert rank.names() == ["step-000000012"]


def test_empty_checkpoint_that_is_there_already_does_not_count(rank: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    save(1)
    empty = rank.checkpoints / "step-000000002"
    empty.mkdir()
    (empty / "ganger-checkpoint.json").write_text(json.dumps({"step": 2, "uid": "bert-7f3", "files": {}}))
    assert latest_step() == 1
    assert capsys.readouterr().err.endswith("is passed over: it has no file with anything in it\n")
    save(2)
    assert latest_step() == 2


def test_ranks_that_all_write_the_same_save_it_once(rank: Rank, ranks: Callable[[int], Any]) -> None:
    for number in range(4):
        with ranks(number) as directory:
            (directory / "model.pt").write_text(f"rank {number}")
    assert manifest(rank, 12)["rank"] == 0
    assert rank.names() == ["step-000000012"]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_ranks_that_each_write_a_part_save_none_and_are_told(
    count: int, rank: Rank, ranks: Callable[[int], Any]
) -> None:
    refused = []
    for number in range(count):
        try:
            with ranks(number) as directory:
                (directory / f"rank-{number}.pt").write_text("part")
        except ValueError as error:
            refused.append(str(error))
    assert len(refused) == count - 1
    assert refused[0] == (
        "the checkpoint of step 12 is not saved: rank 1 and rank 0 have written different files, so that each has a "
        "part of it; enter checkpoint(step, sharded=True) on all ranks, which gives them one directory"
    )
    assert train.latest() is None
    rank.set(GANGER_ATTEMPT="3", GANGER_RANK="0")
    save(13)
    assert rank.names() == ["step-000000013"]


# -- checkpoints that an attempt failed on ---------------------------------------------------------------------------


def test_checkpoint_that_an_attempt_failed_on_is_passed_over(rank: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (1, 2, 3):
        save(step)
    rank.set(GANGER_RESUME_SKIP="2,3", GANGER_ATTEMPT="3")
    assert latest_step() == 1
    assert [line.partition(" is ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "passed over: an attempt that began from it failed"
    ] * 2


def test_step_that_an_attempt_failed_on_is_saved_anew(rank: Rank) -> None:
    save(1)
    save(2, "poisoned")
    rank.set(GANGER_RESUME_SKIP="2", GANGER_ATTEMPT="3")
    save(2, "sound")
    assert latest_step() == 2
    assert (rank.checkpoints / "step-000000002" / "model.pt").read_text() == "sound"
    save(2, "once more")
    assert (rank.checkpoints / "step-000000002" / "model.pt").read_text() == "sound"


def test_one_that_an_attempt_failed_on_is_better_than_none(rank: Rank) -> None:
    for step in (1, 3):
        save(step)
    (rank.checkpoints / "step-000000001" / "model.pt").unlink()
    rank.set(GANGER_RESUME_SKIP="3", GANGER_ATTEMPT="3")
    assert (latest_step(), [each["step"] for each in rank.reports()[-1]["passed"]]) == (3, [1])
