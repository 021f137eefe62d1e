"""Jobs that come after others, on a real server: who starts when, who never does, and what is said of them."""

import pytest

from ganger.engine.service import Submission
from ganger.errors import RequestError
from tests.service.world import Embedded, python

FAILS = python("raise SystemExit(3)")


def after(world: Embedded, job: str, when: str = "succeeded") -> str:
    return world.submit(["true"], name="later", after=[{"job": job, "when": when}])


def test_a_job_starts_when_the_one_before_it_has_ended(world: Embedded) -> None:
    first = world.submit(name="first")
    later = after(world, "first", "failed")
    job = world.service.job(later)
    assert (job.row.state, job.reason.code if job.reason else "") == ("pending", "dependency")
    assert job.row.sentence == f"comes after {first}, which has not failed yet"
    assert world.service.explain(later).reason.remedy.endswith("says what that waits for")
    assert [each.job for each in job.spec.after] == [first]
    world.until(first, "running")
    world.service.stop(first)
    assert world.ended(later).row.state == "succeeded"
    assert world.service.job(later).attempts[0].started_ms >= world.service.job(first).row.ended_ms


def test_what_cannot_come_true_any_more_ends_all_that_follows(world: Embedded) -> None:
    first = world.submit(FAILS, name="first", after=[{"job": world.submit(name="gate"), "when": "ended"}])
    second = after(world, first)
    third = after(world, second)
    world.service.stop("gate")
    assert world.ended(third).row.state == "stopped"
    assert world.service.job(second).row.sentence == f"never started: it was to come after {first} has succeeded"
    assert world.service.job(first).row.state == "failed"


def test_what_has_ended_already_is_looked_at_when_a_job_is_submitted(world: Embedded) -> None:
    failed = world.submit(FAILS, name="failed")
    world.ended(failed)
    assert world.ended(after(world, failed, "failed")).row.state == "succeeded"
    with pytest.raises(RequestError, match=f"{failed} has failed, so it will never have succeeded") as refused:
        after(world, "failed")
    assert refused.value.code == "cannot_come_true"


def test_a_chain_written_in_one_file_runs_in_its_order(world: Embedded) -> None:
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


def test_one_that_waits_for_others_can_be_stopped_suspended_and_outlive_a_change(world: Embedded) -> None:
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


def test_a_retry_forgets_what_was_deleted_meanwhile(world: Embedded) -> None:
    first = world.submit(["true"], name="first")
    second = after(world, first)
    world.ended(second)
    world.service.delete(first)
    again = world.service.retry(second)[0]
    assert again.spec.after == ()
    assert world.ended(again.row.id).row.state == "succeeded"
