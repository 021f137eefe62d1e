"""A DRA driver with devices that do not exist, for the real nodes of a test cluster: `make devices` builds it.

A pod finds its devices in the file of its name in `FOLDER` of its node, one a line: containerd 1.6, which the nodes
run, does not know the Container Device Interface.
"""

import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tools.testcluster import Cluster, processes
from tools.testcluster.nodes.nodes import enter_command
from tools.testcluster.programs.binaries import build_lock, cache
from tools.testcluster.programs.requirements import require_go

MODULE: Final = Path(__file__).parent / "program"
DRIVER: Final = "gpu.example.com"
FOLDER: Final = "/run/devices"


def program() -> Path:
    """Return where the program is, once it is built."""
    sources = (path.read_bytes() for path in sorted(MODULE.iterdir()))
    return cache().parent / f"devicedriver-{hashlib.sha256(b''.join(sources)).hexdigest()[:16]}" / "devicedriver"


def build() -> None:
    """Build the program, unless it is there. Raises Unavailable without Go."""
    path = program()
    with build_lock(path.parent):
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name("unfinished")
        command = [require_go(), "build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", "-s -w"]
        environment = {**os.environ, "CGO_ENABLED": "0"}
        subprocess.run([*command, "-o", str(unfinished), "."], cwd=MODULE, env=environment, check=True)
        unfinished.rename(path)


@contextmanager
def devices(cluster: Cluster, folder: Path, slices: Mapping[int, Sequence[Any]]) -> Iterator[None]:
    """Run the driver on these nodes of a cluster, with the slices of each, for the duration of the context."""
    started = list[subprocess.Popen[bytes]]()
    try:
        for node, of_node in slices.items():
            file = folder / f"devices-{node}.json"
            file.write_text(json.dumps(of_node))
            first = cluster.pid(f"node-{node}")
            assert first is not None
            argv = [str(program()), f"node-{node}", str(cluster.kubeconfig), str(file), FOLDER]
            with (folder / f"driver-{node}.log").open("wb") as log:
                started.append(subprocess.Popen([*enter_command(first), *argv], stdout=log, stderr=log))
        yield
    finally:
        for process in started:
            if process.poll() is None:
                os.kill(processes.pid_in_node(process.pid), signal.SIGTERM)
            process.wait()
        cluster.kubectl("delete", "resourceslices", "--all")
