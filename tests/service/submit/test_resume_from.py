"""Jobs that go on from another one's checkpoints, because they say so; and those that could not."""

import json
from pathlib import Path
from typing import Any

import pytest

from ganger.engine.service import LogQuery, Submission
from ganger.errors import RequestError
from tests.service.world import Embedded, python
from tests.waiting import wait_until

SAVES = """
import os
from ganger.train import checkpoint, latest

start = latest()
print("from", start and (start.directory / "owner").read_text(), flush=True)
for step in range(start.step + 1 if start else 1, 1 + int(os.environ.get("STEPS", "2")) + (start.step if start else 0)):
    with checkpoint(step) as directory:
        (directory / "owner").write_text(f"{os.environ['GANGER_JOB_ID']} {step}")
"""
RUN = python(SAVES)


def written(world: Embedded, name: str) -> list[str]:
    assert world.ended(name).row.state in ("succeeded", "failed")
    return [line.text for line in world.service.lines(LogQuery(job=name)) if line.stream == "o"]


def refused(world: Embedded, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as error:
        world.submit(RUN, **fields)
    return error.value


def test_a_retry_goes_on_and_a_clone_begins_anew(world: Embedded) -> None:
    first = world.submit(RUN, name="train")
    assert written(world, first) == ["from None"]
    retried = world.service.retry(first)[0].row.id
    assert written(world, retried) == [f"from {first} 2"]
    again = world.service.retry(retried)[0]
    assert again.resumes == f"step 4 of {retried}"
    assert written(world, again.row.id) == [f"from {retried} 4"]
    assert again.spec.checkpoint is not None
    assert again.spec.checkpoint.grace_ms == 0, "it had no grace period, and has none now"
    cloned = world.service.clone(first, {}, {})[0].row.id
    assert written(world, cloned) == ["from None"]
    cloned = world.service.clone(again.row.id, {}, {})[0].row.id
    assert written(world, cloned) == ["from None"], "as the first of these began"
    asked = world.service.clone(first, {"checkpoint": {"resume_from": f"{retried}:3"}}, {})[0].row.id
    assert written(world, asked) == [f"from {retried} 3"]


def test_a_retry_of_a_job_that_saved_nothing_begins_where_that_one_began(world: Embedded) -> None:
    base = world.submit(RUN, name="base")
    world.ended(base)
    tuned = world.submit(RUN, name="tuned", env={"STEPS": "0"}, checkpoint={"resume_from": "base"})
    assert written(world, tuned) == [f"from {base} 2"]
    retried = world.service.retry(tuned)[0].row.id
    assert written(world, retried) == [f"from {base} 2"]
    assert written(world, world.service.clone(retried, {}, {})[0].row.id) == [f"from {base} 2"]
    empty = world.submit(RUN, name="empty", env={"STEPS": "0"})
    world.ended(empty)
    assert written(world, world.service.retry(empty)[0].row.id) == ["from None"]


def test_elements_of_an_array_go_on_from_those_of_their_index(world: Embedded) -> None:
    first = world.submit(RUN, name="sweep", array="0-1")
    world.ended(first)
    again = world.service.retry(first)[0].row.id
    world.ended(again)
    for index in (0, 1):
        assert written(world, f"{again}[{index}]") == [f"from {first}[{index}] 2"]
    one = world.submit(RUN, name="one", checkpoint={"resume_from": f"{again}[1]"})
    assert written(world, one) == [f"from {again}[1] 4"]
    all_from_one = world.submit(RUN, name="many", array="3", checkpoint={"resume_from": one})
    world.ended(all_from_one)
    assert written(world, f"{all_from_one}[3]") == [f"from {one} 6"]
    assert refused(world, checkpoint={"resume_from": first}).code == "is_array"


def test_a_job_goes_on_from_one_that_it_comes_after(world: Embedded) -> None:
    text = f"""
name: second
run: {json.dumps(RUN)}
after: [{{job: first}}]
checkpoint: {{resume_from: first}}
---
name: first
run: {json.dumps(RUN)}
"""
    environment = {"PATH": "/usr/bin:/bin"}
    first, second = world.service.submit_all(
        Submission(directory=str(world.work), environment=environment, spec_text=text)
    )
    assert second.resumes == f"the newest checkpoint of {first.row.id}"
    assert written(world, second.row.id) == [f"from {first.row.id} 2"]


def test_the_step_of_a_job_that_still_runs_is_fixed_at_submission(world: Embedded) -> None:
    """Nodes look at different moments, and would begin from different steps."""
    waits = "import time\nfrom pathlib import Path\nwhile not Path('go').exists(): time.sleep(0.01)\n"
    runs = world.submit(python(f"{SAVES}\n{waits}\n{SAVES}"), name="runs")
    wait_until(lambda: world.service.job(runs).checkpoint_step == 2, "it has saved")
    world.service.cordon("n1", cordoned=True)
    second = world.submit(RUN, checkpoint={"resume_from": "runs"}, placement={"nodes": ["n1"]})
    (world.work / "go").touch()
    assert world.ended(runs).checkpoint_step == 4
    world.service.cordon("n1", cordoned=False)
    assert world.service.job(second).resumes == f"step 2 of {runs}"
    assert written(world, second) == [f"from {runs} 2"]
    silent = world.submit(name="silent")
    early = refused(world, checkpoint={"resume_from": "silent"})
    assert early.detail == f"checkpoint.resume_from: {silent} has not ended, and has saved no checkpoint yet"
    array = world.submit(name="sweep", array="0-1")
    assert "is an array that has not ended" in refused(world, array="0-1", checkpoint={"resume_from": array}).detail
    over = world.submit(name="over", checkpoint={"pattern": "model.pt", "grace": 0})
    assert "writes over its only checkpoint" in refused(world, checkpoint={"resume_from": over}).detail


def test_what_is_not_there_is_refused(world: Embedded) -> None:
    first = world.submit(RUN, name="train")
    world.ended(first)
    empty = world.submit(["true"], name="empty")
    world.ended(empty)
    missing = refused(world, checkpoint={"resume_from": "trian"})
    assert (missing.code, missing.detail) == (
        "no_such_dependency",
        "checkpoint.resume_from: there is no job trian, by id or name",
    )
    assert first in missing.next or "train" in missing.next
    nothing = refused(world, checkpoint={"resume_from": "empty"})
    assert (nothing.code, nothing.detail) == (
        "no_checkpoint",
        f"checkpoint.resume_from: {empty} has ended without a checkpoint",
    )
    late = refused(world, checkpoint={"resume_from": "train:7"})
    assert late.detail == f"checkpoint.resume_from: {first} has none of step 7, its newest is of 2"
    assert late.next == f"--resume-from {first}:2"


def test_a_checkpoint_that_is_gone_when_the_job_starts_fails_it(world: Embedded) -> None:
    first = world.submit(RUN, name="train")
    world.ended(first)
    directory = world.work / "checkpoints" / first
    directory.rename(directory.with_name("moved"))
    job = world.ended(world.submit(RUN, retry={"max": 0}, checkpoint={"resume_from": first}))
    assert job.row.state == "failed"
    assert f"there is no complete checkpoint to begin from: the newest checkpoint of {first} in" in job.row.sentence


def test_a_job_in_place_has_the_directory_for_itself(world: Embedded) -> None:
    in_place: dict[str, Any] = {"dir": "out", "in_place": True}
    holds = world.submit(["sleep", "300"], name="holds", checkpoint=in_place | {"grace": 0})
    taken = refused(world, checkpoint=in_place)
    directory = world.work / "out"
    assert (taken.code, taken.detail) == (
        "directory_in_use",
        f"checkpoint.in_place: {holds} saves its checkpoints in {directory}, and has not ended",
    )
    beside = world.submit(RUN, checkpoint={"dir": "out"})
    assert written(world, beside) == ["from None"]
    after = world.submit(RUN, name="after", checkpoint=in_place, after=[{"job": holds, "when": "ended"}])
    world.service.stop(holds)
    assert written(world, after) == ["from None"]
    assert (directory / "step-000000002").is_dir()
    third = world.ended(world.submit(RUN, checkpoint=in_place, retry={"max": 0}))
    assert "out has step-000000002, which another job has saved" in third.row.sentence
    assert written(world, world.service.retry(after)[0].row.id) == [f"from {after} 2"]
    older = refused(world, checkpoint=in_place | {"resume_from": f"{after}:1"})
    assert (
        older.detail == f"checkpoint.resume_from: in_place, newer checkpoints than that in {directory} would come first"
    )


def test_the_plan_says_from_which_step_and_whose(world: Embedded) -> None:
    first = world.submit(RUN, name="train")
    world.ended(first)
    plan = world.service.dry_run(world.submission(RUN, checkpoint={"resume_from": "train"}))
    assert plan.resumes == f"step 2 of {first}"
    assert world.service.dry_run(world.submission(RUN)).resumes == ""
    assert not list(Path(world.work / "checkpoints").glob("job-*"))
