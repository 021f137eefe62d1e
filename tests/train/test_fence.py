"""Checkpoints of an attempt that could not be reached are refused once a newer attempt has started, in any order."""

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
from hypothesis import example, given
from hypothesis import strategies as st

from ganger import train
from ganger.train import fence
from tests.examples import examples
from tests.train.conftest import SOURCE, Rank, latest_step
from tests.train.lockstep import REFUSED, RESUMED, SAVED, Stepped, hidden, published

STALE = f"{REFUSED} {errno.ESTALE}"
STRIDE = 1 if os.environ.get("GANGER_TEST_LONG") else 7


def save(step: int, text: str = "weights") -> None:
    with train.checkpoint(step) as directory:
        (directory / "model.pt").write_text(text)


def refused_save(step: int, meanwhile: Callable[[], object] = lambda: None) -> OSError:
    """Return the error of a checkpoint that is written while something happens."""
    with pytest.raises(OSError, match=f"cannot save the checkpoint of step {step}") as raised:
        save_around(step, meanwhile)
    return raised.value


def save_around(step: int, meanwhile: Callable[[], object]) -> None:
    with train.checkpoint(step) as directory:
        (directory / "model.pt").write_text("half")
        meanwhile()
        (directory / "optimizer.pt").write_text("rest")


def markers(rank: Rank) -> list[str]:
    return sorted(path.name for path in rank.checkpoints.iterdir() if path.name.startswith(fence.PREFIX))


# -- one after the other ---------------------------------------------------------------------------------------------


def test_an_older_attempt_is_refused_with_advice(rank: Rank) -> None:
    save(1)
    rank.set(GANGER_ATTEMPT="3")
    assert latest_step() == 1
    rank.set(GANGER_ATTEMPT="2")
    error = refused_save(2)
    assert error.errno == errno.ESTALE
    assert error.strerror == (
        f"cannot save the checkpoint of step 2 in {rank.checkpoints}: attempt 3 of bert-7f3 owns it, and this is "
        "attempt 2: end this process, which could not be reached; if nothing else of that job runs, remove "
        f"{rank.checkpoints}/.attempt~000001~000003~bert-7f3~bert-7f3"
    )
    assert rank.names() == ["step-000000001"]
    assert latest_step() == 1, "an older attempt may still read"


def test_draft_of_an_older_attempt_is_taken_away(rank: Rank) -> None:
    def start_newer_attempt() -> None:
        rank.set(GANGER_ATTEMPT="3")
        assert train.latest() is None
        rank.set(GANGER_ATTEMPT="2")

    error = refused_save(2, start_newer_attempt)
    assert "attempt 3 of bert-7f3 owns it, and this is attempt 2" in error.strerror
    assert (error.errno, error.__suppress_context__) == (errno.ESTALE, True)
    rank.set(GANGER_ATTEMPT="3")
    save(3)
    assert rank.names() == ["step-000000003"]


@pytest.mark.parametrize("kind", [ZeroDivisionError, KeyboardInterrupt])
def test_error_of_the_script_is_not_replaced(kind: type[BaseException], rank: Rank) -> None:
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


def test_the_first_attempt_does_not_create_the_directory_to_read_it(rank: Rank) -> None:
    rank.set(GANGER_ATTEMPT="1")
    assert train.latest() is None
    assert not rank.checkpoints.exists()


def test_outside_ganger_there_is_no_marker(tmp_path: Path) -> None:
    save(3)
    assert latest_step() == 3
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000000003"]


