"""Retention of checkpoints: which are removed, and that the needed one never is.

Tested with laws, real files, and processes killed at every call.
"""

import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger import train
from ganger.train import read_lock
from ganger.train.checkpoint_retention import superseded
from tests.train.conftest import SOURCE, Rank, latest_step, save


def steps(rank: Rank) -> list[int]:
    return [int(name[5:]) for name in rank.names() if name.startswith("step-")]


@pytest.mark.parametrize(
    ("existing", "keep", "every", "removed"),
    [
        ([10, 20, 30, 40], 3, None, [10]),
        ([10, 20, 30], 3, None, []),
        ([], 1, None, []),
        ([40, 10, 30, 20], 1, None, [10, 20, 30]),
        ([500, 1000, 1500, 2000, 2500], 1, 1000, [500, 1500]),
        ([0, 1, 2], 1, 1000, [1]),
    ],
)
def test_superseded_steps(existing: list[int], keep: int, every: int | None, removed: list[int]) -> None:
    assert superseded(existing, keep, every) == removed


@given(
    existing=st.lists(st.integers(0, 99), unique=True),
    keep=st.integers(1, 9),
    every=st.none() | st.integers(1, 20),
    more=st.integers(100, 120),
)
def test_laws_of_superseded_steps(existing: list[int], keep: int, every: int | None, more: int) -> None:
    removed = superseded(existing, keep, every)
    kept = [step for step in existing if step not in removed]
    assert set(removed) <= set(existing)
    assert set(sorted(existing)[-keep:]) <= set(kept)
    assert all(step in kept for step in existing if every and step % every == 0)
    extra = [step for step in kept if not (every and step % every == 0)]
    assert len(extra) <= keep
    assert superseded(kept, keep, every) == [], "one call removes all"
    assert set(removed) <= set(superseded([*existing, more], keep, every)), "a removed step is never needed again"


def test_keep_and_keep_every(rank: Rank) -> None:
    rank.set(GANGER_CHECKPOINT_KEEP="2", GANGER_CHECKPOINT_KEEP_EVERY="50")
    for step in range(10, 131, 10):
        save(step)
    assert steps(rank) == [50, 100, 120, 130]
    assert rank.names() == [f"step-{step:09d}" for step in steps(rank)]


def test_all_are_kept_by_default(rank: Rank) -> None:
    for step in range(5):
        save(step)
    assert steps(rank) == [0, 1, 2, 3, 4]


def test_checkpoints_of_other_jobs_and_incomplete_ones_are_kept(rank: Rank) -> None:
    rank.become_job("older")
    save(1)
    rank.become_job("bert-7f3", GANGER_CHECKPOINT_KEEP="1", GANGER_ATTEMPT="1")
    (rank.checkpoints / "step-000000002").mkdir()
    (rank.checkpoints / "step-000000002" / "model.pt").write_text("by hand")
    save(3)
    rank.set(GANGER_ATTEMPT="2")
    save(4)
    assert steps(rank) == [1, 2, 4]


def test_a_damaged_checkpoint_does_not_count_as_kept(rank: Rank) -> None:
    save(1)
    save(2)
    save(9)
    (rank.checkpoints / "step-000000009" / "model.pt").write_text("broken")
    rank.set(GANGER_CHECKPOINT_KEEP="2")
    save(3)
    assert steps(rank) == [2, 3, 9]
    assert latest_step() == 3


def test_checkpoints_that_an_attempt_failed_on_do_not_displace_good_ones(rank: Rank) -> None:
    for step in (100, 200, 300):
        save(step)
    rank.set(GANGER_CHECKPOINT_KEEP="2", GANGER_RESUME_SKIP="200,300", GANGER_ATTEMPT="3")
    save(110)
    assert steps(rank) == [100, 110, 200, 300]
    save(200)
    assert steps(rank) == [110, 200, 300], "it counts once it is saved again"


def test_the_newest_is_kept_even_with_a_smaller_step(rank: Rank) -> None:
    save(8)
    save(9)
    (rank.checkpoints / "step-000000009" / "model.pt").write_text("flipped")  # of the same size
    rank.set(GANGER_CHECKPOINT_KEEP="1")
    save(3)
    assert steps(rank) == [3, 9]
    assert latest_step() == 3


READER = """
from ganger.train import latest
print(latest().step, flush=True)
input()
"""


def test_checkpoint_that_is_being_read_is_kept(rank: Rank) -> None:
    save(1)
    save(2)
    rank.set(GANGER_CHECKPOINT_KEEP="1")
    command = [sys.executable, "-c", READER]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    reader = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    assert reader.stdout.readline() == "2\n"
    save(3)
    assert steps(rank) == [2, 3]
    reader.communicate("\n")
    save(4)
    assert steps(rank) == [4]


