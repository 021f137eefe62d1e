"""What a rank saves that nobody could reach is refused once a newer attempt has come, in whatever order they act."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger import train
from ganger.train import fence
from tests.train.conftest import Rank
from tests.train.lockstep import BEGUN, REFUSED, SAVED, Stepped, hidden, published

SOURCE = Path(__file__).parents[2] / "src"
STALE = f"{REFUSED} {errno.ESTALE}"


def save(step: int, text: str = "weights") -> None:
    with train.checkpoint(step) as directory:
        (directory / "model.pt").write_text(text)


def refused(step: int, meanwhile: Callable[[], object] = lambda: None) -> OSError:
    """The error of a checkpoint of which files are still written after something has happened."""
    with pytest.raises(OSError, match=f"the checkpoint of step {step} cannot be saved") as told:
        save_around(step, meanwhile)
    return told.value


def save_around(step: int, meanwhile: Callable[[], object]) -> None:
    with train.checkpoint(step) as directory:
        (directory / "model.pt").write_text("half")
        meanwhile()
        (directory / "optimizer.pt").write_text("rest")


def latest_step() -> int | None:
    found = train.latest()
    return found.step if found else None


def markers(rank: Rank) -> list[str]:
    return sorted(path.name for path in rank.checkpoints.iterdir() if path.name.startswith(fence.PREFIX))


# -- one after the other ---------------------------------------------------------------------------------------------


def test_an_older_attempt_is_refused_and_told_what_to_do(rank: Rank) -> None:
    save(1)
    rank.set(GANGER_ATTEMPT="3")
    assert latest_step() == 1
    rank.set(GANGER_ATTEMPT="2")
    refusal = refused(2)
    assert refusal.errno == errno.ESTALE
    assert refusal.strerror == (
        f"the checkpoint of step 2 cannot be saved in {rank.checkpoints}: attempt 3 of bert-7f3 owns it, "
        "and this is 2: end this process, which nobody could reach; should nothing else run of that job, remove "
        f"{rank.checkpoints}/.attempt~000001~000003~bert-7f3~bert-7f3"
    )
    assert rank.names() == ["step-000000001"]
    assert latest_step() == 1, "who may not save may read"


def test_what_an_older_attempt_was_writing_is_taken_from_it(rank: Rank) -> None:
    def another_comes() -> None:
        rank.set(GANGER_ATTEMPT="3")
        assert train.latest() is None
        rank.set(GANGER_ATTEMPT="2")

    refusal = refused(2, another_comes)
    assert "attempt 3 of bert-7f3 owns it, and this is 2" in refusal.strerror
    assert (refusal.errno, refusal.__suppress_context__) == (errno.ESTALE, True)
    rank.set(GANGER_ATTEMPT="3")
    save(3)
    assert rank.names() == ["step-000000003"]


@pytest.mark.parametrize("kind", [ZeroDivisionError, KeyboardInterrupt])
def test_what_the_script_raises_stays_its_own(kind: type[BaseException], rank: Rank) -> None:
    def fails() -> None:
        rank.set(GANGER_ATTEMPT="3")
        if kind is KeyboardInterrupt:
            train.latest()
        raise kind

    with pytest.raises(kind):
        save_around(2, fails)


def test_each_attempt_has_one_marker_and_removes_older_ones(rank: Rank) -> None:
    for attempt in ("2", "10", "11"):
        rank.set(GANGER_ATTEMPT=attempt)
        train.latest()
        save(int(attempt))
        assert markers(rank) == [f".attempt~000001~{int(attempt):06d}~bert-7f3~bert-7f3"]


def test_the_first_attempt_makes_no_directory_to_look_into(rank: Rank) -> None:
    rank.set(GANGER_ATTEMPT="1")
    assert train.latest() is None
    assert not rank.checkpoints.exists()


def test_outside_ganger_there_is_no_marker(tmp_path: Path) -> None:
    save(3)
    assert latest_step() == 3
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000000003"]


def test_a_directory_that_must_not_be_written_is_read(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    save(1)
    rank.set(GANGER_ATTEMPT="3")

    def refuses(path: str, flags: int, mode: int = 0o777) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as broken:
        broken.setattr(os, "open", refuses)
        assert latest_step() == 1
    assert markers(rank) == [".attempt~000001~000002~bert-7f3~bert-7f3"]


def test_an_older_attempt_removes_nothing(rank: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    save(1)
    rank.set(GANGER_CHECKPOINT_KEEP="1")
    saving = train.checkpoint(2)
    (saving.__enter__() / "model.pt").write_text("weights")
    told = saving._told

    def overtaken() -> None:
        rank.set(GANGER_ATTEMPT="3")
        assert latest_step() == 2
        rank.set(GANGER_ATTEMPT="2")
        told()

    saving._told = overtaken  # type: ignore[method-assign]
    saving.__exit__(None, None, None)
    assert rank.names() == ["step-000000001", "step-000000002"]
    said = f"ganger: older checkpoints in {rank.checkpoints} cannot be removed: attempt 3 of bert-7f3 owns it"
    assert capsys.readouterr().err.startswith(said)


# -- jobs of one name, and of others ---------------------------------------------------------------------------------


def test_a_new_job_of_a_name_is_not_kept_out_by_attempts_of_the_old_one(rank: Rank) -> None:
    rank.set(GANGER_JOB_ID="bert.lab", GANGER_JOB_UID="first", GANGER_ATTEMPT="7")
    save(1)
    rank.set(GANGER_JOB_UID="second", GANGER_ATTEMPT="1")
    assert latest_step() == 1
    save(2)
    rank.set(GANGER_JOB_UID="first", GANGER_ATTEMPT="8")
    refusal = refused(3)
    assert "another job of the name bert.lab has come since, and owns it: end this process" in refusal.strerror
    assert refusal.errno == errno.ESTALE
    assert rank.names() == ["step-000000001", "step-000000002"]
    rank.set(GANGER_JOB_UID="third", GANGER_ATTEMPT="1")
    save(4)
    assert [name.split("~")[1:] for name in markers(rank)] == [
        ["000001", "000007", "bert.lab", "first"],
        ["000002", "000001", "bert.lab", "second"],
        ["000003", "000001", "bert.lab", "third"],
    ]


def test_what_the_old_job_of_a_name_was_writing_is_taken_from_it(rank: Rank) -> None:
    rank.set(GANGER_JOB_ID="bert.lab", GANGER_JOB_UID="first", GANGER_ATTEMPT="7")

    def another_comes() -> None:
        rank.set(GANGER_JOB_UID="second", GANGER_ATTEMPT="1")
        save(1)
        rank.set(GANGER_JOB_UID="first", GANGER_ATTEMPT="7")

    assert "another job of the name bert.lab" in refused(2, another_comes).strerror
    assert rank.names()[-1] == "step-000000001"


def test_resume_never_of_a_new_job_of_a_name_does_not_begin_from_the_old_ones(rank: Rank) -> None:
    rank.set(GANGER_JOB_ID="bert.lab", GANGER_JOB_UID="first")
    save(9)
    rank.set(GANGER_JOB_UID="second", GANGER_RESUME="never", GANGER_ATTEMPT="1")
    assert train.latest() is None


def test_jobs_of_other_names_do_not_keep_each_other_out(rank: Rank) -> None:
    for step in range(3):
        for attempt, job in enumerate(("one", "two", "three"), start=1):
            rank.is_job(job, GANGER_ATTEMPT=str(attempt))
            save(10 * attempt + step)
    assert len(rank.names()) == 9


def test_markers_of_jobs_that_are_long_over_go(rank: Rank) -> None:
    for job in ("old", "recent"):
        rank.is_job(job)
        save(1)
    old = rank.checkpoints / ".attempt~000001~000002~old~old"
    came_s = old.stat().st_mtime - fence.KEPT_S - 60
    os.utime(old, (came_s, came_s))
    rank.is_job("new")
    save(2)
    assert [name.split("~")[3] for name in markers(rank)] == ["new", "recent"]
    rank.is_job("old")
    save(3)
    assert old.exists(), "who is not over comes again"


# -- at the same time ------------------------------------------------------------------------------------------------


@contextmanager
def directory() -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        yield Path(folder)


class Together:
    """Ranks from the oldest attempt to the newest, and what of older ones was published when a newer one had begun."""

    def __init__(self, root: Path, stepped: list[Stepped]) -> None:
        self._root, self._stepped = root, stepped
        self._begun: dict[int, set[tuple[int, str]]] = {}

    def go(self, index: int, calls: int) -> None:
        for _ in range(calls):
            self._stepped[index].go(1)
            self._check(index)

    def finish(self, index: int) -> None:
        while not self._stepped[index].ended:
            self.go(index, 1)

    def _check(self, went: int) -> None:
        is_new = went not in self._begun and BEGUN in self._stepped[went].told
        if not is_new and not self._begun:
            return
        seen = published(self._root)
        for newer, before in [*self._begun.items(), *([(went, seen)] if is_new else [])]:
            older = {rank.owner for rank in self._stepped[:newer]}
            self._begun[newer] = {each for each in seen if each[1] in older}
            assert self._begun[newer] <= before, "an older attempt has published after a newer one had begun"


def outcomes(rank: Stepped) -> list[str]:
    return [word for word in rank.told if word != BEGUN]


def is_in_order(told: list[str]) -> bool:
    """What was saved comes first, then what was refused."""
    return told == [SAVED] * told.count(SAVED) + [STALE] * told.count(STALE)


@pytest.mark.parametrize("uids", [("a", "a"), ("a", "b")], ids=["same job", "same name"])
def test_stopped_at_any_two_of_its_calls_it_publishes_nothing_after_a_newer_one_has_begun(
    uids: tuple[str, str],
) -> None:
    """Before any of them, while a newer one makes some of its own; again before it renames, until that has begun."""
    number = calls = 0
    both_ended = (False, False)
    seen = set[bool]()
    while not all(both_ended):
        with directory() as root, ExitStack() as stack:
            if uids[0] != uids[1]:
                fence.Fence(str(root), "job", uids[0], 1).claim()  # it came before there was another
            older, newer = (
                stack.enter_context(Stepped(root, "job", uid, attempt, steps, begins=not steps))
                for uid, attempt, steps in zip(uids, (1, 2), ([5], []), strict=True)
            )
            older.go(number)
            where = older.waits_for
            newer.go(calls)
            both_ended = older.ended, newer.ended
            while not older.ended and older.waits_for != "rename":
                older.go(1)
            newer.finish()
            was_seen = bool(published(root))
            older.finish()
            at = f"stopped before call {number}, {where}, and by {calls} of a newer one"
            assert bool(published(root)) == was_seen, at
            assert older.told == [SAVED if was_seen else STALE], at
        seen.add(was_seen)
        number, calls = (number + 1, 0) if both_ended[1] else (number, calls + 1)
    assert seen == {False, True}


TURNS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=25)
STEPS = st.lists(st.integers(1, 4), min_size=1, max_size=2)


@given(
    turns=TURNS,
    steps=st.tuples(STEPS, STEPS, STEPS),
    last=st.permutations(range(3)),
    killed=st.sets(st.integers(0, 2)),
    is_new_job=st.booleans(),
)
def test_no_older_attempt_publishes_after_a_newer_one_has_begun(
    turns: list[tuple[int, int]],
    steps: tuple[list[int], ...],
    last: list[int],
    killed: set[int],
    is_new_job: bool,
) -> None:
    with directory() as root, ExitStack() as stack:
        uid = "uid-b" if is_new_job else "uid-a"
        fence.Fence(str(root), "job", "uid-a", 7).claim()  # as its launcher has, before there was another job
        attempts = [("uid-a", 7), (uid, 8), (uid, 9)]
        ranks = [
            stack.enter_context(Stepped(root, "job", *attempt, own, begins=attempt != attempts[0]))
            for attempt, own in zip(attempts, steps, strict=True)
        ]
        together = Together(root, ranks)
        for index, calls in turns:
            together.go(index, calls)
        for index in last:
            if index not in killed:
                together.finish(index)
        assert all(is_in_order(outcomes(rank)) for rank in ranks)
        assert STALE not in outcomes(ranks[2]), "the newest is never refused"
        stack.pop_all().close()
        with Stepped(root, "job", uid, 10, [9], begins=True) as after:
            after.finish()
            assert outcomes(after) == [SAVED]
        assert [name for name in hidden(root) if not name.startswith(fence.PREFIX)] == []


# -- real processes --------------------------------------------------------------------------------------------------

SAVER = """
import sys
from ganger.train import checkpoint
with checkpoint(70) as directory:
    (directory / "model.pt").write_text("stale")
    print("in the middle", flush=True)
    sys.stdin.readline()
