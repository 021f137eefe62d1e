"""The loop: how it handles facts and requests, what readers see, and how it ends."""

import cProfile
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ganger.backends.simulator.job_behaviour import Behaviour
from ganger.backends.simulator.virtual_cluster import VirtualCluster
from ganger.core.fold.fold import fold
from ganger.engine import loop as loops
from ganger.engine.eventlog import codec
from ganger.engine.eventlog.event_log import MEMORY, EventLog
from ganger.engine.loop import Loop
from ganger.engine.wall_clock import WallClock
from ganger.errors import RequestError
from ganger.model import event as e
from ganger.model.decision import Cause, Start, Stop
from ganger.model.job import GangState, Job
from tests.engine.scenes import POLICIES, folded, job, limits, listed_states, nodes, raw, serve, submit
from tests.waiting import DEADLINE_S

S = 1_000


def kinds(log: EventLog) -> list[str]:
    return [row.event.kind for row in log.rows()]


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    return EventLog(tmp_path / "g.db")


@pytest.fixture
def world() -> VirtualCluster:
    return VirtualCluster(nodes(2, gpus=2))


class Running:
    """A loop running on its own thread, over a world whose time stands still unless a clock is given."""

    def __init__(self, log: EventLog, world: VirtualCluster, clock: Any = None) -> None:
        self.loop = Loop(log, world, lambda _: POLICIES["priority"], clock or world, "test")
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)  # a loop that hangs must not hang the tests

    def __enter__(self) -> Loop:
        self.loop.open()
        self.thread.start()
        return self.loop

    def __exit__(self, *_: object) -> None:
        self.loop.close()
        self.join()

    def join(self) -> None:
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive(), "the loop does not end"

    def _run(self) -> None:
        try:
            self.loop.run()
        except ZeroDivisionError as error:
            self.failure = error


def on_threads(work: Callable[[int], None], number: int = 8) -> None:
    """Run the same work on several threads; raise what they raise."""
    raised: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            work(index)
        except BaseException as error:  # noqa: BLE001 - raised in the test
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(index,), daemon=True) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "a thread still waits"
    assert raised == []


# -- batches, facts, requests ------------------------------------------------------------------------------------------


def test_a_batch_is_followed_by_one_cycle(log: EventLog, world: VirtualCluster) -> None:
    loop = serve(world, log)
    world.run(loop, 0)
    first = log.last_seq()
    answers = [loop.post(submit(f"job-{number}")) for number in range(5)]
    assert not any(answer.done() for answer in answers)
    loop.run_cycle(loop.drain())
    assert [answer.result(0) for answer in answers] == [*range(first + 1, first + 6)]
    rows = log.rows(after=first)
    assert [row.event.kind for row in rows] == ["submitted"] * 5 + ["decided"]
    assert [row.closes for row in rows] == [False] * 4 + [True, False]
    assert len({row.at_ms for row in rows}) == 1


def test_nothing_is_planned_before_the_nodes_are_listed(log: EventLog, world: VirtualCluster) -> None:
    loop = Loop(log, world, lambda _: POLICIES["fifo"], world, "test")
    loop.post(submit("job-1"))
    loop.run_cycle(loop.drain())
    loop.open()
    assert kinds(log) == ["submitted", "server_started"]
    loop.run_cycle(loop.drain())
    assert kinds(log) == ["submitted", "server_started", "nodes_listed", "decided"]


def test_a_restarted_server_plans_nothing_before_the_nodes_are_listed(log: EventLog, world: VirtualCluster) -> None:
    world.run(serve(world, log), 0)
    loop = serve(world, log)
    loop.post(submit("job-1"))
    # The batch has the job alone, without the listing of nodes that opening has posted before it.
    loop.run_cycle([loop.drain()[-1]])
    assert "decided" not in kinds(log)


@pytest.mark.parametrize(
    "stale",
    [
        e.Started(gang="job-1", generation=1, nodes=("n1",)),
        e.Progressed(gang="job-1", generation=2, step=4),
        e.Checkpointed(gang="job-1", generation=0, step=4),
        e.Failed(gang="nobody", generation=1, node="n1", cause=Cause.RANK_FAILED),
        e.Cleared(gang="job-1", generation=7, nodes=("n1",)),
        e.NodeReturned(node="n1"),
        e.NodeLost(node="n77"),
    ],
)
def test_stale_facts_are_dropped(stale: e.Event, log: EventLog, world: VirtualCluster) -> None:
    loop = serve(world, log)
    world.at(0, submit("job-1"))
    world.run(loop, 5 * S)
    before = log.last_seq()
    answer = loop.post(stale)
    loop.run_cycle(loop.drain())
    assert answer.result(0) == 0
    assert log.last_seq() == before


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (submit("job-1"), "exists already"),
        (submit("job-2", queue="nowhere"), "there is no queue nowhere"),
        (e.StopRequested(gang="nobody"), "not pending or running"),
        (e.Deleted(gang="job-1"), "is still running"),
        (e.QueueDeleted(queue="default"), "always there"),
        (e.NodeCordoned(node="n77"), "no node n77"),
        (e.NodeUncordoned(node="n1"), "n1 is ready"),
    ],
)
def test_an_impossible_request_is_refused_with_a_message(
    refused: e.Event, message: str, log: EventLog, world: VirtualCluster
) -> None:
    loop = serve(world, log)
    world.at(0, submit("job-1"))
    world.run(loop, 5 * S)
    before = log.last_seq()
    answer = loop.post(refused)
    loop.run_cycle(loop.drain())
    error = answer.exception(0)
    assert isinstance(error, RequestError)
    assert (error.code, error.status) == ("conflict", 409)
    assert message in error.detail
    assert error.next
    assert log.last_seq() == before


