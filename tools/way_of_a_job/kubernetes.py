"""Tracing of `ganger --context C run` with a controller, on a real cluster."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tools.controlled import controlled
from tools.testcluster import Cluster
from tools.way_of_a_job.collector import Phase, collector
from tools.way_of_a_job.one_machine import COMMAND, Typed
from tools.way_of_a_job.way import Way, way_of

IDLE_S: Final = 15.0
"""Time that a controller is observed before the job comes; it renews its lease in that time."""


def trace(cluster: Cluster) -> Way:
    """Run a job in a pod of the cluster, and return its way."""
    with TemporaryDirectory(prefix="way-of-a-job-") as name, collector(cluster.address, Path(name)) as collecting:
        folder = Path(name)
        (folder / "work").mkdir()
        traced = collecting.environment(launcher_phase=Phase.JOB)
        with _environment(traced), controlled(cluster, folder) as its:
            user = {"PATH": os.environ["PATH"], "HOME": str(folder), "KUBECONFIG": str(cluster.kubeconfig)}
            ganger = Typed(user | traced, folder / "work")
            context = cluster.kubectl("config", "current-context").strip()
            collecting.enter(Phase.IDLE)
            time.sleep(IDLE_S)
            collecting.enter(Phase.JOB)
            ganger("--context", context, "--namespace", its.namespace, "run", "--cpu", "100m", "--", *COMMAND)
            collecting.wait_for_end()
            collecting.enter(Phase.END)
        return way_of(collecting.processes)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process, which the controller inherits."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
