"""State directories with virtual nodes, jobs that wait until they are let go, and programs of users."""

import os
import subprocess
import sys
from pathlib import Path

from ganger.client import Client
from ganger.settings import Home
from tests.waiting import DEADLINE_S

TOPOLOGY = "nodes: [{name: n1, gpu: h100:2, cpu: 8, memory: 4Gi}, {name: n2, gpu: h100:2, cpu: 8, memory: 4Gi}]\n"


def make_home(folder: Path) -> Path:
    """Make a state directory in `folder`, without a server yet."""
    path = folder / "home"
    path.mkdir(mode=0o700)
    Home(path).topology.write_text(TOPOLOGY)
    return path


def shut_down(path: Path) -> None:
    """End what runs there, and the server."""
    client = Client(Home(path)).connect()
    for row in client.jobs(state="pending,suspended,starting,running,requeueing", limit=500)["items"]:
        client.stop(row["id"])
        client.wait(row["id"], DEADLINE_S)
    client.shutdown()


def waits_for(path: Path) -> str:
    """Return a command that prints `waits`, and goes on once `path` exists."""
    return f"echo waits; until test -e {path}; do sleep 0.05; done; echo went"


def python(script: str, home: Path, folder: Path, interpreter: Path | str = sys.executable) -> subprocess.Popen[str]:
    """Start a user's program with that state directory, in that directory."""
    (folder / "program.py").write_text(script)
    return subprocess.Popen(
        [interpreter, "program.py"],
        cwd=folder,
        env={**os.environ, "GANGER_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def said_by(script: str, home: Path, folder: Path, interpreter: Path | str = sys.executable) -> str:
    """Run such a program, which must succeed; return what it prints."""
    with python(script, home, folder, interpreter) as process:
        said, _ = process.communicate(timeout=3 * DEADLINE_S)
    assert process.returncode == 0, said
    return said