"""
COMES = """
from ganger.train import checkpoint, latest
begins = latest()
with checkpoint(begins.step + 10) as directory:
    (directory / "model.pt").write_text("new")
print(begins.step)
"""


def process(code: str, attempt: int) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "GANGER_ATTEMPT": str(attempt)}
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_a_process_that_was_stopped_meanwhile_ends_with_the_refusal(rank: Rank) -> None:
    save(50)
    older = process(SAVER, 2)
    assert older.stdout is not None
    assert older.stdout.readline() == "in the middle\n"
    older.send_signal(signal.SIGSTOP)
    newer = process(COMES, 3)
    assert newer.communicate() == ("50\n", "")
    older.send_signal(signal.SIGCONT)
    _, said = older.communicate("go on\n")
    assert older.returncode == 1
    last = said.splitlines()[-1]
    assert last.startswith(f"OSError: [Errno {errno.ESTALE}] the checkpoint of step 70 cannot be saved in")
    assert "attempt 3 of bert-7f3 owns it, and this is 2" in last
    assert "FileNotFoundError" not in said, "one error, and not how it was found"
    assert latest_step() == 60
    rank.set(GANGER_ATTEMPT="3")
    save(61)
    assert rank.names() == ["step-000000050", "step-000000060", "step-000000061"]
