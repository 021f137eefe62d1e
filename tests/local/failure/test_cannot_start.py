"""Generations that cannot start: reported in one sentence and cleared on every node, without an exception."""

import errno
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ganger.model.decision import Cause, NodeShare
from ganger.model.event import Failed
from ganger.model.job import Job
from tests.local.world import Server, make_job, make_start
from tests.waiting import wait_until

Serve = Callable[..., Server]


def failure(server: Server, job: Job, cleared: tuple[str, ...] = ("n1", "n2")) -> Failed:
    failed = server.wait("failed")
    server.wait("cleared", len(cleared))
    assert tuple(sorted(server.nodes_of("cleared"))) == cleared
    assert not server.of("started")
    assert server.pids(server.files.jobs) == []
    assert server.timers() == []
    return failed


def test_port_in_use(serve: Serve, tmp_path: Path) -> None:
    server = serve().open()
    job = make_job(tmp_path, "true")
    start = make_start(job)
    with socket.create_server(("127.0.0.1", start.port)):
        server.backend.start(start, job)
        failed = failure(server, job)
    assert failed.cause == Cause.PORT_BUSY
    assert failed.detail == f"the ranks cannot meet at 127.0.0.1:{start.port}: Address already in use"
    assert server.launchers() == {}


@pytest.mark.parametrize(("name", "problem"), [("missing", "does not exist"), ("file", "is not a directory")])
def test_unusable_directory(serve: Serve, tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "file").touch()
    server = serve().open()
    job = make_job(tmp_path / name, "true")
    server.backend.start(make_start(job), job)
    failed = failure(server, job)
    assert failed.cause == Cause.START_FAILED
    assert failed.detail == f"the directory {tmp_path / name} {problem}"


def test_missing_code(serve: Serve, tmp_path: Path) -> None:
    server = serve().open()
    job = make_job(tmp_path, "true", code=".")
    server.backend.start(make_start(job), job)
    code = server.files.job(job.id) / "code"
    assert failure(server, job).detail == f"the directory {code} does not exist"


def test_code_is_where_the_ranks_run(serve: Serve, tmp_path: Path) -> None:
    server = serve(nodes=1).open()
    job = make_job(tmp_path, "cat here", code=".")
    code = server.files.job(job.id) / "code"
    code.mkdir(parents=True)
    (code / "here").touch()
    server.backend.start(make_start(job, nodes=1), job)
    server.wait("finished")


def test_task_directory_that_cannot_be_created(serve: Serve, tmp_path: Path) -> None:
    server = serve().open()
    job = make_job(tmp_path, "true")
    nodes = server.files.job(job.id) / "nodes"
    nodes.mkdir(parents=True)
    (nodes / "n2").write_text("in the way")
    server.backend.start(make_start(job), job)
    failed = failure(server, job)
    assert (failed.cause, failed.node) == (Cause.START_FAILED, "n2")
    assert failed.detail == f"cannot write the task directory {nodes / 'n2'}: File exists"
    assert server.launchers() == {}, "no node starts when one cannot"


