"""A state directory, a directory to work in, and the command line as a person types it: `ganger` in a process of its
own, and the server that it starts.

Nobody here may read what its mode forbids, root neither: it gives that right up, as an ordinary user has never had it.
"""

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from ganger.client import Client
from ganger.settings import Home

DEADLINE_S = 120.0
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
_PASS_OVER_MODES = (1, 2)  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH of capabilities(7)


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str

    def refuses(self, code: int, says: str, next: str) -> None:
        """Check that it says what and why, and what to type next, and ends as documented."""
        assert (self.code, self.out) == (code, ""), self
        what, *_, remedy = self.err.splitlines()
        assert what.startswith("error: "), self
        assert says in self.err, self
        assert remedy.startswith("  next: "), self
        assert next in remedy, self
        assert "Traceback" not in self.err, self


class Yard:
    """Where one user works. `folder` must be there; the state directory is in it, or elsewhere."""

    def __init__(self, folder: Path, home: Path | None = None) -> None:
        self.folder = folder
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
        """A file in the folder."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def type(self, *words: str) -> Said:
        """Run a command in the folder."""
        done = subprocess.run(
            words,
            env=self.environment,
            cwd=self.folder,
            preexec_fn=_be_nobody_special,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def ganger(self, *words: str) -> Said:
        """Type `ganger` and these words."""
        return self.type(GANGER, *words)

    def fine(self, *words: str) -> str:
        """Type `ganger` and these words, which work; gives what they print."""
        said = self.ganger(*words)
        assert said.code == 0, said
        return said.out.strip()

    def states(self) -> dict[str, str]:
        """State of every job that is listed."""
        return {row["id"]: row["state"] for row in self.client.connect(start=False).jobs(all=True, limit=100)["items"]}

    def until(self, job: str, state: str) -> None:
        """Wait for a state of a job."""
        wait_for(lambda: self.client.connect(start=False).job(job)["row"]["state"] == state, f"{job} is {state}")

    def attempt(self, job: str) -> int:
        """Which attempt a job is at, or ended at."""
        return int(self.client.connect(start=False).job(job)["row"]["generation"])

    @property
    def pid(self) -> int:
        """Of the server that runs."""
        return int(json.loads(self.home.server_file.read_text())["pid"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop what runs, and the server, however a test has ended."""
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
    """Two jobs that must not be lost: one has ended, one runs until it is let go."""

    yard: Yard
    ended: str
    runs: str
    attempt: int

    def are_safe(self) -> None:
        """Both are listed as they were, and nothing else is."""
        assert self.yard.states() == {self.ended: "succeeded", self.runs: "running"}

    def finish(self) -> None:
        """Let the one that runs go: it finishes at the attempt it was at, with all that it wrote."""
        self.yard.put(f"go-{self.ended}", "")
        said = self.yard.ganger("wait", self.runs)
        assert said.code == 0, said
        assert self.yard.fine("logs", self.runs).split() == ["waits", "went"]
        assert self.yard.attempt(self.runs) == self.attempt, self.yard.fine("events", self.runs)
        assert self.yard.states()[self.ended] == "succeeded"


@contextmanager
def worked(yard: Yard) -> Iterator[Worked]:
    """Jobs in the yard while something bad happens. Afterwards the running one finishes as if nothing had."""
    ended = yard.fine("submit", "ok.py")
    runs = yard.fine("submit", "wait.py", f"go-{ended}")
    yard.until(ended, "succeeded")
    yard.until(runs, "running")
    wait_for(lambda: yard.fine("logs", runs) == "waits", f"{runs} writes")
    jobs = Worked(yard, ended, runs, yard.attempt(runs))
    yield jobs
    jobs.finish()


def wait_for(holds: Callable[[], object], what: str) -> None:
    """Wait for a condition; fail with its name if it does not come."""
    until_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < until_s, f"never: {what}"
        time.sleep(0.05)


def _be_nobody_special() -> None:
    """In the child, before the command: no right to pass over the modes of files. Only root has it to give up."""
    if os.geteuid() == 0:
        for right in _PASS_OVER_MODES:
            if _LIBC.prctl(_DROP_FROM_BOUNDING_SET, right, 0, 0, 0):
                raise OSError("cannot give up a capability")
