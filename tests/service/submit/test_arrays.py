"""Array jobs on a real server: elements run as jobs of their own, and an array is one job in listings."""

import json

import pytest

from ganger.core.state.time_accounting import total
from ganger.engine.service import JobFilter, LogQuery
from ganger.errors import RequestError
from ganger.model.job import Array
from tests.service.world import Embedded, python

WRITES = python(
    "import os, pathlib, sys;"
    "array, index, job = (os.environ['GANGER_' + name] for name in ('ARRAY_ID', 'ARRAY_INDEX', 'JOB_ID'));"
    "pathlib.Path('out-' + index).write_text(array + ' ' + job);"
    "sys.exit(5 if index == '4' else 0)"
)


def states(world: Embedded, array: str, *filters: str) -> dict[int, str]:
    page = world.service.elements(array, states=filters, limit=100, cursor=None)
    return {row["index"]: row["state"] for row in page.items}


def test_every_element_runs_once_and_the_worst_one_decides_the_state(world: Embedded) -> None:
    array = world.submit(WRITES, name="sweep", array="0-2,4,10-30:10%2", retry={"max": 0})
    row = world.ended(array).row
    assert (row.state, row.exit_code, row.elements) == ("failed", 5, {"succeeded": 6, "failed": 1})
    assert row.sentence == "6 succeeded, 1 failed"
    assert {path.name: path.read_text() for path in world.work.glob("out-*")} == {
        f"out-{index}": f"{array} {array}[{index}]" for index in (0, 1, 2, 4, 10, 20, 30)
    }
    assert states(world, array) == dict.fromkeys((0, 1, 2, 10, 20, 30), "succeeded") | {4: "failed"}
    assert states(world, array, "failed") == {4: "failed"}
    assert world.service.job(f"{array}[4]").row.exit_code == 5
    assert world.service.job("sweep[4]").attempts[0].outcome == "failed"
    listed = world.service.jobs(JobFilter(), everything=True, limit=10, cursor=None).items
    assert [row["id"] for row in listed] == [array]
    again = world.service.retry(array)[0]
    assert again.spec.array == Array(indices=(4,), limit=2), "the others have succeeded"


def test_the_limit_holds_and_elements_without_a_gang_have_rows(world: Embedded) -> None:
    array = world.submit(array="0-9%2")
    world.until(f"{array}[0]", "running")
    job = world.until(f"{array}[1]", "running")
    assert (job.row.array, job.row.index) == (array, 1)
    waits = world.service.job(f"{array}[7]")
    assert waits.row.state == "pending"
    assert waits.row.sentence == "limited to 2 elements of the array at a time, which have nodes now"
    assert world.service.explain(f"{array}[7]").reason.code == "array_limit"
    assert states(world, array, "pending") == dict.fromkeys(range(2, 10), "pending")
    assert world.service.job(array).row.elements == {"pending": 8, "running": 2}
    assert next(row.pending for row in world.service.queues() if row.name == "default") == 8
    world.service.stop(f"{array}[0]")
    world.until(f"{array}[2]", "running")
    world.service.stop(array)
    row = world.ended(array).row
    assert (row.state, row.elements) == ("stopped", {"stopped": 10})
    assert states(world, array) == dict.fromkeys(range(10), "stopped")
    ledgers = [world.service.job(f"{array}[{index}]").ledger for index in range(10)]
    assert all(ledger.queued_ms for ledger in ledgers[3:]), "those that never started were pending"
    assert world.service.job(array).ledger == total(ledgers)
    assert world.service.job(f"{array}[7]").row.sentence == "stopped before it started"


def test_one_element_is_stopped_suspended_and_run_again(world: Embedded) -> None:
    array = world.submit(["true"], name="a", array="0-3%1", after=[{"job": world.submit(name="gate"), "when": "ended"}])
    world.service.stop(f"{array}[1]")
    world.service.suspend(f"{array}[2]", suspended=True)
    assert world.ended(f"{array}[1]").row.state == "stopped"
    world.service.stop("gate")
    world.until(f"{array}[3]", "succeeded")
    assert world.service.job(array).row.state == "suspended"
    world.service.suspend(array, suspended=False)
    assert world.ended(array).row.elements == {"succeeded": 3, "stopped": 1}
    retried = world.service.retry(f"{array}[1]")[0].row
    assert world.ended(retried.id).row.elements == {"succeeded": 1}
    assert states(world, retried.id) == {1: "succeeded"}


