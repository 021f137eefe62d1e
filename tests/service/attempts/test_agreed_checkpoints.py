"""Four real ranks on two virtual nodes checkpoint at the same steps, though each runs at its own pace."""

import json
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.service.world import Embedded
from tests.waiting import wait_until

pytestmark = pytest.mark.serial

SCRIPT = """
import json, random, sys, time
from pathlib import Path
from ganger import train

rank = train.world().rank
out = open(f"answers-{rank}", "a", buffering=1)
chance = random.Random(rank)
step = -1
while not Path("enough").exists():
    step += 1
    REPORT
    time.sleep(chance.uniform(0, 0.02))
    answers = []
    for _ in range(ASKS):
        answers.append(train.should_checkpoint())
        if answers[-1] and rank == 0:
            with train.checkpoint(step) as directory:
                (directory / "state").write_text("state")
    print(json.dumps([step, answers]), file=out)
"""
STEPS = "train.report(step=step)", "chance.choice((1, 2, 3))"
CALLS = "rank == 0 and train.report(step=step)", "1"


def _submit(world: Embedded, report: str, asks: str, **checkpoint: object) -> str:
    (world.work / "train.py").write_text(SCRIPT.replace("REPORT", report).replace("ASKS", asks))
    command = [sys.executable, "train.py"]
    return world.submit(command, nodes=2, nproc_per_node=2, checkpoint={"dir": "saved", **checkpoint})


def _answers(work: Path) -> dict[int, dict[int, bool]]:
    """Return the answer at each step, by rank. Only the first one at a step may be True."""
    answers_of: dict[int, dict[int, bool]] = defaultdict(dict)
    for rank in range(4):
        path = work / f"answers-{rank}"
        for line in path.read_text().splitlines() if path.exists() else ():
            step, answers = json.loads(line)
            assert True not in answers[1:]
            answers_of[rank][step] = answers[0]
    return answers_of


def _saves(work: Path) -> list[list[int]]:
    """Return the steps at which each rank was asked to save."""
    return [[step for step, answer in steps.items() if answer] for steps in _answers(work).values()]


def _check_agreement(work: Path) -> None:
    answers = _answers(work)
    for step in set().union(*answers.values()):
        distinct = {steps[step] for steps in answers.values() if step in steps}
        assert len(distinct) == 1, f"ranks differ at step {step}: {[steps.get(step) for steps in answers.values()]}"


@pytest.mark.parametrize(("report", "asks"), [STEPS, CALLS], ids=["by_step", "by_call"])
def test_ranks_save_at_the_same_steps_repeatedly(world: Embedded, report: str, asks: str) -> None:
    job = _submit(world, report, asks, every="0.4s")
    wait_until(lambda: len(saves := _saves(world.work)) == 4 and min(map(len, saves)) >= 3, "each saves three times")
    (world.work / "enough").touch()
    world.ended(job)
    _check_agreement(world.work)


@pytest.mark.parametrize("every", [{}, {"every": "1h"}], ids=["no_period", "long_period"])
def test_a_notice_makes_all_ranks_save_once_at_the_same_step(world: Embedded, every: dict[str, object]) -> None:
    job = _submit(world, *STEPS, grace="1d", **every)
    wait_until(lambda: len(answers := _answers(world.work)) == 4 and min(map(len, answers.values())) > 20, "all step")
    assert not any(_saves(world.work))
    world.service.suspend(job, suspended=True)
    suspended = world.until(job, "suspended")  # though no rank leaves by itself, and the grace period is a day
    # A rank may be ended by then before it has come to that step, or has written that it did.
    assert suspended.checkpoint_step is not None
    assert {tuple(saves) for saves in _saves(world.work)} <= {(), (suspended.checkpoint_step,)}
    _check_agreement(world.work)
