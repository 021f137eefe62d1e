"""An API server that is away under two running gangs, with the real node controller: attempts lost, pods deleted.

Two gangs of two real nodes each, with real launchers and ranks. The API server is killed and started again, or stopped
by SIGSTOP and continued, in turn; once for 10 minutes, then five times for 45 s. Meanwhile the controller loses its
lease and ends, and is started again by this bench, as its Deployment would do; afterwards the node controller finds
heartbeats that are too old and marks nodes as not ready, until their kubelets report again.
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
from bench.recovering import until
from tools.controlled import Controlled, controlled
from tools.testcluster import Cluster, cluster

OUTAGES_S: Final = tuple(map(float, os.environ.get("GANGER_BENCH_OUTAGES_S", "600,45,45,45,45,45").split(",")))
WATCHED_S: Final = 75.0
"""For how long the gangs are watched at least after each, and after the last node is ready: more than a node has that
is given up early. A kubelet may take minutes to see that its node is marked."""
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
        on = stack.enter_context(cluster("api-server-away", nodes=2))
        its = stack.enter_context(controlled(on, folder))
        its.lend("beats", folder)
        for name in GANGS:
            _submit(its, name, folder)
        stack.enter_context(its.restarted_on_exit())
        before = _pods(its)
        unready = [_outage(its, number, for_s) for number, for_s in enumerate(OUTAGES_S)]
        after = _pods(its)
        lost = [float(its.status(name)["generation"] - 1) for name in GANGS]
        silent = [float(not _beats(folder, name)) for name in GANGS]
    deleted = float(len(before.keys() - after.keys()))
    return [
        Figure(name="api_server_away_attempts", unit="lost", samples=tuple(lost), value=sum(lost), op="==", bar=0),
        Figure(name="api_server_away_pods", unit="deleted", samples=(deleted,), value=deleted, op="==", bar=0),
        Figure(name="api_server_away_silent", unit="gangs", samples=tuple(silent), value=sum(silent), op="==", bar=0),
        Figure(name="api_server_away_unready", unit="s until ready", samples=tuple(unready), value=max(unready)),
    ]


def _submit(its: Controlled, name: str, folder: Path) -> None:
    its.submit(
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
    return all(each.exists() and time.time() - each.stat().st_mtime < 5 for each in files)


def _outage(its: Controlled, number: int, for_s: float) -> float:
    """Have the API server away for so long, and watch what becomes of it. Return until when a node was not ready."""
    with _away(its.on, kill=number % 2 == 0):
        time.sleep(for_s)
    back_s, unready_s = time.monotonic(), 0.0
    its.on.wait_api()
    while time.monotonic() - back_s < min(unready_s + WATCHED_S, MOST_S):
        if len(its.on.ready_nodes()) < len(list(its.on.shape.numbers)):
            unready_s = time.monotonic() - back_s
        time.sleep(1)
    generations = [its.status(name)["generation"] for name in GANGS]
    print(f"away for {for_s:g} s: nodes not ready until {unready_s:.0f} s later, attempts {generations}", flush=True)
    return unready_s


@contextmanager
def _away(on: Cluster, *, kill: bool) -> Iterator[None]:
    on.kill(API, signal.SIGKILL if kill else signal.SIGSTOP)
    yield
    if kill:
        on.start(API)
    else:
        on.kill(API, signal.SIGCONT)


def _pods(its: Controlled) -> dict[str, Any]:
    """Return the pods of the gangs, by UID."""
    found = json.loads(its.kubectl("get", "pods", "-o", "json"))["items"]
    return {pod["metadata"]["uid"]: pod for pod in found}
