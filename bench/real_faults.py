"""Random faults on real processes: 50 small gangs step on virtual nodes while ranks, launchers and servers are killed,
ranks are frozen, nodes go and come back, and disks are full. Used by `kill_anything`; not a bench itself.

Nobody asks for anything but that jobs run, and at the end that they finish, so whatever else becomes of a job is what
the table of reactions says of its faults.
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

from bench.audit import left_of
from bench.audited import Audit, audited
from bench.kill_server import Servers
from bench.measure import ROOT
from ganger.client import Client, ClientError
from ganger.engine.eventlog.event_log import EventLog
from ganger.settings import home as home_of

GANGS: Final = 50
NODES: Final = 6
FAULT_EVERY_S: Final = 0.4
FULL_S, AWAY_S = 1.0, 1.5
"""How long a disk is full, and a node gone, at most."""
STEPS_TO_FREEZE: Final = 5
"""Reports that a rank has made before it may be frozen: what has shown no pulse is known to nobody."""
DEADLINE_S: Final = 300.0
LIVE: Final = "pending,suspended,starting,running,requeueing,suspending,finishing,failing,stopping"
SCRIPT: Final = str(ROOT / "bench" / "ticking.py")
TOPOLOGY: Final = "nodes:\n" + "".join(f"- {{name: n{at}, cpu: 64, memory: 64Gi}}\n" for at in range(NODES))


def endured(folder: Path, faults: int, seed: int, gangs: int = GANGS) -> tuple[Audit, dict[str, int]]:
    """What is wrong after so many faults, and how many there were of each sort."""
    home = home_of({"GANGER_HOME": str(folder / "home")})
    home.path.mkdir(mode=0o700)
    home.topology.write_text(TOPOLOGY)
    servers = Servers(home.path)
    ordeal = Ordeal(folder, servers, Client(home), random.Random(seed))
    try:
        servers.start()
        ordeal.until(ordeal.answers, "the first server")
        ordeal.endure(faults, gangs)
        ordeal.finish()
        left = ordeal.wrong()
    finally:
        with suppress(RuntimeError):
            servers.end()
        for pid in left_of(home.path):  # where something failed: what still runs would run for ever
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    log = EventLog(home.database)
    found = audited(log)
    log.close()
    found.left += left
    return found, ordeal.done


@dataclass
class Ordeal:
    """done: faults so far, by sort; full_until_s: when the disk has room again; away: the node that is gone, and until
    when; in monotonic seconds."""

    folder: Path
    servers: Servers
    client: Client
    chance: random.Random
    done: dict[str, int] = field(default_factory=dict)
    full_until_s: float | None = None
    away: dict[str, float] = field(default_factory=dict)
    serial: Iterator[int] = field(default_factory=itertools.count)

    def endure(self, faults: int, gangs: int) -> None:
        """As many live gangs as there are to be, and one fault after the other."""
        for number in itertools.count():
            if sum(self.done.values()) >= faults:
                return
            if number % 10 == 0:
                for _ in range(gangs - len(self.live())):
                    self.submit()
            name = self.chance.choice(tuple(FAULTS))
            if FAULTS[name](self):
                self.done[name] = self.done.get(name, 0) + 1
            time.sleep(self.chance.uniform(0, 2 * FAULT_EVERY_S))
            self.mend()

    def finish(self) -> None:
        """Everything is mended, and everybody is told that it is enough."""
        self.until(lambda: self.mend() or not (self.full_until_s or self.away), "the end of the last faults")
        (self.folder / "enough").touch()
        self.until(lambda: not self.live(), "the end of every job")

    def mend(self) -> None:
        """What was to last only so long."""
        now = time.monotonic()
        self.make_room()
        for node in [node for node, until_s in self.away.items() if until_s <= now]:
            del self.away[node]
            self.ask(lambda node=node: self.client.return_node(node))

    def make_room(self) -> None:
        """The disk has room again if it is time, also for what was started meanwhile."""
        if self.full_until_s is not None and self.full_until_s <= time.monotonic():
            self.full_until_s = None
            server = _read(self.folder / "home" / "server.json").get("pid")
            for pid in (server, *left_of(self.folder / "home")):
                if pid is not None:
                    limit_files(pid, resource.RLIM_INFINITY)

    def wrong(self) -> list[str]:
        """What is left behind, held, or was begun twice at a time."""
        found = [f"node {row['name']} is not free: {row}" for row in self.ask(self.client.nodes) if row["gangs"]]
        for book in self.folder.glob("*.book"):
            found += [f"{book.stem}: {line}" for line in book.read_text().splitlines() if line.startswith("taken")]
        with suppress(TimeoutError):
            self.until(lambda: not _strays(self.folder / "home"), "the end of every process", 30.0)
        return found + [f"process {pid} is left" for pid in _strays(self.folder / "home")]

    # -- whom to hurt -------------------------------------------------------------------------------------------------

    def submit(self) -> None:
        """A gang of two or three ranks, on nodes of their own."""
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
        self.ask(lambda: self.client.submit(request))

    def live(self) -> list[str]:
        """Jobs that have not ended."""
        return [row["id"] for row in self.ask(lambda: self.client.jobs(state=LIVE, limit=500))["items"]]

    def tasks(self) -> Iterator[Path]:
        """Directories of launchers, in the order of chance."""
        found = sorted(self.folder.glob("home/jobs/*/nodes/*"))
        yield from self.chance.sample(found, len(found))

    def launcher(self) -> int | None:
        """The process of one that is there."""
        records = (_read(task / "launcher.json") for task in self.tasks())
        return next((r["pid"] for r in records if r and is_alive(r["pid"], r["start_ticks"])), None)

    def rank(self, steps: int = 0) -> int | None:
        """The process of a rank that runs, and has made so many steps."""
        begun = (started for task in self.tasks() for started in task.glob("*/started"))
        for started in begun:
            if (started.parent / "cleared").exists():
                continue
            for rank, (pid, ticks) in _read(started).get("pids", {}).items():
                report = started.parent / f"rank-{rank}.report"
                made = report.read_bytes().count(b"\n") if report.exists() else 0
                if made >= steps and is_alive(pid, ticks):
                    return int(pid)
        return None

    # -- people who ask until somebody answers ------------------------------------------------------------------------

    def ask(self, question: Callable[[], Any]) -> Any:
        """The answer, also of a server that is just being started, or has no room for a moment."""
        until_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                return question()
            except ClientError as error:
                if error.code not in ("unreachable", "timeout", "server_stopping", "disk_full", "log_failed"):
                    raise
                self.servers.alive()
                if time.monotonic() > until_s:
                    raise
            self.make_room()
            time.sleep(0.05)

    def answers(self) -> bool:
        """Whether a server does."""
        try:
            self.client.connect(start=False)
        except ClientError:
            return False
        return True

    def until(self, holds: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
        """Wait for a condition; TimeoutError."""
        until_s = time.monotonic() + deadline_s
        while not holds():
            self.servers.alive()
            if time.monotonic() > until_s:
                raise TimeoutError(f"{what} did not come within {deadline_s:g} s")
            time.sleep(0.1)


# -- faults: each says whether there was anything to hurt --------------------------------------------------------------


def kill_rank(ordeal: Ordeal) -> bool:
    """By a signal that nobody of the job sent."""
    return _signalled(ordeal.rank(), ordeal.chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV)))


def freeze_rank(ordeal: Ordeal) -> bool:
    """Its process is stopped, and nobody lets it go on."""
    return _signalled(ordeal.rank(STEPS_TO_FREEZE), signal.SIGSTOP)


def kill_launcher(ordeal: Ordeal) -> bool:
    """With everything that it looks after."""
    return _signalled(ordeal.launcher(), signal.SIGKILL)


def kill_server(ordeal: Ordeal) -> bool:
    """Another one is started at once."""
    ordeal.servers.kill()
    ordeal.servers.start()
    return True


def lose_node(ordeal: Ordeal) -> bool:
    """With everything on it; it comes back, empty."""
    node = f"n{ordeal.chance.randrange(NODES)}"
    if ordeal.away:
        return False
    ordeal.ask(lambda: ordeal.client.fail_node(node))
    ordeal.away[node] = time.monotonic() + ordeal.chance.uniform(0, AWAY_S)
    return True


def fill_disk(ordeal: Ordeal) -> bool:
    """Nothing that the server, or some launcher, writes finds room."""
    server = _read(ordeal.folder / "home" / "server.json")
    is_there = bool(server) and is_alive(server["pid"], server["start_ticks"])
    pid = server["pid"] if is_there and ordeal.chance.random() < 0.5 else ordeal.launcher()
    if ordeal.full_until_s or pid is None:
        return False
    limit_files(pid, 0)
    ordeal.full_until_s = time.monotonic() + ordeal.chance.uniform(0, FULL_S)
    return True


FAULTS: Final[dict[str, Callable[[Ordeal], bool]]] = {
    "rank": kill_rank,
    "frozen": freeze_rank,
    "launcher": kill_launcher,
    "server": kill_server,
    "node": lose_node,
    "disk full": fill_disk,
}


def _signalled(pid: int | None, number: int) -> bool:
    if pid is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def limit_files(pid: int, most_bytes: int) -> None:
    """How large the files that a process writes may grow; it may be gone meanwhile."""
    with suppress(ProcessLookupError, PermissionError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most_bytes, hard))


def is_alive(pid: int, ticks: int) -> bool:
    """Whether that very process is there, and neither a zombie nor stopped."""
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


def _strays(home: Path) -> list[int]:
    """Processes of tasks; launchers that wait for another generation are none."""
    mark, found = f"GANGER_TASK_DIR={home / 'jobs'}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in path.read_bytes():
                found.append(int(path.parent.name))
    return found
