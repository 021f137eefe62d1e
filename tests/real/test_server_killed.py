"""The server is killed with SIGKILL at random moments while jobs are submitted, run, fail and are stopped."""

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from ganger.client import ClientError
from tests.real.cluster import ROOT, Cluster, until

KILLS = 20
WORKER = str(ROOT / "tests" / "real" / "worker.py")


def kill_server(cluster: Cluster) -> None:
    """End the server at once; only one that this test started."""
    record = json.loads((cluster.folder / "home" / "server.json").read_text())
    os.kill(record["pid"], signal.SIGKILL)
    until(lambda: not Path(f"/proc/{record['pid']}/cmdline").exists() or not _cmdline(record["pid"]), "its end")


def _cmdline(pid: int) -> bytes:
    """Empty for a process that is gone or only waits to be collected."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def carriers(cluster: Cluster) -> list[int]:
    """Return the processes that belong to a task of this test's jobs."""
    mark, pids = str(cluster.folder / "home" / "jobs").encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if b"GANGER_TASK_DIR=" + mark in path.read_bytes():
                pids.append(int(path.parent.name))
    return pids


def lines(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.long
def test_no_job_is_lost_or_doubled_when_the_server_is_killed_at_random_moments(cluster: Cluster) -> None:
    chance = random.Random()
    jobs: dict[str, str] = {}
    kinds = ["steady", "dies", "fails", "stopped"]
    for number in range(KILLS):
        if number % 3 == 0:
            kind = kinds[number // 3 % len(kinds)]
            jobs[_submit(cluster, kind, number)] = kind
        for job, kind in jobs.items():
            if kind == "stopped" and number % 4 == 1 and not cluster.ended(job):
                _stop(cluster, job)
        time.sleep(chance.uniform(0.0, 0.6))
        kill_server(cluster)
        time.sleep(chance.uniform(0.0, 0.2))
        cluster.client.connect()
    until(lambda: all(kind == "stopped" or cluster.ended(job) for job, kind in jobs.items()), "the end of all jobs")
    for job, kind in jobs.items():
        if kind == "stopped" and not cluster.ended(job):
            _stop(cluster, job)
    until(lambda: all(cluster.ended(job) for job in jobs), "the end of the stopped ones")

    for job, kind in jobs.items():
        _check(cluster, job, kind)
    until(lambda: not carriers(cluster), "the end of every process of a task")
    assert all(node["cpu_free_milli"] == node["cpu_milli"] for node in cluster.client.nodes())
    assert set(jobs) == {row["id"] for row in cluster.client.jobs(all=True, limit=1000)["items"]}


def _stop(cluster: Cluster, job: str) -> None:
    try:
        cluster.client.connect().stop(job)
    except ClientError as error:
        if error.code != "already_ended":  # it was by a request of before
            raise


def _submit(cluster: Cluster, kind: str, number: int) -> str:
    name = f"{kind}-{number}"
    out = cluster.folder / name
    command = {
        "steady": [sys.executable, WORKER, str(out), "40"],
        "dies": [sys.executable, WORKER, str(out), "40", "die"],
        "fails": [sys.executable, "-c", f"open({str(out)!r}, 'a').write('start 1 0 0\\n'); raise SystemExit(7)"],
        "stopped": [sys.executable, WORKER, str(out), "100000"],
    }[kind]
    return cluster.submit(
        name, *command, nodes=2, resources={"cpu": 1}, checkpoint={"dir": f"saved-{name}", "grace": "0s"}
    )


def _check(cluster: Cluster, job: str, kind: str) -> None:
    """Its end is the one its kind has, and every rank of every attempt ran exactly once."""
    view = cluster.client.job(job)
    row, rows = view["row"], lines(cluster.folder / view["spec"]["name"])
    state = {"steady": "succeeded", "dies": "succeeded", "fails": "failed", "stopped": "stopped"}[kind]
    assert row["state"] == state, (job, row)
    if kind == "fails":
        assert row["exit_code"] == 7
        return
    starts = Counter((attempt, rank) for what, attempt, rank, *_ in rows if what == "start")
    assert all(count == 1 for count in starts.values()), (job, starts)
    if state == "succeeded":
        assert row["generation"] == (2 if kind == "dies" else 1), (job, row, view["attempts"])
        steps = [int(rest[0]) for what, _, rank, *rest in rows if what == "step" and rank == "0"]
        assert sorted({*steps}) == list(range(40))
        # Ranks here do not wait for each other: one may have finished the attempt in which the other died.
        newest = str(row["generation"])
        assert sorted(rest for what, attempt, *rest in rows if (what, attempt) == ("done", newest)) == [["0"], ["1"]]


def test_a_refused_connection_says_what_to_type(cluster: Cluster) -> None:
    cluster.client.connect().shutdown()
    with pytest.raises(ClientError) as refused:
        cluster.client.server()
    assert refused.value.next
    cluster.client.connect()