def test_jobs_depend_on_an_array_and_on_one_element(world: Embedded) -> None:
    array = world.submit(WRITES, name="a", array="3,4,5", retry={"max": 0})
    element = world.submit(["true"], after=[{"job": f"{array}[3]"}])
    whole = world.submit(["true"], after=[{"job": "a", "when": "failed"}])
    assert world.ended(element).row.state == "succeeded"
    assert world.ended(whole).row.state == "succeeded"
    assert world.service.job(whole).attempts[0].started_ms >= world.service.job(array).row.ended_ms


def test_requests_for_elements_and_for_arrays_are_distinguished(world: Embedded) -> None:
    array = world.submit(["true"], array="0-1")
    world.ended(array)
    plain = world.submit(["true"])
    for request, code in (
        (lambda: world.service.lines(LogQuery(job=array)), "is_array"),
        (lambda: world.service.delete(f"{array}[0]"), "is_element"),
        (lambda: world.service.describe(f"{array}[0]", {"a": "b"}, None), "is_element"),
        (lambda: world.service.job(f"{array}[2]"), "no_such_job"),
        (lambda: world.service.elements(plain, states=(), limit=1, cursor=None), "not_an_array"),
    ):
        with pytest.raises(RequestError) as refused:
            request()
        assert refused.value.code == code
    assert [line.text for line in world.service.lines(LogQuery(job=f"{array}[0]"))] == []
    world.service.delete(array)
    with pytest.raises(RequestError):
        world.service.job(f"{array}[0]")


def test_a_job_of_replica_groups_ends_as_the_one_that_succeeds_and_no_request_is_about_one_of_them(
    world: Embedded,
) -> None:
    run = "test $REPLICA_GROUP_ID = 0 || exit 7; while [ ! -e go ]; do sleep 0.02; done"
    job = world.submit(run, replica_groups=2, retry={"max": 0})
    world.ended(f"{job}[1]")
    (world.work / "go").touch()
    row = world.ended(job).row
    assert (row.state, row.exit_code, row.elements) == ("succeeded", 0, {"failed": 1, "succeeded": 1})
    group = f"{job}[0]"
    live = world.submit(replica_groups=2)
    for request, code in (
        (lambda: world.service.retry(group), "is_element"),
        (lambda: world.service.clone(group, {}, {}), "is_element"),
        (lambda: world.submit(["true"], after=[{"job": group}]), "is_element"),
        (lambda: world.service.suspend(f"{live}[1]", suspended=True), "is_element"),
        (lambda: world.service.set_priority(f"{live}[1]", 7), "is_element"),
        (lambda: world.service.scale(f"{live}[1]", "3"), "not_elastic"),
    ):
        with pytest.raises(RequestError) as refused:
            request()
        assert refused.value.code == code
    again = world.service.retry(job)[0]
    assert (again.spec.replica_groups, again.spec.array) == (2, Array(indices=(0, 1))), "all of them"
    world.service.stop(live)
    for name in (live, again.row.id):  # the latter ends by itself: `go` is there
        world.ended(name)


def test_elements_have_checkpoints_and_files_of_their_own_and_share_secrets(world: Embedded) -> None:
    run = python("import os, sys; print(os.environ['GANGER_CHECKPOINT_DIR'], len(os.environ['SECRET_OF_MINE']))")
    world.service.secrets.set("SECRET_OF_MINE", "hushhush")
    array = world.submit(run, array="0-1", checkpoint={"dir": "ckpt"}, secrets=["SECRET_OF_MINE"])
    assert world.ended(array).row.state == "succeeded"
    for index in (0, 1):
        lines = [line.text for line in world.service.lines(LogQuery(job=f"{array}[{index}]"))]
        assert lines == [f"{world.work}/ckpt/{array}/{index} 8"]
    assert json.loads((world.home.jobs / array / "secrets.json").read_text())
    assert sorted(path.name for path in (world.home.jobs / array / "elements").iterdir()) == ["0", "1"]
