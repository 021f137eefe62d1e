"""Shared parts of the benches of recovery; not a bench.

A torch gloo job of four ranks is interrupted again and again, and compared with a bare cold start and an uninterrupted
run of the same script in the same run. The job steps on two of three virtual nodes, so that a lost node leaves room to
restart. A recovery is the time from the fault to the first step of a new attempt.
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
SCRIPT = str(ROOT / "bench" / "recovery" / "stepping.py")
FOREVER = "1000000"
JOB = "stepping"
NODES = "nodes: [{name: n1, cpu: 2}, {name: n2, cpu: 2}, {name: n3, cpu: 2}]\n"
TRAINING = """\
name: {name}
framework: torch
nodes: 2
nproc_per_node: 2
run: [python, {script}, {folder}/steps, "{steps}"]
checkpoint: {{dir: {folder}/saved}}
warm: {warm}
"""


@dataclass(frozen=True, slots=True)
class Victim:
    """The running job that a fault strikes: its client, its ranks' output, and a source of randomness."""

    client: Client
    out: Path
    chance: random.Random

    def pids(self) -> dict[int, int]:
        """Return the PIDs of the newest attempt by rank."""
        return {int(rank): int(pid) for rank, pid in (line[2:] for line in lines(self.out) if line[0] == "pid")}

    def nodes(self) -> list[str]:
        """Return the job's nodes, that of rank 0 first."""
        return list(self.client.job(JOB)["row"]["nodes"])


Fault = Callable[[Victim], Callable[[], object]]
"""Harms the job; returns the function that undoes the harm when the job has recovered."""