@pytest.mark.parametrize(
    "event",
    [
        submit("job-1", env={"TEXT": "\udcff"}),
        e.Failed(gang="job-1", generation=1, node="n1", cause=Cause.RANK_FAILED, tail=("fine", "\ud800")),
    ],
)
def test_invalid_text_fails_only_its_own_event(event: e.Event, log: EventLog, world: VirtualCluster) -> None:
    """Bytes of an argument or of a log line that were not UTF-8."""
    loop = serve(world, log)
    bad, good = loop.post(event), loop.post(submit("job-2"))
    loop.run_cycle(loop.drain())
    error = bad.exception(0)
    assert isinstance(error, RequestError)
    assert error.code == "bad_text"
    assert good.result(0) == log.last_seq() - 1


def test_an_event_is_checked_once(log: EventLog, world: VirtualCluster) -> None:
    loop = serve(world, log)
    world.run(loop, 0)
    first, profile = log.last_seq(), cProfile.Profile()
    profile.enable()
    loop.post(submit("job-1"))
    loop.run_cycle(loop.drain())
    profile.disable()
    checks = sum(entry.callcount for entry in profile.getstats() if entry.code is codec.encode_checked.__code__)
    assert checks == log.last_seq() - first == 2


def test_a_report_needs_no_cycle(log: EventLog, world: VirtualCluster) -> None:
    loop = serve(world, log)
    world.at(0, submit("job-1"))
    world.run(loop, 5 * S)
    planned = sum(loop.cycle_metrics.histogram().counts)
    loop.post(e.Progressed(gang="job-1", generation=1, step=7))
    loop.run_cycle(loop.drain())
    assert sum(loop.cycle_metrics.histogram().counts) == planned
    last = list(log.rows())[-1]
    assert (last.event.kind, last.closes) == ("progressed", False)


def test_a_step_beyond_64_bits_is_accepted(log: EventLog, world: VirtualCluster) -> None:
    loop = serve(world, log)
    world.at(0, submit("job-1"))
    world.run(loop, 5 * S)
    loop.post(e.Checkpointed(gang="job-1", generation=1, step=1 << 90))
    loop.run_cycle(loop.drain())
    assert (log.job("job-1") or pytest.fail("it is there"))[2] == 1 << 90


def test_ended_and_deleted_in_one_cycle_leaves_no_row(log: EventLog) -> None:
    world = VirtualCluster(nodes(1), {"job-1": Behaviour(steps=None, stop_ms=500)})
    loop = serve(world, log)
    world.at(0, submit("job-1"))
    world.at(3 * S, e.StopRequested(gang="job-1"))
    world.run(loop, 3 * S)
    loop.post(e.Cleared(gang="job-1", generation=1, nodes=("n1",)))
    deleted = loop.post(e.Deleted(gang="job-1"))
    loop.run_cycle(loop.drain())
    assert deleted.result(0) == log.last_seq()
    assert listed_states(log) == {}


def test_the_backend_forgets_ended_and_deleted_jobs_once(log: EventLog) -> None:
    calls: list[str] = []

    class RecordingWorld(VirtualCluster):
        def forget(self, gang: str) -> None:
            calls.append(f"forget {gang}")
            super().forget(gang)

        def delete(self, gang: str) -> None:
            calls.append(f"delete {gang}")
            super().delete(gang)

    loop = serve(world := RecordingWorld(nodes(1)), log)
    world.at(0, submit("ends-1"))
    world.at(0, submit("waits-1", 3))
    world.at(20 * S, e.StopRequested(gang="waits-1"))
    world.at(30 * S, e.Deleted(gang="ends-1"))
    world.run(loop, 40 * S)
    assert calls == ["forget ends-1", "forget waits-1", "delete ends-1"]


