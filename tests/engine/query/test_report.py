"""The report agrees, job for job, with the raw events; and its cost depends on the jobs it covers."""

from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ganger.core.fold.fold import fold
from ganger.core.queues.quota import need
from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import MEMORY, EventLog
from ganger.engine.eventlog.job_costs import CostQuery
from ganger.engine.eventlog.projection import project
from ganger.engine.query.time_report import report
from ganger.model import event as e
from ganger.model.decision import Cause, Plan, Stop
from ganger.model.event import Stamped
from ganger.model.job import ENDED, GangState, Job
from ganger.model.units import MINUTE_MS
from ganger.model.views.service_views import PARTS, Totals
from tests.engine.days import Day, days
from tests.engine.scenes import job, serve
from tests.examples import examples
from tests.laws.oracles.accounting import ledger_of
from tests.laws.oracles.kept_nodes import KeptNodes


def element_ids(job: Job) -> list[str]:
    """Return the ids that a submission stands for."""
    return [job.element(index).id for index in job.spec.array.indices] if job.spec.array else [job.id]


@given(day=days(), looked_ms=st.integers(0, 5 * MINUTE_MS), user=st.sampled_from((None, "ada")))
@settings(examples(gate=10), suppress_health_check=[HealthCheck.too_slow])
def test_any_day_is_reported_as_its_events(day: Day, looked_ms: int, user: str | None) -> None:
    log, world = EventLog(MEMORY), day.world()
    loop = serve(world, log, day.policy)
    world.run(loop, looked_ms)
    state, now_ms = loop.copy(), world.now_ms() + 777
    totals = report(state, log, now_ms, CostQuery(seq=state.seq, user=user))
    rows = list(log.iter_rows(0, log.last_seq()))
    deleted = {row.event.gang: row.seq for row in rows if isinstance(row.event, e.Deleted)}
    time, gpu_time, jobs = Counter[str](), Counter[str](), Counter[str]()
    kept, folded = KeptNodes(), State()
    for row in rows:
        fold(folded, row)
        kept.note(folded, row.at_ms)
    for row in rows:
        if not isinstance(row.event, e.Submitted) or deleted.get(row.event.job.id, 0) > row.seq:
            continue
        if user not in (None, row.event.job.user):
            continue
        elements = Counter[str]()
        for name in element_ids(row.event.job):
            stored = log.job(name)
            assert stored is not None
            gang = state.gang_or_head(name)
            is_over = stored[0].state in ENDED
            until_ms = stored[1].total_ms + row.at_ms if is_over else now_ms
            failed = stored[0].state in (GangState.FAILED, GangState.FAILING)
            parts = ledger_of(rows, name, row.at_ms, until_ms, failed=failed)
            parts["held"] += kept.held_ms(name, until_ms)
            assert is_over == (gang is None)
            jobs[stored[0].state] += 1
            time.update(parts)
            elements.update(parts)
            held = parts["held"]
            parts |= {"queued": 0, "recovery": held - sum(parts[part] for part in PARTS if part not in WITHOUT_GPUS)}
            gpu_time.update(
                {part: need(row.event.job.spec.shape)[0] // 1000 * amount for part, amount in parts.items()}
            )
        alone = report(state, log, now_ms, CostQuery(seq=state.seq, job=row.event.job.id))
        assert parts_of(alone, "time") == {part: elements[part] for part in (*PARTS, "held")}
    assert Counter(totals.jobs) == jobs
    assert parts_of(totals, "time") == {part: time[part] for part in (*PARTS, "held")}
    assert totals.time.total_ms == sum(time[part] for part in PARTS)
    if not kept.over_ms and not kept.since_ms:  # they had fewer GPUs than they ask for
        assert parts_of(totals, "gpu_time") == {part: gpu_time[part] for part in (*PARTS, "held")}
        assert totals.gpu_time.total_ms == gpu_time["held"]
    for ledger in (totals.time, totals.gpu_time):
        for part in ("detect", "recovery", "lost"):
            assert sum(getattr(loss, f"{part}_ms") for loss in ledger.losses) == getattr(ledger, f"{part}_ms")


WITHOUT_GPUS = ("queued", "recovery")


def parts_of(totals: Totals, attribute: str) -> dict[str, int]:
    return {part: getattr(getattr(totals, attribute), f"{part}_ms") for part in (*PARTS, "held")}


def write_stopped(log: EventLog, jobs: int) -> State:
    """Write jobs that were stopped while they were pending, one a second; the last one lives."""
    state = State()

    def add(event: e.Event, at_ms: int) -> None:
        row = Stamped(state.seq + 1, at_ms, event)
        log.append([row], [project(gang, at_ms) for gang in fold(state, row)])

    for number in range(jobs):
        name = f"job-{number}"
        add(e.Submitted(job=job(name, user=f"user{number % 2}")), number * 1000)
        if number < jobs - 1:
            stop = Stop(gang=name, generation=0, cause=Cause.USER)
            add(
                e.Decided(plan=Plan(as_of=state.seq, decisions=(stop,)), policy="fifo", version="0"),
                number * 1000 + 500,
            )
    return state


def test_only_matching_jobs_count(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "g.db")
    state = write_stopped(log, 10)

    def jobs(**fields: object) -> tuple[dict[str, int], int]:
        totals = report(state, log, 9_800, CostQuery(seq=state.seq, **fields))  # type: ignore[arg-type]
        return totals.jobs, totals.time.queued_ms

    assert jobs() == ({"pending": 1, "stopped": 9}, 9 * 500 + 800)
    assert jobs(since_ms=5_500) == ({"pending": 1, "stopped": 4}, 4 * 500 + 800)
    assert jobs(user="user0") == ({"stopped": 5}, 2500)
    assert jobs(queue="default", user="user1", since_ms=9_000) == ({"pending": 1}, 800)
    assert jobs(queue="lab") == ({}, 0)


def test_a_job_that_ended_after_the_state_is_not_counted_twice(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "g.db")
    state = write_stopped(log, 3)
    older = State(state.image())
    stop = Stop(gang="job-2", generation=0, cause=Cause.USER)
    row = Stamped(state.seq + 1, 9_000, e.Decided(plan=Plan(as_of=0, decisions=(stop,)), policy="fifo", version="0"))
    log.append([row], [project(gang, 9_000) for gang in fold(state, row)])
    assert report(state, log, 9_000, CostQuery(seq=state.seq)).jobs == {"stopped": 3}
    assert log.ended_costs(CostQuery(seq=older.seq))[0] == {"stopped": 2}


def test_deleted_jobs_do_not_count(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "g.db")
    state = write_stopped(log, 3)
    row = Stamped(state.seq + 1, 9_000, e.Deleted(gang="job-1"))
    log.append([row], [])
    fold(state, row)
    assert report(state, log, 9_000, CostQuery(seq=state.seq)).jobs == {"pending": 1, "stopped": 1}
