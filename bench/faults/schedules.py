"""Faults on gangs of gloo ranks, drawn from a seed, and the check of what the ranks recorded; not a bench."""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from bench.faults.partition import Proxy
from bench.faults.real_processes import Servers, is_alive, left_of
from bench.measure import ROOT
from bench.serving import TORCH_BIN
from ganger.client import Client, ClientError
from ganger.settings import home as home_of

SIZES: Final = ((1, 3, 2), (2, 4, 1), (2, 3, 2), (1, 2, 3), (2, 3, 1), (2, 2, 2), (3, 3, 2), (1, 1, 3))
"""Fewest and most nodes, ranks of a node."""
FAULTS: Final = (3, 6)
PAUSE_S: Final = 0.8
"""Longest time between two faults."""
LASTING_S: Final = 1.5
"""Longest time that a fault lasts."""
STEPS: Final = 4
"""Steps before the first fault of a schedule and after the last one."""
DEADLINE_S: Final = 180.0
SCRIPT: Final = ROOT / "bench" / "faults" / "sampling.py"
NODES: Final = "nodes:\n" + "".join(f"- {{name: n{number}, cpu: 64, memory: 64Gi}}\n" for number in range(4))


@dataclass
class Result:
    """Outcome of a gang and its schedules.

    Attributes:
        errors: what was wrong, as sentences.
        faults: how often each fault struck.
    """

    seed: int
    schedules: int = 0
    errors: list[str] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    attempts: int = 0
    took_s: float = 0.0

    def record(self) -> dict[str, Any]:
        return asdict(self)


