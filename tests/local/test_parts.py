"""Gangs of unequal parts: chiefs that end the job, start order, secrets, several shares of one node."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ganger.launcher_server.generation_state import new_generation
from ganger.model.decision import Cause, NodeShare, Start
from ganger.model.job import Job, Role
from ganger.ports import LiveGeneration
from tests.local.world import Server, free_port, guards_and_launcher, make_job, make_start, make_stop
from tests.waiting import wait_until

Serve = Callable[..., Server]
HOLD = "exec sleep 60"
UNTIL_GO = "while [ ! -e {} ]; do sleep 0.02; done"


def parts(job: Job, *shares: tuple[str, tuple[int, ...], int], generation: int = 1) -> Start:
    """Return a start with shares of (node, ranks, part)."""
    placed = tuple(NodeShare(node, ranks, part=part) for node, ranks, part in shares)
    return Start(gang=job.id, generation=generation, shares=placed, host="127.0.0.1", port=free_port())


def two_chiefs(tmp_path: Path, **spec: object) -> tuple[Job, Start]:
    """Return a job with a chief and a worker on each node; the chiefs end when `first` and `second` exist."""
    line = 'while [ ! -e "$([ $GANGER_RANK = 0 ] && echo first || echo second)" ]; do sleep 0.02; done'
    chief = Role(count=2, run=line)
    job = make_job(tmp_path, HOLD, nproc_per_node=1, roles={"chief": chief}, stop_when="chief", **spec)
    return job, parts(job, ("n1", (0,), 0), ("n2", (1,), 0), ("n1", (2,), 1), ("n2", (3,), 1))


def test_node_in_several_shares_has_one_launcher(serve: Serve, tmp_path: Path) -> None:
    server = serve().open()
    job = make_job(tmp_path, "true", nproc_per_node=1, roles={"ps": Role(count=3, run="true")})
    start = parts(job, ("n1", (0,), 0), ("n1", (1,), 1), ("n1", (2,), 1), ("n2", (3,), 1))
    server.backend.start(start, job)
    server.wait("cleared", 2)
    assert [sorted(server.nodes_of(kind)) for kind in ("started", "finished", "cleared")] == [["n1", "n2"]] * 3
    assert sorted(server.files.task(job.id, "n1").planned_ranks(1)) == [0, 1, 2]


def test_busy_port_is_detected_with_several_shares_on_a_node(serve: Serve, tmp_path: Path) -> None:
    import socket

    server = serve().open()
    job = make_job(tmp_path, "true", nproc_per_node=1, roles={"ps": Role(count=1, run="true")})
    start = parts(job, ("n1", (0,), 0), ("n1", (1,), 1))
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", start.port))
        busy.listen()
        server.backend.start(start, job)
        assert server.wait("failed").cause is Cause.PORT_BUSY
        server.wait("cleared")


def test_job_is_done_once_when_the_chiefs_of_all_nodes_are(serve: Serve, tmp_path: Path) -> None:
    server = serve().open()
    job, start = two_chiefs(tmp_path)
    server.backend.start(start, job)
    server.wait("started", 2)
    (tmp_path / "first").touch()
    exit_of = server.files.task(job.id, "n1").generation(1) / "rank-0.exit"
    wait_until(exit_of.exists, "the first chief ended")
    assert not server.of("done")
    (tmp_path / "second").touch()
    server.wait("done")
    server.backend.stop(make_stop(start), job)
    server.wait("cleared", 2)
    assert len(server.of("done")) == 1
    assert not server.of("failed")
    assert not server.of("finished")


@pytest.mark.parametrize("launchers", ["wait", "died"])
def test_chief_that_ended_before_a_restart_counts(serve: Serve, tmp_path: Path, launchers: str) -> None:
    server = serve().open()
    job, start = two_chiefs(tmp_path)
    server.backend.start(start, job)
    server.wait("started", 2)
    task = server.files.task(job.id, "n1")
    (tmp_path / "first").touch()
    wait_until((task.generation(1) / "rank-0.exit").exists, "the first chief ended")
    server.close()
    (tmp_path / "second").touch()
    wait_until((server.files.task(job.id, "n2").generation(1) / "rank-1.exit").exists, "the second chief ended")
    if launchers == "died":
        for pid in [pid for launcher in server.launchers().values() for pid in guards_and_launcher(launcher)]:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not server.launchers(), "the launchers died")

    server = serve().open(LiveGeneration(job=job, start=start))
    server.wait("done")
    server.backend.stop(make_stop(start), job)
    server.wait("cleared", 2)
    assert len(server.of("done")) == 1
    assert not server.of("failed")


def test_rank_that_fails_after_the_chief_ended_is_no_failure(serve: Serve, tmp_path: Path) -> None:
    server = serve().open()
    worker = f"{UNTIL_GO.format('$CHIEFS_END')}; exit 1"
    roles = {"chief": Role(count=1, run=UNTIL_GO.format("go"))}
    job = make_job(tmp_path, worker, nproc_per_node=1, roles=roles, stop_when="chief")
    end = server.files.task(job.id, "n1").generation(1) / "rank-0.exit"
    job.spec.env["CHIEFS_END"] = str(end)
    start = parts(job, ("n1", (0,), 0), ("n2", (1,), 1))
    server.backend.start(start, job)
    server.wait("started", 2)
    (tmp_path / "go").touch()
    server.wait("done")
    wait_until((server.files.task(job.id, "n2").generation(1) / "cleared").exists, "the worker ended")
    server.backend.stop(make_stop(start), job)
    server.wait("cleared", 2)
    assert not server.of("failed")
    assert len(server.of("done")) == 1


def test_chief_that_fails_is_a_failure(serve: Serve, tmp_path: Path) -> None:
    server = serve().open()
    job = make_job(tmp_path, HOLD, nproc_per_node=1, roles={"chief": Role(count=1, run="exit 4")}, stop_when="chief")
    start = parts(job, ("n1", (0,), 0), ("n2", (1,), 1))
    server.backend.start(start, job)
    assert server.wait("failed").exit_code == 4
    server.backend.stop(make_stop(start, Cause.RANK_FAILED), job)
    server.wait("cleared", 2)
    assert not server.of("done")


@pytest.mark.parametrize("launcher_state", ["lives", "died"])
def test_failure_of_an_ignored_role_is_no_failure(serve: Serve, tmp_path: Path, launcher_state: str) -> None:
    server = serve(nodes=1).open()
    roles = {"eval": Role(count=1, run="exit 5", on_failure="ignore")}
    job = make_job(tmp_path, UNTIL_GO.format("go"), nproc_per_node=1, roles=roles)
    start = parts(job, ("n1", (0,), 0), ("n1", (1,), 1))
    server.backend.start(start, job)
    server.wait("started")
    generation = server.files.task(job.id, "n1").generation(1)
    wait_until((generation / "rank-1.exit").exists, "the evaluator failed")
    if launcher_state == "died":
        server.close()
    (tmp_path / "go").touch()
    if launcher_state == "died":
        wait_until((generation / "rank-0.exit").exists, "the worker ended")
        for pid in [pid for launcher in server.launchers().values() for pid in guards_and_launcher(launcher)]:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not server.launchers(), "the launcher died")
        server = serve(nodes=1).open(LiveGeneration(job=job, start=start))
    server.wait("finished")
    server.wait("cleared")
    assert not server.of("failed")


def test_roles_start_in_their_order(serve: Serve, tmp_path: Path) -> None:
    """A rank of a later stage finds those of earlier stages started, also on the other node."""
    server = serve().open()
    began = "ls $LOGS/*/1/rank-0.log $LOGS/*/1/rank-1.log > $GANGER_ROLE"
    roles = {"ps": Role(count=2, run=HOLD), "chief": Role(count=1, run=f"{began} && {HOLD}")}
    line = f"{began} && ls $LOGS/*/1/rank-2.log && {HOLD}"
    job = make_job(tmp_path, line, nproc_per_node=1, roles=roles, start_order=("ps", "chief"))
    job.spec.env["LOGS"] = str(server.files.job(job.id) / "nodes")
    order = job.spec.order
    first = parts(job, ("n1", (0,), order.index("ps")), ("n2", (1,), order.index("ps")))
    start = parts(
        job,
        *((share.node, share.ranks, share.part) for share in first.shares),
        ("n2", (2,), order.index("chief")),
        ("n1", (3,), order.index("worker")),
    )
    server.backend.start(start, job)
    server.wait("started", 2)
    wait_until(lambda: (tmp_path / "chief").exists() and (tmp_path / "worker").exists(), "all ran")
    server.backend.stop(make_stop(start), job)
    server.wait("cleared", 2)
    assert not server.of("failed")


@pytest.mark.parametrize("waiting", ["n1", "n2"])
def test_server_restarted_between_stages_continues(serve: Serve, tmp_path: Path, waiting: str) -> None:
    server = serve().open()
    setup = f"[ $GANGER_NODE_RANK = {0 if waiting == 'n2' else 1} ] || {UNTIL_GO.format('go')}"
    roles = {"ps": Role(count=2, run=HOLD)}
    job = make_job(tmp_path, "touch late-$GANGER_RANK", nproc_per_node=1, roles=roles, start_order=("ps",), setup=setup)
    ps, worker = job.spec.order.index("ps"), job.spec.order.index("worker")
    start = parts(job, ("n1", (0,), ps), ("n2", (1,), ps), ("n1", (2,), worker), ("n2", (3,), worker))
    server.backend.start(start, job)
    other_node = "n1" if waiting == "n2" else "n2"
    log = server.files.task(job.id, other_node).generation(1) / f"rank-{0 if other_node == 'n1' else 1}.log"
    wait_until(log.exists, "the other node began its first stage")
    server.close()
    assert not list(tmp_path.glob("late-*"))

    server = serve().open(LiveGeneration(job=job, start=start))
    (tmp_path / "go").touch()
    server.wait("started", 2)
    wait_until(lambda: len(list(tmp_path.glob("late-*"))) == 2, "both workers ran")
    server.backend.stop(make_stop(start), job)
    server.wait("cleared", 2)
    assert not server.of("failed")


def test_secrets_reach_the_ranks_and_no_file(serve: Serve, tmp_path: Path) -> None:
    server = serve(nodes=1).open()
    job = make_job(tmp_path, "[ ${#TOKEN} = 13 ] && echo mine is $TOKEN", secrets=("TOKEN",))
    secrets_file = server.files.secrets(job.id)
    secrets_file.parent.mkdir(parents=True)
    secrets_file.write_text('{"TOKEN": "hunter2-sword"}')
    server.backend.start(make_start(job, nodes=1), job)
    server.wait("finished")
    server.wait("cleared")
    task = server.files.task(job.id, "n1")
    assert "mine is ***" in (task.generation(1) / "rank-0.log").read_text()
    files = [path for path in task.path.rglob("*") if path.is_file()]
    assert [path for path in files if b"hunter2" in path.read_bytes()] == []


def test_missing_secrets_fail_the_start(serve: Serve, tmp_path: Path) -> None:
    server = serve(nodes=1).open()
    job = make_job(tmp_path, "touch ran", secrets=("TOKEN",))
    server.backend.start(make_start(job, nodes=1), job)
    failed = server.wait("failed")
    assert failed.cause is Cause.START_FAILED
    assert f"the secrets {server.files.secrets(job.id)} cannot be read" in failed.detail
    server.wait("cleared")
    assert not (tmp_path / "ran").exists()


def test_progress_of_a_gang_with_one_reporting_node(tmp_path: Path) -> None:
    job = make_job(tmp_path, "true")
    generation = new_generation(make_start(job), job)
    progress = [generation.progress(node, step) for node, step in [("n1", 1), ("n1", 9), ("n1", 9), ("n1", 12)]]
    assert progress == [None, 9, None, 12]


def test_progress_of_a_gang_is_that_of_its_slowest_node(tmp_path: Path) -> None:
    job = make_job(tmp_path, "true")
    generation = new_generation(make_start(job), job)
    reports = [("n1", 3), ("n2", 1), ("n2", 4), ("n1", 8), ("n1", 9), ("n2", 9), ("n1", 10)]
    assert [generation.progress(node, step) for node, step in reports] == [None, 1, None, 4, None, None, 9]


def test_progress_is_not_behind_the_newest_checkpoint(tmp_path: Path) -> None:
    job = make_job(tmp_path, "true")
    generation = new_generation(make_start(job), job)
    assert [generation.progress(node, step) for node, step in [("n1", 0), ("n2", 6)]] == [None, 0]
    generation.saved_step = 49
    assert generation.progress("n1", 60) == 49, "the milestone of n2 is from before it"
    assert [generation.progress(node, step) for node, step in [("n2", 61), ("n1", 90)]] == [None, 61]
