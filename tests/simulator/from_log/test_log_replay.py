"""Replays of ganger's own log: the same decisions under the same policy, for drawn days."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ganger import registry
from ganger.backends.simulator.job_behaviour import Behaviour, ScriptedFailure
from ganger.backends.simulator.virtual_cluster import BEGIN_MS, VirtualCluster
from ganger.core.state.state import State
from ganger.engine.eventlog import event_log as logs
from ganger.engine.eventlog.event_log import MEMORY, EventLog
from ganger.engine.eventlog.log_retention import Retention
from ganger.engine.eventlog.stream_log import line
from ganger.engine.loop import Loop
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Cause, NodeShare, Start, Stop
from ganger.model.job import Array, Origin, Role
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from ganger.model.job_sections.retry_spec import Retry
from ganger.model.policy import PolicyDocument, Rules, document_of
from ganger.model.units import DAY_MS, HOUR_MS, MINUTE_MS
from ganger.settings import Home, RetentionLimits
from ganger.simulation.from_log.log_replay import LogRun, as_recorded, simulate_log
from ganger.simulation.from_log.recorded_days import RecordedDays, extract_days, read_days
from ganger.simulation.from_log.recorded_work import RecordedWork
from ganger.simulation.simulate import Outcome
from ganger.simulation.traces.trace import Flaw
from tests.engine.days import Day, days
from tests.engine.scenes import limits, listed_states, node, nodes, played, submit
from tests.examples import examples

Begun = tuple[int, str, int, tuple[tuple[str, tuple[int, ...]], ...]]
"""Time, gang, generation, and devices by node."""
SERVERS_OWN = ("dynamic", "fifo", "priority", "fair_share", "las", "easy", "srtf")


def document(order: str) -> PolicyDocument:
    return document_of(replace(Rules(), order=order), State().document.queues)


def lived(world: VirtualCluster, log: EventLog, order: str) -> None:
    """Run a server that has its policy before anything else."""
    loop = Loop(log, world, registry.order, world, "test")
    loop.open()
    said = loop.post(e.PolicySet(document=document(order), version=1))
    loop.run_cycle(loop.drain())
    said.result()
    world.run(loop, 24 * HOUR_MS)


def begun(rows: list[e.Stamped]) -> list[Begun]:
    """Return every start, in order."""
    return [
        (row.at_ms, each.gang, each.generation, tuple((share.node, share.devices) for share in each.shares))
        for row in rows
        if isinstance(row.event, e.Decided)
        for each in row.event.plan.decisions
        if isinstance(each, Start)
    ]


def again(days: RecordedDays, **other: object) -> tuple[Outcome, list[e.Stamped]]:
    rows: list[e.Stamped] = []
    return simulate_log(replace(asked_again(days), **other), rows.append), rows  # type: ignore[arg-type]


def asked_again(days: RecordedDays) -> LogRun:
    return LogRun(days=days, nodes=days.nodes, document=days.document, order=registry.order)


def rows_of(log: EventLog) -> list[e.Stamped]:
    return list(log.iter_rows(0, log.last_seq()))


# -- the same decisions ------------------------------------------------------------------------------------------------

behaviours = st.builds(
    Behaviour,
    startup_ms=st.sampled_from((0, 400, 7_000)),
    stagger_ms=st.just(0),
    step_ms=st.sampled_from((100, 1_000, 17_000)),
    steps=st.none() | st.integers(0, 90),
    stop_ms=st.sampled_from((0, 300, 4_000)),
)


@st.composite
def histories(draw: st.DrawFn) -> tuple[str, list[Node], dict[str, Behaviour], list[tuple[int, e.Event]]]:
    """Draw an order, nodes, behaviours of jobs, submissions and cancels; a job that never ends is cancelled."""
    there = [node(f"n{at}", draw(st.integers(0, 4)), rack=f"r{at // 2}") for at in range(draw(st.integers(1, 4)))]
    acts, asked = {}, []
    for number in range(draw(st.integers(1, 14))):
        name, at_ms = f"job-{number}", draw(st.integers(0, 30 * MINUTE_MS))
        acts[name] = draw(behaviours)
        said = submit(
            name,
            draw(st.integers(1, len(there))),
            draw(st.integers(0, 4)),
            user=draw(st.sampled_from(("ada", "bob"))),
            priority=draw(st.sampled_from((0, 0, 100, -100))),
            limits=limits(draw(st.none() | st.sampled_from((90_000, 20 * MINUTE_MS)))),
            array=draw(st.sampled_from((None, None, None, Array(indices=(0, 2, 3), limit=1)))),
        )
        if draw(st.booleans()):  # its nodes end apart, and the first in any place
            later_ms = [draw(st.integers(0, 20)) * 1_000 for _ in range(said.job.spec.nodes)]
            acts[name] = replace(acts[name], finish_offsets_ms=tuple(ms - min(later_ms) for ms in later_ms))
        acts |= {f"{name}[{index}]": acts[name] for index in (0, 2, 3)}
        asked.append((at_ms, said))
        if acts[name].steps is None or draw(st.integers(0, 4)) == 0:
            asked.append((at_ms + draw(st.integers(0, 3 * HOUR_MS)), e.StopRequested(gang=name)))
    return draw(st.sampled_from(SERVERS_OWN)), there, acts, asked


@given(histories())
@settings(examples(gate=8), suppress_health_check=[HealthCheck.too_slow])
def test_a_replayed_log_has_the_same_decisions(
    drawn: tuple[str, list[Node], dict[str, Behaviour], list[tuple[int, e.Event]]],
) -> None:
    order, there, acts, asked = drawn
    world, log = VirtualCluster(there, acts), EventLog(MEMORY)
    for at_ms, event in asked:
        world.at(at_ms, event)
    lived(world, log, order)
    days = extract_days(log, "here")
    outcome, rows = again(days)
    assert begun(rows) == begun(rows_of(log))
    recorded = as_recorded(days)
    assert {each.ended_ms for each in outcome.histories} == {each.ended_ms for each in recorded.histories}
    assert outcome.card == recorded.card


@given(days(max_jobs=3))
@settings(examples(gate=3, otherwise=6), suppress_health_check=[HealthCheck.too_slow])
def test_any_day_can_be_replayed(day: Day) -> None:
    """With failures, lost nodes and changed queues no job is missing, and the log itself is counted alike."""
    log = EventLog(MEMORY)
    played(day.world(), log, day.policy, HOUR_MS)
    jobs = [row.event.job for row in log.rows(kinds=("submitted",)) if isinstance(row.event, e.Submitted)]
    if not jobs:
        return
    days = extract_days(log, "here")
    assert days.rows == sum(len(job.spec.array.indices) if job.spec.array else 1 for job in jobs)
    card = as_recorded(days).card
    assert card.jobs == days.rows
    alone = {job.id for job in jobs if job.spec.array is None}
    good = {name for name, state in listed_states(log).items() if state == "succeeded"} & alone
    assert good <= {name for name, life in days.histories.items() if life.ended_ms is not None}
    outcome = simulate_log(asked_again(days))
    assert sum(outcome.unended.values()) + outcome.card.jct_ms.n == len(outcome.histories) <= days.rows


# -- the last days of it -----------------------------------------------------------------------------------------------


def two_weeks(path: Path) -> tuple[VirtualCluster, EventLog, Loop]:
    """Return a server after three days.

    There are jobs in the first week and in the second. By now one node was lost, one cordoned, and maintenance of a
    third was announced for the second week.
    """
    world, log = VirtualCluster(nodes(4, gpus=2)), EventLog(path)
    for week in (0, 7 * DAY_MS):
        for number in range(9):
            world.at(week + number * 3_000, submit(f"job-{number}-{week}", 1 + number % 2, 1 + number % 2))
    world.lose(DAY_MS, "n1")
    world.at(DAY_MS, e.NodeCordoned(node="n2"))
    window = e.MaintenanceSet(id="w", nodes=("n3",), from_ms=BEGIN_MS + 7 * DAY_MS, until_ms=BEGIN_MS + 8 * DAY_MS)
    world.at(2 * DAY_MS, window)
    return world, log, played(world, log, "fifo", 3 * DAY_MS)


def test_the_last_days_begin_with_the_nodes_of_that_time(tmp_path: Path) -> None:
    world, log, loop = two_weeks(tmp_path / "ganger.db")
    world.run(loop, 9 * DAY_MS)
    days = extract_days(log, "here", since_ms=3 * DAY_MS)
    assert days.rows == 9
    assert all(name.endswith(str(7 * DAY_MS)) for name in days.histories)
    outcome, rows = again(days)
    second = [start for start in begun(rows_of(log)) if start[0] >= BEGIN_MS + 7 * DAY_MS]
    assert begun(rows) == second
    # One node is there, and those that want two of them wait for the end of the maintenance.
    assert {node for start in second for node, _ in start[3]} == {"n3", "n4"}
    assert outcome.card == as_recorded(days).card
    assert extract_days(log, "here", since_ms=30 * DAY_MS).rows == 18


def test_a_log_without_its_old_events_is_replayed_from_its_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    world, log, loop = two_weeks(home.database)
    with monkeypatch.context() as at_once:
        at_once.setattr(logs, "SNAPSHOT_EVERY", 1)
        log.snapshot(loop.copy())
    world.run(loop, 9 * DAY_MS)
    before = begun(rows_of(log))
    keep = RetentionLimits(**(dict.fromkeys(RetentionLimits.__dataclass_fields__) | {"events_ms": 0}))
    assert Retention(home, keep, world, loop.view).run_once(loop.now_ms()).events > 0
    assert log.first_replayable() > 1
    days = read_days(home.database)
    assert days.rows == 9
    outcome, rows = again(days)
    assert begun(rows) == before[9:] == begun(rows_of(log))
    assert outcome.card == as_recorded(days).card
    assert not any(each.flaw is Flaw.BEFORE_THE_LOG for each in days.findings)


# -- what is kept of it ------------------------------------------------------------------------------------------------


def test_an_attempt_that_lost_its_node_counts_up_to_its_checkpoint() -> None:
    """The job has 80 s of steps and a checkpoint every 10 s; its node fails after 35 s, of which 30 s are kept."""
    act = Behaviour(startup_ms=1_000, stagger_ms=0, step_ms=1_000, steps=80, checkpoint_every=10)
    world, log = VirtualCluster(nodes(2, gpus=1), {"job-1": act}), EventLog(MEMORY)
    world.at(0, submit("job-1", 1, 1, checkpoint=Checkpoint()))
    world.lose(36_000, "n1")
    world.restore(200_000, "n1")
    lived(world, log, "fifo")
    days = extract_days(log, "here")
    assert days.behaviours["job-1"].steps == 80_000
    assert days.behaviours["job-1"].checkpoint_every == 10_000
    assert [(fault.node, fault.start_ms, fault.end_ms) for fault in days.faults] == [("n1", 36_000, 200_000)]
    assert days.histories["job-1"].duration_ms == 80_000
    outcome, rows = again(days)
    assert begun(rows) == begun(rows_of(log))
    assert outcome.card == as_recorded(days).card


def stopped(*events: tuple[int, object]) -> RecordedWork:
    """Return the work of a job that started at 0, with these events."""
    work = RecordedWork()
    shares = (NodeShare(node="n0", ranks=(0,)),)
    work.fold(Start(gang="a", generation=1, shares=shares, host="n0", port=1), 0)
    for at_ms, event in events:
        work.fold(event, at_ms)
    return work


def test_a_stop_is_measured_from_the_first_of_several() -> None:
    stops = (
        (1_000, Stop(gang="a", generation=1, cause=Cause.PREEMPTED)),
        (1_500, Stop(gang="a", generation=1, cause=Cause.USER)),
    )
    work = stopped(*stops, (3_000, e.Cleared(gang="a", generation=1, nodes=("n0",))))
    assert work.stop_durations_ms == [2_000]


def test_a_stop_would_have_taken_longer_than_until_the_job_finished() -> None:
    stop = Stop(gang="a", generation=1, cause=Cause.USER)
    finished, cleared = (kind(gang="a", generation=1, nodes=("n0",)) for kind in (e.Finished, e.Cleared))
    assert stopped((1_000, stop), (3_000, finished), (3_000, cleared)).stop_durations_ms == [2_001]


def test_a_job_that_finished_while_it_was_being_cancelled_ends_by_itself() -> None:
    """Found by the law above: the job was not to end by itself, and its stop took a ms longer than in the log."""
    act = Behaviour(startup_ms=0, stagger_ms=0, step_ms=100, steps=1, stop_ms=300)
    world, log = VirtualCluster(nodes(1, gpus=1), {"job-1": act, "job-2": act}), EventLog(MEMORY)
    world.at(0, submit("job-1", 1, 1))
    world.at(1, e.StopRequested(gang="job-1"))
    world.at(50, submit("job-2", 1, 1))
    lived(world, log, "dynamic")
    days = extract_days(log, "here")
    assert days.behaviours["job-1"].work_ms == 100
    outcome, rows = again(days)
    assert [at_ms - BEGIN_MS for at_ms, *_ in begun(rows)] == [0, 100]
    assert begun(rows) == begun(rows_of(log))
    assert outcome.card == as_recorded(days).card


def test_a_node_that_finished_before_the_others_were_stopped_is_free_as_early() -> None:
    """Found by the law above: all nodes of such a job were kept until its stop."""
    act = Behaviour(startup_ms=0, stagger_ms=0, step_ms=1_000, steps=90, stop_ms=4_000, finish_offsets_ms=(10_000, 0))
    world, log = VirtualCluster(nodes(2, gpus=1), {"job-1": act}), EventLog(MEMORY)
    world.at(0, submit("job-1", 2, 1))
    world.at(1_000, submit("job-2", 1, 1))
    world.at(95_000, e.StopRequested(gang="job-1"))
    lived(world, log, "fifo")
    days = extract_days(log, "here")
    assert days.behaviours["job-1"].finish_offsets_ms == (None, 0)
    outcome, rows = again(days)
    assert [at_ms - BEGIN_MS for at_ms, *_ in begun(rows)] == [0, 90_000]
    assert begun(rows) == begun(rows_of(log))
    assert outcome.card == as_recorded(days).card


def test_a_job_that_failed_runs_as_long_and_says_so() -> None:
    act = Behaviour(
        startup_ms=0, stagger_ms=0, failures=tuple(ScriptedFailure(generation=g, after_ms=4_000) for g in (1, 2, 3, 4))
    )
    world, log = VirtualCluster(nodes(1, gpus=1), {"job-1": act}), EventLog(MEMORY)
    world.at(0, submit("job-1", 1, 1, retry=Retry(max=0)))
    lived(world, log, "fifo")
    days = extract_days(log, "here")
    assert days.behaviours["job-1"].steps == 4_000
    assert [(found.flaw, found.count) for found in days.findings if found.flaw is not Flaw.POLICY_CHANGED] == [
        (Flaw.FAILED, 1)
    ]


def test_a_job_that_never_started_is_withdrawn_when_the_log_ends() -> None:
    world, log = VirtualCluster(nodes(1, gpus=1), {"job-1": Behaviour(steps=None)}), EventLog(MEMORY)
    world.at(0, submit("job-1", 1, 1))
    world.at(5_000, submit("job-2", 1, 1))
    world.at(60_000, e.NodeCordoned(node="n1"))
    lived(world, log, "fifo")
    days = extract_days(log, "here")
    assert as_recorded(days).unended == {"running": 1, "pending": 1}
    outcome, rows = again(days)
    assert begun(rows) == begun(rows_of(log))
    assert outcome.unended == {"user": 2}
    assert {found.flaw: found.count for found in outcome.findings}[Flaw.NOT_ENDED] == 2


def test_commands_variables_and_directories_are_left_out() -> None:
    roles = {"chief": Role(run="python hidden_chief.py", env={"TOKEN": "hidden-role"})}
    said = submit("job-1", 1, 0, env={"TOKEN": "hidden-env"}, params={"x": "hidden-param"}, setup="hidden", roles=roles)
    origin = Origin(directory="/hidden", environment={"PATH": "/hidden/bin"})
    job = replace(
        said.job, origin=origin, spec=replace(said.job.spec, run="hidden", notes="hidden", labels={"a": "hidden"})
    )
    world, log = VirtualCluster(nodes(1)), EventLog(MEMORY)
    world.at(0, e.Submitted(job=job))
    lived(world, log, "fifo")
    assert "hidden" in "".join(line(row).decode() for row in rows_of(log))
    days = extract_days(log, "here")
    _, rows = again(days)
    assert "hidden" not in "".join(line(row).decode() for row in rows)
    assert "hidden" not in repr(days)
    assert begun(rows) == begun(rows_of(log))