class World:
    """A server, and a proxy between it and the launchers; runs schedules, also several at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._home = home_of({"GANGER_HOME": str(folder / "home")})
        self._servers = Servers(self._home.path)
        self.client = Client(self._home)

    def __enter__(self) -> Self:
        self._home.path.mkdir(mode=0o700)
        self._home.topology.write_text(NODES)
        self._servers.start()
        until(self._answers, "a server that answers")
        self.proxy = Proxy(self._home.socket("launcher"))
        return self

    def __exit__(self, *_: object) -> None:
        self.proxy.close()
        with suppress(RuntimeError):
            self._servers.end()
        for pid in left_of(self._home.path):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def run(self, seed: int, schedules: int) -> Result:
        """Run that many schedules on one gang, one after the other."""
        began_s = time.monotonic()
        gang = Gang(self, seed)
        try:
            gang.run(schedules)
        except (TimeoutError, ClientError) as error:
            gang.result.errors.append(str(error))
            with suppress(ClientError):
                self.client.stop(gang.job)
        gang.check()
        gang.result.took_s = round(time.monotonic() - began_s, 1)
        return gang.result

    def _answers(self) -> bool:
        try:
            self.client.connect(start=False)
        except ClientError:
            return False
        return True


class Gang:
    """A gang and its faults."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.result = world, Result(seed)
        self.chance = random.Random(seed)
        self.folder = world.folder / f"gang-{seed}"
        self.job = f"gang-{seed}"
        self.fewest, self.most, self.ranks = self.chance.choice(SIZES)
        self._undo: list[tuple[float, Callable[[], object]]] = []

    def run(self, schedules: int) -> None:
        """Submit the gang, strike, let it end. Raises TimeoutError if it does not go on."""
        self.folder.mkdir()
        self.job = self._submit()
        self._until_it_steps()
        for _ in range(schedules):
            self._run_schedule()
            self.result.schedules += 1
        (self.folder / "enough").touch()
        until(lambda: self._state() in ("succeeded", "failed", "stopped"), f"the end of {self.job}")

    def _run_schedule(self) -> None:
        """Let faults strike one over the other; wait until the gang steps again."""
        for name in self.chance.choices(tuple(KINDS), k=self.chance.randint(*FAULTS)):
            KINDS[name](self)
            self.result.faults[name] = self.result.faults.get(name, 0) + 1
            self._wait(self.chance.uniform(0, PAUSE_S))
        while self._undo:
            self._wait(0.1)
        self._until_it_steps()

    def check(self) -> None:
        """Check the records of the ranks."""
        lines = [line.split() for line in self._records()]
        errors = self.result.errors
        with suppress(ClientError):
            row = self.world.client.job(self.job)["row"]
            self.result.attempts = row["generation"]
            if row["state"] != "succeeded":
                errors.append(f"it is {row['state']}: {row.get('reason')}")
        errors += [f"two processes had {line[1]}" for line in lines if line[0] == "taken"]
        attempts = [int(line[1]) for line in lines if line[0] == "step"]
        if attempts != sorted(attempts):
            errors.append("an attempt stepped after the first step of a later one")
        sizes: dict[str, set[str]] = {}
        for line in lines:
            if line[0] == "step":
                sizes.setdefault(line[1], set()).add(line[3])
        errors += [f"attempt {attempt} had worlds of {found}" for attempt, found in sizes.items() if len(found) > 1]
        epochs = [line for line in lines if line[0] == "epoch"]
        wrong = [line for line in epochs if line[3:] != ["1", "1"]]
        errors += [f"epoch {number}: a sample was seen {low} to {high} times" for _, _, number, low, high in wrong]
        numbers = sorted({int(line[2]) for line in epochs})
        if numbers != list(range(len(numbers))):
            errors.append(f"epochs are missing: {numbers}")

    # -- faults --------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill a rank or a launcher."""
        self._signal(self.chance.choice(self._processes() or [0]), signal.SIGKILL)

    def stop(self) -> None:
        """Suspend the job, and resume it after a while."""
        with suppress(ClientError):  # it may be suspended already
            self.world.client.change(self.job, suspended=True)
        self._later(lambda: self._ask(lambda: self.world.client.change(self.job, suspended=False)))

    def freeze(self) -> None:
        """Stop a rank or a launcher, for a while; a rank sometimes for good."""
        pid = self.chance.choice(self._processes() or [0])
        is_for_good = self.chance.random() < 0.2 and pid in self._ranks()
        self._signal(pid, signal.SIGSTOP)
        if not is_for_good:
            self._later(lambda: self._signal(pid, signal.SIGCONT))

    def partition(self) -> None:
        """Cut a launcher's connection, or let it be silent, for a while."""
        nodes = sorted(path.name for path in self._tasks().glob("*"))
        if nodes:
            mend = self.world.proxy.part(self.job, self.chance.choice(nodes), is_cut=self.chance.random() < 0.5)
            self._later(mend)

    def resize(self) -> None:
        """Ask for some number of nodes of an elastic gang; suspend a rigid one."""
        if self.fewest == self.most:
            self.stop()
            return
        with suppress(ClientError):  # it may be stopping
            self.world.client.change(self.job, nodes=str(self.chance.randint(self.fewest, self.most)))

    def _later(self, undo: Callable[[], object]) -> None:
        self._undo.append((time.monotonic() + self.chance.uniform(0, LASTING_S), undo))

    def _wait(self, lasting_s: float) -> None:
        """Wait, and end the faults whose time is over."""
        end_s = time.monotonic() + lasting_s
        while True:
            due = [item for item in self._undo if item[0] <= time.monotonic()]
            self._undo = [item for item in self._undo if item not in due]
            for _, undo in due:
                undo()
            if time.monotonic() >= end_s:
                return
            time.sleep(0.02)

    def _signal(self, pid: int, number: int) -> None:
        with suppress(ProcessLookupError):
            if pid:
                os.kill(pid, number)

    # -- the gang ------------------------------------------------------------------------------------------------------

    def _submit(self) -> str:
        spec = {
            "name": self.job,
            "framework": "torch",
            "run": [str(TORCH_BIN / "python"), str(SCRIPT), str(self.folder)],
            "nodes": self.fewest if self.fewest == self.most else f"{self.fewest}..{self.most}",
            "nproc_per_node": self.ranks,
            "resources": {"cpu": 1},
            "retry": {"max": 100, "backoff": "10ms..200ms"},
            "checkpoint": {"dir": str(self.folder / "saved"), "grace": "2s"},
            "warm": self.chance.random() < 0.8,
        }
        request = {"spec": spec, "directory": str(self.folder), "environment": {"PATH": "/usr/bin:/bin"}}
        return str(self._ask(lambda: self.world.client.submit({**request, "request_id": self.job}))["row"]["id"])

    def _ask(self, question: Callable[[], Any]) -> Any:
        until_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                return question()
            except ClientError as error:
                if error.code not in ("unreachable", "timeout") or time.monotonic() > until_s:
                    raise
            time.sleep(0.1)

    def _state(self) -> str:
        return str(self._ask(lambda: self.world.client.job(self.job))["row"]["state"])

    def _records(self) -> list[str]:
        path = self.folder / "records"
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def _until_it_steps(self) -> None:
        """Wait until rank 0 has made some new steps."""

        def count() -> int:
            return sum(line.split()[0::2][:2] == ["step", "0"] for line in self._records())

        before = count()
        until(lambda: count() >= before + STEPS, f"steps of {self.job}, which is {self._state()}")

    def _tasks(self) -> Path:
        return self.world.folder / "home" / "jobs" / self.job / "nodes"

    def _ranks(self) -> list[int]:
        """Return the PIDs of the ranks of the newest attempt."""
        pids = []
        for started in self._tasks().glob("*/*/started"):
            if not (started.parent / "cleared").exists():
                pids += [pid for pid, ticks in _read(started).get("pids", {}).values() if is_alive(pid, ticks)]
        return sorted(pids)

    def _processes(self) -> list[int]:
        """Return the PIDs of its ranks and of its launchers, which are named as often as they have ranks."""
        launchers = [_read(path) for path in self._tasks().glob("*/launcher.json")]
        alive = [item["pid"] for item in launchers if item and is_alive(item["pid"], item["start_ticks"])]
        return [*self._ranks(), *sorted(alive)]


KINDS: Final[dict[str, Callable[[Gang], None]]] = {
    "kill": Gang.kill,
    "stop": Gang.stop,
    "freeze": Gang.freeze,
    "partition": Gang.partition,
    "resize": Gang.resize,
}


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until the condition holds. Raises TimeoutError."""
    until_s = time.monotonic() + DEADLINE_S
    while not holds():
        if time.monotonic() > until_s:
            raise TimeoutError(f"never came: {what}")
        time.sleep(0.1)


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}
