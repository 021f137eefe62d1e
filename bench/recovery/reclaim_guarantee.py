"""A guarantee taken back: a borrower trains on both nodes, and the owner of the guarantee submits a job as large.

Real processes: torch gloo on two virtual nodes. `reclaim_guarantee` is the time from the owner's submission to its
first step, which may take the borrower's notice and 1.2 times a bare cold start. The borrower saves in its notice, goes
on when the owner's job is over, and ends with the losses of an uninterrupted run.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.measure import Figure, median, wall_s
from bench.recovery.recovering import (
    BARE_RUNS,
    FOREVER,
    SCRIPT,
    cold_start_s,
    loss_figure,
    losses,
    times,
    uninterrupted,
    until,
)
from bench.serving import TORCH_BIN, ganger, state_directory

ROUNDS: Final = 6
NOTICE_S: Final = 5.0
NODES: Final = "nodes: [{name: n1, cpu: 2}, {name: n2, cpu: 2}]\n"
POLICY: Final = "preemption: {reclaim: guarantee}\nqueues: {owner: {nominal: {cpu: 4}}, guests: {}}\n"
JOB: Final = """\
name: {name}
queue: {queue}
framework: torch
nodes: 2
nproc_per_node: 2
run: [python, {script}, {out}, "{steps}"]
checkpoint: {{dir: {folder}/saved-{name}, grace: {notice}s}}
"""


def run() -> list[Figure]:
    wall_s(["make", "setup-torch"])
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as folder_name:
        folder = Path(folder_name)
        bare = [cold_start_s(folder / f"bare-{number}") for number in range(BARE_RUNS)]
        taken = _reclaims(folder)
        survived = losses(folder / "borrower")
        expected = uninterrupted(folder / "uninterrupted", max(survived) + 1)
    floor = statistics.median(bare)
    bar = NOTICE_S + 1.2 * floor
    worst = Figure(
        name="reclaim_guarantee", unit="s", samples=tuple(taken), value=max(taken), op="<=", bar=bar, floor=floor
    )
    return [worst, median("bare_cold_start", "s", bare), loss_figure("reclaim_guarantee", survived, expected)]


def _reclaims(folder: Path) -> list[float]:
    (folder / "nodes.yaml").write_text(NODES)
    (folder / "policy.yaml").write_text(POLICY)
    with state_directory() as environment:
        environment["PATH"] = f"{TORCH_BIN}:{environment['PATH']}"
        ganger(environment, "server", "start", "--topology", str(folder / "nodes.yaml"))
        ganger(environment, "policy", "apply", str(folder / "policy.yaml"))
        _submit(environment, folder, "borrower", "guests", FOREVER)
        taken = [_reclaim_s(environment, folder, f"owner{number}") for number in range(ROUNDS)]
        ganger(environment, "stop", "borrower")
    return taken


def _reclaim_s(environment: dict[str, str], folder: Path, owner: str) -> float:
    """Return the time of one reclaim, and wait until the borrower steps again."""
    borrower = folder / "borrower"
    _until_it_steps(borrower, 50)
    submitted_at = time.time()
    _submit(environment, folder, owner, "owner", "100")
    until(lambda: bool(times(folder / owner)), f"{owner} does not step")
    first_step_s = times(folder / owner)[0] - submitted_at
    _until_it_steps(borrower, 10)
    return first_step_s


def _until_it_steps(out: Path, steps: int) -> None:
    count = len(times(out))
    until(lambda: len(times(out)) >= count + steps, f"{out.name} does not step")


def _submit(environment: dict[str, str], folder: Path, name: str, queue: str, steps: str) -> None:
    job, out = folder / f"{name}.yaml", folder / name
    text = JOB.format(name=name, queue=queue, script=SCRIPT, out=out, steps=steps, folder=folder, notice=NOTICE_S)
    job.write_text(text)
    ganger(environment, "submit", "-f", str(job))
