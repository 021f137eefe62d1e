"""A pod of a gang killed on a real kubelet: time until the gang steps again, against a bare cold start in a pod.

The same script and the same ranks as in the other benches of recovery, on two nodes of a test cluster, with checkpoints
on a volume that both share. Alternately the pod's container ends by SIGKILL, as by the OOM killer, and the pod is
deleted without grace. The bare pod runs all ranks and needs no scheduling: it is what is left of the time when ganger
does nothing.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from bench.measure import ROOT, Figure, wall_s
from bench.recovery.recovering import (
    FOREVER,
    JOB,
    RANKS,
    SCRIPT,
    Watch,
    loss_figure,
    losses,
    recovery_figures,
    times,
    uninterrupted,
    until,
)
from bench.serving import TORCH_BIN
from tools.controlled import ROOT_PODS, Controlled, controlled
from tools.testcluster import BASE_IMAGE, cluster, running_cluster

KILLS: Final = 10
BARE_RUNS: Final = 3
SLACK_S: Final = 5.0


def run() -> list[Figure]:
    wall_s(["make", "setup-torch"])
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ganger-bench-")))
        test_cluster = running_cluster() or stack.enter_context(cluster("recover-pod", nodes=2))
        with controlled(test_cluster, folder) as system, system.policy(pods=ROOT_PODS):
            volumes_lent = {"steps": folder, "checkout": ROOT, "python": Path(sys.base_prefix)}
            for name, path in volumes_lent.items():
                system.lend(name, path)
            bare = [_cold_start_s(system, folder / f"bare-{number}", volumes_lent) for number in range(BARE_RUNS)]
            recoveries = _recoveries(system, folder, volumes_lent)
        losses_by_step = losses(folder / "steps")
        expected = uninterrupted(folder / "uninterrupted", max(losses_by_step) + 1)
    return [
        *recovery_figures("recover_pod", recoveries, bare, SLACK_S),
        loss_figure("recover_pod", losses_by_step, expected),
    ]


def _recoveries(system: Controlled, folder: Path, volumes_lent: dict[str, Path]) -> list[float]:
    """Return the seconds from each kill to the next step."""
    out, chance = folder / "steps", random.Random(8)
    system.submit(
        JOB,
        framework="torch",
        nodes=2,
        nproc_per_node=RANKS // 2,
        run=[str(TORCH_BIN / "python"), SCRIPT, str(out), FOREVER],
        volumes=[{"name": name, "path": str(path)} for name, path in volumes_lent.items()],
        checkpoint={"dir": str(folder / "saved")},
        retry={"max": KILLS},
    )
    taken = []
    for number in range(KILLS):
        watch = Watch(out)
        pod = f"{JOB}-{system.status(JOB)['generation']}-{chance.randrange(2)}"
        struck = time.time()
        if number % 2:
            system.kubectl("delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")
        else:
            os.kill(_first_process(system, pod), signal.SIGKILL)
        taken.append(watch.wait_next_step() - struck)
    system.kubectl("delete", "gangjob", JOB)
    until(lambda: not system.pods(JOB), "its pods are not gone")
    return taken


def _first_process(system: Controlled, pod: str) -> int:
    """Return the PID, on this machine, of the first process of a pod's container."""
    marks = {f"HOSTNAME={pod}".encode(), f"GANGER_GANG={JOB}.{system.namespace}".encode()}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            inside = (path / "status").read_text().partition("NSpid:")[2].split("\n")[0].split()
            if inside[-1] == "1" and marks <= {*(path / "environ").read_bytes().split(b"\0")}:
                return int(path.name)
    raise RuntimeError(f"the container of {pod} runs on no node of this machine")


def _cold_start_s(system: Controlled, folder: Path, volumes_lent: dict[str, Path]) -> float:
    """Return the seconds from the creation of a pod of four ranks to their first step."""
    folder.mkdir()
    with _bare_pod(system, folder / "steps", volumes_lent) as began:
        until(lambda: bool(times(folder / "steps")), f"{folder / 'steps'} has no step")
        return times(folder / "steps")[0] - began


@contextmanager
def _bare_pod(system: Controlled, out: Path, volumes_lent: dict[str, Path]) -> Iterator[float]:
    """Run a pod of bare ranks for the duration of the context; yield the time of its creation."""
    rank = f"RANK=$rank LOCAL_RANK=$rank {TORCH_BIN / 'python'} {SCRIPT} {out} {FOREVER} &"
    environment = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": str(RANKS),
        "PYTHONPATH": str(ROOT / "src"),
    }
    container: dict[str, Any] = {
        "name": "ranks",
        "image": BASE_IMAGE,
        "command": ["sh", "-c", f"for rank in {' '.join(map(str, range(RANKS)))}; do {rank} done; wait"],
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "volumeMounts": [{"name": name, "mountPath": str(path)} for name, path in volumes_lent.items()],
    }
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in volumes_lent]
    about = {"name": f"bare-{out.parent.name}", "namespace": system.namespace}
    spec = {"nodeName": "node-1", "restartPolicy": "Never", "containers": [container], "volumes": volumes}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}
    began = time.time()
    system.on.kubectl("create", "-f", "-", input=json.dumps(body))
    try:
        yield began
    finally:
        system.kubectl("delete", "pod", about["name"], "--grace-period=0", "--force")
