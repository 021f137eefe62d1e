"""A rank that its peers wait for in each step, as in synchronous training: whether exactly that rank is detected.

10 gangs of four ranks on two virtual nodes, one rank of each doing twice the work of its peers, each next to a balanced
gang; step times vary threefold, in the same way for all ranks. The stragglers must be reported, with their nodes, and
no other rank; each pair is watched for at least 30 s. GANGER_BENCH_RUNS sets another number of pairs.
"""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.measure import ROOT, Figure
from bench.serving import ganger, state_directory
from ganger.client import Client
from ganger.settings import home as home_of

RUNS = int(os.environ.get("GANGER_BENCH_RUNS", "10"))
NODES = ("n1", "n1", "n2", "n2")  # of the ranks
NO_RANK = -1
WATCHED_S = 30.0
DEADLINE_S = 180.0


@dataclass(frozen=True, slots=True)
class Observation:
    """Reports about one gang: the slow rank, and the time from the first step to the first report."""

    slow: int
    reports: list[dict[str, Any]]
    took_s: float

    @property
    def is_found(self) -> bool:
        """True if the straggler was reported, with its node."""
        return any((report["rank"], report["node"]) == (self.slow, NODES[self.slow]) for report in self.reports)

    @property
    def false_reports(self) -> int:
        """Number of other ranks reported as slow."""
        return sum(report["rank"] != self.slow for report in self.reports)


def run() -> list[Figure]:
    with state_directory() as environment, TemporaryDirectory(prefix="ganger-bench-") as name:
        topology = Path(name) / "nodes.yaml"
        topology.write_text("nodes: [{name: n1, cpu: 64, memory: 64Gi}, {name: n2, cpu: 64, memory: 64Gi}]\n")
        ganger(environment, "server", "start", "--topology", str(topology))
        pairs = [_pair(environment, number, number % len(NODES)) for number in range(RUNS)]
    observations = [observation for pair in pairs for observation in pair]
    stragglers = [straggler for straggler in observations if straggler.slow != NO_RANK]
    detected = [straggler for straggler in stragglers if straggler.is_found]
    false_reports = [observation.false_reports for observation in observations]
    took = tuple(straggler.took_s for straggler in detected) or (DEADLINE_S,)
    return [
        Figure(name="straggler_found", unit="gangs", samples=(len(detected),), value=len(detected), op="==", bar=RUNS),
        Figure(
            name="straggler_accused",
            unit="ranks",
            samples=tuple(false_reports),
            value=sum(false_reports),
            op="==",
            bar=0,
        ),
        Figure(name="straggler_took", unit="s", samples=took, value=max(took)),
    ]


def _pair(environment: dict[str, str], number: int, slow: int) -> list[Observation]:
    """Run a gang with a straggler, which is waited for, and a balanced one."""
    client = Client(home_of(environment))
    jobs = {rank: _submit(environment, f"gang-{number}{name}", rank) for rank, name in ((slow, "s"), (NO_RANK, "b"))}
    began_s = {rank: _first_time_s(client, job, "progressed") for rank, job in jobs.items()}
    least_s, most_s = (time.monotonic() + limit_s for limit_s in (WATCHED_S, DEADLINE_S))
    while time.monotonic() < (most_s if not _events(client, jobs[slow], "slow") else least_s):
        time.sleep(0.5)
    reports = {rank: _events(client, job, "slow") for rank, job in jobs.items()}
    ganger(environment, "stop", *jobs.values())
    for event in reports[slow] + reports[NO_RANK]:
        print(event["sentence"], flush=True)
    took_s = {rank: events[0]["at_ms"] / 1000 - began_s[rank] if events else 0.0 for rank, events in reports.items()}
    return [Observation(rank, [event["data"] for event in events], took_s[rank]) for rank, events in reports.items()]


def _submit(environment: dict[str, str], name: str, slow: int) -> str:
    flags = ["--name", name, "-j", "2x2", "--cpu", "2", "--env", f"PYTHONPATH={ROOT}"]
    command = [sys.executable, "-m", "bench.hangs.straggling", str(slow)]
    return ganger(environment, "submit", *flags, "--", *command).strip()


def _first_time_s(client: Client, job: str, kind: str) -> float:
    """Wait for the first event of a kind; return its time in Unix seconds."""
    until_s = time.monotonic() + DEADLINE_S
    while not (events := _events(client, job, kind)):
        if time.monotonic() > until_s:
            raise TimeoutError(f"not within {DEADLINE_S:g} s: {kind} of {job}")
        time.sleep(0.1)
    return float(events[0]["at_ms"]) / 1000


def _events(client: Client, job: str, kind: str) -> list[dict[str, Any]]:
    return [event for event in client.events(gang=job)["items"] if event["kind"] == kind]
