"""Broken scripts run as jobs: how often the cause and its line are named, and how often a user error is retried.

All of bench/attribution/user_errors, TOGETHER at a time, as a user would submit them. A script counts as named when the
sentence of `ganger ls` has the FILE:LINE and exception of its label where its output shows them, and the text of the
cause. None of them may be retried, and no counter-example may be called an error of the program.
"""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from bench.attribution.broken_scripts import COUNTER_EXAMPLES, USER_ERRORS, Case, Outside, cases
from bench.measure import Figure, wall_s
from bench.serving import GANGER, TORCH_BIN, ganger, state_directory

TOGETHER = 4
NAMED_SHARE = 0.95
DEADLINE_S = 600.0

Record = dict[str, Any]
Result = TypeVar("Result")


def run() -> list[Figure]:
    wall_s(["make", "setup-torch"])
    broken, others = cases(*USER_ERRORS), cases(COUNTER_EXAMPLES)
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as name, state_directory() as environment:
        environment["PATH"] = f"{TORCH_BIN}:{environment['PATH']}"
        ganger(environment, "server", "start")
        with ThreadPoolExecutor(TOGETHER) as pool:
            jobs = list(pool.map(lambda case: _ended(environment, case, Path(name)), (*broken, *others)))
    named, retried, blamed = [], [], []
    for case, job in zip((*broken, *others), jobs, strict=True):
        sentence = str(job["row"]["sentence"])
        missing = list(_missing(case, sentence, _blame(job))) if case in broken else []
        named += [not missing] if case in broken else []
        retried += [len(job["attempts"]) > 1] if case in broken else []
        blamed += [_blame(job) == "user"] if case in others else []
        if missing or (case in broken and retried[-1]) or (case in others and blamed[-1]):
            tries = f"{len(job['attempts'])} attempts"
            print(f"{case.name}: {', '.join(missing) or 'wrong attribution'}; {tries}: {sentence}", flush=True)
    return [
        _count("user_error_named", named, ">=", NAMED_SHARE * len(broken)),
        _count("user_error_tried_again", retried, "==", 0),
        _count("others_called_user_errors", blamed, "==", 0),
    ]


def _count(name: str, holds: list[bool], op: str, bar: float) -> Figure:
    samples = tuple(float(sample) for sample in holds)
    return Figure(name=name, unit="scripts", samples=samples, value=sum(samples), op=op, bar=bar)


def _blame(job: Record) -> str:
    return str(job["attempts"][0]["blame"]) if job["attempts"] else ""


def _missing(case: Case, sentence: str, blame: str) -> Iterator[str]:
    """Yield what a job's sentence lacks; a command that ganger refuses to start needs only to be named."""
    if sentence.startswith("refused"):
        yield from () if case.command[-1] in sentence else (f"no {case.command[-1]}",)
        return
    if case.cause and case.shown and case.cause not in sentence:
        yield f"no {case.cause}"
    if case.exception and case.exception.rpartition(".")[2] not in sentence:
        yield f"no {case.exception}"
    if case.phrase not in sentence:
        yield f"no {case.phrase!r}"
    if blame != "user":
        yield f"blame {blame!r}"


def _ended(environment: dict[str, str], case: Case, folder: Path) -> Record:
    """Run a case; return its job when it has ended or, of a counter-example, when its first attempt has failed."""
    work = folder / case.name
    work.mkdir()
    case.copy_files(work)
    framework = "torch" if case.nproc > 1 else case.framework
    flags = ["--name", case.name.replace("_", "-"), "--framework", framework, "--nproc-per-node", str(case.nproc)]
    # In the directory of the script, as a user would.
    submitted = subprocess.run(
        [GANGER, "submit", *flags, "--", *case.command],
        cwd=work,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    if submitted.returncode:
        return {"row": {"sentence": f"refused: {submitted.stderr.strip()}"}, "attempts": []}
    job = submitted.stdout.strip()
    if case.outside:
        _send(Path(environment["GANGER_HOME"]) / "jobs" / job, case.outside)
    return _until(lambda: _result(environment, job, case), f"{case.name} did not end")


def _result(environment: dict[str, str], job: str, case: Case) -> Record | None:
    job_view: Record = json.loads(ganger(environment, "get", job, "-o", "json"))
    if job_view["row"]["state"] in ("failed", "succeeded", "stopped"):
        return job_view
    first = job_view["attempts"][0] if job_view["attempts"] else {"outcome": ""}
    if case.origin == "user" or first["outcome"] != "failed":
        return None
    ganger(environment, "stop", job)
    job_view["row"]["sentence"] = first["sentence"]
    return job_view


def _send(directory: Path, outside: Outside) -> None:
    """Send the signal from outside the job."""
    log = _until(lambda: next(directory.glob(f"nodes/*/1/rank-{outside.rank}.log"), None), "it did not start")
    _until(lambda: outside.after in log.read_text() or None, f"{outside.after!r} never came")
    pids = json.loads((log.parent / "started").read_text())["pids"]
    os.kill(pids[str(outside.rank)][0], signal.Signals[outside.signal])


def _until(read: Callable[[], Result | None], otherwise: str) -> Result:
    until_s = time.monotonic() + DEADLINE_S
    while (result := read()) is None:
        if time.monotonic() > until_s:
            raise TimeoutError(f"{otherwise} within {DEADLINE_S:g} s")
        time.sleep(0.3)
    return result
