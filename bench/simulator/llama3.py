"""Replay of the interruptions of Llama 3: 16,384 GPUs, 54 days, 466 interruptions; goodput and where the rest went.

A gang of 2,048 nodes loses a node at each of 466 drawn moments (419 unexpected interruptions and 47 planned ones,
which count like the others); the node is away for a day. ganger's scheduler replays
it twice: as clusters without it do, with checkpoints to shared storage, restarts that read them and a time-out of
collectives; and with spares, warm ranks and checkpoints on local disks. The time from a fault to the next step of a
gang with warm ranks is measured in the same run, on this machine; what a machine alone cannot show is added to it, with
its source. Beside each the closed form of `simulation.metrics.goodput_forecast`.
"""

import csv
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.measure import Figure
from bench.recovery import recover_warm
from ganger.model.units import DAY_MS, SECOND_MS
from ganger.simulation.metrics.goodput_forecast import young_ms

NODES, SPARES, GPUS_PER_NODE = 2_048, 24, 8
DAYS, INTERRUPTIONS = 54, 466
MTTI_MS: Final = DAYS * DAY_MS / INTERRUPTIONS
NODE_LOSS_S: Final = 40.0
"""Kubernetes holds a node for not ready after that long without a heartbeat."""
INIT_S: Final = 30.0
"""Start of the collectives of more than 10,000 GPUs, after MegaScale (NSDI'24)."""
LOAD_S: Final = 10.0
"""Of the own shard from a local disk: 405 billion parameters of 14 bytes are 2.8 GB a node."""
LOCAL_SAVE_S: Final = 0.5
"""For which a save to memory and local disk stops the ranks: Flash Checkpoint (DLRover)."""
BAR, AGREEMENT_BAR = 0.97, 0.02


class Scenario(NamedTuple):
    """The times that an interruption costs, and the checkpoints."""

    name: str
    detect_s: float
    start_s: float
    save_s: float

    @property
    def interval_s(self) -> float:
        """The best interval between checkpoints (Young)."""
        return young_ms(self.save_s * SECOND_MS, MTTI_MS) / SECOND_MS

    @property
    def work_ms(self) -> int:
        """The work that takes about 54 days: to first order."""
        lost_s = self.detect_s + self.start_s + self.interval_s / 2
        lost = lost_s * SECOND_MS / MTTI_MS + self.save_s / self.interval_s
        return round((1 - lost) * DAYS * DAY_MS)


def run() -> list[Figure]:
    recoveries = recover_warm.run()[0].samples
    restart_s = statistics.median(recoveries) + INIT_S + LOAD_S
    # Without ganger: NCCL's time-out; submission, pods and load as in DLRover's table; a blocking save of its model.
    usual = Scenario("usual", 600.0, 600.0 + 300.0 + 240.0, 150.0)
    ours = Scenario("ganger", NODE_LOSS_S, restart_s, LOCAL_SAVE_S)
    print(f"from a fault to the next step, measured, warm: median {statistics.median(recoveries):.2f} s")
    (without, _), (goodput, forecast) = replay(usual), replay(ours)
    agreement = abs(goodput - forecast)
    return [
        Figure(name="llama3_goodput_without", unit="share", samples=(without,), value=without),
        Figure(name="llama3_goodput", unit="share", samples=(goodput,), value=goodput, op=">=", bar=BAR),
        Figure(
            name="llama3_from_closed_form",
            unit="share",
            samples=(agreement,),
            value=agreement,
            op="<=",
            bar=AGREEMENT_BAR,
        ),
    ]


def replay(scenario: Scenario) -> tuple[float, float]:
    """Return the goodput of a scenario by the simulator and by the closed form, and print its parts."""
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as folder:
        jobs, faults = Path(folder) / "jobs.csv", Path(folder) / "faults.csv"
        _write_traces(jobs, faults, scenario.work_ms)
        options = {
            "nodes": NODES + SPARES,
            "gpus-per-node": GPUS_PER_NODE,
            "spares": SPARES,
            "faults": faults,
            "fault-nodes": NODES + SPARES,
            "detect": f"{round(scenario.detect_s * SECOND_MS)}ms",
            "start": f"{round(scenario.start_s * SECOND_MS)}ms",
            "checkpoint": f"{round(scenario.interval_s * SECOND_MS)}ms",
            "checkpoint-cost": f"{round(scenario.save_s * SECOND_MS)}ms",
            "output": "json",
        }
        command = [str(Path(sys.executable).with_name("ganger")), "sim", "run", str(jobs)]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        answer: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    goodput, forecast = answer["goodput"], float(answer["forecast"]["goodput"])
    parts = {name: lost / goodput["allocated_gpu_us"] for name, lost in goodput["lost_gpu_us"].items()}
    lost = ", ".join(f"{name} {share:.2%}" for name, share in parts.items())
    print(
        f"{scenario.name}: goodput {goodput['goodput']:.2%}, by the closed form {forecast:.2%}; lost: {lost};"
        f" {goodput['interruptions']} interruptions, a checkpoint every {scenario.interval_s:.0f} s"
        f" of {scenario.save_s:g} s, detection {scenario.detect_s:g} s, restart {scenario.start_s:.1f} s"
    )
    return float(goodput["goodput"]), forecast


def _write_traces(jobs: Path, faults: Path, work_ms: int) -> None:
    """Write one job of so much work, and the interruptions, at moments and on nodes that are drawn."""
    generator = random.Random("llama3")
    with faults.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("node", "start_day", "end_day", "level", "class", "desc"))
        for _ in range(INTERRUPTIONS):
            day = generator.random() * DAYS
            rows.writerow((f"node{generator.randrange(NODES + SPARES)}", day, day + 1, "node", "interruption", ""))
    with jobs.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("name", "submitted_ms", "duration_ms", "gpus", "nodes", "limit_ms"))
        rows.writerow(("llama3", 0, work_ms, NODES * GPUS_PER_NODE, NODES, 4 * DAYS * DAY_MS))
