"""Measured save times: the best interval, and saves that outlast the notice, before and while a job runs."""

from typing import Any

import pytest

from ganger.engine.policy_doc.policy_service import Proposal
from ganger.engine.service import LogQuery
from ganger.model.decision import FIRST_SAVE_MS
from tests.service.world import Embedded, python
from tests.waiting import wait_until

pytestmark = pytest.mark.long

SLOW = """
import time
from ganger.train import checkpoint, report

for step in (1, 2):
    report(step=step)
    with checkpoint(step) as directory:
        (directory / "model.pt").write_text("weights")
        time.sleep(SECONDS)
END
"""
WAITS = "time.sleep(300)"
POOLS = "pools: [{name: cheap, kind: spot, nodes: {class: spot}, notice: 100ms}]"


def slow(seconds: float, end: str = "") -> list[str]:
    return python(SLOW.replace("SECONDS", str(seconds)).replace("END", end))


def submit(world: Embedded, seconds: float, end: str = "", **checkpoint: Any) -> str:
    section = {"dir": "ckpt", "grace": "100ms", **checkpoint}
    return world.submit(slow(seconds, end), name="train", checkpoint=section)


def test_a_save_longer_than_its_notice_is_flagged_live_and_at_the_next_submission(world: Embedded) -> None:
    first = submit(world, 1.2, WAITS)
    wait_until(lambda: world.service.job(first).checkpoint_step == 2, "both saves are known")
    saves = world.service.job(first).saves
    assert saves is not None
    assert "longer than the notice before a stop, 100ms (checkpoint.grace): it would not be complete" in saves.warning
    assert saves.warning.startswith("a save took 1.")
    events = world.service.events(after=0, gang=first, limit=100, kinds=("checkpointed",))
    assert all(event.sentence.partition(" in ")[2].startswith("1.") for event in events)
    world.service.stop(first)
    world.ended(first)
    world.service.apply_policy(Proposal(text=POOLS))
    pool = world.service.dry_run(world.submission(slow(1.2), name="train", checkpoint={"grace": "60s"}))
    assert pool.saves is not None
    assert f" in {first}, longer than the notice before a stop, 100ms (pool cheap)" in pool.saves.warning
    unmeasured = world.service.dry_run(world.submission(slow(1.2), name="other", checkpoint={"grace": "10m"}))
    assert unmeasured.saves is not None
    assert unmeasured.saves.warning.startswith("checkpoint.grace is 10m 00s, but nodes of pool cheap go 100ms after")
    world.service.apply_policy(Proposal(text="pools: []"))
    plan = world.service.dry_run(world.submission(slow(1.2), name="train", checkpoint={"grace": "1s"}))
    assert plan.saves is not None
    assert f" in {first}, longer than the notice before a stop, 1.0s (checkpoint.grace)" in plan.saves.warning
    enough = world.service.dry_run(world.submission(slow(1.2), name="train", checkpoint={"grace": "60s"}))
    assert enough.saves is not None
    assert enough.saves.warning == ""
    other = world.service.dry_run(world.submission(slow(1.2), name="other", checkpoint={"grace": "1s"}))
    assert other.saves is None


def test_the_best_interval_is_shown_beside_the_one_in_use(world: Embedded) -> None:
    name = submit(world, 0.3, WAITS, every="5m")
    wait_until(lambda: world.service.job(name).checkpoint_step == 2, "both saves are known")
    saves = world.service.job(name).saves
    assert saves is not None
    save_ms, failure_ms = saves.estimate.save_ms, saves.estimate.failure_ms
    assert save_ms is not None
    assert save_ms >= 300
    assert saves.best_every_ms == int((2 * save_ms * failure_ms) ** 0.5)
    assert (saves.every_ms, saves.best_cost < (saves.cost or 0)) == (300_000, True)
    world.service.stop(name)


def test_auto_begins_with_an_early_save_and_then_follows_what_was_measured(world: Embedded) -> None:
    name = submit(
        world, 0.3, 'import os; print(os.environ["GANGER_CHECKPOINT_EVERY_S"])\nos.kill(os.getpid(), 9)', every="auto"
    )
    job = world.ended(name)
    assert len(job.attempts) > 1
    every_s = [
        float(line.text)
        for generation in (1, 2)
        for line in world.service.lines(LogQuery(job=name, generation=generation))
        if line.stream == "o"
    ]
    assert every_s[0] == FIRST_SAVE_MS / 1000
    assert every_s[1] != every_s[0]
