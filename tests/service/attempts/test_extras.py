"""A process with on_failure: ignore may be lost with its launcher, or its node: the others go on and succeed."""

import os
import signal
import sys
from pathlib import Path

import pytest

from ganger.backends.local import machine_processes
from tests.service.world import Embedded
from tests.waiting import wait_until

STEPS = """
import sys, time
from ganger import train

for step in range(10_000):
    train.report(step=step)
    time.sleep(0.02)
    if open(sys.argv[1]).read():
        break
"""


@pytest.mark.parametrize("loss", ["launcher", "node"])
def test_an_ignored_role_may_be_lost(world: Embedded, loss: str) -> None:
    enough = Path(world.work, "enough")
    enough.touch()
    (world.work / "steps.py").write_text(STEPS)
    role = {"run": ["sleep", "300"], "resources": {"gpu": "a100:1", "cpu": 1}, "on_failure": "ignore"}
    command = [sys.executable, "steps.py", str(enough)]
    fields = {"resources": {"gpu": "h100:1", "cpu": 1}, "roles": {"evaluator": role}, "retry": {"max": 0}}
    job = world.submit(command, **fields)
    wait_until(lambda: _step(world, job) is not None and world.until(job, "running"), "it steps")

    if loss == "node":
        assert world.service.fail_node("n3").state == "lost"
    else:
        pids = {path.name: process.pid for path, process in machine_processes.launchers() if path.parts[-3] == job}
        os.kill(pids["n3"], signal.SIGKILL)
        wait_until(lambda: world.loop.copy().gangs[job].attempt.left == ("n1",), "the evaluator is gone")
    step = _step(world, job)
    wait_until(lambda: _step(world, job) > step, "the others go on")
    enough.write_text("enough")
    view = world.ended(job)
    assert (view.row.state, view.row.generation) == ("succeeded", 1)


def _step(world: Embedded, job: str) -> int | None:
    return (world.service.job(job).progress or {}).get("step")
