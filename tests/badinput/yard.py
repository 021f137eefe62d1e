"""A state directory, a working directory, and the command line of a user; the server is a process.

So is a command that file modes matter to: no process may read what they forbid, not even as root: it drops that
capability, as an ordinary user would be. Other commands run in the process of the tests.
"""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import psutil

from ganger.client import Client
from ganger.client.local.start_server import serving
from ganger.settings import Home
from tests.in_process import ganger_in_process
from tests.waiting import wait_until

DEADLINE_S = 120.0
wait_for = partial(wait_until, within_s=DEADLINE_S)
BIN = Path(sys.executable).parent
GANGER = str(BIN / "ganger")
SERVE = (sys.executable, "-P", "-m", "ganger.server", "serve")
TOPOLOGY = "nodes: [{name: n1, gpu: h100:2, cpu: 4, memory: 4Gi}, {name: n2, gpu: h100:2, cpu: 4, memory: 4Gi}]\n"
WAIT = """\
import pathlib, sys, time
print("waits", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
print("went", flush=True)
"""

_LIBC = ctypes.CDLL(None)
_DROP_FROM_BOUNDING_SET = 24  # PR_CAPBSET_DROP of prctl(2)
_MODE_OVERRIDES = (1, 2)  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH of capabilities(7)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    def refuses(self, code: int, says: str, next: str) -> None:
        """Check that the error has the message and the next command, and the documented exit code."""
        assert (self.code, self.out) == (code, ""), self
        lines = self.err.splitlines()
        error, *_, remedy = lines[lines[0].startswith("code   copies ") :]
        assert error.startswith("error: "), self
        assert says in self.err, self
        assert remedy.startswith("  next: "), self
        assert next in remedy, self
        assert "Traceback" not in self.err, self


class Yard:
    """The working directory of one user. `folder` must exist; the state directory is inside it, or elsewhere.

    `has_processes`: every command is a process, as those are that start the server.
    """

    def __init__(self, folder: Path, home: Path | None = None, *, has_processes: bool = False) -> None:
        self.folder, self.has_processes = folder, has_processes
        self.home = Home(home or folder / "home")
        self.client = Client(self.home)
        self.environment = {
            "GANGER_HOME": str(self.home.path),
            "HOME": str(folder),
            "PATH": f"{BIN}:/usr/bin:/bin",
            "TZ": "UTC",
        }
        self.put("wait.py", WAIT)
        self.put("ok.py", "print('ok')\n")
        self.put("topology.yaml", TOPOLOGY)

    def put(self, name: str, text: str) -> Path:
        """Write a file in the folder."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def type(self, *argv: str, stdin: str = "") -> CommandResult:
        """Run a command in the folder as a process."""
        process = subprocess.run(
            argv,
            env=self.environment,
            cwd=self.folder,
            preexec_fn=_drop_capabilities,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return CommandResult(process.returncode, process.stdout, process.stderr)

    def ganger(self, *args: str, stdin: str = "") -> CommandResult:
        """Run `ganger` with these arguments.

        Without a server it is a process, since it may start one: that must not be a child of the tests, as which it
        would remain a zombie when it ends, and have no more capabilities than an ordinary user's.
        """
        if self.has_processes or args[0] == "exec" or serving(self.home) is None:
            return self.type(GANGER, *args, stdin=stdin)
        done = ganger_in_process(args, self.environment, self.folder, stdin)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def fine(self, *args: str) -> str:
        """Run `ganger` with these arguments successfully, and return its output."""
        result = self.ganger(*args)
        assert result.code == 0, result
        return result.out.strip()

    def states(self) -> dict[str, str]:
        """Return the state of every listed job."""
        return {row["id"]: row["state"] for row in self.client.connect(start=False).jobs(all=True, limit=100)["items"]}

    def until(self, job: str, state: str) -> None:
        """Wait for a state of a job."""
        wait_for(lambda: self.client.connect(start=False).job(job)["row"]["state"] == state, f"{job} is {state}")

    def attempt(self, job: str) -> int:
        """Return the current or last attempt of a job."""
        return int(self.client.connect(start=False).job(job)["row"]["generation"])

    @property
    def pid(self) -> int:
        """The pid of the running server."""
        return int(json.loads(self.home.server_file.read_text())["pid"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop running jobs and the server, however the test ended."""
        self.fine("ls")
        for job, state in self.states().items():
            if state not in ("succeeded", "failed", "stopped"):
                wait_for(lambda job=job: self.ganger("stop", job).code == 0, f"{job} is stopped")
                self.ganger("wait", job)
        server = psutil.Process(self.pid)
        self.fine("server", "stop")
        server.wait(DEADLINE_S)


@dataclass(frozen=True, slots=True)
class Worked:
    """Two jobs that must not be lost: one has ended, one runs until it is released."""

    yard: Yard
    ended: str
    runs: str
    attempt: int

    def are_safe(self) -> None:
        """Check that both jobs are listed with their states, and no other job."""
        assert self.yard.states() == {self.ended: "succeeded", self.runs: "running"}

    def finish(self) -> None:
        """Release the running job: it finishes in the same attempt, with all its output."""
        self.yard.put(f"go-{self.ended}", "")
        result = self.yard.ganger("wait", self.runs)
        assert result.code == 0, result
        assert self.yard.fine("logs", self.runs).split() == ["waits", "went"]
        assert self.yard.attempt(self.runs) == self.attempt, self.yard.fine("events", self.runs)
        assert self.yard.states()[self.ended] == "succeeded"


@contextmanager
def worked(yard: Yard) -> Iterator[Worked]:
    """Run two jobs while something bad happens; afterwards the running one finishes as if nothing had happened."""
    ended = yard.fine("submit", "ok.py")
    runs = yard.fine("submit", "wait.py", f"go-{ended}")
    yard.until(ended, "succeeded")
    yard.until(runs, "running")
    wait_for(lambda: yard.fine("logs", runs) == "waits", f"{runs} writes")
    jobs = Worked(yard, ended, runs, yard.attempt(runs))
    yield jobs
    jobs.finish()


def _drop_capabilities() -> None:
    """Drop the capabilities that override file modes, in the child before exec; only root has them."""
    if os.geteuid() == 0:
        for capability in _MODE_OVERRIDES:
            if _LIBC.prctl(_DROP_FROM_BOUNDING_SET, capability, 0, 0, 0):
                raise OSError("cannot give up a capability")
