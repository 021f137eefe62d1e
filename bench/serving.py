"""A server for benches: its state directory, its commands, and a history of finished jobs to list."""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from bench.measure import ROOT
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.loop import Loop
from ganger.engine.wall_clock import WallClock
from ganger.model.cluster import Node
from ganger.model.decision import Start, Stop
from ganger.model.event import Cleared, Finished, NodesListed, Started, Submitted
from ganger.model.job import Job, JobSpec, Origin
from ganger.ports import LiveGeneration, Report
from ganger.registry import policies
from ganger.settings import home as home_of

GANGER = str(Path(sys.executable).with_name("ganger"))
TORCH_BIN = ROOT / ".venv-torch" / "bin"


@contextmanager
def state_directory() -> Iterator[dict[str, str]]:
    """Yield the environment of a new state directory; at the end, stop its server and remove everything."""
    # Launchers of a job that is being stopped write there until it is cleared.
    with tempfile.TemporaryDirectory(prefix="ganger-bench-", ignore_cleanup_errors=True) as name:
        environment = {**os.environ, "GANGER_HOME": f"{name}/home", "NO_COLOR": "1"}
        try:
            yield environment
        finally:
            subprocess.run([GANGER, "server", "stop"], env=environment, check=False, capture_output=True)


def ganger(environment: dict[str, str], *command: str) -> str:
    """Return the output of a command.

    Raises CalledProcessError, after printing the output, when it fails.
    """
    completed = subprocess.run([GANGER, *command], env=environment, capture_output=True, text=True, check=False)
    if completed.returncode:
        print(completed.stdout, completed.stderr, sep="\n")
        completed.check_returncode()
    return completed.stdout


TOGETHER = 500
"""Jobs of the history that are live at a time."""


class _Instant:
    """A backend where every gang finishes as it starts, to make history."""

    def open(self, report: Report, live: tuple[LiveGeneration, ...]) -> None:
        self._report = report
        report(NodesListed(nodes=(Node(name="n1", cpu_milli=1_000_000, memory_bytes=1 << 40),)))

    def start(self, start: Start, job: Job) -> None:
        for event in (Started, Finished, Cleared):
            self._report(event(gang=start.gang, generation=start.generation, nodes=("n1",)))

    def stop(self, stop: Stop, job: Job) -> None:
        """Do nothing: no job is ever stopped."""

    def forget(self, gang: str) -> None:
        """Do nothing: nothing is kept."""


def fill(environment: dict[str, str], jobs: int) -> None:
    """Write the history of that many finished jobs through the real loop and log, before a server is started."""
    path = home_of(environment).database
    path.parent.mkdir(mode=0o700, parents=True)
    log = EventLog(path)
    loop = Loop(log, _Instant(), lambda _: policies()["priority"], WallClock(), "bench")  # type: ignore[arg-type] - only what the loop calls
    thread = threading.Thread(target=loop.run)
    thread.start()
    loop.open()
    for first in range(0, jobs, TOGETHER):
        answers: list[Future[int]] = [
            loop.post(_submitted(number)) for number in range(first, min(first + TOGETHER, jobs))
        ]
        for answer in answers:
            answer.result()
        while _live(loop):
            loop.wait(loop.wait(-1, 0), 0.1)
    loop.close()
    thread.join()
    log.close()


def _live(loop: Loop) -> bool:
    with loop.view() as state:
        return bool(state.gangs)


def _submitted(number: int) -> Submitted:
    spec = JobSpec(name=f"train-{number % 50}", run=("python", "train.py"))
    return Submitted(
        job=Job(id=f"train-{number % 50}-{number:05d}", user="bench", spec=spec, origin=Origin(directory="/"))
    )
