"""Tracing of `ganger run` with the server of one machine."""

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tools.way_of_a_job.collector import Phase, collector
from tools.way_of_a_job.way import Way, way_of

GANGER: Final = str(Path(sys.executable).with_name("ganger"))
COMMAND: Final = ("echo", "hello")
IDLE_S: Final = 6.0
"""Time that a server is observed before the job comes: what it does then is not the job's."""


def trace() -> Way:
    """Run a job on this machine, and return its way."""
    with TemporaryDirectory(prefix="way-of-a-job-") as name, collector("127.0.0.1", Path(name)) as collecting:
        folder = Path(name)
        (folder / "work").mkdir()
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "GANGER_HOME": str(folder / "home"),
            **collecting.environment(launcher_phase=None),
        }
        ganger = Typed(environment, folder / "work")
        ganger("server", "start")
        try:
            collecting.enter(Phase.IDLE)
            time.sleep(IDLE_S)
            collecting.enter(Phase.JOB)
            ganger("run", "--", *COMMAND)
            collecting.wait_for_end()
            collecting.enter(Phase.END)
        finally:
            ganger("server", "stop")
        return way_of(collecting.processes)


class Typed:
    """The program `ganger` in a directory, with exactly that environment."""

    def __init__(self, environment: dict[str, str], directory: Path) -> None:
        self._environment, self._directory = environment, directory

    def __call__(self, *words: str) -> str:
        """Return what a command prints. Raises RuntimeError if it fails."""
        command = [GANGER, *words]
        ran = subprocess.run(
            command, env=self._environment, cwd=self._directory, capture_output=True, text=True, check=False
        )
        if ran.returncode:
            raise RuntimeError(f"{' '.join(command)} exited with {ran.returncode}: {ran.stderr}")
        return ran.stdout
