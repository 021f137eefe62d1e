"""A checkpoint that all ranks write together is visible once the last of them has written, or never."""

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ganger import train
from ganger.train import complete_checkpoints, fence, sharded_save
from tests.examples import IN_GATE
from tests.train.conftest import Rank
from tests.train.lockstep import REFUSED, SAVED, Stepped, hidden, published

RANKS = 4


@pytest.fixture(autouse=True)
def fresh_process(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the state of the process to that before any save; all ranks of a test are this process."""
    monkeypatch.setattr(sharded_save, "_left_drafts", [])
    monkeypatch.setattr(sharded_save, "_warned", False)
    monkeypatch.setattr(sharded_save, "_saves", Once())


class Once(dict[str, int]):
    """Save counts of a rank that is a process of its own, and saves each step once."""

    def get(self, key: str, default: int | None = None) -> int:  # type: ignore[override]
        return 0


def write(rank: Rank, number: int, step: int, text: str = "shard") -> None:
    rank.set(GANGER_RANK=str(number))
    with train.checkpoint(step, sharded=True) as directory:
        (directory / f"rank-{number}.pt").write_text(f"{text} {number}")


def files(rank: Rank, step: int) -> dict[str, str]:
    directory = rank.checkpoints / f"step-{step:09d}"
    assert complete_checkpoints.examine(str(directory), step)[1] == ""
    return {path.name: path.read_text() for path in directory.iterdir() if path.name != complete_checkpoints.MANIFEST}


def checkpoint_reports(rank: Rank, number: int) -> list[object]:
    rank.set(GANGER_RANK=str(number))
    text = (rank.task / f"rank-{number}.report").read_text()
    return [line for line in text.splitlines() if '"checkpoint": ' in line]


def test_checkpoint_is_visible_once_all_ranks_have_written(rank: Rank) -> None:
    for number in (2, 0, 3, 1):
        assert train.latest() is None
        write(rank, number, 12)
    assert train.latest() == train.Checkpoint(12, rank.checkpoints / "step-000000012")
    assert files(rank, 12) == {f"rank-{number}.pt": f"shard {number}" for number in range(RANKS)}
    assert [len(checkpoint_reports(rank, number)) for number in range(RANKS)] == [0, 1, 0, 0], (
        "the last one to write reports"
    )
    assert rank.names() == ["step-000000012"]


def test_all_ranks_have_one_directory(rank: Rank) -> None:
    with ExitStack() as stack:
        directories = set()
        for number in range(RANKS):
            rank.set(GANGER_RANK=str(number))
            directories.add(stack.enter_context(train.checkpoint(12, sharded=True)))
        (directory,) = directories
        (directory / ".metadata").write_text("what a coordinator writes")
        for number in range(RANKS):
            (directory / f"__{number}_0.distcp").write_text("shard")
    assert len(files(rank, 12)) == 1 + RANKS


def test_a_rank_may_write_nothing_but_not_all(rank: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(RANKS):
        rank.set(GANGER_RANK=str(number))
        with train.checkpoint(12, sharded=True) as directory:
            (directory / "empty").mkdir(exist_ok=True)
    assert train.latest() is None
    assert rank.names() == []
    assert capsys.readouterr().err.startswith("ganger: nothing was saved at step 12: rank 3 left checkpoint() without")


def test_a_file_written_after_its_reader_has_left_is_read_by_the_last_rank(rank: Rank) -> None:
    rank.set(GANGER_RANK="1")
    slow = train.checkpoint(12, sharded=True)
    directory = slow.__enter__()
    (directory / "layer-0.pt").write_text("half")
    for number in (0, 2, 3):
        write(rank, number, 12)
    (directory / "layer-0.pt").write_text("rest")
    (directory / "layer-2.pt").write_text("late")
    rank.set(GANGER_RANK="1")
    slow.__exit__(None, None, None)
    assert files(rank, 12)["layer-0.pt"] == "rest"
    assert files(rank, 12)["layer-2.pt"] == "late"


def test_a_rank_that_cannot_write_ends_the_save(rank: Rank) -> None:
    for number in (0, 1):
        write(rank, number, 12)
    rank.set(GANGER_RANK="2")
    with pytest.raises(ZeroDivisionError), train.checkpoint(12, sharded=True):
        raise ZeroDivisionError
    assert len(rank.names()) == 1
    write(rank, 3, 12)
    assert rank.names() == [], "the last rank removes what others wrote"
    assert train.latest() is None


def test_missing_ranks_are_reported_and_waited_for(rank: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    for step in range(5):
        write(rank, 0, step)
    assert len(rank.names()) == 5, "a slower rank may be writing into any of them"
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"ganger: {rank.checkpoints / rank.names()[0]} is not a checkpoint yet: ranks 1, 2, 3 of 4 "
        "have not written. All ranks must enter checkpoint(step, sharded=True), and share GANGER_CHECKPOINT_DIR"
    )


def test_a_rank_that_is_three_saves_behind_completes_them_all(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    rank.set(WORLD_SIZE="2", GANGER_RANK="1")
    slow = train.checkpoint(1, sharded=True)
    directory = slow.__enter__()
    for step in (1, 2, 3, 4):
        write(rank, 0, step)
    monkeypatch.setattr(sharded_save, "_left_drafts", [])  # rank 1 is another process
    rank.set(GANGER_RANK="1")
    (directory / "rank-1.pt").write_text("slow")
    slow.__exit__(None, None, None)
    for step in (2, 3, 4):
        write(rank, 1, step)
    assert rank.names() == [f"step-{step:09d}" for step in (1, 2, 3, 4)]


def test_an_abandoned_draft_is_removed(rank: Rank) -> None:
    write(rank, 0, 1)
    for number in range(RANKS):
        write(rank, number, 2)
    write(rank, 0, 3)
    assert [name[:15] for name in rank.names()] == [".step-000000003", "step-000000002"]


# -- restarted ranks -------------------------------------------------------------------------------------------------


def age_parts(rank: Rank) -> None:
    """Date the parts in the draft before the start of this process."""
    (draft,) = rank.checkpoints.glob(".step-*")
    for path in (draft / "parts").iterdir():
        os.utime(path, (1_000_000_000, 1_000_000_000))


def test_agents_that_count_restarts_differently_save_together(rank: Rank) -> None:
    for number in range(RANKS):
        rank.set(TORCHELASTIC_RUN_ID="none", TORCHELASTIC_RESTART_COUNT=str(number % 2))
        write(rank, number, 12)
    assert len(files(rank, 12)) == RANKS


def test_parts_from_before_a_restart_by_torchrun_do_not_count(rank: Rank) -> None:
    rank.set(TORCHELASTIC_ERROR_FILE="/tmp/torchelastic_a/none_x/attempt_1/0/error.json")
    for number in (0, 1, 2):
        write(rank, number, 12, "old")
    age_parts(rank)
    for number in (3, 2, 1, 0):
        assert train.latest() is None
        write(rank, number, 12, "new")
    assert set(files(rank, 12).values()) == {f"new {number}" for number in range(RANKS)}


def test_a_rank_that_starts_after_others_have_left_completes_the_save(rank: Rank) -> None:
    for number in (0, 1, 2):
        write(rank, number, 12)
    age_parts(rank)
    write(rank, 3, 12)
    assert len(files(rank, 12)) == RANKS


def test_a_save_that_was_being_composed_is_repeated(rank: Rank) -> None:
    for number in (0, 1, 2):
        write(rank, number, 12, "old")
    (draft,) = rank.checkpoints.glob(".step-*")
    (draft / "parts").rename(draft / "composing-0")
    (draft / "files" / complete_checkpoints.MANIFEST).write_text("{")
    for number in range(RANKS):
        write(rank, number, 12, "new")
    assert set(files(rank, 12).values()) == {f"new {number}" for number in range(RANKS)}
    assert rank.names() == ["step-000000012"]


# -- outside ganger --------------------------------------------------------------------------------------------------

AGENT = {"TORCHELASTIC_RUN_ID": "none", "GROUP_WORLD_SIZE": "1"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            AGENT | {"TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_a/none_x/attempt_0/{}/error.json"},
            AGENT | {"TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_b/none_y/attempt_0/{}/error.json"},
        ),
        (
            {"TORCHELASTIC_RUN_ID": "a", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"},
            {"TORCHELASTIC_RUN_ID": "b", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"},
        ),
        ({"PMIX_NAMESPACE": "prterun-n1-100@1"}, {"PMIX_NAMESPACE": "prterun-n1-101@1"}),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}),
        (
            {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"},
            {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": "1"},
        ),
    ],
    ids=["torchrun", "torchrun with an id", "mpirun", "srun", "srun after a requeue"],
)
def test_parts_of_a_killed_run_are_not_used_by_the_next(
    first: dict[str, str], second: dict[str, str], rank: Rank
) -> None:
    rank.set(GANGER_JOB_UID="", WORLD_SIZE="2")

    def write_as(number: int, run: dict[str, str]) -> None:
        rank.set(**{name: value.format(number) for name, value in run.items()})
        write(rank, number, 12, "new" if run is second else "old")

    write_as(0, first)
    write_as(1, second)
    assert train.latest() is None
    write_as(0, second)
    assert files(rank, 12) == {"rank-0.pt": "new 0", "rank-1.pt": "new 1"}


@pytest.mark.parametrize(
    "run",
    [
        {},
        {"TORCHELASTIC_RUN_ID": "none", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"},
        AGENT | {"TORCHELASTIC_ERROR_FILE": ""},
    ],
    ids=["by hand", "torchrun on two nodes", "torchrun without logs"],
)
def test_runs_that_cannot_be_distinguished_are_refused(run: dict[str, str], rank: Rank) -> None:
    rank.set(GANGER_JOB_UID="", **run)
    with pytest.raises(ValueError, match="give torchrun a unique --rdzv-id, or set GANGER_JOB_UID"):
        train.checkpoint(12, sharded=True)


def test_a_draft_of_an_older_attempt_is_ignored(rank: Rank) -> None:
    for number in (0, 1, 2):
        write(rank, number, 12, "old")
    rank.set(GANGER_ATTEMPT="3")
    for number in range(RANKS):
        write(rank, number, 12, "new")
    assert set(files(rank, 12).values()) == {f"new {number}" for number in range(RANKS)}
    assert rank.names() == ["step-000000012"]


def test_a_rank_of_an_older_attempt_is_refused(rank: Rank) -> None:
    for number in (0, 1, 2):
        write(rank, number, 12)
    rank.set(GANGER_RANK="3")
    saving = train.checkpoint(12, sharded=True)
    (saving.__enter__() / "rank-3.pt").write_text("late")
    rank.set(GANGER_ATTEMPT="3")
    assert train.latest() is None
    rank.set(GANGER_ATTEMPT="2")
    with pytest.raises(OSError, match="attempt 3 of bert-7f3 owns it, and this is attempt 2") as raised:
        saving.__exit__(None, None, None)
    assert raised.value.errno == errno.ESTALE
    assert train.latest() is None


def test_the_only_rank_saves_at_once(tmp_path: Path) -> None:
    with train.checkpoint(3, sharded=True) as directory:
        (directory / "model.pt").write_text("weights")
    assert train.latest() == train.Checkpoint(3, tmp_path / "checkpoints" / "step-000000003")


# -- any order of calls ----------------------------------------------------------------------------------------------


@contextmanager
def directory() -> Iterator[Path]:
    with TemporaryDirectory() as name:
        yield Path(name)


def gang(stack: ExitStack, root: Path, ranks: int, steps: list[int], attempt: int = 1) -> list[Stepped]:
    return [
        stack.enter_context(Stepped(root, "job", "job", attempt, steps, resumes=False, rank=rank, ranks=ranks))
        for rank in range(ranks)
    ]


STRIDE = 3 if IN_GATE else 1
"""Calls from one moment of a kill to the next."""


def check_complete(root: Path, ranks: int, attempt: int) -> None:
    """Check that one checkpoint, of all ranks, is visible, and nothing else exists."""
    assert published(root) == {(5, f"job {attempt}")}
    assert len(list((root / "step-000000005").glob("rank-*.pt"))) == ranks
    assert all(name.startswith(fence.PREFIX) for name in hidden(root)), hidden(root)


def test_a_rank_killed_at_any_call_leaves_all_or_nothing() -> None:
    number, seen = 0, set[bool]()
    while True:
        with directory() as root:
            with ExitStack() as stack:
                *others, last = gang(stack, root, 2, [5])
                for other in others:
                    other.finish()
                last.allow(number)
                ended = last.ended
            seen.add(bool(published(root)))
            if not published(root):
                with ExitStack() as stack:
                    for rank in gang(stack, root, 2, [5], attempt=2):
                        rank.finish()
                check_complete(root, 2, 2)
        if ended:
            break
        number += STRIDE
    assert seen == {False, True}


def test_of_two_last_ranks_one_publishes_at_any_call_of_the_other() -> None:
    number = 0
    while True:
        with directory() as root, ExitStack() as stack:
            first, second = gang(stack, root, 2, [5])
            first.allow(number)
            ended = first.ended
            second.finish()
            first.finish()
            assert (first.outcomes, second.outcomes) == ([SAVED], [SAVED]), f"stopped before call {number}"
            check_complete(root, 2, 1)
        if ended:
            break
        number += 1
    assert number > 10


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=25))
def test_any_order_of_calls_saves_one_complete_checkpoint(turns: list[tuple[int, int]]) -> None:
    with directory() as root, ExitStack() as stack:
        ranks = gang(stack, root, 3, [5])
        for index, calls in turns:
            ranks[index].allow(calls)
        for rank in ranks:
            rank.finish()
        assert [rank.outcomes for rank in ranks] == [[SAVED]] * 3
        check_complete(root, 3, 1)


def test_an_older_attempt_publishes_nothing_once_a_newer_one_started() -> None:
    number, seen = 0, set[bool]()
    while True:
        with directory() as root, ExitStack() as stack:
            first, last = gang(stack, root, 2, [5])
            first.finish()
            last.allow(number)
            ended = last.ended
            fence.Fence(str(root), "job", "job", 2).claim()
            was_seen = bool(published(root))
            last.finish()
            assert bool(published(root)) == was_seen, f"stopped before call {number}"
            if not was_seen:
                assert last.outcomes == [f"{REFUSED} {errno.ESTALE}"], f"stopped before call {number}"
            seen.add(was_seen)
        if ended:
            break
        number += 1
    assert seen == {False, True}
