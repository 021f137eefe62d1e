"""An elastic gang resized from two nodes to three and back, cold and warm, against a bare cold start and torchrun.

Torch gloo, one rank on a node. The ranks save and end by themselves when they get their notice, which takes its time
under any scheduler. From the end of the last one to the first step of the new world a cold resize may take a second
longer than a bare start of as many ranks; from there to the beginning of the last new rank a warm one may take a
second. Printed beside it: the time without steps, and that from the request to the first step of the new world, for
torchrun too, which gets what it needs to resize at all: no shared store, a short last call.
"""

import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from bench.measure import Figure, median, wall_s
from bench.recovery.recovering import (
    DEADLINE_S,
    FOREVER,
    JOB,
    NODES,
    SCRIPT,
    Watch,
    cold_start_s,
    free_port,
    lines,
    times,
    until,
)
from bench.serving import TORCH_BIN, ganger, state_directory
from ganger.client import Client
from ganger.settings import home

ROUNDS: Final = 4
BARE_RUNS: Final = 3
TORCHRUN_ROUNDS: Final = 2
TORCHRUN_DEADLINE_S: Final = 60.0
SLACK_S: Final = 1.0
SETTINGS: Final = "last_call_timeout=5,join_timeout=60"
ELASTIC: Final = """\
name: {name}
framework: torch
nodes: 2..3
run: [python, {script}, {folder}/steps, "{steps}"]
checkpoint: {{dir: {folder}/saved}}
warm: {warm}
"""


class Resize(NamedTuple):
    """Seconds of a resize.

    total_s: from the request to the first step of the new world.
    still_s: from the last step of the old world to that.
    start_s: from the end of the last old rank to that.
    control_s: from the end of the last old rank to the beginning of the last new one.
    """

    nodes: int
    total_s: float
    still_s: float
    start_s: float
    control_s: float


def run() -> list[Figure]:
    wall_s(["make", "setup-torch"])
    with tempfile.TemporaryDirectory(prefix="ganger-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        bare = {ranks: [cold_start_s(folder / f"{ranks}-{n}", ranks) for n in range(BARE_RUNS)] for ranks in (2, 3)}
        cold, warm = (_resizes(folder / kind, is_warm=kind == "warm") for kind in ("cold", "warm"))
        torchrun = [_under_torchrun(folder / f"torchrun-{n}") for n in range(TORCHRUN_ROUNDS)]
    figures = []
    for nodes in (3, 2):
        floor = statistics.median(bare[nodes])
        figures += [
            _figure(f"resize_cold_to_{nodes}", [item.start_s for item in cold if item.nodes == nodes], floor),
            _figure(f"resize_warm_to_{nodes}", [item.control_s for item in warm if item.nodes == nodes], 0.0),
        ]
        figures += [
            median(
                f"resize_{kind}_to_{nodes}_{name}",
                "s",
                [getattr(item, f"{name}_s") for item in items if item.nodes == nodes],
            )
            for kind, items in (("cold", cold), ("warm", warm))
            for name in ("total", "still")
        ]
        figures.append(median(f"torchrun_to_{nodes}_total", "s", [taken[nodes] for taken in torchrun]))
    return figures


def _figure(name: str, taken: list[float], floor: float) -> Figure:
    value = statistics.median(taken)
    return Figure(name=name, unit="s", samples=tuple(taken), value=value, op="<=", bar=floor + SLACK_S, floor=floor)


def _resizes(folder: Path, *, is_warm: bool) -> list[Resize]:
    folder.mkdir()
    job, topology = folder / "job.yaml", folder / "nodes.yaml"
    topology.write_text(NODES)
    warm = "true" if is_warm else "false"
    job.write_text(ELASTIC.format(name=JOB, script=SCRIPT, folder=folder, steps=FOREVER, warm=warm))
    with state_directory() as environment:
        environment["PATH"] = f"{TORCH_BIN}:{environment['PATH']}"
        ganger(environment, "server", "start", "--topology", str(topology))
        ganger(environment, "submit", "-f", str(job))
        client = Client(home(environment)).connect()
        resizes = [_resize(client, folder, nodes, environment) for nodes in (2, *(3, 2) * ROUNDS)]
        ganger(environment, "stop", JOB)
    return resizes[1:]


def _resize(client: Client, folder: Path, nodes: int, environment: dict[str, str]) -> Resize:
    out = folder / "steps"
    watch, asked_at = Watch(out, nodes), time.time()
    row_count = len(lines(out))
    generation = client.change(JOB, nodes=str(nodes))["row"]["generation"]
    stepped_at = watch.wait_next_step()
    rows = [(row[0], float(row[1])) for row in lines(out)[row_count:]]
    begun = [at for kind, at in rows if kind == "pid"]
    last_step = max([at for kind, at in rows if kind == "step" and at < min(begun)], default=asked_at)
    records = home(environment).path.glob(f"jobs/*/nodes/*/{generation}/rank-*.exit")
    ended = max(json.loads(record.read_text())["at_ms"] for record in records) / 1000
    return Resize(nodes, stepped_at - asked_at, stepped_at - last_step, stepped_at - ended, max(begun) - ended)


def _under_torchrun(folder: Path) -> dict[int, float]:
    """Return the seconds until three agents step after the third has come, and two after it has gone.

    A resize that never comes counts as the deadline.
    """
    folder.mkdir()
    out, endpoint = folder / "steps", f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        stack.callback(_kill_workers, out)
        for _ in range(2):
            stack.enter_context(_agent(folder, endpoint))
        until(lambda: bool(times(out)), "torchrun does not step", DEADLINE_S)
        watch, asked_at = Watch(out, 3), time.time()
        third = stack.enter_context(_agent(folder, endpoint))
        grown_s = _wait_s(watch, asked_at)
        if grown_s == TORCHRUN_DEADLINE_S:
            return {3: grown_s, 2: TORCHRUN_DEADLINE_S}
        watch, asked_at = Watch(out, 2), time.time()
        os.killpg(third.pid, signal.SIGTERM)
        return {3: grown_s, 2: _wait_s(watch, asked_at)}


def _kill_workers(out: Path) -> None:
    """Kill what an agent that was killed has left: its workers are in sessions of their own."""
    for pid in (int(row[3]) for row in lines(out) if row[0] == "pid"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _wait_s(watch: Watch, asked_at: float) -> float:
    try:
        return watch.wait_next_step(TORCHRUN_DEADLINE_S) - asked_at
    except TimeoutError as error:
        print(f"torchrun: {error}")
        return TORCHRUN_DEADLINE_S


@contextmanager
def _agent(folder: Path, endpoint: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run an agent of torchrun for the duration of the context."""
    command = [TORCH_BIN / "torchrun", "--nnodes=2:3", "--nproc-per-node=1", "--max-restarts=20", "--rdzv-backend=c10d"]
    command += [f"--rdzv-endpoint={endpoint}", "--rdzv-id=resize", f"--rdzv-conf={SETTINGS}"]
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [*command, SCRIPT, str(folder / "steps"), FOREVER],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
