"""Checkpoints of a real job: one that is broken is passed over, and it is said; old ones go."""

from ganger.engine.service import LogQuery
from tests.service.world import Embedded, python

CORRUPTS = """
import os, signal
from pathlib import Path
from ganger.train import checkpoint, latest, report

start = latest()
print("from", start.step if start else None, os.environ.get("GANGER_RESUME_FROM", "")[-4:], flush=True)
for step in range(start.step + 1 if start else 1, 5):
    report(step=step)
    with checkpoint(step) as directory:
        (directory / "model.pt").write_text("0123456789")
if os.environ["GANGER_ATTEMPT"] == "1":
    root = Path(os.environ["GANGER_CHECKPOINT_DIR"])
    (root / "step-000000004" / "model.pt").write_text("012")
    (root / "step-000000003" / "ganger-checkpoint.json").unlink()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_broken_checkpoints_are_passed_over_and_that_is_said(world: Embedded) -> None:
    name = world.submit(python(CORRUPTS), name="train", checkpoint={"dir": "ckpt"}, retry={"backoff": 0})
    job = world.ended(name)
    assert job.row.state == "succeeded"
    first, second = job.attempts
    assert (first.resumed_step, first.passed, second.resumed_step) == (None, (), 2)
    said = (
        "the checkpoint of step 4 is passed over: model.pt has 3 bytes instead of 10",
        "the checkpoint of step 3 is passed over: ganger-checkpoint.json cannot be read (No such file or directory)",
    )
    assert second.passed == said
    (event,) = world.service.events(after=0, gang=name, limit=100, kinds=("resumed",))
    assert event.sentence == f"{name} (attempt 2) goes on from the checkpoint of step 2; {said[0]}; {said[1]}"
    assert job.checkpoint_step == 4
    lines = world.service.lines(LogQuery(job=name, generation=2))
    assert [line.text for line in lines if line.stream == "o"] == ["from 2 0002"]
    (loss,) = job.ledger.losses
    assert (loss.cause, loss.failures, loss.restarts) == ("rank_failed", 1, 1)


def test_a_job_that_begins_from_what_another_left_says_so(world: Embedded) -> None:
    saves = CORRUPTS.partition("if os.environ")[0]
    world.ended(world.submit(python(saves), name="one", checkpoint={"dir": "ckpt", "keep": 2}))
    assert sorted(path.name for path in (world.work / "ckpt").glob("step-*")) == ["step-000000003", "step-000000004"]
    again = world.ended(world.submit(python(saves), name="two", checkpoint={"dir": "ckpt"}))
    assert again.attempts[0].resumed_step == again.checkpoint_step == 4
    anew = world.ended(world.submit(python(saves), name="three", checkpoint={"dir": "ckpt", "resume": "never"}))
    assert (anew.attempts[0].resumed_step, anew.checkpoint_step) == (None, 4)