def test_a_decision_is_durable_before_the_backend_gets_it(log: EventLog, tmp_path: Path) -> None:
    class CheckingWorld(VirtualCluster):
        def start(self, start: Start, job: Job) -> None:
            self._check_logged(start)
            super().start(start, job)

        def stop(self, stop: Stop, job: Job) -> None:
            self._check_logged(stop)
            super().stop(stop, job)

        def _check_logged(self, decision: Start | Stop) -> None:
            other = EventLog(tmp_path / "g.db")
            rows = other.rows(gang=decision.gang)
            other.close()
            assert any(isinstance(row.event, e.Decided) and decision in row.event.plan.decisions for row in rows)

    world = CheckingWorld(nodes(2, gpus=2), {"job-1": Behaviour(steps=None)})
    loop = serve(world, log)
    world.at(0, submit("job-1", 2, 2))
    world.at(5 * S, e.StopRequested(gang="job-1"))
    world.run(loop, 10 * S)
    assert listed_states(log) == {"job-1": "stopped"}


# -- a log that cannot be written --------------------------------------------------------------------------------------


def test_facts_wait_for_the_log_and_requests_fail(log: EventLog, world: VirtualCluster, tmp_path: Path) -> None:
    """Another process holds the file: `database is locked`."""
    loop = serve(world, log)
    world.run(loop, 0)
    log._writer.execute("PRAGMA busy_timeout = 0")
    intruder = sqlite3.connect(tmp_path / "g.db", isolation_level=None)
    intruder.execute("BEGIN IMMEDIATE")
    before, seq = raw(loop.copy()), log.last_seq()
    fact, request = loop.post(e.NodeLost(node="n2")), loop.post(submit("job-1"))
    loop.run_cycle(loop.drain())
    error = request.exception(0)
    assert isinstance(error, RequestError)
    assert error.code == "log_failed"
    assert "locked" in error.detail
    assert "locked" in loop.health()
    assert not fact.done()
    assert raw(loop.copy()) == before
    assert loop.next_wake_ms == world.now_ms() + loops.RETRY_MS
    intruder.execute("ROLLBACK")
    intruder.close()
    early = loop.post(e.NodeLost(node="n1"))
    loop.run_cycle(loop.drain())
    assert not early.done(), "it is not tried again in every cycle"
    world.run(loop, loops.RETRY_MS)
    assert (fact.result(0), early.result(0)) == (seq + 1, seq + 2)
    assert loop.health() == "ok"


def test_a_start_that_could_not_be_written_plans_nothing(log: EventLog, world: VirtualCluster, tmp_path: Path) -> None:
    """The restored state says that the nodes are listed; they are those of the previous run."""
    loop = serve(world, log)
    world.at(0, submit("job-1", 2, 2))
    world.at(1, submit("job-2", 2, 2))
    world.run(loop, 5 * S)
    world.lose(6 * S, "n1")
    world.run(None, 7 * S)
    log._writer.execute("PRAGMA busy_timeout = 0")
    intruder = sqlite3.connect(tmp_path / "g.db", isolation_level=None)
    intruder.execute("BEGIN IMMEDIATE")
    loop = serve(world, log)
    intruder.close()
    seq = log.last_seq()
    world.run(loop, 8 * S)
    since = [row.event.kind for row in log.rows(after=seq)]
    assert since[0] == "server_started"
    assert since.index("nodes_listed") < since.index("decided")
    assert set(loop.copy().nodes.index) == {"n2"}


# -- readers -----------------------------------------------------------------------------------------------------------


def test_a_trial_on_a_copy_never_reaches_the_loop(log: EventLog) -> None:
    world = VirtualCluster(nodes(4, gpus=4), {f"job-{n}": Behaviour(steps=None) for n in range(9)})
    loop = serve(world, log)
    for number in range(9):
        world.at(number, submit(f"job-{number}", 1 + number % 3, 2, user=f"u{number % 2}"))
    world.run(loop, 20 * S)
    copy, before = loop.copy(), raw(loop.copy())
    with copy.trial():
        for gang, _ in copy.allocated():
            copy.release(gang)
        copy.undo.put(copy.nodes.free.gpus, slice(None), 0)
    copy.validate()
    for gang in [*copy.gangs.values()]:
        gang.attempt.left += ("n9",)
        gang.attempt.started = ()
        gang.account.lose(world.now_ms())
        gang.attempt.killed = (1,)
    fold(copy, e.Stamped(copy.seq + 1, copy.at_ms, e.NodeLost(node="n1")))
    copy.pending.reasons.clear()
    copy.document = replace(copy.document, queues={})
    assert raw(loop.copy()) == before
    loop.copy().validate()
    world.run(loop, 40 * S)
    assert raw(loop.copy()) == raw(folded(log))