def test_full_disk(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    server = serve(nodes=1).open()
    job = make_job(tmp_path, "true")
    task = server.files.task(job.id, "n1")
    task.make()
    monkeypatch.setattr("ganger.backends.local.job_files.os.fsync", fail)  # some disks say only then that they are full
    server.backend.start(make_start(job, nodes=1), job)
    failed = failure(server, job, ("n1",))
    assert failed.cause == Cause.START_FAILED
    assert failed.detail == f"cannot write the task directory {task.path}: No space left on device"


def test_missing_program(serve: Serve, tmp_path: Path) -> None:
    server = serve(nodes=1).open()
    job = make_job(tmp_path, ("no-such-program", "--flag"))
    server.backend.start(make_start(job, nodes=1), job)
    failed = failure(server, job, ("n1",))
    assert (failed.cause, failed.exit_code) == (Cause.START_FAILED, 127)
    assert "no-such-program" in failed.detail


def test_long_path_with_invalid_utf_8(serve: Serve, tmp_path: Path) -> None:
    server = serve(nodes=1).open()
    job = make_job(tmp_path, ("no-such-program", "--flag"), env={"PATH": "/caf\udce9:" * 5_000})
    server.backend.start(make_start(job, nodes=1), job)
    failed = failure(server, job, ("n1",))
    assert (failed.cause, failed.exit_code) == (Cause.START_FAILED, 127)
    assert "no-such-program" in failed.detail
    task = server.files.task(job.id, "n1")
    (record,) = task.exits(1)
    assert (record["exit_code"], len(record["tail"][0])) == (127, 10_000)
    assert task.planned_ranks(1) == (0, 1)


def test_setup_line_that_fails(serve: Serve, tmp_path: Path) -> None:
    server = serve(nodes=1).open()
    job = make_job(tmp_path, "true", setup="echo no network >&2; exit 3")
    server.backend.start(make_start(job, nodes=1), job)
    failed = failure(server, job, ("n1",))
    assert (failed.cause, failed.exit_code, failed.tail) == (Cause.START_FAILED, 3, ("no network",))


def test_launcher_that_does_not_start(serve: Serve, tmp_path: Path) -> None:
    server = serve(nodes=1)
    server.backend._place._launchers._files = replace(server.files, launcher=tmp_path / "gone.pyz")
    server.open()
    job = make_job(tmp_path, "true")
    server.backend.start(make_start(job, nodes=1), job)
    failed = failure(server, job, ("n1",))
    assert failed.cause == Cause.LAUNCHER_LOST
    assert failed.detail.startswith("the launcher of n1 exited with code 2: ")
    assert "gone.pyz" in failed.detail


def test_missing_interpreter(serve: Serve, tmp_path: Path, monkeypatch) -> None:
    server = serve().open()
    job = make_job(tmp_path, "true")
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    server.backend.start(make_start(job), job)
    failed = failure(server, job)
    assert failed.cause == Cause.START_FAILED
    assert failed.detail == "cannot start the launcher of n1: No such file or directory"


def test_framework_that_breaks(serve: Serve, tmp_path: Path) -> None:
    server = serve().open()
    job = make_job(tmp_path, "true", framework="gone")
    server.backend.start(make_start(job), job)
    failed = failure(server, job)
    assert failed.cause == Cause.START_FAILED
    assert "gone" in failed.detail


def test_node_that_no_longer_exists(serve: Serve, tmp_path: Path) -> None:
    server = serve(nodes=1).open()
    job = make_job(tmp_path, "true")
    start = make_start(job)
    server.backend.start(start, job)
    failed = failure(server, job)
    assert (failed.cause, failed.node) == (Cause.NODE_LOST, "n2")


def test_one_gang_that_cannot_start_leaves_others_alone(serve: Serve, tmp_path: Path) -> None:
    server = serve().open()
    broken, good = make_job(tmp_path / "missing", "true"), make_job(tmp_path, "true")
    server.backend.start(make_start(broken), broken)
    server.backend.start(make_start(good), good)
    server.wait("finished", 2, gang=good.id)
    assert [event.gang for event in server.of("failed")] == [broken.id]


def test_invalid_name_is_refused(serve: Serve, tmp_path: Path) -> None:
    server = serve(nodes=1).open()
    for name in ("../../escape", "", ".", "a/b"):
        with pytest.raises(ValueError, match="not a name of a job"):
            server.files.job(name)
        with pytest.raises(ValueError, match="not a name of a job"):
            server.files.task("job", name)
    job = make_job(tmp_path, "true")
    start = replace(make_start(job, nodes=1), shares=(NodeShare("../n1", (0, 1)),))
    server.backend.start(start, job)
    server.wait("cleared")
    wait_until(lambda: not server.launchers(), "nothing was started")
