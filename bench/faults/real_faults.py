"""Random faults on real processes; not a bench.

50 small gangs step on virtual nodes while ranks, launchers and servers are killed, ranks are frozen, nodes are lost and
return, and disks are full. Users only submit jobs and let them finish at the end, so any other end of a job follows
from its faults by the lifecycle table. Used by `kill_anything`.
"""

import itertools
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.faults.audit import left_of
from bench.faults.audited import Audit, audit_log
from bench.faults.kill_server import Servers
from bench.measure import ROOT
from ganger.client import Client, ClientError
from ganger.engine.eventlog.event_log import EventLog
from ganger.settings import home as home_of

GANGS: Final = 50
NODES: Final = 6
FAULT_EVERY_S: Final = 0.4
FULL_S, AWAY_S = 1.0, 1.5
"""Longest time that a disk is full, or a node gone."""
STEPS_TO_FREEZE: Final = 5
"""Reports that a rank has made before it may be frozen: a rank that has never reported is not monitored."""
DEADLINE_S: Final = 300.0
LIVE: Final = "pending,suspended,starting,running,requeueing,suspending,finishing,failing,stopping"
SCRIPT: Final = str(ROOT / "bench" / "faults" / "ticking.py")
TOPOLOGY: Final = "nodes:\n" + "".join(f"- {{name: n{number}, cpu: 64, memory: 64Gi}}\n" for number in range(NODES))


def run_faults(folder: Path, faults: int, seed: int, gangs: int = GANGS) -> tuple[Audit, dict[str, int]]:
    """Return the audit after that many faults, and the number of faults by kind."""
    home = home_of({"GANGER_HOME": str(folder / "home")})
    home.path.mkdir(mode=0o700)
    home.topology.write_text(TOPOLOGY)
    servers = Servers(home.path)
    fault_run = FaultRun(folder, servers, Client(home), random.Random(seed))
    try:
        servers.start()
        fault_run.until(fault_run.server_answers, "the first server")
        fault_run.inject_faults(faults, gangs)
        fault_run.finish()
        left_behind = fault_run.leftovers()
    finally:
        with suppress(RuntimeError):
            servers.end()
        for pid in left_of(home.path):  # after an error: left-over processes would never end
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    log = EventLog(home.database)
    audit = audit_log(log)
    log.close()
    audit.left += left_behind
    return audit, fault_run.counts


@dataclass
class FaultRun:
    """A run of faults.

    Attributes:
        counts: faults so far, by kind.
        full_until_s: when the disk has room again, in monotonic seconds.
        away: the lost node, and until when.
    """

    folder: Path
    servers: Servers
    client: Client
    chance: random.Random
    counts: dict[str, int] = field(default_factory=dict)
    full_until_s: float | None = None
    away: dict[str, float] = field(default_factory=dict)
    serial: Iterator[int] = field(default_factory=itertools.count)

    def inject_faults(self, faults: int, gangs: int) -> None:
        """Keep the number of live gangs, and inject one fault after the other."""
        for number in itertools.count():
            if sum(self.counts.values()) >= faults:
                return
            if number % 10 == 0:
                for _ in range(gangs - len(self.live())):
                    self.submit()
            name = self.chance.choice(tuple(FAULTS))
            if FAULTS[name](self):
                self.counts[name] = self.counts.get(name, 0) + 1
            time.sleep(self.chance.uniform(0, 2 * FAULT_EVERY_S))
            self.mend()

    def finish(self) -> None:
        """End all faults, then let every job finish."""
        self.until(lambda: self.mend() or not (self.full_until_s or self.away), "the end of the last faults")
        (self.folder / "enough").touch()
        self.until(lambda: not self.live(), "the end of every job")

    def mend(self) -> None:
        """End the faults whose time is over."""
        now_s = time.monotonic()
        self.make_room()
        for node in [node for node, until_s in self.away.items() if until_s <= now_s]:
            del self.away[node]
            self.ask_until_answered(lambda node=node: self.client.return_node(node))

    def make_room(self) -> None:
        """Give the disk room again if its time has come, also for processes started meanwhile."""
        if self.full_until_s is not None and self.full_until_s <= time.monotonic():
            self.full_until_s = None
            server = _read(self.folder / "home" / "server.json").get("pid")
            for pid in (server, *left_of(self.folder / "home")):
                if pid is not None:
                    limit_files(pid, resource.RLIM_INFINITY)

    def leftovers(self) -> list[str]:
        """Return what is left behind or held, and ranks that ran twice at a time."""
        errors = [
            f"node {row['name']} is not free: {row}"
            for row in self.ask_until_answered(self.client.nodes)
            if row["gangs"]
        ]
        for record_file in self.folder.glob("*.book"):
            errors += [
                f"{record_file.stem}: {line}"
                for line in record_file.read_text().splitlines()
                if line.startswith("taken")
            ]
        with suppress(TimeoutError):
            self.until(lambda: not _task_processes(self.folder / "home"), "the end of every process", 30.0)
        return errors + [f"process {pid} is left" for pid in _task_processes(self.folder / "home")]

    # -- targets ------------------------------------------------------------------------------------------------------

    def submit(self) -> None:
        """Submit a gang of two or three ranks, each on a node of its own."""
        name = f"gang-{next(self.serial)}"
        kind = self.chance.choice(("steady",) * 9 + ("fails",))
        request = {
            "spec": {
                "name": name,
                "run": [sys.executable, "-P", SCRIPT, str(self.folder), kind],
                "nodes": self.chance.choice((2, 2, 3)),
                "nproc_per_node": 1,
                "resources": {"cpu": 1},
                "retry": {**self.chance.choice(({}, {"max": 1}, {"max": 50}, {"max": 50})), "backoff": "10ms..500ms"},
                "checkpoint": {"dir": f"saved-{name}", "grace": "0s"},
            },
            "directory": str(self.folder),
            "environment": {"PATH": "/usr/bin:/bin"},
            "request_id": name,
        }
        self.ask_until_answered(lambda: self.client.submit(request))

    def live(self) -> list[str]:
        """Return the jobs that have not ended."""
        return [row["id"] for row in self.ask_until_answered(lambda: self.client.jobs(state=LIVE, limit=500))["items"]]

    def tasks(self) -> Iterator[Path]:
        """Yield the directories of launchers, in random order."""
        folders = sorted(self.folder.glob("home/jobs/*/nodes/*"))
        yield from self.chance.sample(folders, len(folders))

    def launcher(self) -> int | None:
        """Return the PID of a live launcher."""
        records = (_read(task / "launcher.json") for task in self.tasks())
        return next((r["pid"] for r in records if r and is_alive(r["pid"], r["start_ticks"])), None)

    def rank(self, steps: int = 0) -> int | None:
        """Return the PID of a running rank that has made that many steps."""
        start_files = (started for task in self.tasks() for started in task.glob("*/started"))
        for started in start_files:
            if (started.parent / "cleared").exists():
                continue
            for rank, (pid, ticks) in _read(started).get("pids", {}).items():
                report = started.parent / f"rank-{rank}.report"
                made_steps = report.read_bytes().count(b"\n") if report.exists() else 0
                if made_steps >= steps and is_alive(pid, ticks):
                    return int(pid)
        return None

    # -- requests, repeated until they are answered -------------------------------------------------------------------

    def ask_until_answered(self, question: Callable[[], Any]) -> Any:
        """Return the response, also of a server that is being started, or has no room for a moment."""
        until_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                return question()
            except ClientError as error:
                if error.code not in ("unreachable", "timeout", "server_stopping", "disk_full", "log_failed"):
                    raise
                self.servers.check_alive()
                if time.monotonic() > until_s:
                    raise
            self.make_room()
            time.sleep(0.05)

    def server_answers(self) -> bool:
        """Return whether a server answers."""
        try:
            self.client.connect(start=False)
        except ClientError:
            return False
        return True

    def until(self, holds: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
        """Wait until the condition holds. Raises TimeoutError."""
        until_s = time.monotonic() + deadline_s
        while not holds():
            self.servers.check_alive()
            if time.monotonic() > until_s:
                raise TimeoutError(f"{what} did not come within {deadline_s:g} s")
            time.sleep(0.1)


# -- faults: each returns whether it had a target ----------------------------------------------------------------------


def kill_rank(fault_run: FaultRun) -> bool:
    """Kill a rank by a signal from outside the job."""
    return _send_signal(fault_run.rank(), fault_run.chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV)))


