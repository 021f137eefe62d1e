"""A rank that its peers wait for in each step, as in synchronous training: whether it is found, and nobody else.

10 gangs of four ranks on two virtual nodes, one rank of each doing twice the work of its peers, each beside a balanced
one; what a step takes varies by three, the same for all ranks. The stragglers must be told, with their node, and nobody
else may be; each pair is watched for 30 s at least. GANGER_BENCH_RUNS is another number of pairs.
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
NOBODY = -1
WATCHED_S = 30.0
DEADLINE_S = 180.0


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one gang: what was told of it, who is slow, and how long that took from its first step."""

    slow: int
    told: list[dict[str, Any]]
    took_s: float

    @property
    def is_found(self) -> bool:
        """Whether the straggler was told, with its node."""
        return any((each["rank"], each["node"]) == (self.slow, NODES[self.slow]) for each in self.told)

    @property
    def accused(self) -> int:
        """How many others were told to be slow."""
        return sum(each["rank"] != self.slow for each in self.told)


def run() -> list[Figure]:
    with state_directory() as environment, TemporaryDirectory(prefix="ganger-bench-") as name:
        topology = Path(name) / "nodes.yaml"
        topology.write_text("nodes: [{name: n1, cpu: 64, memory: 64Gi}, {name: n2, cpu: 64, memory: 64Gi}]\n")
        ganger(environment, "server", "start", "--topology", str(topology))
        pairs = [_pair(environment, number, number % len(NODES)) for number in range(RUNS)]
    seen = [each for pair in pairs for each in pair]
    stragglers = [each for each in seen if each.slow != NOBODY]
    found = [each for each in stragglers if each.is_found]
    accused = [each.accused for each in seen]
    took = tuple(each.took_s for each in found) or (DEADLINE_S,)
    return [
        Figure(name="straggler_found", unit="gangs", samples=(len(found),), value=len(found), op="==", bar=RUNS),
        Figure(name="straggler_accused", unit="ranks", samples=tuple(accused), value=sum(accused), op="==", bar=0),
        Figure(name="straggler_took", unit="s", samples=took, value=max(took)),
    ]


def _pair(environment: dict[str, str], number: int, slow: int) -> list[Seen]:
    """A gang with a straggler, which is awaited, and a balanced one."""
    client = Client(home_of(environment))
    jobs = {rank: _submit(environment, f"gang-{number}{name}", rank) for rank, name in ((slow, "s"), (NOBODY, "b"))}
    began_s = {rank: _at_s(client, job, "progressed") for rank, job in jobs.items()}
    least_s, most_s = (time.monotonic() + each for each in (WATCHED_S, DEADLINE_S))
    while time.monotonic() < (most_s if not _events(client, jobs[slow], "slow") else least_s):
        time.sleep(0.5)
    told = {rank: _events(client, job, "slow") for rank, job in jobs.items()}
    ganger(environment, "stop", *jobs.values())
    for event in told[slow] + told[NOBODY]:
        print(event["sentence"], flush=True)
    took_s = {rank: events[0]["at_ms"] / 1000 - began_s[rank] if events else 0.0 for rank, events in told.items()}
    return [Seen(rank, [event["data"] for event in events], took_s[rank]) for rank, events in told.items()]


def _submit(environment: dict[str, str], name: str, slow: int) -> str:
    flags = ["--name", name, "-j", "2x2", "--cpu", "2", "--env", f"PYTHONPATH={ROOT}"]
    command = [sys.executable, "-m", "bench.straggling", str(slow)]
    return ganger(environment, "submit", *flags, "--", *command).strip()


def _at_s(client: Client, job: str, kind: str) -> float:
    """When that was first told of a job, in Unix seconds; waits for it."""
    until_s = time.monotonic() + DEADLINE_S
    while not (found := _events(client, job, kind)):
        if time.monotonic() > until_s:
            raise TimeoutError(f"not within {DEADLINE_S:g} s: {kind} of {job}")
        time.sleep(0.1)
    return float(found[0]["at_ms"]) / 1000


def _events(client: Client, job: str, kind: str) -> list[dict[str, Any]]:
    return [event for event in client.events(gang=job)["items"] if event["kind"] == kind]
