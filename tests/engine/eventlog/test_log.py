"""The event log: atomic batches, listings, snapshots, and readers beside the writer."""

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ganger.controller.object_log import ObjectLog, ObjectSink
from ganger.core.fold.fold import fold
from ganger.core.state.gang import class_text
from ganger.core.state.state import State
from ganger.engine.eventlog import event_log as logs
from ganger.engine.eventlog.event_log import MEMORY, EventLog
from ganger.engine.eventlog.projection import Projection, project
from ganger.errors import RequestError
from ganger.model import event as e
from ganger.model.decision import Cause, Decision, Plan, ReservedStart, Stop, Wait
from ganger.model.event import Stamped
from ganger.model.pending_reason import PendingReason, ReasonCode
from ganger.ports import JobFilter
from tests.crash.scripts import SCRIPTS, Script, world_of
from tests.engine.scenes import folded, job, listed_states, played, raw, serve
from tests.examples import one_in_gate

MANY = 2_000


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    return EventLog(tmp_path / "g.db")


def filled(log: EventLog, jobs: int, prefix: str = "job") -> State:
    """Write jobs with ids `prefix-0` and so on to the log; every third is stopped."""
    state, projections = State(), list[Projection]()
    users = [f"user {number % 100}" for number in range(jobs)]
    submissions = [e.Submitted(job=job(f"{prefix}-{number}", user=user)) for number, user in enumerate(users)]
    rows = [Stamped(number + 1, 1_000 + number, event) for number, event in enumerate(submissions)]
    for row in rows:
        projections += [project(gang, row.at_ms) for gang in fold(state, row)]
    stops = tuple(Stop(gang=f"{prefix}-{number}", generation=0, cause=Cause.USER) for number in range(0, jobs, 3))
    rows.append(
        Stamped(jobs + 1, 20_000, e.Decided(plan=Plan(as_of=jobs, decisions=stops), policy="fifo", version="t"))
    )
    projections += [project(gang, 20_000) for gang in fold(state, rows[-1])]
    log.append(rows, projections)
    return state


def submitted(seq: int, id: str) -> Stamped:
    return Stamped(seq, 1_000, e.Submitted(job=job(id)))


# -- batches -----------------------------------------------------------------------------------------------------------


def test_a_batch_is_written_whole(log: EventLog, tmp_path: Path) -> None:
    batch = [submitted(1, "a-1"), submitted(2, "a-2"), Stamped(3, 1_001, e.StopRequested(gang="a-2"), closes=False)]
    log.append(batch, [])
    log.close()
    assert EventLog(tmp_path / "g.db").rows() == batch


def test_a_failing_batch_writes_nothing(log: EventLog) -> None:
    log.append([submitted(1, "a-1")], [])
    with pytest.raises(RequestError) as refused:
        log.append([submitted(2, "a-2"), submitted(1, "a-3")], [])
    assert refused.value.code == "log_failed"
    assert [row.seq for row in log.rows()] == [1]
    log.append([submitted(2, "a-2")], [])
    assert log.last_seq() == 2


def test_an_error_in_the_middle_leaves_no_transaction_open(log: EventLog) -> None:
    def broken() -> Iterator[Projection]:
        yield from ()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        log.append([submitted(1, "a-1")], broken())
    assert log.last_seq() == 0
    log.append([submitted(1, "a-1")], [])
    assert log.last_seq() == 1


