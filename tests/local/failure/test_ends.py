"""The exits of all ranks in a failure report, from real launchers on two nodes with two ranks each."""

import json
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from ganger.backends.local.job_files import JobFiles
from ganger.backends.local.machine_place import LocalRecords
from ganger.launcher_server import failure_events, message_schema
from ganger.launcher_server.failure_events import ExitCollector
from ganger.launcher_server.generation_state import new_generation
from ganger.launcher_server.message_events import rank_failed
from ganger.launcher_server.retry_rules import RetryRuleSearch
from ganger.model.decision import Cause
from ganger.model.event import Failed, RankEnd
from ganger.model.job import Job
from ganger.ports import LiveGeneration
from tests.local.world import Server, make_job, make_start, make_stop
from tests.waiting import wait_until

Serve = Callable[..., Server]
TRAIN = """\
import os, pathlib, sys, time
rank = os.environ["GANGER_RANK"]
report = pathlib.Path(os.environ["GANGER_TASK_DIR"], f"rank-{rank}.report")
def until(name):
    while not pathlib.Path(name).exists():
        time.sleep(0.01)
"""


def job_of(directory: Path, lines: str, **spec: object) -> Job:
    (directory / "train.py").write_text(TRAIN + lines)
    return make_job(directory, (sys.executable, "-I", "-S", "train.py"), **spec)


def run_to_failure(server: Server, job: Job) -> Failed:
    """Run a job until its failure is reported, stop it, and return the failure."""
    start = make_start(job)
    server.backend.start(start, job)
    return wait_failure(server, job, lambda: server.backend.stop(make_stop(start, Cause.RANK_FAILED), job))


def wait_failure(server: Server, job: Job, stop: Callable[[], None]) -> Failed:
    failure = server.wait("failed")
    stop()
    server.wait("cleared", 2)
    kinds = [event.kind for event in server.events if getattr(event, "gang", None) == job.id]
    assert kinds.index("failed") < kinds.index("cleared")
    assert isinstance(failure, Failed)
    return failure


def test_the_same_error_on_all_ranks(serve: Serve, tmp_path: Path) -> None:
    failure = run_to_failure(serve().open(), job_of(tmp_path, "{}['lr']\n"))
    assert sorted(end.rank for end in failure.ends) == [0, 1, 2, 3]
    assert (failure.ranks, failure.cause) == (4, Cause.RANK_FAILED)
    assert list(failure.ends) == sorted(failure.ends, key=lambda end: end.at_ms)
    assert failure.since_ms == failure.ends[0].at_ms
    line = len(TRAIN.splitlines()) + 1
    assert {
        (end.error.type, end.error.file, end.error.line, end.error.message) for end in failure.ends if end.error
    } == {("KeyError", "train.py", line, "'lr'")}


def test_the_cause_is_found_though_its_effects_are_reported_first(serve: Serve, tmp_path: Path) -> None:
    lines = """\
report.write_text('{"step": 7}\\n')
if rank == '3':
    until('wake')
    {}['lr']
until('go')
open('wake', 'w')
sys.exit('lost a peer')
"""
    server, job = serve().open(), job_of(tmp_path, lines)
    start = make_start(job)
    server.backend.start(start, job)
    server.wait("started", 2)
    (tmp_path / "go").touch()
    failure = wait_failure(server, job, lambda: server.backend.stop(make_stop(start, Cause.RANK_FAILED), job))
    assert {end.rank: (end.error.type if end.error else end.error_line, end.step) for end in failure.ends} == {
        0: ("lost a peer", 7),
        1: ("lost a peer", 7),
        2: ("lost a peer", 7),
        3: ("KeyError", 7),
    }


def test_hanging_peers_are_not_waited_for(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_events, "WAIT_BEFORE_STEP_S", 0.2)
    failure = run_to_failure(serve().open(), job_of(tmp_path, "if rank == '1':\n    sys.exit(3)\nuntil('never')\n"))
    assert [(end.rank, end.node, end.exit_code, end.step) for end in failure.ends] == [(1, "n1", 3, None)]


@pytest.mark.parametrize(("number", "waits"), [(9, False), (15, False), (11, True)])
def test_no_wait_after_an_external_signal(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, waits: bool
) -> None:
    monkeypatch.setattr(failure_events, "WAIT_BEFORE_STEP_S", 0.2 if waits else 600.0)
    lines = f"""\
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if rank == '2':
    os.kill(os.getpid(), {number})
until('never')
"""
    failure = run_to_failure(serve().open(), job_of(tmp_path, lines))
    assert [(end.rank, end.signal, end.out_of_memory) for end in failure.ends] == [(2, number, False)]


