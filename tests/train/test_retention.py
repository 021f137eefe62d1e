"""Which checkpoints go, and that the one that counts never does: laws, real files, processes killed at every step."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger import train
from ganger.train import read_lock
from ganger.train.checkpoint_retention import superseded
from tests.train.conftest import Rank

SOURCE = Path(__file__).parents[2] / "src"


def save(step: int, text: str = "weights") -> None:
    with train.checkpoint(step) as directory:
        (directory / "model.pt").write_text(text)
        (directory / "optimizer").mkdir()
        (directory / "optimizer" / "state.pt").write_bytes(b"\0" * 300)


def steps(rank: Rank) -> list[int]:
    return [int(name[5:]) for name in rank.names() if name.startswith("step-")]


def latest_step() -> int | None:
    found = train.latest()
    return found.step if found else None


@pytest.mark.parametrize(
    ("there", "keep", "every", "gone"),
    [
        ([10, 20, 30, 40], 3, None, [10]),
        ([10, 20, 30], 3, None, []),
        ([], 1, None, []),
        ([40, 10, 30, 20], 1, None, [10, 20, 30]),
        ([500, 1000, 1500, 2000, 2500], 1, 1000, [500, 1500]),
        ([0, 1, 2], 1, 1000, [1]),
    ],
)
def test_which_go(there: list[int], keep: int, every: int | None, gone: list[int]) -> None:
    assert superseded(there, keep, every) == gone


@given(
    there=st.lists(st.integers(0, 99), unique=True),
    keep=st.integers(1, 9),
    every=st.none() | st.integers(1, 20),
    more=st.integers(100, 120),
)
def test_what_stays(there: list[int], keep: int, every: int | None, more: int) -> None:
    gone = superseded(there, keep, every)
    stay = [step for step in there if step not in gone]
    assert set(gone) <= set(there)
    assert set(sorted(there)[-keep:]) <= set(stay)
    assert all(step in stay for step in there if every and step % every == 0)
    extra = [step for step in stay if not (every and step % every == 0)]
    assert len(extra) <= keep
    assert superseded(stay, keep, every) == [], "it is done at once"
    assert set(gone) <= set(superseded([*there, more], keep, every)), "what goes is never wanted again"


def test_the_last_stay_and_every_so_manieth(rank: Rank) -> None:
    rank.set(GANGER_CHECKPOINT_KEEP="2", GANGER_CHECKPOINT_KEEP_EVERY="50")
    for step in range(10, 131, 10):
        save(step)
    assert steps(rank) == [50, 100, 120, 130]
    assert rank.names() == [f"step-{step:09d}" for step in steps(rank)]


def test_all_stay_unless_it_is_said(rank: Rank) -> None:
    for step in range(5):
        save(step)
    assert steps(rank) == [0, 1, 2, 3, 4]


def test_what_other_jobs_or_nobody_made_is_left_alone(rank: Rank) -> None:
    rank.is_job("older")
    save(1)
    rank.is_job("bert-7f3", GANGER_CHECKPOINT_KEEP="1", GANGER_ATTEMPT="1")
    (rank.checkpoints / "step-000000002").mkdir()
    (rank.checkpoints / "step-000000002" / "model.pt").write_text("by hand")
    save(3)
    rank.set(GANGER_ATTEMPT="2")
    save(4)
    assert steps(rank) == [1, 2, 4]


def test_a_broken_one_does_not_count_as_one_that_is_kept(rank: Rank) -> None:
    save(1)
    save(2)
    save(9)
    (rank.checkpoints / "step-000000009" / "model.pt").write_text("broken")
    rank.set(GANGER_CHECKPOINT_KEEP="2")
    save(3)
    assert steps(rank) == [2, 3, 9]
    assert latest_step() == 3


def test_those_that_an_attempt_failed_on_do_not_push_out_good_ones(rank: Rank) -> None:
    for step in (100, 200, 300):
        save(step)
    rank.set(GANGER_CHECKPOINT_KEEP="2", GANGER_RESUME_SKIP="200,300", GANGER_ATTEMPT="3")
    save(110)
    assert steps(rank) == [100, 110, 200, 300]
    save(200)
    assert steps(rank) == [110, 200, 300], "it counts once it is saved anew"


def test_the_one_just_saved_stays_though_older_ones_have_greater_steps(rank: Rank) -> None:
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


def test_one_that_is_read_stays_until_it_was(rank: Rank) -> None:
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


def test_a_step_after_it_lets_it_go(rank: Rank) -> None:
    save(1)
    assert latest_step() == 1
    assert not read_lock.set_aside(str(rank.checkpoints / "step-000000001"), "ganger-checkpoint.json", "aside")
    train.report(step=2)
    assert read_lock.set_aside(str(rank.checkpoints / "step-000000001"), "ganger-checkpoint.json", "aside")


def test_what_cannot_be_removed_is_said_and_training_goes_on(
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


def _dies_at(number: int, step: int) -> bool:
    """Save in a child that SIGKILL ends before its call of that number that changes or opens something; False when it
    had fewer."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    left = number

    def deadly(call: str) -> None:
        real = getattr(os, call)

        def counted(*args: object, **kwargs: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        setattr(os, call, counted)

    try:
        for call in CALLS:
            deadly(call)
        save(step)
        os._exit(0)
    finally:
        os._exit(1)


def test_killed_at_any_moment_the_newest_is_whole_and_the_next_one_clears_up(rank: Rank) -> None:
    rank.set(GANGER_CHECKPOINT_KEEP="2")
    save(1)
    save(2)
    step, number = 3, 0
    while _dies_at(number, step):
        newest = latest_step()
        assert newest in (step - 1, step), f"killed at call {number}"
        assert len(steps(rank)) >= 2
        step += 1
        save(step)
        assert latest_step() == step
        assert rank.names() == [f"step-{each:09d}" for each in steps(rank)], f"killed at call {number}"
        assert len(steps(rank)) == 2
        step, number = step + 1, number + 1
    assert number > 20


def test_killed_while_it_replaces_what_another_job_left_none_is_lost(rank: Rank) -> None:
    number, died = 0, True
    while died:
        rank.is_job("older", GANGER_RESUME="auto")
        save(5, "old")
        rank.is_job(f"new-{number}", GANGER_RESUME="never")
        died = _dies_at(number, 5)
        rank.set(GANGER_RESUME="auto")
        save(1)  # clears up
        found = rank.checkpoints / "step-000000005"
        assert (found / "model.pt").read_text() in ("old", "weights"), f"killed at call {number}"
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


def test_two_ranks_save_at_once(rank: Rank) -> None:
    rank.set(GANGER_CHECKPOINT_KEEP="3", GANGER_CHECKPOINT_KEEP_EVERY="40")
    command = [sys.executable, "-c", SAVERS]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    savers = [subprocess.Popen([*command, str(first)], env=environment) for first in (0, 1)]
    seen = -1
    while any(saver.poll() is None for saver in savers):
        newest = latest_step()
        assert newest is None or newest >= seen, "it never goes back"
        seen = max(seen, -1 if newest is None else newest)
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
