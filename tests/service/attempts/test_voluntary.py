"""Decided stops: every cause there is, with real processes that save their work when they get the notice.

Each notice has its cause and a deadline, and comes with `should_checkpoint()` and the signal of the spec; no step is
lost, and no attempt is spent.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from ganger.backends.local import machine_processes
from ganger.engine.service import Proposal
from ganger.model.cluster import Node
from ganger.model.units import GIB_BYTES
from ganger.model.views.service_views import JobView
from ganger.registry import order
from tests.service.world import Embedded, python
from tests.waiting import wait_until

pytestmark = pytest.mark.serial

SCRIPT = """
import json, os, signal, sys, time
from ganger import train

told = {"signal": False}
signal.signal(signal.SIGUSR1, lambda *_: told.update(signal=True))
here, newest = train.world(), train.latest()
first = newest.step + 1 if newest else 0
out = open(sys.argv[1], "a", buffering=1)
step = first - 1
while True:
    if train.should_checkpoint():
        cause, deadline_s = train.notice()
        while not told["signal"]:
            time.sleep(0.01)
        with train.checkpoint(step) as directory:
            (directory / "state").write_text(str(step))
        line = {"first": first, "last": step, "cause": cause, "left_s": deadline_s - time.time()}
        print(json.dumps(line), file=out)
        sys.exit(0)
    step += 1
    train.report(step=step)
    time.sleep(0.02)
