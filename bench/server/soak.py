"""10,000 short jobs in a closed loop with 8 outstanding: growth of the server's memory and of its cost per job.

Memory is compared with that after the first 1,000 jobs, CPU time per job of the last 1,000 with that of the first.
Submit to running is from the moment before the submission to the time of the event that the job runs.
"""

import os
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.measure import Figure
from bench.serving import ganger, state_directory
from ganger.client import Client
from ganger.settings import home as home_of

JOBS = int(os.environ.get("GANGER_BENCH_JOBS", "10000"))
OUTSTANDING = 8
STRETCH = min(1_000, JOBS // 5)
"""Jobs over which memory and cost are measured at either end."""
GROWTH_BAR, P99_BAR_S, COST_BAR = 10.0, 2.0, 1.1
NODES = "nodes: [{name: n1, cpu: 64, memory: 64Gi}]\n"


def run() -> list[Figure]:
    with state_directory() as environment:
        home = home_of(environment)
        home.path.mkdir(mode=0o700)
        home.topology.write_text(NODES)
        ganger(environment, "server", "start")
        soak = Soak(Client(home).connect(start=False))
        soak.run_jobs()
    return soak.figures()


@dataclass
class Soak:
    """The loop: a job is submitted whenever one ends.

    Attributes:
        asked_ms: time of each submission.
        waits_s: times from submission to running.
        memory_mb, cpu_s: the server's, every `STRETCH // 10` ended jobs.
    """

    client: Client
    submitted_ms: dict[str, float] = field(default_factory=dict)
    waits_s: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    ended: int = 0

    def run_jobs(self) -> None:
        """Run all jobs, with one subscriber to the events: waiting for each job separately would load the server."""
        server = psutil.Process(int(self.client.server()["pid"]))
        slots = threading.Semaphore(OUTSTANDING)
        failures: list[BaseException] = []
        finished: set[str] = set()
        after = int(self.client.server()["seq"])
        submitter = threading.Thread(target=self._submit, args=(slots, failures), daemon=True)
        submitter.start()
        for event in self.client.stream(after):
            kind, name = event["kind"], (event["job"] or "").rpartition("-")[0]
            if kind == "started" and name in self.submitted_ms:
                self.waits_s.append((event["at_ms"] - self.submitted_ms.pop(name)) / 1000)
            elif kind == "finished":
                finished.add(name)
            elif kind == "cleared" and name in finished:  # otherwise it restarts: another program had its port
                finished.remove(name)
                self.ended += 1
                if self.ended % max(1, STRETCH // 10) == 0:
                    self._sample(server)
                slots.release()
            if self.ended == JOBS or failures:
                break
        submitter.join()
        if failures:
            raise failures[0]

    def _submit(self, slots: threading.Semaphore, failures: list[BaseException]) -> None:
        path = str(Path.cwd())
        try:
            for number in range(JOBS):
                slots.acquire()
                self.submitted_ms[name := f"short-{number}"] = time.time() * 1000
                self.client.submit(_request(name, path))
        except BaseException as error:  # noqa: BLE001 - it is raised again by `run_jobs`
            failures.append(error)

    def _sample(self, server: psutil.Process) -> None:
        self.memory_mb.append(server.memory_info().rss / 1e6)
        self.cpu_s.append(sum(server.cpu_times()[:2]))
        if self.ended % STRETCH == 0:
            spent_ms = 1000 * (self.cpu_s[-1] - (self.cpu_s[-11] if len(self.cpu_s) > 10 else 0.0)) / STRETCH
            sys.stderr.write(f"{self.ended} jobs: {self.memory_mb[-1]:.1f} MB, {spent_ms:.2f} ms a job\n")

    def figures(self) -> list[Figure]:
        first, last = self.memory_mb[9:12], self.memory_mb[-10:]
        growth = 100 * (statistics.median(last) / statistics.median(first) - 1)
        costs = [
            1000 * (late - early) / (STRETCH // 10) for early, late in zip(self.cpu_s, self.cpu_s[1:], strict=False)
        ]
        ratio = statistics.median(costs[-10:]) / statistics.median(costs[:10])
        p99 = statistics.quantiles(self.waits_s, n=100)[98]
        return [
            Figure(
                name="soak_memory_growth", unit="%", samples=tuple(self.memory_mb), value=growth, op="<", bar=GROWTH_BAR
            ),
            Figure(
                name="soak_submit_to_running_p99",
                unit="s",
                samples=tuple(self.waits_s),
                value=p99,
                op="<",
                bar=P99_BAR_S,
            ),
            Figure(name="soak_cost_last_to_first", unit="", samples=tuple(costs), value=ratio, op="<=", bar=COST_BAR),
        ]


def _request(name: str, directory: str) -> dict[str, Any]:
    return {
        "spec": {"name": name, "run": ["true"]},
        "directory": directory,
        "environment": {"PATH": "/usr/bin:/bin"},
        "request_id": name,
    }
