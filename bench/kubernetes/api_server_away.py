"""Outages of the API server under two running gangs, with the real node controller: attempts lost, pods deleted.

Two gangs of two real nodes each, with real launchers and ranks. The API server is alternately killed and restarted, or
stopped by SIGSTOP and continued; once for 10 minutes, then five times for 45 s. The controller loses its lease and
exits, and this bench restarts it, as its Deployment would; afterwards the node controller finds expired heartbeats and
marks nodes as not ready, until their kubelets report again.
"""

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from bench.measure import Figure
from bench.recovery.recovering import until
from tools.controlled import ROOT_PODS, Controlled, controlled
from tools.testcluster import Cluster, cluster

OUTAGES_S: Final = tuple(map(float, os.environ.get("GANGER_BENCH_OUTAGES_S", "600,45,45,45,45,45").split(",")))
WATCHED_S: Final = 75.0
"""Least time to watch the gangs after each outage, and after the last node is ready.

Longer than the time after which a node is given up early; a kubelet may take minutes to notice that its node is marked.
"""
MOST_S: Final = 420.0
GANGS: Final = ("first", "second")
API: Final = "kube-apiserver"
SCRIPT: Final = """
import os, time
from ganger import train

step = 0
while True:
    step += 1
    train.report(step=step)
    with open(os.environ["BEATS"] + str(train.world().rank), "a") as beats:
        beats.write("1")
    time.sleep(0.5)
"""


def run() -> list[Figure]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ganger-bench-")))
        test_cluster = stack.enter_context(cluster("api-server-away", nodes=2))
        system = stack.enter_context(controlled(test_cluster, folder))
        stack.enter_context(system.policy(pods=ROOT_PODS))
        system.lend("beats", folder)
        for name in GANGS:
            _submit(system, name, folder)
        stack.enter_context(system.restarted_on_exit())
        before = _pods(system)
        unready = [_outage(system, number, for_s) for number, for_s in enumerate(OUTAGES_S)]
        after = _pods(system)
        lost = [float(system.status(name)["generation"] - 1) for name in GANGS]
        silent = [float(not _beats(folder, name)) for name in GANGS]
    deleted = float(len(before.keys() - after.keys()))
    return [
        Figure(name="api_server_away_attempts", unit="lost", samples=tuple(lost), value=sum(lost), op="==", bar=0),
        Figure(name="api_server_away_pods", unit="deleted", samples=(deleted,), value=deleted, op="==", bar=0),
        Figure(name="api_server_away_silent", unit="gangs", samples=tuple(silent), value=sum(silent), op="==", bar=0),
        Figure(name="api_server_away_unready", unit="s until ready", samples=tuple(unready), value=max(unready)),
    ]


def _submit(system: Controlled, name: str, folder: Path) -> None:
    system.submit(
        name,
        nodes=2,
        run=["python3", "-c", SCRIPT],
        env={"BEATS": str(folder / f"{name}-")},
        volumes=[{"name": "beats", "path": str(folder)}],
        retry={"max": 100},
    )
    until(lambda: _beats(folder, name), f"{name} does not step")


def _beats(folder: Path, name: str) -> bool:
    """Return whether both ranks have stepped within the last seconds."""
    files = [folder / f"{name}-{rank}" for rank in range(2)]
    return all(path.exists() and time.time() - path.stat().st_mtime < 5 for path in files)


def _outage(system: Controlled, number: int, for_s: float) -> float:
    """Take the API server away for `for_s` and watch the gangs; return until when a node was not ready."""
    with _away(system.on, kill=number % 2 == 0):
        time.sleep(for_s)
    back_s, unready_s = time.monotonic(), 0.0
    system.on.wait_api()
    while time.monotonic() - back_s < min(unready_s + WATCHED_S, MOST_S):
        if len(system.on.ready_nodes()) < len(list(system.on.shape.numbers)):
            unready_s = time.monotonic() - back_s
        time.sleep(1)
    generations = [system.status(name)["generation"] for name in GANGS]
    print(f"away for {for_s:g} s: nodes not ready until {unready_s:.0f} s later, attempts {generations}", flush=True)
    return unready_s


@contextmanager
def _away(test_cluster: Cluster, *, kill: bool) -> Iterator[None]:
    test_cluster.kill(API, signal.SIGKILL if kill else signal.SIGSTOP)
    yield
    if kill:
        test_cluster.start(API)
    else:
        test_cluster.kill(API, signal.SIGCONT)


def _pods(system: Controlled) -> dict[str, Any]:
    """Return the pods of the gangs, by UID."""
    items = json.loads(system.kubectl("get", "pods", "-o", "json"))["items"]
    return {pod["metadata"]["uid"]: pod for pod in items}