def measure_recoveries(name: str, fault: Fault, bar_s: float | None = None) -> list[Figure]:
    """Return the figures of many recoveries against a bare cold start and 2 s, and of their losses.

    With `bar_s` the ranks are warm, and a recovery may take that long.
    """
    wall_s(["make", "setup-torch"])
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as folder_name:
        folder = Path(folder_name)
        bare = [cold_start_s(folder / f"bare-{number}") for number in range(BARE_RUNS // 2)]
        recoveries = _under_ganger(folder / "ganger", fault, is_warm=bar_s is not None)
        bare += [cold_start_s(folder / f"bare-{number}") for number in range(BARE_RUNS // 2, BARE_RUNS)]
        survived = losses(folder / "ganger" / "steps")
        expected = uninterrupted(folder / "uninterrupted", max(survived) + 1)
    return [*recovery_figures(name, recoveries, bare, SLACK_S, bar_s), loss_figure(name, survived, expected)]


def recovery_figures(
    name: str, recoveries: list[float], bare: list[float], slack_s: float, bar_s: float | None = None
) -> list[Figure]:
    """Return the worst recovery, which may take `slack_s` longer than a bare cold start, or `bar_s`."""
    floor = statistics.median(bare)
    worst = Figure(
        name=f"{name}_worst",
        unit="s",
        samples=tuple(recoveries),
        value=max(recoveries),
        op="<=",
        bar=floor + slack_s if bar_s is None else bar_s,
        floor=floor,
    )
    return [worst, median("bare_cold_start", "s", bare)]


def loss_figure(name: str, survived: dict[int, str], expected: dict[int, str]) -> Figure:
    """Return the number of steps whose loss is not that of the uninterrupted run."""
    wrong = float(sum(survived.get(step) != loss for step, loss in expected.items()))
    return Figure(name=f"{name}_losses", unit="steps that differ", samples=(wrong,), value=wrong, op="==", bar=0.0)


def _under_ganger(folder: Path, fault: Fault, *, is_warm: bool) -> list[float]:
    folder.mkdir()
    job, topology = folder / "job.yaml", folder / "nodes.yaml"
    topology.write_text(NODES)
    warm = "true" if is_warm else "false"
    job.write_text(TRAINING.format(name=JOB, script=SCRIPT, folder=folder, steps=FOREVER, warm=warm))
    with state_directory() as environment:
        environment["PATH"] = f"{TORCH_BIN}:{environment['PATH']}"
        ganger(environment, "server", "start", "--topology", str(topology))
        ganger(environment, "submit", "-f", str(job))
        victim = Victim(Client(home(environment)).connect(), folder / "steps", random.Random(3))
        taken = [_recovery_s(victim, fault) for _ in range(FAULTS)]
        ganger(environment, "stop", JOB)
    return taken


def _recovery_s(victim: Victim, fault: Fault) -> float:
    """Return the time of one recovery: wait for a checkpoint, strike, wait for the next step, undo."""
    watch = Watch(victim.out)
    struck_at = time.time()
    mend = fault(victim)
    back_s = watch.wait_next_step() - struck_at
    mend()
    return back_s


class Watch:
    """Waits for a job to step past a checkpoint, then tells apart the steps of a new attempt."""

    def __init__(self, out: Path, ranks: int = RANKS) -> None:
        """Wait; the next attempt will have that many ranks."""
        self._out, self._ranks = out, ranks
        step_count = len(times(out))
        until(lambda: len(times(out)) >= step_count + 50, "it does not step")
        self._started_ranks = sum(line[0] == "pid" for line in lines(out))

    def wait_next_step(self, deadline_s: float = DEADLINE_S) -> float:
        """Return the time of the first step of the next attempt."""
        until(lambda: bool(self._steps()), "it did not step again", deadline_s)
        return self._steps()[0]

    def _steps(self) -> list[float]:
        # A dying attempt may still write a step after the fault: only steps after the new ranks' start count.
        # torchrun may need two restarts for one failure: its new ranks can meet the old ones in its store.
        rows = lines(self._out)
        starts = [index for index, line in enumerate(rows) if line[0] == "pid"][self._started_ranks :]
        return (
            [float(line[1]) for line in rows[starts[-1] :] if line[0] == "step"] if len(starts) >= self._ranks else []
        )


def cold_start_s(folder: Path, ranks: int = RANKS) -> float:
    """Return the seconds from starting that many processes by hand to their first step."""
    started = time.time()
    with _by_hand(folder, FOREVER, ranks=ranks) as (out, _):
        until(lambda: bool(times(out)), f"{folder / 'log'} has no step")
        return times(out)[0] - started


def uninterrupted(folder: Path, steps: int) -> dict[int, str]:
    """Return the losses of that many steps without interruption or pauses."""
    with _by_hand(folder, str(steps), "0") as (out, ranks):
        for process in ranks:
            process.wait(timeout=DEADLINE_S)
    return losses(out)


@contextmanager
def _by_hand(folder: Path, *arguments: str, ranks: int = RANKS) -> Iterator[tuple[Path, list[subprocess.Popen[bytes]]]]:
    """Run some ranks without ganger; yield the file they write and their processes."""
    folder.mkdir()
    out = folder / "steps"
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    command = [TORCH_BIN / "python", SCRIPT, str(out), *arguments]
    with (folder / "log").open("wb") as log:
        processes = [
            subprocess.Popen(
                command,
                cwd=folder,
                env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=log,
                stderr=log,
            )
            for rank in range(ranks)
        ]
        try:
            yield out, processes
        finally:
            for process in processes:
                process.kill()
                process.wait()


def losses(out: Path) -> dict[int, str]:
    """Return the loss of each step, as it was computed last, to the last digit."""
    return {int(line[2]): line[3] for line in lines(out) if line[0] == "step"}


def times(out: Path) -> list[float]:
    """Return the time at which each step was done."""
    return [float(line[1]) for line in lines(out) if line[0] == "step"]


def lines(out: Path) -> list[list[str]]:
    """Return the lines that the ranks wrote, split into words, without one that is still being written."""
    return [line.split() for line in out.read_text().split("\n")[:-1]] if out.exists() else []


def until(holds: Callable[[], bool], otherwise: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait until the condition holds. Raises TimeoutError."""
    until_s = time.monotonic() + deadline_s
    while not holds():
        if time.monotonic() > until_s:
            raise TimeoutError(f"{otherwise} within {deadline_s:g} s")
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
