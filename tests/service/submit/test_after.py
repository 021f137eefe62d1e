"""Dependencies on a real server: when dependent jobs start, when they never do, and their sentences."""

import pytest

from ganger.engine.service import Submission
from ganger.errors import RequestError
from tests.service.world import Embedded, python

FAILS = python("raise SystemExit(3)")


def after(world: Embedded, job: str, when: str = "succeeded") -> str:
    return world.submit(["true"], name="later", after=[{"job": job, "when": when}])


def test_a_job_starts_when_its_dependency_is_satisfied(world: Embedded) -> None:
    first = world.submit(name="first")
    later = after(world, "first", "failed")
    job = world.service.job(later)
    assert (job.row.state, job.reason.code if job.reason else "") == ("pending", "dependency")
    assert job.row.sentence == f"comes after {first}, which has not failed yet"
    assert world.service.explain(later).reason.remedy.endswith("shows what that job is waiting for")
    assert [dependency.job for dependency in job.spec.after] == [first]
    world.until(first, "running")
    world.service.stop(first)
    assert world.ended(later).row.state == "succeeded"
    assert world.service.job(later).attempts[0].started_ms >= world.service.job(first).row.ended_ms


def test_an_impossible_dependency_ends_all_dependent_jobs(world: Embedded) -> None:
    first = world.submit(FAILS, name="first", after=[{"job": world.submit(name="gate"), "when": "ended"}])
    second = after(world, first)
    third = after(world, second)
    world.service.stop("gate")
    assert world.ended(third).row.state == "stopped"
    assert world.service.job(second).row.sentence == f"never started: it was to start after {first} has succeeded"
    assert world.service.job(first).row.state == "failed"


def test_ended_dependencies_are_checked_at_submission(world: Embedded) -> None:
    failed = world.submit(FAILS, name="failed")
    world.ended(failed)
    assert world.ended(after(world, failed, "failed")).row.state == "succeeded"
    with pytest.raises(RequestError, match=f"{failed} has failed, so it will never have succeeded") as refused:
        after(world, "failed")
    assert refused.value.code == "dependency_failed"


def test_a_chain_in_one_file_runs_in_order(world: Embedded) -> None:
    text = """\
name: third
run: date +%s%N > third
after: [{job: second}]
---
name: first
run: date +%s%N > first
---
name: second
run: date +%s%N > second
after: [{job: first}]
"""
    environment = {"PATH": "/usr/bin:/bin"}
    made = world.service.submit_all(Submission(directory=str(world.work), environment=environment, spec_text=text))
    assert [job.row.name for job in made] == ["first", "second", "third"]
    assert world.ended(made[-1].row.id).row.state == "succeeded"
    times = [int((world.work / name).read_text()) for name in ("first", "second", "third")]
    assert times == sorted(times)


def test_a_dependent_job_can_be_stopped_suspended_and_changed(world: Embedded) -> None:
    first = world.submit(name="first")
    later = after(world, first, "ended")
    world.service.suspend(later, suspended=True)
    world.service.stop(first)
    world.ended(first)
    assert world.service.job(later).row.state == "suspended"
    world.service.suspend(later, suspended=False)
    assert world.ended(later).row.state == "succeeded"
    second = world.submit(name="second")
    stopped = after(world, second)
    world.service.set_priority(stopped, 100)
    world.service.stop(stopped)
    assert world.ended(stopped).row.sentence == "stopped by its owner"


def test_a_retry_drops_deleted_dependencies(world: Embedded) -> None:
    first = world.submit(["true"], name="first")
    second = after(world, first)
    world.ended(second)
    world.service.delete(first)
    retried = world.service.retry(second)[0]
    assert retried.spec.after == ()
    assert world.ended(retried.row.id).row.state == "succeeded"
