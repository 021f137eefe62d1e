"""50 runs of four ranks that call should_checkpoint() at their own pace, each with one kill.

The ranks are on two virtual nodes. A rank, a launcher or the server is killed at a random moment after the first
checkpoint; the run then continues to its end.

Bars: all ranks get the same answer at each step, every checkpoint has the four parts of its step, and all losses are
those of an uninterrupted run. The cost of a call of should_checkpoint() is measured as well.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.checkpoints.saving import RANKS, state_after
from bench.measure import ROOT, Figure
from bench.serving import ganger, state_directory
from ganger import train
from ganger.client import Client
from ganger.settings import home as home_of

RUNS = int(os.environ.get("GANGER_BENCH_RUNS", "50"))
SEED = 23
STEPS = 600
PERIOD = "0.5s"
KILLED = ("rank", "launcher", "server")
KILL_WITHIN_S = 3.0
DEADLINE_S = 180.0
CALLS, COST_RUNS = 20_000, 5
NODES = "nodes: [{name: n1, cpu: 2}, {name: n2, cpu: 2}]\n"


@dataclass(frozen=True, slots=True)
class RunErrors:
    """Errors of one run, each a sentence; empty where there is none."""

    differing: str = ""
    partial: str = ""
    lost: str = ""


def run() -> list[Figure]:
    chance, runs = random.Random(SEED), []
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as name, state_directory() as environment:
        topology = Path(name) / "nodes.yaml"
        topology.write_text(NODES)
        ganger(environment, "server", "start", "--topology", str(topology))
        for number in range(RUNS):
            folder = Path(name) / f"run-{number}"
            folder.mkdir()
            runs.append(_run_with_kill(environment, folder, KILLED[number % len(KILLED)], chance))
            for sentence in (runs[-1].differing, runs[-1].partial, runs[-1].lost):
                if sentence:
                    print(f"run {number}: {sentence}", flush=True)
    return [
        _count("agreed_checkpoints_differing", [bool(errors.differing) for errors in runs], 0),
        _count("agreed_checkpoints_partial", [bool(errors.partial) for errors in runs], 0),
        _count("agreed_checkpoints_resumed", [not errors.lost for errors in runs], len(runs)),
        _cost(),
    ]


def _count(name: str, held: list[bool], bar: int) -> Figure:
    samples = tuple(map(float, held))
    return Figure(name=name, unit=f"of {len(held)} runs", samples=samples, value=sum(samples), op="==", bar=float(bar))


def _run_with_kill(environment: dict[str, str], folder: Path, killed: str, chance: random.Random) -> RunErrors:
    client = Client(home_of(environment)).connect()
    script = [sys.executable, str(ROOT / "bench" / "checkpoints" / "saving.py"), str(folder), str(STEPS)]
    spec = {
        "run": script,
        "nodes": 2,
        "nproc_per_node": RANKS // 2,
        "retry": {"max": 3, "backoff": "0s"},
        "checkpoint": {"dir": str(folder / "saved"), "every": PERIOD},
    }
    request = {"spec": spec, "directory": str(folder), "environment": {"PATH": os.environ["PATH"]}}
    job = str(client.submit(request)["row"]["id"])
    try:
        _until(lambda: any(folder.glob("saved/step-*")), "there is a checkpoint")
        time.sleep(chance.uniform(0, KILL_WITHIN_S))
        _kill(killed, folder, client, chance)
        client = Client(home_of(environment)).connect()
        _until(lambda: client.job(job)["row"]["ended_ms"] is not None, "it ends")
        view = client.job(job)
    except TimeoutError as error:
        client.stop(job)
        _until(lambda: client.job(job)["row"]["ended_ms"] is not None, "it is stopped")
        return RunErrors(_differing(folder), _partial(folder), f"a {killed} was killed: {error} never comes")
    return RunErrors(_differing(folder), _partial(folder), _lost(folder, killed, view))


def _kill(killed: str, folder: Path, client: Client, chance: random.Random) -> None:
    pid, parent = map(int, (folder / f"rank-{chance.randrange(RANKS)}.pid").read_text().split())
    if killed == "server":
        pid = int(json.loads(client.home.server_file.read_text())["pid"])
    os.kill(parent if killed == "launcher" else pid, signal.SIGKILL)


def _rows(folder: Path) -> list[tuple[int, int, int, bool, str]]:
    """Return rank, attempt, step, answer and loss of every completed step."""
    rows = []
    for rank in range(RANKS):
        for line in (folder / f"rank-{rank}.steps").read_text().splitlines():
            attempt, step, answer, loss = json.loads(line)
            rows.append((rank, attempt, step, answer, loss))
    return rows


def _differing(folder: Path) -> str:
    answers: dict[tuple[int, int], dict[int, bool]] = defaultdict(dict)
    for rank, attempt, step, answer, _ in _rows(folder):
        answers[attempt, step][rank] = answer
    wrong = {
        at_step: ranks_answers
        for at_step, ranks_answers in sorted(answers.items())
        if len(set(ranks_answers.values())) > 1
    }
    if not wrong:
        return ""
    (attempt, step), ranks_answers = next(iter(wrong.items()))
    return f"{len(wrong)} steps with two answers, first step {step} of attempt {attempt}: {ranks_answers}"


def _partial(folder: Path) -> str:
    wrong = []
    for directory in sorted(folder.glob("saved/step-*")):
        steps = [json.loads(part.read_text())["step"] for part in directory.glob("part-*")]
        if steps != [int(directory.name.partition("-")[2])] * RANKS:
            wrong.append(f"{directory.name} has parts of the steps {steps}")
    return f"{len(wrong)} checkpoints are not whole, first {wrong[0]}" if wrong else ""


def _lost(folder: Path, killed: str, view: dict[str, object]) -> str:
    row, rows = view["row"], _rows(folder)
    expected = [_losses(rank) for rank in range(RANKS)]
    wrong = [(rank, attempt, step) for rank, attempt, step, _, loss in rows if loss != expected[rank][step]]
    begun = min((step for _, attempt, step, _, _ in rows if attempt > 1), default=None)
    if row["state"] != "succeeded":  # type: ignore[index]  # the view is JSON
        return f"a {killed} was killed: it is {row['state']}"  # type: ignore[index]
    if wrong:
        return f"a {killed} was killed: {len(wrong)} losses differ, first of rank, attempt and step {wrong[0]}"
    if killed != "server" and not begun:
        return f"a {killed} was killed: it did not begin at a checkpoint"
    return ""


def _losses(rank: int) -> list[str]:
    state, losses = "", []
    for step in range(STEPS):
        state = state_after(state, step, rank)
        losses.append(state[:8])
    return losses


def _until(condition: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > give_up_at:
            raise TimeoutError(what)
        time.sleep(0.05)


def _cost() -> Figure:
    """Measure the CPU time of a call that follows a schedule; wall time would depend on other load."""
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as name:
        schedule = Path(name) / "schedule.json"
        schedule.write_text(
            json.dumps({"segments": [["step", 1, 1_000, 1_000], ["step", 9, 1_500, 900]], "pending": None})
        )
        os.environ["GANGER_TASK_DIR"] = name
        try:
            samples = [_call_us() for _ in range(COST_RUNS)]
        finally:
            del os.environ["GANGER_TASK_DIR"]
    best = min(samples)
    return Figure(name="should_checkpoint_call", unit="us", samples=tuple(samples), value=best, op="<", bar=20.0)


def _call_us() -> float:
    train.should_checkpoint()
    began = time.process_time()
    for _ in range(CALLS):
        train.should_checkpoint()
    return (time.process_time() - began) / CALLS * 1e6
