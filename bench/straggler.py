"""A rank that its peers wait for in each step, as in synchronous training: whether it is found, and nobody else.

10 gangs of four ranks on two virtual nodes, one rank of each doing twice the work of its peers, and 10 balanced ones;
what a step takes varies by three, the same for all ranks. The stragglers must be told, with their node, and nobody else
may be; the balanced gangs are watched for 30 s each. GANGER_BENCH_RUNS is another number of gangs.
"""

import os
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.measure import ROOT, Figure
from bench.serving import ganger, state_directory
from ganger.faces.client import Client
from ganger.settings import home as home_of

RUNS = int(os.environ.get("GANGER_BENCH_RUNS", "10"))
SEED = 5
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
    chance = random.Random(SEED)
    gangs = [slow for number in range(RUNS) for slow in (number % len(NODES), NOBODY)]
    chance.shuffle(gangs)
    with state_directory() as environment, TemporaryDirectory(prefix="ganger-bench-") as name:
        topology = Path(name) / "nodes.yaml"
        topology.write_text("nodes: [{name: n1, cpu: 64, memory: 64Gi}, {name: n2, cpu: 64, memory: 64Gi}]\n")
        ganger(environment, "server", "start", "--topology", str(topology))
        seen = [_one(environment, number, slow) for number, slow in enumerate(gangs)]
    stragglers = [each for each in seen if each.slow != NOBODY]
    found = [each for each in stragglers if each.is_found]
    accused = [each.accused for each in seen]
    took = tuple(each.took_s for each in found) or (DEADLINE_S,)
    return [
        Figure(name="straggler_found", unit="gangs", samples=(len(found),), value=len(found), op="==", bar=RUNS),
        Figure(name="straggler_accused", unit="ranks", samples=tuple(accused), value=sum(accused), op="==", bar=0),
        Figure(name="straggler_took", unit="s", samples=took, value=max(took)),
    ]


def _one(environment: dict[str, str], number: int, slow: int) -> Seen:
    """A straggler is awaited; it is told once, so that there is nothing to wait for after it but wrong ones."""
    client = Client(home_of(environment))
    flags = ["--name", f"gang-{number}", "-j", "2x2", "--cpu", "2", "--env", f"PYTHONPATH={ROOT}"]
    command = [sys.executable, "-m", "bench.straggling", str(slow)]
    job = ganger(environment, "submit", *flags, "--", *command).strip()
    began_s = _at_s(client, job, "progressed")
    until_s = time.monotonic() + (WATCHED_S if slow == NOBODY else DEADLINE_S)
    while time.monotonic() < until_s and not (slow != NOBODY and _events(client, job, "slow")):
        time.sleep(0.5)
    told = _events(client, job, "slow")
    ganger(environment, "stop", job)
    for event in told:
        print(event["sentence"], flush=True)
    took_s = told[0]["at_ms"] / 1000 - began_s if told else 0.0
    return Seen(slow, [event["data"] for event in told], took_s)


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
