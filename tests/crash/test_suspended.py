"""All processes are stopped for a while, as when a machine sleeps, and continue; no rank is declared hung."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.badinput.yard import Yard, wait_for

pytestmark = pytest.mark.long

STEPS = """\
import pathlib, sys, time
from ganger import train
step = 0
while not pathlib.Path(sys.argv[1]).exists():
    train.report(step=step)
    step += 1
    time.sleep(0.05)
"""
SLEEP_S = 3.0
"""Much longer than a rank with such fast steps may be still."""


def test_job_continues_after_the_machine_slept(tmp_path: Path) -> None:
    with Yard(tmp_path) as yard:
        yard.put("steps.py", STEPS)
        job = yard.fine("submit", "steps.py", "go")
        yard.until(job, "running")
        wait_for(lambda: _step(yard, job) > 0, "it steps")
        processes = _processes_of(yard)
        for process in processes:
            os.kill(process.pid, signal.SIGSTOP)
        time.sleep(SLEEP_S)
        for process in processes:
            os.kill(process.pid, signal.SIGCONT)
        before = _step(yard, job)
        wait_for(lambda: _step(yard, job) > before + 20, "it continues, and has been polled twice")
        yard.put("go", "")
        yard.until(job, "succeeded")
        assert yard.attempt(job) == 1, yard.fine("events", job)


def _step(yard: Yard, job: str) -> int:
    return int((yard.client.job(job)["progress"] or {}).get("step", 0))


def _processes_of(yard: Yard) -> list[psutil.Process]:
    """Return the job's processes, its launcher, the server: in this order none is observed while it is stopped."""
    server = psutil.Process(yard.pid)
    return [*sorted(server.children(recursive=True), key=lambda process: -process.create_time()), server]