def test_readers_on_many_threads_see_whole_cycles(log: EventLog, world: VirtualCluster) -> None:
    """Each view is sound and no older than the last, while jobs are submitted from other threads."""
    with Running(log, world) as loop:

        def read_or_ask(index: int) -> None:
            last_seq = 0
            for number in range(15):
                if index % 2:
                    loop.ask(submit(f"job-{index}-{number}"))
                with loop.view() as state:
                    state.validate()
                    assert state.seq >= last_seq
                    last_seq = state.seq
                    assert raw(state) == raw(state), "it does not change while it is read"
                assert loop.wait(-1, 0) >= 0

        on_threads(read_or_ask)
        assert len(listed_states(log)) == 60
        assert loop.wait(-1, 0) == log.last_seq()


def test_an_answered_request_is_visible_in_the_view(log: EventLog, world: VirtualCluster) -> None:
    with Running(log, world) as loop:

        def ask(index: int) -> None:
            for number in range(10):
                seq = loop.ask(submit(f"job-{index}-{number}"))
                with loop.view() as state:
                    assert f"job-{index}-{number}" in state.gangs
                assert loop.wait(seq - 1, DEADLINE_S) >= seq
                assert log.job(f"job-{index}-{number}")

        on_threads(ask)


def test_wait_ends_with_the_next_event_or_the_timeout(log: EventLog, world: VirtualCluster) -> None:
    with Running(log, world) as loop:
        seq = loop.ask(e.NodeCordoned(node="n1"))
        assert loop.wait(seq, 0.01) == seq
        requester = threading.Thread(target=loop.ask, args=(e.NodeUncordoned(node="n1"),))
        requester.start()
        assert loop.wait(seq, DEADLINE_S) == seq + 1
        requester.join()


def test_a_clock_that_was_set_is_reported(
    log: EventLog, world: VirtualCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = serve(world, log)
    monkeypatch.setattr(world, "behind_ms", lambda: 59 * S)
    assert loop.health() == "ok"
    monkeypatch.setattr(world, "behind_ms", lambda: 90 * S)
    assert "1m 30s behind" in loop.health()
    monkeypatch.setattr(world, "behind_ms", lambda: -90 * S)
    assert "set 1m 30s forward" in loop.health()


# -- by itself, on its own thread --------------------------------------------------------------------------------------


def test_it_wakes_for_a_timer(log: EventLog) -> None:
    """A job that has been pending for long enough is stopped although nothing happens."""
    world = VirtualCluster(nodes(1))
    with Running(log, world, WallClock()) as loop:
        loop.ask(submit("job-1", 5, limits=limits(queue_time_ms=50)))
        assert loop.wait(log.last_seq(), DEADLINE_S)
        while listed_states(log)["job-1"] != GangState.STOPPED:
            assert loop.wait(log.last_seq(), DEADLINE_S)


def test_close_is_not_lost_among_events(log: EventLog, world: VirtualCluster) -> None:
    """The end stands in the middle of what was posted."""
    running = Running(log, world)
    running.loop.open()
    before = [running.loop.post(submit(f"job-{number}")) for number in range(10)]
    running.loop.close()
    after = [running.loop.post(submit(f"late-{number}")) for number in range(10)]
    running.thread.start()
    running.join()
    for answer in [*before, *after]:
        assert answer.done()
        assert isinstance(answer.exception(), RequestError | None)


def test_a_closed_loop_refuses_events(log: EventLog, world: VirtualCluster) -> None:
    with Running(log, world) as loop:
        loop.ask(submit("job-1"))
    with pytest.raises(RequestError) as refused:
        loop.ask(submit("job-2"))
    assert (refused.value.code, refused.value.status) == ("server_stopping", 503)
    answer: Future[int] = loop.post(e.NodeLost(node="n1"))
    assert isinstance(answer.exception(0), RequestError), "a backend that can observe it again reports it again"


def test_a_loop_that_failed_leaves_no_caller_waiting(log: EventLog) -> None:
    class Broken(VirtualCluster):
        def start(self, start: Start, job: Job) -> None:
            raise ZeroDivisionError

    running = Running(log, Broken(nodes(1)))
    with running as loop:
        loop.ask(submit("job-1"))
        running.join()
        assert isinstance(running.failure, ZeroDivisionError)
        with pytest.raises(RequestError):
            loop.ask(submit("job-2"))
    assert raw(serve(VirtualCluster(nodes(1)), log).copy())["gangs"][0].attempt.generation == 1, (
        "the decision is in the log"
    )


def test_in_memory_one_thread_does_everything() -> None:
    world, log = VirtualCluster(nodes(1)), EventLog(MEMORY)
    loop = serve(world, log)
    world.at(0, e.Submitted(job=job("job-1")))
    world.run(loop, 20 * S)
    assert listed_states(log) == {"job-1": "succeeded"}