def test_a_read_only_directory_is_read(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    save(1)
    rank.set(GANGER_ATTEMPT="3")

    really_open = os.open

    def refuses(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return really_open(path, flags, mode)

    with monkeypatch.context() as broken:
        broken.setattr(os, "open", refuses)
        assert latest_step() == 1
    assert markers(rank) == [".attempt~000001~000002~bert-7f3~bert-7f3"]


def test_an_older_attempt_removes_nothing(rank: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    save(1)
    rank.set(GANGER_CHECKPOINT_KEEP="1")
    saving = train.checkpoint(2)
    (saving.__enter__() / "model.pt").write_text("weights")
    finish = saving._finish

    def be_overtaken() -> None:
        rank.set(GANGER_ATTEMPT="3")
        assert latest_step() == 2
        rank.set(GANGER_ATTEMPT="2")
        finish()

    saving._finish = be_overtaken  # type: ignore[method-assign]
    saving.__exit__(None, None, None)
    assert rank.names() == ["step-000000001", "step-000000002"]
    warning = f"ganger: older checkpoints in {rank.checkpoints} cannot be removed: attempt 3 of bert-7f3 owns it"
    assert capsys.readouterr().err.startswith(warning)


# -- jobs of one name, and of others ---------------------------------------------------------------------------------


def test_a_new_job_of_a_name_is_not_fenced_by_the_old_one(rank: Rank) -> None:
    rank.set(GANGER_JOB_ID="bert.lab", GANGER_JOB_UID="first", GANGER_ATTEMPT="7")
    save(1)
    rank.set(GANGER_JOB_UID="second", GANGER_ATTEMPT="1")
    assert latest_step() == 1
    save(2)
    rank.set(GANGER_JOB_UID="first", GANGER_ATTEMPT="8")
    error = refused_save(3)
    assert "a later job named bert.lab owns it: end this process" in error.strerror
    assert error.errno == errno.ESTALE
    assert rank.names() == ["step-000000001", "step-000000002"]
    rank.set(GANGER_JOB_UID="third", GANGER_ATTEMPT="1")
    save(4)
    assert [name.split("~")[1:] for name in markers(rank)] == [
        ["000001", "000007", "bert.lab", "first"],
        ["000002", "000001", "bert.lab", "second"],
        ["000003", "000001", "bert.lab", "third"],
    ]


def test_draft_of_the_old_job_of_a_name_is_taken_away(rank: Rank) -> None:
    rank.set(GANGER_JOB_ID="bert.lab", GANGER_JOB_UID="first", GANGER_ATTEMPT="7")

    def start_newer_job() -> None:
        rank.set(GANGER_JOB_UID="second", GANGER_ATTEMPT="1")
        save(1)
        rank.set(GANGER_JOB_UID="first", GANGER_ATTEMPT="7")

    assert "a later job named bert.lab" in refused_save(2, start_newer_job).strerror
    assert rank.names()[-1] == "step-000000001"


def test_jobs_of_other_names_do_not_fence_each_other(rank: Rank) -> None:
    for step in range(3):
        for attempt, job in enumerate(("one", "two", "three"), start=1):
            rank.become_job(job, GANGER_ATTEMPT=str(attempt))
            save(10 * attempt + step)
    assert len(rank.names()) == 9


def test_old_markers_are_removed(rank: Rank) -> None:
    for job in ("old", "recent"):
        rank.become_job(job)
        save(1)
    old = rank.checkpoints / ".attempt~000001~000002~old~old"
    created_s = old.stat().st_mtime - fence.KEPT_S - 60
    os.utime(old, (created_s, created_s))
    rank.become_job("new")
    save(2)
    assert [name.split("~")[3] for name in markers(rank)] == ["new", "recent"]
    rank.become_job("old")
    save(3)
    assert old.exists(), "a job that still runs creates it again"


# -- at the same time ------------------------------------------------------------------------------------------------


@contextmanager
def directory() -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        yield Path(folder)


class Together:
    """Ranks from the oldest attempt to the newest, with a check after each call.

    The check compares the checkpoints of older attempts with those visible when a newer attempt had resumed.
    """

    def __init__(self, root: Path, stepped: list[Stepped]) -> None:
        self._root, self._stepped = root, stepped
        self._visible_before: dict[int, set[tuple[int, str]]] = {}

    def allow(self, index: int, calls: int) -> None:
        for _ in range(calls):
            self._stepped[index].allow(1)
            self._check(index)

    def finish(self, index: int) -> None:
        while not self._stepped[index].ended:
            self.allow(index, 1)

    def _check(self, index: int) -> None:
        is_new = index not in self._visible_before and RESUMED in self._stepped[index].outcomes
        if not is_new and not self._visible_before:
            return
        visible = published(self._root)
        for newer, before in [*self._visible_before.items(), *([(index, visible)] if is_new else [])]:
            older = {rank.owner for rank in self._stepped[:newer]}
            self._visible_before[newer] = {entry for entry in visible if entry[1] in older}
            assert self._visible_before[newer] <= before, "an older attempt has published after a newer one started"


def save_outcomes(rank: Stepped) -> list[str]:
    return [outcome for outcome in rank.outcomes if outcome != RESUMED]


def is_in_order(outcomes: list[str]) -> bool:
    """Return True if what was saved comes before what was refused."""
    return outcomes == [SAVED] * outcomes.count(SAVED) + [STALE] * outcomes.count(STALE)


@pytest.mark.parametrize("uids", [("a", "a"), ("a", "b")], ids=["same job", "same name"])
def test_attempt_stopped_at_any_two_calls_publishes_nothing_after_a_newer_one_started(
    uids: tuple[str, str],
) -> None:
    """Stop it before any call while a newer one makes some calls, and again before its rename.

    By default before every third call; GANGER_TEST_LONG=1 tries all.
    """
    number = calls = 0
    both_ended = (False, False)
    observed = set[bool]()
    while not all(both_ended):
        with directory() as root, ExitStack() as stack:
            if uids[0] != uids[1]:
                fence.Fence(str(root), "job", uids[0], 1).claim()  # it started before the other job existed
            older, newer = (
                stack.enter_context(Stepped(root, "job", uid, attempt, steps, resumes=not steps))
                for uid, attempt, steps in zip(uids, (1, 2), ([5], []), strict=True)
            )
            older.allow(number)
            next_call = older.waits_for
            newer.allow(calls)
            both_ended = older.ended, newer.ended
            while not older.ended and older.waits_for != "rename":
                older.allow(1)
            newer.finish()
            was_seen = bool(published(root))
            older.finish()
            situation = f"stopped before call {number}, {next_call}, and by {calls} of a newer one"
            assert bool(published(root)) == was_seen, situation
            assert older.outcomes == [SAVED if was_seen else STALE], situation
        observed.add(was_seen)
        number, calls = (number + STRIDE, 0) if both_ended[1] else (number, calls + 1)
    assert observed == {False, True}


TURNS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=25)
STEPS = st.lists(st.integers(1, 4), min_size=1, max_size=2)


@examples(10)
@given(
    turns=TURNS,
    steps=st.tuples(STEPS, STEPS, STEPS),
    last=st.permutations(range(3)),
    killed=st.sets(st.integers(0, 2)),
    is_new_job=st.booleans(),
)
# Attempt 8 resumes between the marker of attempt 9 and its look at the drafts, of which one is of attempt 7.
@example(turns=[(0, 1), (0, 8), (2, 3)], steps=([1], [1], [1]), last=[1, 0, 2], killed=set(), is_new_job=False)
def test_no_older_attempt_publishes_after_a_newer_one_started(
    turns: list[tuple[int, int]],
    steps: tuple[list[int], ...],
    last: list[int],
    killed: set[int],
    is_new_job: bool,
) -> None:
    with directory() as root, ExitStack() as stack:
        uid = "uid-b" if is_new_job else "uid-a"
        fence.Fence(str(root), "job", "uid-a", 7).claim()  # by its launcher, before the other job existed
        attempts = [("uid-a", 7), (uid, 8), (uid, 9)]
        ranks = [
            stack.enter_context(Stepped(root, "job", *attempt, rank_steps, resumes=attempt != attempts[0]))
            for attempt, rank_steps in zip(attempts, steps, strict=True)
        ]
        together = Together(root, ranks)
        for index, calls in turns:
            together.allow(index, calls)
        for index in last:
            if index not in killed:
                together.finish(index)
        assert all(is_in_order(save_outcomes(rank)) for rank in ranks)
        assert STALE not in save_outcomes(ranks[2]), "the newest is never refused"
        stack.pop_all().close()
        with Stepped(root, "job", uid, 10, [9], resumes=True) as after:
            after.finish()
            assert save_outcomes(after) == [SAVED]
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
NEWER = """
from ganger.train import checkpoint, latest
resumed = latest()
with checkpoint(resumed.step + 10) as directory:
    (directory / "model.pt").write_text("new")
print(resumed.step)
"""


def process(code: str, attempt: int) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "GANGER_ATTEMPT": str(attempt)}
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_a_stopped_process_that_continues_ends_with_the_error(rank: Rank) -> None:
    save(50)
    older = process(SAVER, 2)
    assert older.stdout is not None
    assert older.stdout.readline() == "in the middle\n"
    older.send_signal(signal.SIGSTOP)
    newer = process(NEWER, 3)
    assert newer.communicate() == ("50\n", "")
    older.send_signal(signal.SIGCONT)
    _, stderr = older.communicate("continue\n")
    assert older.returncode == 1
    last = stderr.splitlines()[-1]
    assert last.startswith(f"OSError: [Errno {errno.ESTALE}] cannot save the checkpoint of step 70 in")
    assert "attempt 3 of bert-7f3 owns it, and this is attempt 2" in last
    assert "FileNotFoundError" not in stderr, "only the cause is shown"
    assert latest_step() == 60
    rank.set(GANGER_ATTEMPT="3")
    save(61)
    assert rank.names() == ["step-000000050", "step-000000060", "step-000000061"]