@contextmanager
def limit_file_size(beyond_bytes: int) -> Iterator[None]:
    """Make the operating system refuse to write more, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (beyond_bytes, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk(log: EventLog, tmp_path: Path) -> None:
    log.append([submitted(1, "a-1")], [])
    with limit_file_size((tmp_path / "g.db-wal").stat().st_size), pytest.raises(RequestError) as refused:
        log.append([submitted(2, "a-2")], [])
    assert refused.value.code == "disk_full"
    assert "df -h" in refused.value.next
    assert log.last_seq() == 1
    log.append([submitted(2, "a-2")], [])
    assert log.last_seq() == 2


# -- rows --------------------------------------------------------------------------------------------------------------


def test_rows_are_read_in_pages_and_by_gang(log: EventLog) -> None:
    filled(log, 30)
    rows = log.rows()
    assert [row.seq for row in rows] == [*range(1, 32)]
    assert log.rows(after=29) == rows[29:]
    assert log.rows(after=4, limit=3) == rows[4:7]
    assert log.rows(gang="job-3") == [rows[3], rows[30]]
    assert log.rows(gang="job-4") == [rows[4]]
    assert log.rows(gang="job-3", after=4) == [rows[30]]
    assert log.rows(gang="nobody") == []
    assert [*log.iter_rows(3, 31)] == rows[3:]
    assert log.last_seq() == 31
    assert log.last_ms() == 20_000


def test_a_missing_row_is_detected(log: EventLog) -> None:
    log.append([submitted(1, "a-1"), submitted(3, "a-3")], [])
    with pytest.raises(RequestError, match="hole") as refused:
        log.restore()
    assert refused.value.code == "corrupt_log"


# -- listings ----------------------------------------------------------------------------------------------------------


def test_many_jobs_newest_first_in_pages(log: EventLog) -> None:
    state = filled(log, MANY)
    expected = [f"job-{number}" for number in reversed(range(MANY))]
    listed, before, sizes = list[str](), None, list[int]()
    while page := log.jobs(limit=997, before=before):
        listed += [row["id"] for _, _, row in page]
        sizes.append(len(page))
        before = page[-1][0]
    assert listed == expected
    assert sizes == [997, 997, 6]
    assert listed_states(log) == {name: "pending" if name in state.gangs else "stopped" for name in expected}


@pytest.mark.parametrize(
    "states", [["pending"], ["stopped"], ["stopped", "pending"], ["running"], ["running", "stopped"]]
)
def test_listing_by_state(log: EventLog, states: list[str]) -> None:
    filled(log, 1_000)
    expected = [n for n in reversed(range(1_000)) if ("pending" if n % 3 else "stopped") in states]
    of_states = JobFilter(states=tuple(states))
    first = log.jobs(of_states, limit=100)
    assert [row["id"] for _, _, row in first] == [f"job-{n}" for n in expected[:100]]
    assert {state for _, state, _ in first} <= {*states}
    if first:
        second = log.jobs(of_states, limit=100, before=first[-1][0])
        assert [row["id"] for _, _, row in second] == [f"job-{n}" for n in expected[100:200]]


def test_a_job_is_found_by_id_name_and_request(log: EventLog) -> None:
    state = filled(log, 5, prefix="bert")
    gang = state.gangs["bert-4"]
    row, ledger, step, stored_job = log.job("bert-4") or pytest.fail("it is there")
    assert (row.id, row.state, row.submitted_ms, step) == ("bert-4", "pending", 1_004, None)
    assert stored_job == gang.job
    assert ledger.total_ms == 0
    assert log.find("bert-2") == "bert-2"
    assert log.find("bert") == "bert-4"
    assert log.find("ber") is None
    assert log.by_request("request of bert-1") == "bert-1"
    assert log.by_request("") is None
    assert log.job("bert-9") is None
    assert log.recent_ids()[0] == "bert-4"


def test_an_id_takes_precedence_over_a_name(log: EventLog) -> None:
    state = State()
    rows = [submitted(1, "bert-1"), Stamped(2, 1_000, e.Submitted(job=job("other-1", name="bert-1")))]
    log.append(rows, [project(gang, 1_000) for row in rows for gang in fold(state, row)])
    assert log.find("bert-1") == "bert-1"


def test_a_deleted_job_is_in_the_log_but_not_in_listings(log: EventLog) -> None:
    filled(log, 4)
    log.append([Stamped(6, 30_000, e.Deleted(gang="job-0"))], [])
    assert sorted(listed_states(log)) == ["job-1", "job-2", "job-3"]
    assert log.find("job-0") is None
    assert [row.event.kind for row in log.rows(gang="job-0")] == ["submitted", "decided", "deleted"]


def test_steps_beyond_64_bits_are_kept() -> None:
    """The step is whatever the script reports."""
    log, state = EventLog(MEMORY), State()
    (gang,) = fold(state, submitted(1, "a-1"))
    gang.checkpoints = gang.checkpoints.saved(1 << 80)
    log.append([submitted(1, "a-1")], [project(gang, 1_000)])
    assert (log.job("a-1") or pytest.fail("it is there"))[2] == 1 << 80


# -- snapshots ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", one_in_gate(reversed(SCRIPTS)), ids=lambda script: script.name)
def test_restored_equals_folded_at_every_event(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots every 20 events, all of them kept, so that each event has one of its own before it."""
    monkeypatch.setattr(logs, "SNAPSHOT_EVERY", 20)
    monkeypatch.setattr(logs, "SNAPSHOTS_KEPT", 1_000)
    log = EventLog(tmp_path / "g.db")
    played(world_of(script), log, script.policy, script.until_ms)
    assert log._read("SELECT count(*) FROM snapshot")[0][0] > log.last_seq() // 40
    state = State()
    for row in log.iter_rows(0, log.last_seq()):
        fold(state, row)
        restored = log.restore(row.seq)
        assert raw(restored) == raw(state)
        restored.validate()


