"""A server killed with SIGKILL 200 times at random moments under load: lost, doubled, leaked or left-over objects.

20 jobs are live at any time, of seven kinds: some succeed, some fail, die and are retried, leave daemons, are stopped
at any moment, ignore SIGTERM. Their ranks are witnesses (`witness.py`); `audit` compares their records with the last
server's state. Half of the kills hit a server that is still starting.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.faults.audit import AcceptedJob, Findings, audit, left_of
from bench.measure import ROOT, Figure
from ganger.client import Client, ClientError
from ganger.settings import home as home_of

KILLS = int(os.environ.get("GANGER_BENCH_KILLS", "200"))
SEED = 5
LIVE = 20
SUBMITTERS = 5
KINDS = ("steady", "steady", "daemon", "dies", "fails", "unset", "endless", "endless", "deaf")
LINES = (20, 120)
"""Fewest and most lines of a rank: one to six seconds."""
STARTS, WORKING_S = 1.2, 2.5
"""A kill comes within that multiple of the first server's start time, or within that time after a response."""
DEADLINE_S = 600.0
ENDED = ("succeeded", "failed", "stopped")
TOPOLOGY = "nodes: [{name: n1, gpu: h100:9, cpu: 64, memory: 64Gi}, {name: n2, gpu: h100:9, cpu: 64, memory: 64Gi}]\n"


def run() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as name:
        folder = Path(name)
        findings, accepted_jobs = _run_kills(folder)
        print(f"{KILLS} kills, {len(accepted_jobs)} jobs, {findings.events} events; {findings.lines} lines of log")
        for line in findings.details[:40]:
            print(" ", line)
    counts = {
        "kill_server_jobs_lost": findings.lost,
        "kill_server_tasks_doubled": findings.doubled,
        "kill_server_devices_leaked": findings.leaked,
        "kill_server_orphans": findings.orphans,
        "kill_server_log_lines_lost": findings.lines_lost,
        "kill_server_cycles_decided_otherwise": findings.otherwise,
    }
    return [
        Figure(name=name, unit="", samples=(float(count),), value=float(count), op="==", bar=0.0)
        for name, count in counts.items()
    ]


def _run_kills(folder: Path) -> tuple[Findings, list[AcceptedJob]]:
    """Kill the server many times; audit the end state after all jobs have ended."""
    home = home_of({"GANGER_HOME": str(folder / "home")})
    home.path.mkdir(mode=0o700)
    home.topology.write_text(TOPOLOGY)
    servers, clients = Servers(home.path), Clients(Client(home), folder)
    try:
        _kill_repeatedly(servers, clients)
        clients.finish()
        _until(clients.is_over, "the end of every job", servers.check_alive)
        return audit(Client(home).connect(start=False), folder, clients.accepted_jobs), clients.accepted_jobs
    finally:
        clients.closed.set()
        servers.end()
        for pid in left_of(home.path):  # after an error: left-over processes would never end
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _kill_repeatedly(servers: "Servers", clients: "Clients") -> None:
    chance = random.Random(SEED)
    began = time.monotonic()
    servers.start()
    _until(clients.server_answers, "the first server", servers.check_alive)
    start_s = time.monotonic() - began
    clients.start_submitters()
    for number in range(KILLS):
        if chance.random() < 0.5:
            time.sleep(chance.uniform(0.0, STARTS * start_s))
        else:
            _until(clients.server_answers, f"server {number}", servers.check_alive)
            time.sleep(chance.uniform(0.0, WORKING_S))
        servers.kill()
        servers.start()
    _until(clients.server_answers, "the last server", servers.check_alive)


