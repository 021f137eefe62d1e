"""Restarts of the server: running gangs are adopted, and what happened meanwhile is reported."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from ganger.model.decision import Cause, Start
from ganger.model.job import Job
from ganger.ports import LiveGeneration
from tests.local.world import Server, guards_and_launcher, is_dead, make_job, make_start, make_stop
from tests.waiting import wait_until

pytestmark = pytest.mark.long

Serve = Callable[..., Server]
WAIT_FOR_FILE = "while [ ! -e go ]; do sleep 0.02; done"


def running(serve: Serve, job: Job) -> tuple[Server, Start]:
    """Start a server and a job that runs on both nodes."""
    server = serve().open()
    start = make_start(job)
    server.backend.start(start, job)
    server.wait("started", 2)
    return server, start


def test_running_gangs_are_adopted(serve: Serve, tmp_path: Path) -> None:
    job = make_job(tmp_path, WAIT_FOR_FILE)
    server, start = running(serve, job)
    before = server.launchers()
    server.drain_loop()  # what is reported is acknowledged in a later callback, which a server that closes drops

    server = serve().open(LiveGeneration(job=job, start=start))
    (tmp_path / "go").touch()
    server.wait("cleared", 2)
    assert sorted(server.nodes_of("finished")) == ["n1", "n2"]
    assert not server.of("failed")
    assert not server.of("started"), "that was acknowledged by the previous server"
    assert server.launchers() == before
    server.backend.forget(job.id)
    wait_until(lambda: not server.launchers(), "the launchers left")


@pytest.mark.parametrize("outcome", ["finishes", "fails"])
@pytest.mark.parametrize("launchers", ["wait", "died"])
def test_ends_during_a_restart_are_reported(serve: Serve, tmp_path: Path, outcome: str, launchers: str) -> None:
    job = make_job(tmp_path, f"{WAIT_FOR_FILE}; exit {0 if outcome == 'finishes' else '$GANGER_RANK'}")
    server, start = running(serve, job)
    server.close()
    (tmp_path / "go").touch()
    wait_until(lambda: not server.pids(server.files.jobs), "the ranks ended")
    exits = [
        server.files.task(job.id, node).generation(1) / f"rank-{rank}.exit" for node, rank in (("n1", 1), ("n2", 3))
    ]
    wait_until(lambda: all(path.exists() for path in exits), "their ends are on disk")
    if launchers == "died":
        kill_launchers(server)

    server = serve().open(LiveGeneration(job=job, start=start))
    if outcome == "finishes":
        server.wait("cleared", 2)
        assert sorted(set(server.nodes_of("finished"))) == ["n1", "n2"]
        assert not server.of("failed")
        return
    server.wait("failed", 2)
    assert {(event.node, event.cause) for event in server.of("failed")} == {
        ("n1", Cause.RANK_FAILED),
        ("n2", Cause.RANK_FAILED),
    }
    server.backend.stop(make_stop(start, Cause.RANK_FAILED), job)
    server.wait("cleared", 2)


def test_launcher_that_died_meanwhile_is_lost(serve: Serve, tmp_path: Path) -> None:
    job = make_job(tmp_path, "setsid sleep 60 & wait")
    server, start = running(serve, job)
    server.close()
    kill_launchers(server)

    server = serve().open(LiveGeneration(job=job, start=start))
    kinds = [event.kind for event in server.events]
    assert kinds.index("nodes_listed") > kinds.index("failed"), "planning must not begin before this is known"
    server.wait("cleared", 2)
    assert {event.cause for event in server.of("failed")} == {Cause.LAUNCHER_LOST}
    assert server.pids(server.files.jobs) == []


def test_a_decided_start_is_carried_out(serve: Serve, tmp_path: Path) -> None:
    job = make_job(tmp_path, "true")
    server = serve().open(LiveGeneration(job=job, start=make_start(job)))
    server.wait("cleared", 2)
    assert sorted(server.nodes_of("finished")) == ["n1", "n2"]


def test_a_decided_start_uses_existing_launchers(serve: Serve, tmp_path: Path) -> None:
    server = serve().open()
    job = make_job(tmp_path, "true")
    server.backend.start(make_start(job), job)
    server.wait("cleared", 2)
    before = server.launchers()

    server = serve().open(LiveGeneration(job=job, start=make_start(job, generation=2)))
    server.wait("cleared", 2)
    assert sorted(server.nodes_of("finished", generation=2)) == ["n1", "n2"]
    assert not server.of("failed")
    assert server.launchers() == before


def test_a_start_on_one_node_is_completed_on_the_other(serve: Serve, tmp_path: Path) -> None:
    job = make_job(tmp_path, WAIT_FOR_FILE)
    server, start = running(serve, job)
    server.close()
    task = server.files.task(job.id, "n2")
    kill_launchers(server, task.path)
    (task.generation(1)).rename(tmp_path / "never-begun")

    server = serve().open(LiveGeneration(job=job, start=start))
    server.wait("started")
    assert server.nodes_of("started") == ["n2"]
    (tmp_path / "go").touch()
    server.wait("finished", 2)
    assert not server.of("failed")


def test_a_stop_is_continued(serve: Serve, tmp_path: Path) -> None:
    job = make_job(tmp_path, WAIT_FOR_FILE)
    server, start = running(serve, job)
    server = serve().open(LiveGeneration(job=job, start=start, stopping=make_stop(start)))
    server.wait("cleared", 2)
    assert not server.of("failed")
    assert server.pids(server.files.jobs) == []
    assert server.timers() == []


def test_a_stop_without_processes_is_completed(serve: Serve, tmp_path: Path) -> None:
    job = make_job(tmp_path, WAIT_FOR_FILE)
    start = make_start(job)
    server = serve().open(LiveGeneration(job=job, start=start, stopping=make_stop(start)))
    server.wait("cleared", 2)
    assert {event.kind for event in server.events} == {"nodes_listed", "cleared"}


def test_obsolete_gangs_are_ended(serve: Serve, tmp_path: Path) -> None:
    job = make_job(tmp_path, WAIT_FOR_FILE)
    server, _ = running(serve, job)
    server = serve().open()
    wait_until(lambda: not server.pids(server.files.jobs), "the ranks are gone")
    wait_until(lambda: not server.launchers(), "the launchers left")


def test_ranks_that_lost_both_launcher_and_server_are_ended(serve: Serve, tmp_path: Path) -> None:
    job = make_job(tmp_path, "setsid sleep 60 & wait")
    server, _ = running(serve, job)
    server.close()
    kill_launchers(server)
    assert server.pids(server.files.jobs)
    server = serve().open()
    wait_until(lambda: not server.pids(server.files.jobs), "the strays are gone")


def test_reports_are_repeated_until_durable(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    server.durable = Future  # the log takes nothing
    server.open()
    job = make_job(tmp_path, "true")
    start = make_start(job)
    server.backend.start(start, job)
    server.wait("cleared", 2)

    server = serve().open(LiveGeneration(job=job, start=start))
    server.wait("cleared", 2)
    for node in ("n1", "n2"):
        kinds = [event.kind for event in server.events if node in getattr(event, "nodes", ())]
        assert kinds == ["started", "finished", "cleared"]


def test_lost_reports_are_repeated(serve: Serve, tmp_path: Path) -> None:
    server = serve(nodes=1)
    refusals = [Future(), Future()]
    for future in refusals:
        future.set_exception(OSError("the log is full"))
    durable = server.durable
    server.durable = lambda: refusals.pop() if refusals else durable()
    server.open()
    job = make_job(tmp_path, "true")
    server.backend.start(make_start(job, nodes=1), job)
    server.wait("started", 2)
    server.wait("cleared")
    assert not refusals


def kill_launchers(server: Server, only: Path | None = None) -> None:
    """Kill launchers, and before them the guards that would clean up after them."""
    pids = [
        pid
        for path, launcher in server.launchers().items()
        if only in (None, path)
        for pid in guards_and_launcher(launcher)
    ]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: all(map(is_dead, pids)), "the launchers are dead")
