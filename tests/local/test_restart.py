"""A server that goes away and comes back: what ran is found again, and what happened meanwhile is learnt."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from ganger.model.decision import Cause, Start
from ganger.model.job import Job
from ganger.ports import LiveGeneration
from tests.local.world import Server, alone, is_dead, make_job, make_start, make_stop, wait_until

Serve = Callable[..., Server]
UNTIL_TOLD = "while [ ! -e go ]; do sleep 0.02; done"


def running(serve: Serve, job: Job) -> tuple[Server, Start]:
    """A server under which both nodes of the job run."""
    server = serve().open()
    start = make_start(job)
    server.backend.start(start, job)
    server.wait("started", 2)
    return server, start


def test_what_runs_is_adopted(serve: Serve, tmp_path: Path) -> None:
    job = make_job(tmp_path, UNTIL_TOLD)
    server, start = running(serve, job)
    before = server.launchers()

    server = serve().open(LiveGeneration(job=job, start=start))
    (tmp_path / "go").touch()
    server.wait("cleared", 2)
    assert sorted(server.nodes_of("finished")) == ["n1", "n2"]
    assert not server.of("failed")
    assert not server.of("started"), "that was acknowledged to the server before"
    assert server.launchers() == before
    server.backend.forget(job.id)
    wait_until(lambda: not server.launchers(), "the launchers left")


@pytest.mark.parametrize("how", ["finishes", "fails"])
@pytest.mark.parametrize("launchers", ["wait", "died"])
def test_what_ended_meanwhile_is_learnt(serve: Serve, tmp_path: Path, how: str, launchers: str) -> None:
    job = make_job(tmp_path, f"{UNTIL_TOLD}; exit {0 if how == 'finishes' else '$GANGER_RANK'}")
    server, start = running(serve, job)
    server.close()
    (tmp_path / "go").touch()
    wait_until(lambda: not server.pids(server.layout.jobs), "the ranks ended")
    exits = [
        server.layout.task(job.id, node).generation(1) / f"rank-{rank}.exit" for node, rank in (("n1", 1), ("n2", 3))
    ]
    wait_until(lambda: all(path.exists() for path in exits), "their ends are on disk")
    if launchers == "died":
        kill_launchers(server)

    server = serve().open(LiveGeneration(job=job, start=start))
    if how == "finishes":
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
    assert server.pids(server.layout.jobs) == []


def test_what_was_decided_but_not_begun_is_begun(serve: Serve, tmp_path: Path) -> None:
    job = make_job(tmp_path, "true")
    server = serve().open(LiveGeneration(job=job, start=make_start(job)))
    server.wait("cleared", 2)
    assert sorted(server.nodes_of("finished")) == ["n1", "n2"]


def test_what_was_decided_but_not_begun_is_begun_under_the_launchers_there_are(serve: Serve, tmp_path: Path) -> None:
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


def test_what_was_begun_on_one_node_is_begun_on_the_other(serve: Serve, tmp_path: Path) -> None:
    job = make_job(tmp_path, UNTIL_TOLD)
    server, start = running(serve, job)
    server.close()
    task = server.layout.task(job.id, "n2")
    kill_launchers(server, task.path)
    (task.generation(1)).rename(tmp_path / "never-begun")

    server = serve().open(LiveGeneration(job=job, start=start))
    server.wait("started")
    assert server.nodes_of("started") == ["n2"]
    (tmp_path / "go").touch()
    server.wait("finished", 2)
    assert not server.of("failed")


def test_stop_is_carried_on(serve: Serve, tmp_path: Path) -> None:
    job = make_job(tmp_path, UNTIL_TOLD)
    server, start = running(serve, job)
    server = serve().open(LiveGeneration(job=job, start=start, stopping=make_stop(start)))
    server.wait("cleared", 2)
    assert not server.of("failed")
    assert server.pids(server.layout.jobs) == []
    assert server.timers() == []


def test_stop_is_carried_on_where_nothing_is_left(serve: Serve, tmp_path: Path) -> None:
    job = make_job(tmp_path, UNTIL_TOLD)
    start = make_start(job)
    server = serve().open(LiveGeneration(job=job, start=start, stopping=make_stop(start)))
    server.wait("cleared", 2)
    assert {event.kind for event in server.events} == {"nodes_listed", "cleared"}


def test_what_nobody_wants_any_more_is_ended(serve: Serve, tmp_path: Path) -> None:
    job = make_job(tmp_path, UNTIL_TOLD)
    server, _ = running(serve, job)
    server = serve().open()
    wait_until(lambda: not server.pids(server.layout.jobs), "the ranks are gone")
    wait_until(lambda: not server.launchers(), "the launchers left")


def test_ranks_that_lost_both_launcher_and_server_are_ended(serve: Serve, tmp_path: Path) -> None:
    job = make_job(tmp_path, "setsid sleep 60 & wait")
    server, _ = running(serve, job)
    server.close()
    kill_launchers(server)
    assert server.pids(server.layout.jobs)
    server = serve().open()
    wait_until(lambda: not server.pids(server.layout.jobs), "the strays are gone")


def test_fact_is_told_again_until_it_is_durable(serve: Serve, tmp_path: Path) -> None:
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
        mine = [event.kind for event in server.events if node in getattr(event, "nodes", ())]
        assert mine == ["started", "finished", "cleared"]


def test_fact_that_was_lost_is_told_again(serve: Serve, tmp_path: Path) -> None:
    server = serve(nodes=1)
    refusals = [Future(), Future()]
    for future in refusals:
        future.set_exception(OSError("the log took it not"))
    done = server.durable
    server.durable = lambda: refusals.pop() if refusals else done()
    server.open()
    job = make_job(tmp_path, "true")
    server.backend.start(make_start(job, nodes=1), job)
    server.wait("started", 2)
    server.wait("cleared")
    assert not refusals


def kill_launchers(server: Server, only: Path | None = None) -> None:
    """Launchers, and before them the guards that would clean up for them."""
    found = [pid for path, launcher in server.launchers().items() if only in (None, path) for pid in alone(launcher)]
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: all(map(is_dead, found)), "the launchers are dead")
