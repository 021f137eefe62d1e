"""Ranks that hang in each of six ways: time until the hang is detected, and whether the right rank is named.

20 gangs of four ranks on two virtual nodes for each way, some of them at the same time: stopped by SIGSTOP, blocked in
the kernel (state D), dead behind a living shell; in a dead loop, blocked in Python, blocked in a gang that reports
nothing and has worked for more than a minute. The first three must be detected within 3 steps and 2 s, by the step time
of the rank's own reports; the others within 30 s or 1.5 times the longest pause of its reports, or of its lines: a rank
that does nothing while the others wait by itself, a dead loop and a gang that reports nothing by `limits.hang_time`.
GANGER_BENCH_RUNS sets another number of gangs.
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from bench.measure import ROOT, Figure
from bench.measure import median as median_of
from bench.serving import ganger, state_directory
from ganger.client import Client
from ganger.settings import home as home_of

RUNS = int(os.environ.get("GANGER_BENCH_RUNS", "20"))
SIDE_BY_SIDE = 8
SEED = 5
RANKS = 4
SLACK_S, STEPS = 2.0, 3
SILENT_S, PAUSES = 30.0, 1.5
STEPS_BEFORE_S = 6.0
WORK_BEFORE_S = 70.0
PAUSE_S = 0.2
DEADLINE_S = 120.0
LINE = f"{sys.executable} {ROOT / 'bench' / 'hangs' / 'freezing.py'}"
COST_S = 20.0
CPU_BAR_PERCENT = 2.0
WAYS = {"stop": True, "block": True, "die": True, "loop": False, "wait": False, "quiet": False}
"""Ways to hang, and whether each shows in the state of the processes."""
HANG_TIME_S = {"loop": 27, "quiet": 15}
"""`limits.hang_time` of the ways that nothing else ends so soon."""


@dataclass(frozen=True, slots=True)
class Detection:
    """Detection of one hang: its time, its bar, and whether rank and stacks were right."""

    way: str
    took_s: float
    bar_s: float
    is_right: bool
    detail: str


def run() -> list[Figure]:
    chance = random.Random(SEED)
    gangs = [(way, number, chance.randrange(RANKS)) for number in range(RUNS) for way in WAYS]
    with state_directory() as environment, TemporaryDirectory(prefix="ganger-bench-") as name:
        topology = Path(name) / "nodes.yaml"
        topology.write_text("nodes: [{name: n1, cpu: 64, memory: 64Gi}, {name: n2, cpu: 64, memory: 64Gi}]\n")
        ganger(environment, "server", "start", "--topology", str(topology))
        cost = _launcher_cpu(environment, Path(name))
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            detections = list(pool.map(lambda gang: _detect(environment, Path(name), *gang), gangs))
    for detection in detections:
        if not detection.is_right or detection.took_s > detection.bar_s:
            print(f"{detection.way}: {detection.took_s:.2f} s of {detection.bar_s:.2f} s: {detection.detail}")
    return [cost] + [
        figure
        for way in WAYS
        for figure in _figures(way, [detection for detection in detections if detection.way == way])
    ]


def _figures(way: str, detections: list[Detection]) -> list[Figure]:
    right = sum(detection.is_right for detection in detections)
    bar_s = min(detection.bar_s for detection in detections)
    took = tuple(detection.took_s for detection in detections)
    return [
        Figure(name=f"detect_{way}_worst", unit="s", samples=took, value=max(took), op="<=", bar=bar_s),
        Figure(name=f"detect_{way}_right", unit="gangs", samples=(right,), value=right, op="==", bar=len(detections)),
    ]


def _detect(environment: dict[str, str], parent: Path, way: str, number: int, rank: int) -> Detection:
    folder = parent / f"{way}-{number}"
    client = Client(home_of(environment))
    line = f"{LINE} {folder} {PAUSE_S}" + (" quiet" if way == "quiet" else "")
    command = ["sh", "-c", f"{line}; sleep 100000"] if way == "die" else line.split()
    job = _submit(environment, folder, command, HANG_TIME_S.get(way))
    times_of = _line_times if way == "quiet" else _times
    _until(lambda: times_of(environment, job, 0), "it steps")
    time.sleep(WORK_BEFORE_S if way == "quiet" else STEPS_BEFORE_S)
    (folder / f"do-{rank}").write_text(way)
    _until(lambda: _failed(client, job), f"rank {rank} of {job} is found to {way}")
    failed = _failed(client, job)
    did_s = float((folder / f"did-{rank}").read_text())
    times = times_of(environment, job, rank)
    gaps = [after - before for before, after in pairwise(times)]
    bar_s = STEPS * median(gaps[-20:]) + SLACK_S if WAYS[way] else max(SILENT_S, PAUSES * max(gaps))
    data = failed["data"]
    ranks_seen = {rank_seen for group in client.stacks(job)["groups"] for rank_seen in group["ranks"]}
    _until(lambda: client.job(job)["row"]["state"] == "failed", f"{job} ends")
    is_right = (data["cause"], data["rank"]) == ("hung", rank) and len(ranks_seen) >= RANKS - (way == "die")
    detail = f"rank {rank}: {data['detail']}; stacks of {ranks_seen}"
    return Detection(way, failed["at_ms"] / 1000 - did_s, bar_s, is_right, detail)


def _submit(environment: dict[str, str], folder: Path, command: list[str], hang_time_s: int | None = None) -> str:
    folder.mkdir()
    limits = {} if hang_time_s is None else {"limits": {"hang_time": hang_time_s}}
    job = {
        "name": folder.name,
        "nodes": 2,
        "nproc_per_node": 2,
        "resources": {"cpu": 2},
        "retry": {"max": 0},
        "run": command,
    }
    path = folder / "job.yaml"
    path.write_text(json.dumps(job | limits))
    return ganger(environment, "submit", "-f", str(path)).strip()


def _failed(client: Client, job: str) -> dict[str, Any] | None:
    return next((event for event in client.events(gang=job)["items"] if event["kind"] == "failed"), None)


def _times(environment: dict[str, str], job: str, rank: int) -> list[float]:
    """Return the times at which a rank reported steps, in Unix seconds."""
    paths = (home_of(environment).path / "jobs" / job).glob(f"nodes/*/1/rank-{rank}.report")
    records = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return [record["t"] / 1000 for record in records if "step" in record]


def _line_times(environment: dict[str, str], job: str, rank: int) -> list[float]:
    """Return the times at which a rank wrote lines, in Unix seconds."""
    paths = (home_of(environment).path / "jobs" / job).glob(f"nodes/*/1/rank-{rank}.log")
    return [int(line.split()[0]) / 1000 for path in paths for line in path.read_text().splitlines()]


def _launcher_cpu(environment: dict[str, str], parent: Path) -> Figure:
    """Return the CPU usage of launchers while two ranks of each make steps."""
    folder = parent / "watched"
    job = _submit(environment, folder, ["sh", "-c", f"exec {LINE} {folder}"])
    _until(lambda: _times(environment, job, 0), "it steps")
    paths = (home_of(environment).path / "jobs" / job).glob("nodes/*/launcher.json")
    launchers = [psutil.Process(json.loads(path.read_text())["pid"]) for path in paths]
    cpu_before_s, began_s = [sum(launcher.cpu_times()[:2]) for launcher in launchers], time.monotonic()
    time.sleep(COST_S)
    passed_s = time.monotonic() - began_s
    used_s = [sum(launcher.cpu_times()[:2]) - before for launcher, before in zip(launchers, cpu_before_s, strict=True)]
    ganger(environment, "stop", job)
    return median_of("launcher_cpu", "%", [100 * cpu_s / passed_s for cpu_s in used_s], under=CPU_BAR_PERCENT)


def _until(holds: Callable[[], object], what: str) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not holds():
        if time.monotonic() > until_s:
            raise TimeoutError(f"not within {DEADLINE_S:g} s: {what}")
        time.sleep(0.1)
