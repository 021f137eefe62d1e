"""A real server of a test's own, and its client."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ganger.client import Client, ClientError
from ganger.settings import home
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
TOPOLOGY = ROOT / "examples" / "two_nodes.yaml"
ENDED = ("succeeded", "failed", "stopped")
DEADLINE_S = 180.0
until = partial(wait_until, within_s=DEADLINE_S)


class Cluster:
    """A server with two virtual nodes of four CPU slots, and what a test does with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "GANGER_HOME": str(folder / "home")}
        self.client = Client(home(self.environment))

    def start(self) -> None:
        """Start the server with its topology, as a person would."""
        ganger = str(Path(sys.executable).with_name("ganger"))
        command = [ganger, "server", "start", "--topology", str(TOPOLOGY)]
        subprocess.run(command, env=self.environment, check=True, capture_output=True)

    def submit(self, name: str, *argv: str, **spec: Any) -> str:
        """Submit a command in the test's folder; gives the job's id."""
        request = {
            "spec": {"name": name, "run": list(argv), **spec},
            "directory": str(self.folder),
            "environment": {"PATH": os.environ["PATH"], "HOME": str(self.folder)},
            "request_id": f"{name}-{time.monotonic_ns()}",
        }
        return str(self.client.connect().submit(request)["row"]["id"])

    def state(self, job: str) -> str:
        """Return the state of a job: pending, running, succeeded ..."""
        return str(self.client.job(job)["row"]["state"])

    def ended(self, job: str) -> bool:
        """Return whether a job has ended."""
        return self.state(job) in ENDED


def end_jobs(client: Client) -> None:
    """Stop what is live, and wait for its end."""
    live = [row["id"] for row in client.jobs(all=True, limit=1000)["items"] if row["state"] not in ENDED]
    for job in live:
        with suppress(ClientError):  # it has ended meanwhile
            client.stop(job)
    until(lambda: all(client.job(job)["row"]["state"] in ENDED for job in live), "the end of every job")