def test_old_snapshots_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "SNAPSHOT_EVERY", 10)
    log = EventLog(tmp_path / "g.db")
    script = SCRIPTS[0]
    loop = played(world_of(script), log, script.policy, script.until_ms)
    kept = [seq for (seq,) in log._read("SELECT seq FROM snapshot ORDER BY seq")]
    assert len(kept) == logs.SNAPSHOTS_KEPT
    assert kept[-1] > log.last_seq() - 30
    assert raw(log.restore()) == raw(loop.copy())
    assert raw(log.restore(7)) == raw(folded(log, 7)), "a state older than all snapshots is folded from the beginning"


def test_short_runs_of_the_server_add_up_to_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "SNAPSHOT_EVERY", 40)
    script = SCRIPTS[0]
    world = world_of(script)
    for second in range(1, 60):
        log = EventLog(tmp_path / "g.db")
        before = log.last_seq()
        world.run(serve(world, log, script.policy), second * 1_000)
        assert log.last_seq() - before < 40, "no run is long enough by itself"
        newest = log._read("SELECT coalesce(max(seq), 0) FROM snapshot")[0][0]
        assert log.last_seq() - newest < 80
        log.close()


def test_an_unreadable_snapshot_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "SNAPSHOT_EVERY", 10)
    log = EventLog(tmp_path / "g.db")
    script = SCRIPTS[0]
    loop = played(world_of(script), log, script.policy, script.until_ms)
    for damaged in range(logs.SNAPSHOTS_KEPT):
        newest = "(SELECT seq FROM snapshot ORDER BY seq DESC LIMIT 1 OFFSET ?)"
        log._writer.execute(f"UPDATE snapshot SET image = '{{\"seq\": 3' WHERE seq = {newest}", (damaged,))
        assert raw(log.restore()) == raw(loop.copy())