"""
GRACE_S = 25


def _submit(world: Embedded, name: str, gpu: str, *, movable: bool = False, **limits: str) -> str:
    (world.work / "train.py").write_text(SCRIPT)
    saves = {"dir": f"saved-{name}", "signal": "SIGUSR1", "grace": f"{GRACE_S}s"}
    command = [sys.executable, "train.py", name]
    fields = {"name": name, "resources": {"gpu": gpu, "cpu": 1}, "checkpoint": saves, "limits": limits}
    fields |= {"movable": movable}
    return world.submit(command, retry={"max": 0}, nproc_per_node=1, **fields)


def _reported(world: Embedded, name: str) -> list[dict[str, object]]:
    path = Path(world.work, name)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _steps(world: Embedded, job: str) -> bool:
    return (world.service.job(job).progress or {}).get("step") is not None


def _second_attempt(world: Embedded, job: str) -> JobView:
    """Return the job once its second attempt makes steps."""
    wait_until(lambda: world.service.job(job).row.generation == 2 and _steps(world, job), f"{job} steps again")
    return world.service.job(job)


def test_no_step_is_lost_and_no_attempt_is_spent(world: Embedded) -> None:
    limited = _submit(world, "limited", "h100:1", time="4s")
    stopped, suspended = (_submit(world, name, "h100:1") for name in ("asked", "suspended"))
    drained = _submit(world, "drained", "a100:1")
    preempted = _submit(world, "preempted", "h100:3")
    stepping = (stopped, suspended, drained, preempted)
    wait_until(lambda: all(_steps(world, job) for job in stepping), "all of them step")
    late = _submit(world, "late", "h100:4", queue_time="1s")
    (preempted_node,) = world.service.job(preempted).row.nodes

    world.service.stop(stopped)
    world.service.suspend(suspended, suspended=True)
    world.service.drain("n3")
    for job, cause in ((stopped, "user"), (suspended, "suspended"), (drained, "drained"), (limited, "time_limit")):
        wait_until(lambda job=job: _reported(world, job.rpartition("-")[0]), f"{cause} is reported")
    world.service.cordon("n3", cordoned=False)
    until_s = time.time() + GRACE_S - 5
    world.service.preempt_node(preempted_node, (GRACE_S - 5) * 1000)
    wait_until(lambda: _reported(world, "preempted"), "preempted is reported")
    wait_until(lambda: world.service.job(suspended).row.state == "suspended", "it is suspended")
    world.service.suspend(suspended, suspended=False)

    causes = ("user", "suspended", "drained", "time_limit", "node_preempted")
    names = ("asked", "suspended", "drained", "limited", "preempted")
    for name, cause in zip(names, causes, strict=True):
        (report,) = _reported(world, name)[:1]
        assert report["cause"] == cause
        assert 0 < report["left_s"] <= (GRACE_S if cause != "node_preempted" else until_s - time.time() + GRACE_S)
    for job in (suspended, drained, preempted):
        view = _second_attempt(world, job)
        first, second = view.attempts
        (report,) = _reported(world, job.rpartition("-")[0])
        assert second.resumed_step == report["last"], "no step is lost"
        assert first.outcome != "failed"
    for job, cause in ((stopped, "a stop was requested"), (limited, "it reached its time limit")):
        view = world.ended(job)
        assert (view.row.state, view.checkpoint_step) == (
            "stopped",
            _reported(world, job.rpartition("-")[0])[0]["last"],
        )
        assert view.attempts[-1].sentence == cause
    assert world.ended(late).row.state == "stopped"
    assert [row.kind for row in world.service.events(after=0, gang=None, limit=500) if row.kind == "failed"] == []


def test_a_launcher_that_another_program_ends_gives_its_gang_a_notice(world: Embedded) -> None:
    """Its SIGTERM was a failure: the job began again at its newest periodic save, and a retry was spent."""
    job = _submit(world, "ended", "h100:1")
    wait_until(lambda: _steps(world, job), "it steps")
    (node,) = world.service.job(job).row.nodes
    (process,) = (process for path, process in machine_processes.launchers() if job in path.parts)
    os.kill(process.pid, signal.SIGTERM)
    first, second = _second_attempt(world, job).attempts
    (report,) = _reported(world, "ended")[:1]
    assert (report["cause"], second.resumed_step) == ("evicted", report["last"]), "no step is lost"
    assert (first.outcome, first.sentence) == ("stopped", f"it is evicted from its node {node}")
    assert second.nodes != (node,)


def test_a_job_that_finishes_within_its_notice_has_succeeded(world: Embedded) -> None:
    """Neither rank looks for the notice: what they did at their end, such as an upload, is not done again."""
    command = python("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)")
    grace = {"dir": "saved", "grace": f"{GRACE_S}s"}
    job = world.submit(command, nodes=2, nproc_per_node=1, checkpoint=grace)
    world.until(job, "running")
    world.service.suspend(job, suspended=True)
    world.until(job, "suspending")
    (world.work / "go").touch()
    view = world.ended(job)
    assert (view.row.state, [attempt.outcome for attempt in view.attempts]) == ("succeeded", ["finished"])


def test_a_job_that_is_stopped_now_has_no_grace_left(world: Embedded) -> None:
    job = world.submit(nproc_per_node=1, checkpoint={"dir": "c", "grace": "1d"})
    world.until(job, "running")
    world.service.stop(job)
    assert (world.until(job, "stopping").notice_until_ms or 0) > time.time() * 1000
    world.service.stop(job, now=True)
    assert world.ended(job).row.state == "stopped"
    asked = [row for row in world.service.events(after=0, gang=job, limit=500) if row.kind == "stop_requested"]
    assert [(row.data["now"], row.sentence.endswith(" now")) for row in asked] == [(False, False), (True, True)]


RULES = {
    "guarantee": (
        "preemption: {reclaim: guarantee}\nqueues: {owner: {nominal: {gpus: 2}}}",
        {"queue": "owner"},
        "whose queue takes back what it is guaranteed",
    ),
    "priority": ("preemption: {priority: queue}", {"priority": "high"}, "which has a higher priority"),
}


@pytest.mark.parametrize(("policy", "fields", "rule"), RULES.values(), ids=RULES)
def test_a_preempted_job_resumes_where_it_was(
    policy: str, fields: dict[str, str], rule: str, tmp_path: Path, zipapp: Path
) -> None:
    world = Embedded(tmp_path, zipapp, orders=order)
    try:
        world.service.apply_policy(Proposal(text=policy))
        job = _submit(world, "modest", "a100:2")
        wait_until(lambda: _steps(world, job), "it steps")
        command = python("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)")
        submission = world.submission(command, name="urgent", resources={"gpu": "a100:2", "cpu": 1}, **fields)
        (foreseen,) = world.service.dry_run(submission, "ada").preempted
        assert (foreseen.job, foreseen.notice_ms) == (job, 1000 * GRACE_S)
        assert foreseen.unsaved_ms > 0
        urgent = world.service.submit(submission)[0].row.id
        world.until(urgent, "running")
        (report,) = _reported(world, "modest")
        assert report["cause"] == "preempted"
        assert 0 < report["left_s"] <= GRACE_S
        preempted = world.service.job(job)
        assert (preempted.row.state, preempted.checkpoint_step) == ("pending", report["last"])
        (world.work / "go").touch()
        first, second = _second_attempt(world, job).attempts
        assert second.resumed_step == report["last"], "no step is lost"
        assert (first.outcome, first.sentence) == ("stopped", f"it was preempted for {urgent}, {rule}")
        assert world.ended(urgent).row.state == "succeeded"
        assert [row.kind for row in world.service.events(after=0, gang=job, limit=500) if row.kind == "failed"] == []
    finally:
        world.close()


def test_a_job_that_does_not_end_within_its_grace_is_reported(world: Embedded) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('deaf', 'w'); signal.pause()"
    name = world.submit(python(deaf), checkpoint={"dir": "c", "grace": "200ms"}, nproc_per_node=1)
    wait_until((world.work / "deaf").exists, "it is deaf")
    world.service.stop(name)
    job = world.ended(name)
    ending = "; rank 0 did not end within its grace of 200ms: killed"
    assert job.row.sentence == "stopped by its owner" + ending
    (attempt,) = job.attempts
    assert (attempt.outcome, attempt.killed, attempt.sentence) == ("stopped", (0,), "a stop was requested" + ending)
    (row,) = [row for row in world.service.events(after=0, gang=name, limit=500) if row.kind == "cleared"]
    assert row.data["killed"] == [0]
    assert row.sentence.endswith(ending)


def test_a_moved_job_goes_on_where_it_was_and_the_larger_one_starts(tmp_path: Path, zipapp: Path) -> None:
    size = {"gpus": 2, "gpu_type": "a100", "cpu_milli": 8_000, "memory_bytes": GIB_BYTES}
    nodes = tuple(Node(name=f"n{n}", domains=(f"r{(n + 1) // 2}",), **size) for n in (1, 2, 3, 4))
    world = Embedded(tmp_path, zipapp, nodes, orders=order)
    try:
        moving = _submit(world, "moving", "a100:2", movable=True)
        others = [world.submit(resources={"gpu": "a100:2", "cpu": 1}) for _ in range(3)]
        wait_until(lambda: _steps(world, moving), "it steps")
        assert {world.until(other, "running").row.nodes for other in others} == {("n2",), ("n3",), ("n4",)}
        for other in others:
            if world.service.job(other).row.nodes != ("n3",):
                world.service.stop(other)
                world.ended(other)
        placement = {"topology": "rack", "mode": "required"}
        large = world.submit(nodes=2, resources={"gpu": "a100:2", "cpu": 1}, placement=placement)
        wait_until(lambda: world.service.job(large).reason, "it waits")

        plan = world.service.apply_defrag("rack")
        (move,) = plan.moves
        assert (plan.job, move.job, move.leaves, move.gets) == (large, moving, ("n1",), ("n4",))
        assert set(world.until(large, "running").row.nodes) == {"n1", "n2"}
        view = _second_attempt(world, moving)
        first, second = view.attempts
        (report,) = _reported(world, "moving")
        assert report["cause"] == "moved"
        assert second.resumed_step == report["last"], "no step is lost"
        assert (first.outcome, first.sentence) == ("stopped", "it is moved to other nodes")
        assert view.row.nodes == ("n4",)
        assert not world.service.defrag("rack").moves, "nothing larger fits by moving it again"
    finally:
        world.close()
