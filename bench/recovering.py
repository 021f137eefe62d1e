"""What the benches of recovery share: a torch gloo job of four ranks that is hurt again and again, beside a bare cold
start of the same script and an uninterrupted run of it, in the same run. Not a bench itself.

The job steps on two of three virtual nodes, so that there is room for what a lost node leaves behind. A recovery is the
time from the fault to the first step of a new attempt.
"""

import os
import random
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.measure import ROOT, Figure, median, wall_s
from bench.serving import TORCH_BIN, ganger, state_directory
from ganger.client import Client
from ganger.settings import home

FAULTS, BARE_RUNS = 20, 6
RANKS = 4
SLACK_S = 2.0
DEADLINE_S = 120.0
SCRIPT = str(ROOT / "bench" / "stepping.py")
FOREVER = "1000000"
JOB = "stepping"
NODES = "nodes: [{name: n1, cpu: 2}, {name: n2, cpu: 2}, {name: n3, cpu: 2}]\n"


@dataclass(frozen=True, slots=True)
class Hurt:
    """The job as a fault finds it: its client, what its ranks wrote, and chance."""

    client: Client
    out: Path
    chance: random.Random

    def pids(self) -> dict[int, int]:
        """Rank to process of the newest attempt."""
        return {int(rank): int(pid) for rank, pid in (line[2:] for line in lines(self.out) if line[0] == "pid")}

    def nodes(self) -> list[str]:
        """Where it runs, that of rank 0 first."""
        return list(self.client.job(JOB)["row"]["nodes"])


Fault = Callable[[Hurt], Callable[[], object]]
"""Does harm to the job; gives what mends it when the job has come back."""


def measured(name: str, fault: Fault, faults: int = FAULTS) -> list[Figure]:
    """The worst of so many recoveries against a bare cold start and 2 s, and the steps whose loss is not that of the
    uninterrupted run."""
    wall_s(["make", "setup-torch"])
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as folder_name:
        folder = Path(folder_name)
        bare = [_bare_s(folder / f"bare-{number}") for number in range(BARE_RUNS // 2)]
        recoveries = _under_ganger(folder / "ganger", fault, faults)
        bare += [_bare_s(folder / f"bare-{number}") for number in range(BARE_RUNS // 2, BARE_RUNS)]
        survived = losses(folder / "ganger" / "steps")
        expected = uninterrupted(folder / "uninterrupted", max(survived) + 1)
    return [*held_to(name, recoveries, bare, SLACK_S), differing(name, survived, expected)]


def held_to(name: str, recoveries: list[float], bare: list[float], slack_s: float) -> list[Figure]:
    """The worst recovery, which may take so much longer than a bare cold start."""
    floor = statistics.median(bare)
    worst = Figure(
        name=f"{name}_worst",
        unit="s",
        samples=tuple(recoveries),
        value=max(recoveries),
        op="<=",
        bar=floor + slack_s,
        floor=floor,
    )
    return [worst, median("bare_cold_start", "s", bare)]


def differing(name: str, survived: dict[int, str], expected: dict[int, str]) -> Figure:
    """The steps whose loss is not that of the uninterrupted run."""
    wrong = float(sum(survived.get(step) != loss for step, loss in expected.items()))
    return Figure(name=f"{name}_losses", unit="steps that differ", samples=(wrong,), value=wrong, op="==", bar=0.0)


def _under_ganger(folder: Path, fault: Fault, faults: int) -> list[float]:
    folder.mkdir()
    out, topology = folder / "steps", folder / "nodes.yaml"
    topology.write_text(NODES)
    with state_directory() as environment:
        environment["PATH"] = f"{TORCH_BIN}:{environment['PATH']}"
        ganger(environment, "server", "start", "--topology", str(topology))
        flags = ["--framework", "torch", "--nodes", "2", "--nproc-per-node", "2", "--checkpoint", str(folder / "saved")]
        ganger(environment, "submit", "--name", JOB, *flags, "--", "python", SCRIPT, str(out), FOREVER)
        hurt = Hurt(Client(home(environment)).connect(), out, random.Random(3))
        taken = [_recovery_s(hurt, fault) for _ in range(faults)]
        ganger(environment, "stop", JOB)
    return taken


def _recovery_s(hurt: Hurt, fault: Fault) -> float:
    """Let it step past a checkpoint, hurt it, time the first step that comes after, and mend."""
    watch = Watch(hurt.out)
    hurt_at = time.time()
    mend = fault(hurt)
    back_s = watch.again() - hurt_at
    mend()
    return back_s


class Watch:
    """Waits for a job to step past a checkpoint, then knows which of its steps are those of a new attempt."""

    def __init__(self, out: Path) -> None:
        self._out = out
        seen = len(times(out))
        until(lambda: len(times(out)) >= seen + 50, "it does not step")
        self._born = sum(line[0] == "pid" for line in lines(out))

    def again(self, deadline_s: float = DEADLINE_S) -> float:
        """When the first step of the next attempt was done."""
        until(lambda: bool(self._steps()), "it did not step again", deadline_s)
        return self._steps()[0]

    def _steps(self) -> list[float]:
        # A step of the attempt that dies may still be written after the fault: only steps after the new ranks count.
        # torchrun may need two restarts for one death: its new ranks can meet the old ones in its store.
        rows = lines(self._out)
        begun = [at for at, line in enumerate(rows) if line[0] == "pid"][self._born :]
        return [float(line[1]) for line in rows[begun[-1] :] if line[0] == "step"] if len(begun) >= RANKS else []


def _bare_s(folder: Path) -> float:
    """Seconds from starting four processes by hand to their first step."""
    started = time.time()
    with _by_hand(folder, FOREVER) as (out, _):
        until(lambda: bool(times(out)), f"{folder / 'log'} has no step")
        return times(out)[0] - started


def uninterrupted(folder: Path, steps: int) -> dict[int, str]:
    """The losses of as many steps with nobody in the way, and no pause between them."""
    with _by_hand(folder, str(steps), "0") as (out, ranks):
        for process in ranks:
            process.wait(timeout=DEADLINE_S)
    return losses(out)


@contextmanager
def _by_hand(folder: Path, *arguments: str) -> Iterator[tuple[Path, list[subprocess.Popen[bytes]]]]:
    """Four ranks without ganger, and the file they write."""
    folder.mkdir()
    out = folder / "steps"
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(RANKS)}
    command = [TORCH_BIN / "python", SCRIPT, str(out), *arguments]
    with (folder / "log").open("wb") as log:
        ranks = [
            subprocess.Popen(
                command,
                cwd=folder,
                env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=log,
                stderr=log,
            )
            for rank in range(RANKS)
        ]
        try:
            yield out, ranks
        finally:
            for process in ranks:
                process.kill()
                process.wait()


def losses(out: Path) -> dict[int, str]:
    """Loss by step, as it was computed last, to the last digit."""
    return {int(line[2]): line[3] for line in lines(out) if line[0] == "step"}


def times(out: Path) -> list[float]:
    """When each step was done."""
    return [float(line[1]) for line in lines(out) if line[0] == "step"]


def lines(out: Path) -> list[list[str]]:
    """What the ranks wrote, in words; a line that is just being written is left out."""
    return [line.split() for line in out.read_text().split("\n")[:-1]] if out.exists() else []


def until(holds: Callable[[], bool], otherwise: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait for a condition; TimeoutError."""
    until_s = time.monotonic() + deadline_s
    while not holds():
        if time.monotonic() > until_s:
            raise TimeoutError(f"{otherwise} within {deadline_s:g} s")
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