def test_server_stopped_while_collecting_exits(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_events, "WAIT_BEFORE_STEP_S", 600.0)
    server, job = serve().open(), job_of(tmp_path, "if rank == '3':\n    until('go')\n{}['lr']\n")
    start = make_start(job)
    server.backend.start(start, job)
    exits = [server.files.task(job.id, f"n{number}").generation(1) / f"rank-{2 * number - 2}.exit" for number in (1, 2)]
    wait_until(lambda: all(path.exists() for path in exits), "they ended")
    server.drain_loop()
    assert not server.of("failed")
    server = serve().open(LiveGeneration(job=job, start=start))
    (tmp_path / "go").touch()
    failure = wait_failure(server, job, lambda: server.backend.stop(make_stop(start, Cause.RANK_FAILED), job))
    assert sorted(end.rank for end in failure.ends) == [0, 1, 2, 3]


def test_a_stop_does_not_wait_for_exits(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_events, "WAIT_BEFORE_STEP_S", 600.0)
    server, job = serve().open(), job_of(tmp_path, "if rank == '0':\n    sys.exit(3)\nuntil('never')\n")
    start = make_start(job)
    server.backend.start(start, job)
    wait_until((server.files.task(job.id, "n1").generation(1) / "rank-0.exit").exists, "it ended")
    server.backend.stop(make_stop(start), job)
    server.wait("cleared", 2)
    assert server.wait("failed").exit_code == 3


def test_exit_records_that_count(files: JobFiles, tmp_path: Path) -> None:
    job = make_job(tmp_path, "true")
    start = make_start(job)
    for node, ranks in (("n1", (0, 1)), ("n2", (2, 3))):
        task = files.task(job.id, node)
        task.generation(1).mkdir(parents=True)
        planned = [{"rank": rank, "on_failure": "ignore" if rank == 1 else "restart"} for rank in ranks]
        (task.path / "plan-1.json").write_text(json.dumps({"ranks": planned}))
        for rank in ranks:
            record = {"rank": rank, "pid": 9, "at_ms": 100 - rank, "signal": 9, "out_of_memory": rank == 2}
            (task.generation(1) / f"rank-{rank}.exit").write_text(json.dumps(record))
    (files.task(job.id, "n2").generation(1) / "rank-3.exit").write_text('{"rank": 3, "exit_')
    generation = new_generation(start, job)
    first = message_schema.exit_record(b'{"rank": 0, "signal": 9, "at_ms": 100}')
    failed = rank_failed(first, job.id, 1, "n1")
    join_ends = ExitCollector(LocalRecords(files), {job.id: generation}.get).join_ends(failed)
    assert [(end.rank, end.node, end.at_ms) for end in join_ends.ends] == [(2, "n2", 98), (0, "n1", 100)]
    assert (join_ends.rank, join_ends.node, join_ends.ranks, join_ends.since_ms) == (0, "n1", 4, 98)
    assert join_ends.cause is Cause.OUT_OF_MEMORY
    next_generation = rank_failed(first, job.id, 2, "n1")
    assert ExitCollector(LocalRecords(files), {job.id: generation}.get).join_ends(next_generation) == next_generation
    assert ExitCollector(LocalRecords(files), {}.get).join_ends(failed) == failed


def test_a_failure_without_a_failed_rank_is_reported_all_the_same(files: JobFiles, tmp_path: Path) -> None:
    """Injected fault: every end that is known is a good one. An exception here would keep the failure back for ever."""
    job = make_job(tmp_path, "true")
    generation = new_generation(make_start(job), job)
    good_end = RankEnd(node="n1", rank=0, exit_code=0, at_ms=100)
    failed = Failed(gang=job.id, generation=1, node="n1", cause=Cause.RANK_FAILED, ends=(good_end,), since_ms=7)
    reported: list[Any] = []
    collector = ExitCollector(LocalRecords(files), {job.id: generation}.get)
    search = RetryRuleSearch(LocalRecords(files), collector, lambda event: reported.append(event) or Future(), {}.get)
    search(failed)
    assert [(event.ends, event.since_ms) for event in reported] == [((good_end,), 7)]
