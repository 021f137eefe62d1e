"""Gangs of real processes: they start as a whole, report how they end, and leave nothing behind."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ganger.model.decision import Cause
from tests.local.world import Server, guards_and_launcher, make_job, make_start, make_stop, python
from tests.waiting import wait_until

Serve = Callable[..., Server]
WAIT = "exec sleep 60"


def test_gang_runs_whole_and_leaves_nothing(serve: Serve, tmp_path: Path) -> None:
    server = serve().open()
    job = make_job(tmp_path, "echo $GANGER_RANK of $WORLD_SIZE on $GANGER_NODE_RANK >> seen")
    start = make_start(job)

    server.backend.start(start, job)
    server.wait("cleared", 2)

    assert sorted((tmp_path / "seen").read_text().splitlines()) == [
        "0 of 4 on 0",
        "1 of 4 on 0",
        "2 of 4 on 1",
        "3 of 4 on 1",
    ]
    for node in ("n1", "n2"):
        kinds = [event.kind for event in server.events if node in getattr(event, "nodes", ())]
        assert kinds == ["started", "finished", "cleared"]
    assert not server.of("failed")
    assert len(server.launchers()) == 2, "launchers wait for the next generation"

    server.backend.forget(job.id)
    wait_until(lambda: not server.launchers(), "the launchers left")
    assert server.timers() == []


def test_killed_rank_fails_the_gang_with_rank_and_signal(serve: Serve, tmp_path: Path) -> None:
    server = serve().open()
    job = make_job(tmp_path, "echo some last words >&2; [ $GANGER_RANK = 2 ] && kill -9 $$; " + WAIT)
    start = make_start(job)

    server.backend.start(start, job)
    failed = server.wait("failed")

    assert (failed.cause, failed.node, failed.rank) == (Cause.RANK_FAILED, "n2", 2)
    assert (failed.exit_code, failed.signal) == (None, signal.SIGKILL)
    assert failed.detail == "rank 2 on n2 was killed by signal 9 (SIGKILL)"
    assert failed.tail == ("some last words",)

    server.backend.stop(make_stop(start, Cause.RANK_FAILED), job)
    server.wait("cleared", 2)
    assert len(server.of("failed")) == 1
    assert server.pids(server.files.jobs) == []
    assert server.timers() == []


def test_failing_rank_gives_its_exit_code(serve: Serve, tmp_path: Path) -> None:
    server = serve(nodes=1).open()
    job = make_job(tmp_path, "[ $GANGER_RANK = 1 ] && exit 7; " + WAIT)
    server.backend.start(make_start(job, nodes=1), job)
    failed = server.wait("failed")
    assert (failed.rank, failed.exit_code, failed.signal) == (1, 7, None)
    assert failed.detail == "rank 1 on n1 exited with code 7"


def test_next_generation_runs_under_the_same_launchers(serve: Serve, tmp_path: Path) -> None:
    server = serve().open()
    job = make_job(tmp_path, "exit $((GANGER_ATTEMPT % 2))")
    first = make_start(job)
    server.backend.start(first, job)
    server.wait("failed", generation=1)
    server.backend.stop(make_stop(first, Cause.RANK_FAILED), job)
    server.wait("cleared", 2, generation=1)
    before = server.launchers()

    server.backend.start(make_start(job, generation=2), job)
    server.wait("finished", 2, generation=2)
    server.wait("cleared", 2, generation=2)
    assert server.launchers() == before


def test_stop_sends_a_notice_first(serve: Serve, tmp_path: Path) -> None:
    server = serve(nodes=1).open()
    script = (
        'while [ ! -e "$GANGER_TASK_DIR/notice" ]; do sleep 0.02; done; cp "$GANGER_TASK_DIR/notice" seen-$GANGER_RANK'
    )
    job = make_job(tmp_path, script)
    start = make_start(job, nodes=1)
    server.backend.start(start, job)
    server.wait("started")
    server.backend.stop(make_stop(start, Cause.PREEMPTED, notice_ms=20_000), job)
    server.wait("cleared")
    assert '"preempted"' in (tmp_path / "seen-0").read_text()


def test_stop_may_come_before_anything_runs_and_again(serve: Serve, tmp_path: Path) -> None:
    server = serve().open()
    job = make_job(tmp_path, WAIT)
    start = make_start(job)
    server.backend.start(start, job)
    for _ in range(3):
        server.backend.stop(make_stop(start), job)
    server.wait("cleared", 2)
    assert sorted(set(server.nodes_of("cleared"))) == ["n1", "n2"]
    assert not server.of("failed")
    assert server.pids(server.files.jobs) == []


def test_stopping_an_unknown_generation_has_no_effect(serve: Serve, tmp_path: Path) -> None:
    server = serve().open()
    job = make_job(tmp_path, WAIT)
    server.backend.stop(make_stop(make_start(job)), job)
    server.backend.forget(job.id)
    server.drain_loop()
    assert [event.kind for event in server.events] == ["nodes_listed"]


def test_killed_launcher_takes_its_ranks_along(serve: Serve, tmp_path: Path) -> None:
    server = serve().open()
    job = make_job(tmp_path, "sleep 60 & setsid sleep 60 & wait")
    start = make_start(job)
    server.backend.start(start, job)
    server.wait("started", 2)
    task = server.files.task(job.id, "n1")
    os.kill(server.launchers()[task.path], signal.SIGKILL)

    failed = server.wait("failed")
    assert (failed.cause, failed.node, failed.rank) == (Cause.LAUNCHER_LOST, "n1", None)
    assert failed.detail == "the launcher of n1 was killed by signal 9 (SIGKILL)"
    server.wait("cleared")
    assert server.nodes_of("cleared") == ["n1"]
    assert server.pids(task.path) == []
    assert len(server.pids(server.files.task(job.id, "n2").path)) > 0, "the other node is not touched"

    server.backend.stop(make_stop(start, Cause.LAUNCHER_LOST), job)
    server.wait("cleared", 2)
    assert server.pids(server.files.jobs) == []


def test_leftover_ranks_are_killed_without_launcher_and_guard(serve: Serve, tmp_path: Path) -> None:
    server = serve(nodes=1).open()
    job = make_job(tmp_path, "setsid sleep 60 & wait")
    server.backend.start(make_start(job, nodes=1), job)
    server.wait("started")
    (launcher,) = server.launchers().values()
    for pid in guards_and_launcher(launcher):
        os.kill(pid, signal.SIGKILL)
    assert server.wait("failed").cause == Cause.LAUNCHER_LOST
    server.wait("cleared")
    assert server.pids(server.files.jobs) == []


def test_wedged_launcher_is_killed(serve: Serve, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("ganger.launcher_server.runtime.gang_runtime.WEDGED_AFTER_S", 0.1)
    server = serve(nodes=1).open()
    job = make_job(tmp_path, WAIT)
    start = make_start(job, nodes=1)
    server.backend.start(start, job)
    server.wait("started")
    (launcher,) = server.launchers().values()
    os.kill(launcher, signal.SIGSTOP)
    server.backend.stop(make_stop(start, Cause.RANK_FAILED), job)
    server.wait("cleared")
    assert not server.of("failed"), "it was being stopped"
    assert server.pids(server.files.jobs) == []
    assert server.timers() == []


def test_lost_node_takes_its_gangs_along(serve: Serve, tmp_path: Path) -> None:
    server = serve().open()
    job = make_job(tmp_path, WAIT)
    start = make_start(job)
    server.backend.start(start, job)
    server.wait("started", 2)

    server.backend.lose_node("n2")
    assert server.wait("node_lost").node == "n2"
    server.backend.stop(make_stop(start, Cause.NODE_LOST), job)
    server.wait("cleared")
    assert server.nodes_of("cleared") == ["n1"], "a lost node reports nothing"
    assert not server.of("failed")
    wait_until(lambda: not server.pids(server.files.jobs), "nothing runs on the lost node")

    server.backend.return_node("n2")
    server.wait("node_returned")
    server.backend.start(make_start(job, generation=2), job)
    server.wait("started", 2, generation=2)


def test_slowest_node_sets_the_gangs_step(serve: Serve, tmp_path: Path) -> None:
    server = serve().open()
    report = r"{\"t\": 1, \"step\": $((5 + GANGER_RANK)), \"metrics\": {}}"
    job = make_job(tmp_path, f'echo "{report}" > "$GANGER_TASK_DIR/rank-$GANGER_RANK.report"; {WAIT}')
    server.backend.start(make_start(job), job)
    assert server.wait("progressed").step == 5
    assert server.backend.progress(job.id) == {"t": 1, "step": 5, "metrics": {}, "phase": None}


GANGS = 12


@pytest.mark.long
def test_many_gangs_at_once(serve: Serve, tmp_path: Path) -> None:
    server = serve().open()
    jobs = [make_job(tmp_path, ("true",)) for _ in range(GANGS)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda job: server.backend.start(make_start(job), job), jobs))
    server.wait("cleared", 2 * GANGS)
    assert not server.of("failed")
    assert sorted(server.nodes_of("finished")) == ["n1"] * GANGS + ["n2"] * GANGS
    for job in jobs:
        server.backend.forget(job.id)
    wait_until(lambda: not server.launchers(), "the launchers left")
    assert server.timers() == []


def test_delete_removes_files_and_follows_no_link(serve: Serve, tmp_path: Path) -> None:
    server = serve(nodes=1).open()
    job = make_job(tmp_path, python("print('kept elsewhere')"))
    server.backend.start(make_start(job, nodes=1), job)
    server.wait("cleared")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    (server.files.job(job.id) / "code").symlink_to(elsewhere)

    server.backend.forget(job.id)
    wait_until(lambda: not server.launchers(), "the launcher left")
    server.backend.delete(job.id)
    wait_until(lambda: not server.files.job(job.id).exists(), "the job's files are gone")
    assert (elsewhere / "file").exists()
    assert server.timers() == []


def test_output_is_kept_with_the_job_over_its_attempts(serve: Serve, tmp_path: Path) -> None:
    server = serve().open()
    job = make_job(tmp_path, 'echo "$GANGER_RANK" >> "$GANGER_RUN_DIR/ranks-$GANGER_ATTEMPT"', nodes=2)
    for generation in (1, 2):
        server.backend.start(make_start(job, generation=generation), job)
        server.wait("cleared", 2 * generation)
    output = server.files.jobs / job.id / "output"
    assert {path.name: sorted(path.read_text().split()) for path in output.iterdir()} == {
        "ranks-1": ["0", "1", "2", "3"],
        "ranks-2": ["0", "1", "2", "3"],
    }
    assert output.stat().st_mode & 0o777 == 0o700
