"""The embedded engine's own log, simulated: real processes on this machine, and the error in mean completion time.

A server with two virtual nodes runs short jobs, whose submissions and ends are far apart relative to the variation
between runs. Its log is then simulated under the same policy. The work of each job is read from the log, so the figures
show the simulator's own errors: which job starts where, in which order, and how far the times are off.
"""

import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.measure import Figure
from bench.serving import GANGER, ganger, state_directory
from ganger import registry
from ganger.engine.eventlog.read_only_log import open_snapshot
from ganger.model.decision import Start
from ganger.model.event import Decided, Stamped
from ganger.settings import home as home_of
from ganger.simulation.from_log.log_replay import LogRun, as_recorded, simulate_log
from ganger.simulation.from_log.recorded_days import read_days

TOPOLOGY: Final = """\
nodes:
  - {name: a, gpus: 2, gpu_type: h100}
  - {name: b, gpus: 2, gpu_type: h100}
"""
JOBS: Final = (
    (0, 1, 2, 10),
    (4, 1, 2, 14),
    (8, 1, 2, 12),
    (12, 1, 1, 8),
    (15, 1, 1, 16),
    (20, 2, 2, 6),
    (24, 1, 2, 6),
    (37, 1, 1, 6),
)
"""(seconds until submission, nodes, GPUs on each, seconds of sleep)."""
GAP_S: Final = 2.0
"""Least time between two moments of a decision."""

Started = tuple[str, int, tuple[str, ...]]


def run() -> list[Figure]:
    with state_directory() as environment:
        _live(environment)
        path = home_of(environment).database
        days = read_days(path)
        with open_snapshot(path) as log:
            real = list(log.iter_rows(0, log.last_seq()))
    rows: list[Stamped] = []
    log_run = LogRun(days=days, nodes=days.nodes, document=days.document, order=registry.order)
    simulated, recorded = simulate_log(log_run, rows.append), as_recorded(days)
    real_starts, virtual_starts = _starts(real), _starts(rows)
    equal = int([start for start, _ in real_starts] == [start for start, _ in virtual_starts])
    off_s = tuple(abs(a_ms - b_ms) / 1000 for (_, a_ms), (_, b_ms) in zip(real_starts, virtual_starts, strict=False))
    real_ms, virtual_ms = recorded.card.jct_ms.mean, simulated.card.jct_ms.mean
    assert real_ms, "no job came to its end"
    assert virtual_ms, "no job came to its end when it was simulated"
    error = 100 * abs(virtual_ms - real_ms) / real_ms
    jobs = [history.ended_ms - history.submitted_ms for history in recorded.histories if history.ended_ms is not None]
    return [
        Figure(name="sim_fidelity.jobs", unit="jobs", samples=(len(jobs),), value=len(jobs), op="==", bar=len(JOBS)),
        Figure(name="sim_fidelity.equal_starts", unit="", samples=(equal,), value=equal, op="==", bar=1),
        Figure(name="sim_fidelity.start_error", unit="s", samples=off_s, value=max(off_s), op="<=", bar=GAP_S / 10),
        Figure(name="sim_fidelity.mean_jct", unit="s", samples=(real_ms / 1000,), value=real_ms / 1000),
        Figure(name="sim_fidelity.mean_jct_error", unit="%", samples=(error,), value=error),
    ]


def _live(environment: dict[str, str]) -> None:
    """Submit the jobs at their times, each from a process of its own, and wait until all have ended."""
    with tempfile.TemporaryDirectory() as folder:
        topology = Path(folder, "topology.yaml")
        topology.write_text(TOPOLOGY)
        ganger(environment, "server", "start", "--topology", str(topology))
    began_s, commands = time.monotonic(), []
    for at_s, nodes, gpus, sleeps_s in JOBS:
        time.sleep(max(0.0, began_s + at_s - time.monotonic()))
        arguments = ("submit", "--nodes", str(nodes), "--gpu", str(gpus), "--nproc-per-node", "1", "--", "sleep")
        commands.append(subprocess.Popen([GANGER, *arguments, str(sleeps_s)], env=environment, stdout=subprocess.PIPE))
    for command in commands:
        job = command.communicate()[0].decode().strip()
        ganger(environment, "wait", job)


def _starts(rows: list[Stamped]) -> list[tuple[Started, int]]:
    """Return the job, generation and nodes of each start, in order, with its time."""
    return [
        ((decision.gang, decision.generation, decision.nodes), row.at_ms)
        for row in rows
        if isinstance(row.event, Decided)
        for decision in row.event.plan.decisions
        if isinstance(decision, Start)
    ]