def test_a_controller_restores_from_its_newest_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that the oldest snapshot does not need may have been removed."""
    monkeypatch.setattr(logs, "SNAPSHOT_EVERY", 10)
    log = ObjectLog(tmp_path / "g.db", State().image(), ObjectSink(write_status=lambda name, status, *, after_s: None))
    script = SCRIPTS[0]
    loop = played(world_of(script), log, script.policy, script.until_ms)
    log._writer.execute("DELETE FROM event WHERE seq <= (SELECT min(seq) FROM snapshot)")
    assert raw(log.restore()) == raw(loop.copy())


def test_an_object_says_why_its_job_waits_once_however_others_come_and_go(tmp_path: Path) -> None:
    """Of 50,000 jobs that wait, each write for all of them holds up all others."""
    state, written = State(), list[str]()

    def note(name: str, status: dict[str, Any], *, after_s: float) -> None:
        written.append(f"{name} in {after_s:g} s: {status.get('message', '')}")

    log = ObjectLog(tmp_path / "g.db", state.image(), ObjectSink(write_status=note))

    def write(event: e.Event, at_s: int = 1) -> list[str]:
        written.clear()
        row = Stamped(state.seq + 1, 1_000 * at_s, event)
        log.append([row], [project(gang, row.at_ms) for gang in fold(state, row)])
        log.snapshot(state)
        return sorted(written)

    def decide(*decisions: Decision, at_s: int = 1) -> list[str]:
        return write(e.Decided(plan=Plan(as_of=state.seq, decisions=decisions), policy="fifo", version="t"), at_s)

    def wait(code: ReasonCode, at_s: int, **amounts: Any) -> list[str]:
        (key,) = map(class_text, state.pending.classes)
        reason = PendingReason(code=code, resource="nodes", need=1, scope="root", **amounts)
        return decide(Wait(gang_class=key, reason=reason), at_s=at_s)

    for name in ("a", "b"):
        assert write(e.Submitted(job=job(name))) == [f"{name} in 0 s: "]
    waits = "waiting for 1 node with root"
    first = wait(ReasonCode.NO_CAPACITY, 1, limit=5, holders=("x",))
    assert first == [f"a in 10 s: {waits}", f"b in 10 s: {waits}"], "names of other jobs are for `explain`"
    for at_s, code in enumerate((ReasonCode.NO_CAPACITY, ReasonCode.RESERVED, ReasonCode.STOPPING_OTHERS), 100):
        assert wait(code, at_s, have=at_s, foreign=at_s, holders=(f"y{at_s}",)) == []
    assert wait(ReasonCode.NO_CAPACITY, 110) == []
    assert write(e.Submitted(job=job("c")), 111) == [f"c in 0 s: {waits}"]

    # Another kind of reason is shown, but rarely; a change back meanwhile replaces it.
    quota = "waiting for 1 node of the quota of queue root"
    assert wait(ReasonCode.OVER_QUOTA, 120) == [f"a in 491 s: {quota}", f"b in 491 s: {quota}", f"c in 591 s: {quota}"]
    assert wait(ReasonCode.NO_CAPACITY, 130) == [f"a in 481 s: {waits}", f"b in 481 s: {waits}", f"c in 581 s: {waits}"]

    # So is a reserved start that moves from cycle to cycle.
    reserved = [decide(ReservedStart(gang="a", start_ms=60_000 * at_s), at_s=at_s) for at_s in (140, 145, 160)]
    assert reserved == [[f"a in {s} s: {waits}"] for s in (10, 5, 590)]
    assert state.reservations["a"].start_ms == 60_000 * 160


# -- readers beside the writer -----------------------------------------------------------------------------------------


def test_readers_see_whole_batches_during_writes(log: EventLog) -> None:
    """Batches of five: no reader ever sees a part of one, nor rows and listing out of step."""
    done, torn = threading.Event(), list[str]()

    def read() -> None:
        while not done.is_set():
            last = log.last_seq()
            if last % 5:
                torn.append(f"the newest is {last}")
            first = max(0, last - 7)
            if [row.seq for row in log.rows(after=first, limit=last - first)] != [*range(first + 1, last + 1)]:
                torn.append(f"a hole before {last}")
            listed = log.jobs(limit=1)
            if listed and listed[0][0] % 5:
                torn.append(f"the newest job is {listed[0][0]}")

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    state = State()
    for first in range(1, 300, 5):
        batch = [submitted(seq, f"job-{seq}") for seq in range(first, first + 5)]
        log.append(batch, [project(gang, 1_000) for row in batch for gang in fold(state, row)])
    done.set()
    for reader in readers:
        reader.join()
    assert torn == []


def test_another_process_may_read_an_open_log(log: EventLog, tmp_path: Path) -> None:
    filled(log, 10)
    second_log = EventLog(tmp_path / "g.db")
    assert raw(second_log.restore()) == raw(log.restore())
    second_log.close()
    log.append([Stamped(12, 30_000, e.StopRequested(gang="job-1"))], [])
    assert log.last_seq() == 12


@pytest.mark.parametrize("deleted", ["g.db", "g.db*"])
def test_a_deleted_log_is_restored_when_it_is_closed(deleted: str, log: EventLog, tmp_path: Path) -> None:
    state, last = filled(log, 10), Stamped(12, 5_000, e.NodeCordoned(node="n1"))
    before = log.rows()
    assert last.seq == state.seq + 1
    for path in tmp_path.glob(deleted):
        path.unlink()
    log.append([last], [])
    (tmp_path / "g.db").touch()  # as another program does that opens a missing file
    log.close()
    reopened = EventLog(tmp_path / "g.db")
    assert reopened.rows() == [*before, last]
    assert (tmp_path / "g.db").stat().st_mode & 0o777 == 0o600
    reopened.close()
