"""Logs followed while 8 ranks write 20,000 lines/s and are killed at random, by `ganger logs -f --all` and by REST.

The writers' own copies are the reference: of every rank, both followers must have each line once, in order. The CPU
usage is that of the command's process, over its run time.
"""

import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable
from http.client import HTTPConnection
from pathlib import Path

from bench.logs.writing import LINE
from bench.measure import ROOT, Figure, median
from bench.serving import GANGER, ganger, state_directory
from ganger.settings import home as home_of

RANKS, LINES_A_SECOND = 8, 20_000
LASTS_S, PAUSE_S = 60.0, (4.0, 8.0)
PACE = 1.05
"""Target of the writers relative to LINES_A_SECOND, since a busy machine makes them late."""
LINE_BYTES = len(LINE.format(attempt=0, rank=0, number=0))
CORES_BAR = 1.0

Line = tuple[int, int, int]
"""Rank, attempt and number in the attempt, which identify a line."""


def run() -> list[Figure]:
    with state_directory() as environment, tempfile.TemporaryDirectory(prefix="ganger-bench-") as name:
        folder = Path(name)
        ganger(environment, "server", "start", "--topology", str(ROOT / "examples" / "two_nodes.yaml"))
        until_s = time.time() + LASTS_S
        ganger(environment, "submit", "-f", _job_file(folder, until_s))
        rest_follower = threading.Thread(target=_follow_by_rest, args=(environment, folder / "rest"))
        rest_follower.start()
        rate_meter = threading.Thread(target=_watch, args=(folder, until_s, samples := list[float]()))
        rate_meter.start()
        killer = threading.Thread(target=_kill, args=(folder, until_s, kills := list[float]()))
        killer.start()
        cores = _follow_by_command(environment, folder / "cli")
        for thread in (rest_follower, rate_meter, killer):
            thread.join()
        state = json.loads(ganger(environment, "get", "writers", "-o", "json"))["row"]["state"]
        assert state == "succeeded", f"the job has {state}"
        expected = _expected(folder)
        figures = [
            *_compared("cli", _of_command(folder / "cli"), expected),
            *_compared("rest", _of_rest(folder / "rest"), expected),
        ]
    return [
        *figures,
        Figure(name="log_follow_cores", unit="cores", samples=(cores,), value=cores, op="<", bar=CORES_BAR),
        Figure(
            name="log_follow_written",
            unit="1/s",
            samples=tuple(samples),
            value=sorted(samples)[len(samples) // 2],
            op=">=",
            bar=LINES_A_SECOND,
        ),
        median("log_follow_kills", "", [float(len(kills))]),
    ]


def _job_file(folder: Path, until_s: float) -> str:
    lines_per_rank = str(int(LINES_A_SECOND * PACE / RANKS))
    job = {
        "name": "writers",
        "nodes": 2,
        "nproc_per_node": RANKS // 2,
        "resources": {"cpu": 4},
        "run": ["python3", str(ROOT / "bench" / "logs" / "writing.py"), str(folder), lines_per_rank, str(until_s)],
        "retry": {"max": 1_000, "backoff": 0},
    }
    path = folder / "job.yaml"
    path.write_text(json.dumps(job))
    return str(path)


# -- while the job runs ----------------------------------------------------------------------------------------------


def _follow_by_command(environment: dict[str, str], path: Path) -> float:
    """Follow to the end by the command; return the number of cores that it used."""
    started = time.monotonic()
    with path.open("wb") as out:
        command = [GANGER, "logs", "-f", "--all", "writers"]
        follower = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(follower.pid, 0)
        follower.returncode = os.waitstatus_to_exitcode(status)
    assert follower.returncode == 0, f"ganger logs exited with {follower.returncode}"
    return (used.ru_utime + used.ru_stime) / (time.monotonic() - started)


def _follow_by_rest(environment: dict[str, str], path: Path) -> None:
    """Write the response of the logs route to a file."""
    link = HTTPConnection("localhost")
    link.sock = socket.socket(socket.AF_UNIX)
    link.sock.connect(str(home_of(environment).socket("server")))
    link.request("GET", "/api/v1/jobs/writers/logs?follow=true&rank=all")
    answer = link.getresponse()
    with path.open("wb") as out:
        while piece := answer.read1():
            out.write(piece)
    link.close()


def _watch(folder: Path, until_s: float, rates: list[float]) -> None:
    """Record the lines written in each second, by the writers' copies."""
    before, before_s = _written(folder), time.monotonic()
    while time.time() < until_s - 1:
        time.sleep(1)
        after, after_s = _written(folder), time.monotonic()
        rates.append((after - before) / (after_s - before_s))
        before, before_s = after, after_s


def _written(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("lines-*")) // LINE_BYTES


def _kill(folder: Path, until_s: float, kills: list[float]) -> None:
    """Kill a random rank now and then."""
    chance = random.Random(4)
    while True:
        time.sleep(chance.uniform(*PAUSE_S))
        if time.time() > until_s - PAUSE_S[0]:
            return
        pid = int((folder / f"pid-{chance.randrange(RANKS)}").read_text())
        os.kill(pid, signal.SIGKILL)
        kills.append(time.monotonic())


# -- results ---------------------------------------------------------------------------------------------------------


def _expected(folder: Path) -> dict[tuple[int, int], int]:
    """Return the number of lines that each rank has copied in each attempt."""
    counts = {}
    for path in folder.glob("lines-*"):
        rank, attempt = map(int, path.name.split("-")[1:])
        counts[rank, attempt] = path.stat().st_size // LINE_BYTES
    return counts


def _of_command(path: Path) -> Iterable[Line]:
    for line in path.open():
        prefix, _, text = line.partition(" | ")
        yield int(prefix[1:]), *_words(text)


def _of_rest(path: Path) -> Iterable[Line]:
    for line in path.open():
        record = json.loads(line)
        yield record["rank"], *_words(record["text"])


def _words(text: str) -> tuple[int, int]:
    attempt, _, number = text.split()[:3]
    return int(attempt), int(number)


def _compared(follower: str, lines: Iterable[Line], expected: dict[tuple[int, int], int]) -> list[Figure]:
    """Count the lines that a follower lost, repeated, or returned out of their rank's order."""
    received: dict[tuple[int, int], set[int]] = {source: set() for source in expected}
    newest: dict[int, tuple[int, int]] = {}
    repeated = disordered = 0
    for rank, attempt, number in lines:
        numbers = received.setdefault((rank, attempt), set())
        repeated += number in numbers
        numbers.add(number)
        disordered += (attempt, number) < newest.get(rank, (0, 0))
        newest[rank] = attempt, number
    # A rank may die between a write and its copy: then the log has more lines than the copy, without a gap.
    lost = sum(
        max(expected.get(source, 0), max(numbers, default=-1) + 1) - len(numbers)
        for source, numbers in received.items()
    )
    return [
        Figure(
            name=f"log_follow_{follower}_{error}", unit="lines", samples=(float(count),), value=count, op="==", bar=0
        )
        for error, count in (("lost", lost), ("repeated", repeated), ("disordered", disordered))
    ]