def freeze_rank(fault_run: FaultRun) -> bool:
    """Stop a rank's process for good."""
    return _send_signal(fault_run.rank(STEPS_TO_FREEZE), signal.SIGSTOP)


def kill_launcher(fault_run: FaultRun) -> bool:
    """Kill a launcher, with everything that it supervises."""
    return _send_signal(fault_run.launcher(), signal.SIGKILL)


def kill_server(fault_run: FaultRun) -> bool:
    """Kill the server; another one is started at once."""
    fault_run.servers.kill()
    fault_run.servers.start()
    return True


def lose_node(fault_run: FaultRun) -> bool:
    """Lose a node with everything on it; it returns empty."""
    node = f"n{fault_run.chance.randrange(NODES)}"
    if fault_run.away:
        return False
    fault_run.ask_until_answered(lambda: fault_run.client.fail_node(node))
    fault_run.away[node] = time.monotonic() + fault_run.chance.uniform(0, AWAY_S)
    return True


def fill_disk(fault_run: FaultRun) -> bool:
    """Let writes of the server, or of a launcher, fail for lack of space."""
    server = _read(fault_run.folder / "home" / "server.json")
    is_running = bool(server) and is_alive(server["pid"], server["start_ticks"])
    pid = server["pid"] if is_running and fault_run.chance.random() < 0.5 else fault_run.launcher()
    if fault_run.full_until_s or pid is None:
        return False
    limit_files(pid, 0)
    fault_run.full_until_s = time.monotonic() + fault_run.chance.uniform(0, FULL_S)
    return True


FAULTS: Final[dict[str, Callable[[FaultRun], bool]]] = {
    "rank": kill_rank,
    "frozen": freeze_rank,
    "launcher": kill_launcher,
    "server": kill_server,
    "node": lose_node,
    "disk full": fill_disk,
}


def _send_signal(pid: int | None, number: int) -> bool:
    if pid is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def limit_files(pid: int, limit_bytes: int) -> None:
    """Limit the size of the files that a process writes; the process may have ended meanwhile."""
    with suppress(ProcessLookupError, PermissionError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit_bytes, hard))


def is_alive(pid: int, ticks: int) -> bool:
    """Return whether that very process exists, and is neither a zombie nor stopped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZTt" and int(fields[19]) == ticks


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


def _task_processes(home: Path) -> list[int]:
    """Return the processes of tasks, without launchers that wait for another generation."""
    mark, pids = f"GANGER_TASK_DIR={home / 'jobs'}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in path.read_bytes():
                pids.append(int(path.parent.name))
    return pids
