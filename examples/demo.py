"""All of ganger in about a minute: a training job is pending, runs, loses a worker, resumes and finishes.

`make demo` runs it. Everything is real: processes, sockets, the kill. It works in a state directory of its own and
leaves nothing behind. At the end it checks, and prints, that no step is missing and that the resumed losses are those
of an uninterrupted run. The exit code is 0 only if every check holds.
"""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ganger import settings
from ganger.client import Client

EXAMPLES = Path(__file__).resolve().parent
GANGER = str(Path(sys.executable).with_name("ganger"))
STEPS, CHECKPOINT_STEPS = 200, 20
NOISE = 1e-4
"""Relative difference that the order of float additions may make over a few hundred steps."""
LIVE = ("pending", "starting", "running", "requeueing", "failing", "stopping")
LIMIT = "10m"
DEADLINE_S = 300

started_s = time.monotonic()


def main() -> int:
    """Run the demo; return 0 if every check holds."""
    home = Path(tempfile.mkdtemp(prefix="ganger-demo-"))
    os.environ["GANGER_HOME"] = str(home / "state")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    work = home / "work"
    work.mkdir()
    shutil.copy(EXAMPLES / "train.py", work)
    os.chdir(work)
    try:
        say("A server with two virtual nodes of four CPU slots each:")
        show("server", "start", "--topology", str(EXAMPLES / "two_nodes.yaml"))
        return 0 if story(Path(os.environ["GANGER_HOME"])) else 1
    finally:
        subprocess.run([GANGER, "server", "stop"], check=False, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


def story(home: Path) -> bool:
    """Run three jobs: one that loses a worker, a larger one that waits for it, and the first one undisturbed.

    The first job is held before the step at which it loses the worker, so that it is still running when the worker is
    killed, however fast the training is.
    """
    step = random.SystemRandom().randrange(2 * CHECKPOINT_STEPS, STEPS - 3 * CHECKPOINT_STEPS)
    go_on = Path("go-on").absolute()
    say("Four ranks of a transformer on two nodes; gradients are all-reduced at every step:")
    first = submit("train", "--hold", str(step), str(go_on), nodes=2, ranks=2, steps=STEPS)
    say("A larger gang. It fits only when the first is done, so it waits, whole:")
    second = submit("larger", nodes=2, ranks=3, steps=40)
    wait_for("the first job to run", lambda: state(first) == "running")
    show("explain", second)

    wait_for(f"step {step}, chosen by lot", lambda: step_of(first) >= step - 1)
    rank = random.SystemRandom().randrange(4)
    pid = pid_of(home, first, rank)
    say(f"Step {step}: kill -9 {pid} (rank {rank})")
    os.kill(pid, signal.SIGKILL)
    go_on.touch()

    wait_for("the job to finish", lambda: state(first) not in LIVE)
    show("events", first)
    say("Now the larger one has room:")
    wait_for("the larger job", lambda: state(second) not in LIVE)
    say("The same training undisturbed, to compare with:")
    undisturbed = submit("undisturbed", nodes=2, ranks=2, steps=STEPS)
    wait_for("the undisturbed job", lambda: state(undisturbed) not in LIVE)
    show("ls")

    ledgers([first, second, undisturbed])
    return check(first, second, undisturbed)


def check(first: str, second: str, undisturbed: str) -> bool:
    """Print the checks; return whether all hold."""
    survived, losses = loss_curve(first), loss_curve(undisturbed)
    worst = max((abs(survived[s] - losses[s]) / abs(losses[s]) for s in losses if s in survived), default=math.inf)
    attempts = job(first)["attempts"]
    checks = {
        "the first job succeeded, at its second attempt": state(first) == "succeeded" and len(attempts) == 2,
        "the larger job succeeded, and began after the first had ended": state(second) == "succeeded"
        and job(second)["row"]["started_ms"] >= job(first)["row"]["ended_ms"],
        f"no step of {STEPS} is missing from the loss curve": sorted(survived) == list(range(STEPS)),
        f"the loss fell: {survived.get(0, math.nan):.3f} to {survived.get(STEPS - 1, math.nan):.3f}": survived.get(
            STEPS - 1, math.inf
        )
        < 0.7 * survived.get(0, 0.0),
        f"resumed losses equal the undisturbed ones (largest relative difference {worst:.1e})": worst <= NOISE,
    }
    print()
    for description, holds in checks.items():
        print(f"  {'ok  ' if holds else 'FAIL'} {description}")
    print(f"\n  {time.monotonic() - started_s:.0f} s in all")
    return all(checks.values())


def ledgers(jobs: list[str]) -> None:
    """Print where the time of each job went."""
    say("Where the time went, in seconds:")
    parts = ("queued", "starting", "productive", "checkpoint", "detect", "recovery", "lost", "total")
    print(f"  {'job':<18}" + "".join(f"{part:>12}" for part in parts))
    for name in jobs:
        ledger = job(name)["ledger"]
        print(f"  {name:<18}" + "".join(f"{ledger[f'{part}_ms'] / 1000:>12.1f}" for part in parts))


def submit(name: str, *options: str, nodes: int, ranks: int, steps: int) -> str:
    """Submit a training job as a user would, with more options of the script; return its id."""
    flags = ["--name", name, "--framework", "torch", "--nodes", str(nodes), "--nproc-per-node", str(ranks)]
    flags += ["--checkpoint", "checkpoints", "--time", LIMIT]
    script = ["python", "train.py", "--steps", str(steps), "--checkpoint-steps", str(CHECKPOINT_STEPS), *options]
    command = ["submit", *flags, "--", *script]
    show(*command)
    newest = ask("ls")[0]
    assert newest["name"] == name, newest
    return str(newest["id"])


def loss_curve(name: str) -> dict[int, float]:
    """Return the loss of each step; a repeated step counts as it was done last."""
    rows = Client(settings.home(os.environ)).connect().reports(name)
    return {row["step"]: row["metrics"]["loss"] for row in rows if "loss" in row["metrics"]}


def pid_of(home: Path, name: str, rank: int) -> int:
    """Return the PID of a rank of the newest attempt, from the launchers' records."""
    records = sorted((home / "jobs" / name / "nodes").glob("*/*/started"), key=lambda path: int(path.parent.name))
    pids = {int(r): pid for path in records for r, (pid, _) in json.loads(path.read_text())["pids"].items()}
    return int(pids[rank])


def job(name: str) -> dict[str, Any]:
    """Return `ganger get` as data."""
    view: dict[str, Any] = ask("get", name)
    return view


def state(name: str) -> str:
    """Return the state of a job: pending, running, succeeded ..."""
    return str(job(name)["row"]["state"])


def step_of(name: str) -> int:
    """Return the newest reported step; -1 before the first."""
    return int((job(name)["progress"] or {}).get("step", -1))


def ask(*command: str) -> Any:
    """Run a ganger command with -o json; return its data."""
    completed = subprocess.run([GANGER, *command, "-o", "json"], check=True, capture_output=True, text=True)
    return json.loads(completed.stdout)


def show(*command: str) -> None:
    """Run a ganger command as a user would type it, and show its output."""
    print(f"\n$ ganger {' '.join(command)}", flush=True)
    subprocess.run([GANGER, *command], check=True)


def say(text: str) -> None:
    """Print a line of the story."""
    print(f"\n[{time.monotonic() - started_s:5.1f} s] {text}", flush=True)


def wait_for(what: str, holds: Callable[[], bool]) -> None:
    """Wait until the condition holds; exit with an error if it never does."""
    say(f"... waiting for {what}")
    until_s = time.monotonic() + DEADLINE_S
    while not holds():
        if time.monotonic() > until_s:
            subprocess.run([GANGER, "events"], check=False)
            sys.exit(f"{what} did not come within {DEADLINE_S} s")
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