class Servers:
    """One server after the other, each started as soon as the previous one is dead."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._process: subprocess.Popen[bytes]

    def start(self) -> None:
        command = [sys.executable, "-P", "-m", "ganger.server", "serve", "--home", str(self._home)]
        with (self._home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        self.check_alive()
        self._process.kill()
        self._process.wait()

    def check_alive(self) -> None:
        """Raise RuntimeError if the server has ended by itself."""
        if self._process.poll() is not None:
            log = (self._home / "server.log").read_text(errors="replace")
            raise RuntimeError(f"the server ended with {self._process.returncode}: {log[-3000:]}")

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(DEADLINE_S)


@dataclass
class Clients:
    """Users who submit and stop jobs, and repeat requests until they are answered.

    Attributes:
        accepted_jobs: acknowledged submissions.
    """

    client: Client
    folder: Path
    accepted_jobs: list[AcceptedJob] = field(default_factory=list)
    closed: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _errors: list[BaseException] = field(default_factory=list)

    def server_answers(self) -> bool:
        try:
            self.client.connect(start=False)
        except ClientError:
            return False
        return True

    def start_submitters(self) -> None:
        for number in range(SUBMITTERS):
            thread = threading.Thread(target=self._submit_guarded, args=(random.Random(SEED * 1000 + number), number))
            self._threads.append(thread)
            thread.start()

    def finish(self) -> None:
        """End the submissions and stop the jobs that are to be stopped."""
        self.closed.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        for accepted in self.accepted_jobs:
            self._stop(accepted)

    def is_over(self) -> bool:
        return not self._ask_until_answered(lambda: self.client.jobs(state=_LIVE, limit=1)["items"])

    def _submit_guarded(self, chance: random.Random, number: int) -> None:
        try:
            self._submit_and_stop(chance, number)
        except BaseException as error:  # noqa: BLE001 - it is raised again by `finish`
            self._errors.append(error)

    def _submit_and_stop(self, chance: random.Random, number: int) -> None:
        """Keep one submitter's share of the jobs live."""
        mine: list[AcceptedJob] = []
        serial = 0
        while not self.closed.is_set():
            live = [accepted for accepted in mine if not self._has_ended(accepted)]
            mine = live
            while len(mine) < LIVE // SUBMITTERS:
                mine.append(self._submit(chance, f"{number}-{serial}"))
                serial += 1
            for accepted in mine:
                if accepted.is_to_be_stopped and chance.random() < 0.15:
                    self._stop(accepted)
            time.sleep(chance.uniform(0.0, 0.4))

    def _submit(self, chance: random.Random, serial: str) -> AcceptedJob:
        kind = chance.choice(KINDS)
        name = f"{kind}-{serial}"
        out = self.folder / name
        out.mkdir()
        lines = chance.randint(*LINES)
        argv = [sys.executable, "-I", "-S", str(ROOT / "bench" / "faults" / "witness.py"), kind, str(out), str(lines)]
        request = {
            "spec": {
                "name": name,
                "run": argv,
                "nodes": chance.choice((1, 1, 2)),
                "resources": {"gpu": chance.choice((1, 1, 2))},
                "nproc_per_node": 1,
                "retry": {"max": 3, "backoff": "10ms..1s"} if kind == "dies" else {"max": 0},
                **({"setup": "exit 3"} if kind == "unset" else {}),
            },
            "directory": str(self.folder),
            "environment": {"PATH": "/usr/bin:/bin"},
            "request_id": name,
        }
        view = self._ask_until_answered(lambda: self.client.submit(request))
        accepted = AcceptedJob(view["row"]["id"], name, kind, lines, request["spec"]["nodes"], out)
        self.accepted_jobs.append(accepted)
        return accepted

    def _stop(self, accepted: AcceptedJob) -> None:
        if not accepted.is_to_be_stopped or accepted.stopped:
            return

        def stop() -> None:
            try:
                self.client.stop(accepted.job)
            except ClientError as error:
                if error.code != "already_ended":  # by a request without a response
                    raise

        self._ask_until_answered(stop)
        accepted.stopped = True

    def _has_ended(self, accepted: AcceptedJob) -> bool:
        return bool(self._ask_until_answered(lambda: self.client.job(accepted.job))["row"]["state"] in ENDED)

    def _ask_until_answered(self, ask: Callable[[], Any]) -> Any:
        """Repeat a request until it is answered."""
        until_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                return ask()
            except ClientError as error:
                if error.code not in _UNANSWERED or time.monotonic() > until_s:
                    raise
            time.sleep(0.05)


_UNANSWERED = ("unreachable", "timeout", "server_stopping")
_LIVE = "pending,suspended,starting,running,requeueing,suspending,finishing,failing,stopping"


def _until(holds: Callable[[], bool], what: str, check_alive: Callable[[], None]) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not holds():
        check_alive()
        if time.monotonic() > until_s:
            raise TimeoutError(f"{what} did not come within {DEADLINE_S:g} s")
        time.sleep(0.02)
