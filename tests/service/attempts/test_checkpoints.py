"""Checkpoints of a real job: broken ones are skipped and reported, old ones removed, sharded saves are atomic."""

import json

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


def test_broken_checkpoints_are_skipped_and_reported(world: Embedded) -> None:
    name = world.submit(python(CORRUPTS), name="train", checkpoint={"dir": "ckpt"}, retry={"backoff": 0})
    job = world.ended(name)
    assert job.row.state == "succeeded"
    first, second = job.attempts
    assert (first.resumed_step, first.skipped, second.resumed_step) == (None, (), 2)
    sentences = (
        "the checkpoint of step 4 is skipped: model.pt has 3 bytes instead of 10",
        "the checkpoint of step 3 is skipped: ganger-checkpoint.json cannot be read (No such file or directory)",
    )
    assert second.skipped == sentences
    (event,) = world.service.events(after=0, gang=name, limit=100, kinds=("resumed",))
    assert event.sentence == f"{name} (attempt 2) resumes from the checkpoint of step 2; {sentences[0]}; {sentences[1]}"
    assert job.checkpoint_step == 4
    lines = world.service.lines(LogQuery(job=name, generation=2))
    assert [line.text for line in lines if line.stream == "o"] == ["from 2 0002"]
    (loss,) = job.ledger.losses
    assert (loss.cause, loss.failures, loss.restarts) == ("rank_failed", 1, 1)


def test_a_job_begins_from_another_jobs_checkpoint_only_if_it_says_so(world: Embedded) -> None:
    saves = CORRUPTS.partition("if os.environ")[0]
    one = world.submit(python(saves), name="one", checkpoint={"dir": "ckpt", "keep": 2})
    world.ended(one)
    saved = world.work / "ckpt" / one
    assert sorted(path.name for path in saved.glob("step-*")) == ["step-000000003", "step-000000004"]
    before = {path.name for path in saved.iterdir()}
    two = world.ended(world.submit(python(saves), name="two", checkpoint={"dir": "ckpt"}))
    assert (two.attempts[0].resumed_step, two.checkpoint_step, two.resumes) == (None, 4, "")
    section = {"dir": "ckpt", "resume_from": "one"}
    three = world.ended(world.submit(python(saves), name="three", checkpoint=section))
    (attempt,) = three.attempts
    assert three.resumes == f"step 4 of {one}"
    assert (attempt.resumed_step, attempt.resumed_job) == (4, one)
    (event,) = world.service.events(after=0, gang=three.row.id, limit=100, kinds=("resumed",))
    assert event.sentence == f"{three.row.id} (attempt 1) begins from the checkpoint of step 4 of {one}"
    assert {path.name for path in saved.iterdir()} == before, "nothing is written there"
    lines = [line.text for line in world.service.lines(LogQuery(job=three.row.id)) if line.stream == "o"]
    assert lines == ["from 4 0004"]


POISONED = """
import os, pickle, signal
from ganger.train import checkpoint, latest, report

start = latest()
state = pickle.loads((start.directory / "state.pickle").read_bytes()) if start else {"sum": 0}
print("from", start.step if start else None, flush=True)
for step in range(start.step + 1 if start else 1, 7):
    report(step=step)
    state["sum"] += step
    with checkpoint(step) as directory:
        whole = pickle.dumps(state)
        is_poisoned = step in POISON and os.environ["GANGER_ATTEMPT"] == "1"
        (directory / "state.pickle").write_bytes(b"poison" if is_poisoned else whole)
    if step == 4 and os.environ["GANGER_ATTEMPT"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
print("sum", state["sum"], flush=True)
"""


def test_a_checkpoint_that_a_job_fails_on_is_skipped_and_reported(world: Embedded) -> None:
    script = POISONED.replace("POISON", "(4,)")
    name = world.submit(python(script), name="train", checkpoint={"dir": "ckpt"}, retry={"backoff": 0})
    job = world.ended(name)
    assert job.row.state == "succeeded"
    assert [(attempt.outcome, attempt.resumed_step) for attempt in job.attempts] == [
        ("failed", None),
        ("failed", 4),
        ("finished", 3),
    ]
    passed = "the checkpoint of step 4 is skipped: an attempt that resumed from it failed"
    assert job.attempts[2].skipped == (passed,)
    sentences = [
        event.sentence for event in world.service.events(after=0, gang=name, limit=100, kinds=("resumed", "decided"))
    ]
    node = job.attempts[2].nodes[0]
    assert f"{name} starts (attempt 3) on {node}; it skips checkpoints that attempts failed on: step 4" in sentences
    assert f"{name} (attempt 3) resumes from the checkpoint of step 3; {passed}" in sentences
    lines = world.service.lines(LogQuery(job=name, generation=3))
    assert [line.text for line in lines if line.stream == "o"] == ["from 3", "sum 21"]
    saved = json.loads((world.work / "ckpt" / name / "step-000000004" / "ganger-checkpoint.json").read_text())
    assert saved["attempt"] == 3, "the step is saved anew"


def test_a_job_that_fails_equally_on_two_checkpoints_ends_and_names_them(world: Embedded) -> None:
    script = POISONED.replace("POISON", "(1, 2, 3, 4)")
    name = world.submit(python(script), name="train", checkpoint={"dir": "ckpt"}, retry={"backoff": 0})
    job = world.ended(name)
    assert job.row.state == "failed"
    assert [attempt.resumed_step for attempt in job.attempts[:3]] == [None, 4, 3]
    assert "UnpicklingError" in job.row.sentence
    assert "; failed on each of the checkpoints of steps " in job.row.sentence
    assert len(job.attempts) < 10


SHARDED = """
import json, os, signal, time
from ganger.train import checkpoint, latest, report, world

def latest_published():
    return max((int(path.name[5:]) for path in world().checkpoint_dir.glob("step-*")), default=0)

me, start = world(), latest()
mine = f"rank-{me.rank}.json"
value = json.loads((start.directory / mine).read_text()) if start else me.rank
for step in range(start.step + 1 if start else 1, 6):
    while step > 1 and latest_published() < step - 1:
        time.sleep(0.01)  # as a collective does
    value = (value * 31 + step) % 1_000_003
    report(step=step, loss=value)
    with checkpoint(step, sharded=True) as directory:
        (directory / mine).write_text(json.dumps(value))
        if step == 3 and me.rank == 2 and me.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_rank_killed_in_a_sharded_save_leaves_no_part_of_it(world: Embedded) -> None:
    name = world.submit(
        python(SHARDED), name="train", checkpoint={"dir": "ckpt"}, retry={"backoff": 0}, nproc_per_node=4
    )
    job = world.ended(name)
    assert job.row.state == "succeeded"
    assert [attempt.resumed_step for attempt in job.attempts] == [None, 2]
    values = list(range(4))
    for step in range(1, 6):
        values = [(value * 31 + step) % 1_000_003 for value in values]
    last = world.work / "ckpt" / name / "step-000000005"
    assert [json.loads((last / f"rank-{rank}.json").read_text()) for rank in range(4)] == values
    names = sorted(path.name for path in (world.work / "ckpt" / name).iterdir() if not path.name.startswith(".attempt"))
    assert names == [f"step-{step:09d}" for step in range(1, 6)]