def test_a_reported_step_ends_the_read_lock(rank: Rank) -> None:
    save(1)
    assert latest_step() == 1
    assert not read_lock.set_aside(str(rank.checkpoints / "step-000000001"), "ganger-checkpoint.json", "aside")
    train.report(step=2)
    assert read_lock.set_aside(str(rank.checkpoints / "step-000000001"), "ganger-checkpoint.json", "aside")


def test_failed_removal_is_reported_and_training_continues(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save(1)
    rank.set(GANGER_CHECKPOINT_KEEP="1")
    rename = os.rename

    def refuses(source: str, to: str) -> None:
        if str(to).endswith(".superseded"):
            raise PermissionError(1, "Operation not permitted")
        rename(source, to)

    monkeypatch.setattr(os, "rename", refuses)
    save(2)
    assert steps(rank) == [1, 2]
    assert capsys.readouterr().err == (
        f"ganger: older checkpoints in {rank.checkpoints} cannot be removed: Operation not permitted\n"
    )


# -- crashes ---------------------------------------------------------------------------------------------------------

CALLS = ("mkdir", "rename", "unlink", "rmdir", "open", "fsync")


def _dies_at_call(number: int, step: int) -> bool:
    """Save in a child that is killed before its `number`-th call that changes or opens something.

    Returns False if it made fewer calls.
    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    calls_left = number

    def kill_on(call: str) -> None:
        real = getattr(os, call)

        def count_down(*args: object, **kwargs: object) -> object:
            nonlocal calls_left
            calls_left -= 1
            if calls_left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        setattr(os, call, count_down)

    try:
        for call in CALLS:
            kill_on(call)
        save(step)
        os._exit(0)
    finally:
        os._exit(1)


def test_killed_at_any_call_the_newest_is_complete_and_leftovers_are_removed(rank: Rank) -> None:
    rank.set(GANGER_CHECKPOINT_KEEP="2")
    save(1)
    save(2)
    step, number = 3, 0
    while _dies_at_call(number, step):
        newest = latest_step()
        assert newest in (step - 1, step), f"killed at call {number}"
        assert len(steps(rank)) >= 2
        step += 1
        save(step)
        assert latest_step() == step
        assert rank.names() == [f"step-{kept:09d}" for kept in steps(rank)], f"killed at call {number}"
        assert len(steps(rank)) == 2
        step, number = step + 1, number + 1
    assert number > 20


def test_killed_while_replacing_a_checkpoint_that_failed_loses_neither(rank: Rank) -> None:
    number, died = 0, True
    while died:
        rank.become_job("older")
        save(5, "old")
        rank.become_job(f"new-{number}", GANGER_RESUME_SKIP="5")
        died = _dies_at_call(number, 5)
        rank.set(GANGER_RESUME_SKIP="")
        save(1)  # removes leftovers
        directory = rank.checkpoints / "step-000000005"
        assert (directory / "model.pt").read_text() in ("old", "weights"), f"killed at call {number}"
        assert latest_step() == 5
        assert rank.names() == ["step-000000001", "step-000000005"], f"killed at call {number}"
        for name in rank.names():
            (rank.checkpoints / name).rename(rank.task / f"{name}-{number}")
        number += 1
    assert number > 15


SAVERS = """
import sys
from ganger.train import checkpoint
for step in range(int(sys.argv[1]), 120, 2):
    with checkpoint(step) as directory:
        (directory / "model.pt").write_text(str(step) * 50)
"""


def test_two_ranks_save_concurrently(rank: Rank) -> None:
    rank.set(GANGER_CHECKPOINT_KEEP="3", GANGER_CHECKPOINT_KEEP_EVERY="40")
    command = [sys.executable, "-c", SAVERS]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    savers = [subprocess.Popen([*command, str(first)], env=environment) for first in (0, 1)]
    newest_so_far = -1
    while any(saver.poll() is None for saver in savers):
        newest = latest_step()
        assert newest is None or newest >= newest_so_far, "the newest step never decreases"
        newest_so_far = max(newest_so_far, -1 if newest is None else newest)
    assert [saver.returncode for saver in savers] == [0, 0]
    save(120)
    assert steps(rank) == [0, 40, 80, 118, 119, 120]


def test_two_ranks_save_the_same_step(rank: Rank) -> None:
    command = [sys.executable, "-c", SAVERS.replace("range(int(sys.argv[1]), 120, 2)", "range(60)")]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "GANGER_CHECKPOINT_KEEP": "1"}
    savers = [subprocess.Popen([*command, "0"], env=environment) for _ in range(2)]
    assert [saver.wait() for saver in savers] == [0, 0]
    assert steps(rank) == [59]
    assert rank.names() == ["step-000000059"]
