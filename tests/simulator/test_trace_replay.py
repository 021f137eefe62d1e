"""Traces on simulated clusters: starts, overheads, failures and equal logs."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ganger import registry
from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import MEMORY, EventLog
from ganger.engine.eventlog.stream_log import StreamLog, line
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Decision, Wait
from ganger.model.policy import PolicyDocument, Rules, document_of
from ganger.model.units import MINUTE_MS
from ganger.simulation.node_outages import Outage
from ganger.simulation.trace_replay import Faults, Overheads, TraceRun, simulate_trace
from ganger.simulation.traces.trace import RecordedJob, Trace
from tests.engine.scenes import POLICIES

M = MINUTE_MS


def recorded(*jobs: tuple[int, int, int]) -> Trace[RecordedJob]:
    """Return a trace of jobs given as (minute of submission, minutes, GPUs)."""
    records = tuple(
        RecordedJob(name=f"j{at}", submitted_ms=submitted * M, duration_ms=minutes * M, gpus=gpus, line=at + 2)
        for at, (submitted, minutes, gpus) in enumerate(jobs)
    )
    return Trace(path="here", format="ganger", rows=len(records), records=records)


def cluster(many: int, gpus: int) -> tuple[Node, ...]:
    return tuple(Node(name=f"n{at}", gpus=gpus, gpu_type="h100", cpu_milli=1_000) for at in range(many))


def document(order: str) -> PolicyDocument:
    return document_of(replace(Rules(), order=order), State().document.queues)


def run(trace: Trace[RecordedJob], nodes: Sequence[Node], order: str = "strict_fifo", **more: object) -> TraceRun:
    return TraceRun(trace=trace, nodes=tuple(nodes), order=registry.order, document=document(order), **more)  # type: ignore[arg-type]


def spans(asked: TraceRun) -> list[list[tuple[int, int]]]:
    """Return when each job ran, in minutes after the first submission."""
    found = simulate_trace(asked).histories
    first_ms = found[0].submitted_ms
    return [[((a - first_ms) // M, (b - first_ms) // M) for a, b in job.running] for job in found]


QUEUE = recorded((0, 10, 6), (1, 20, 4), (2, 5, 2), (3, 30, 2), (4, 1, 1))
"""On 8 GPUs: the second waits for the first; the third fits beside the first and would end before."""


@pytest.mark.parametrize(
    ("order", "starts"),
    [
        ("strict_fifo", [0, 10, 10, 10, 15]),
        ("first_fit", [0, 10, 2, 7, 10]),
        ("easy", [0, 10, 2, 7, 10]),
        ("conservative", [0, 10, 2, 7, 10]),
        ("sjf", [0, 10, 2, 8, 7]),
    ],
)
def test_order_of_starts_by_policy(order: str, starts: list[int]) -> None:
    assert [job[0][0] for job in spans(run(QUEUE, cluster(1, 8), order))] == starts


def test_easy_never_delays_the_first_job_and_first_fit_does() -> None:
    jobs = recorded((0, 10, 6), (1, 20, 8), (2, 30, 2))
    assert [job[0][0] for job in spans(run(jobs, cluster(1, 8), "first_fit"))] == [0, 32, 2]
    assert [job[0][0] for job in spans(run(jobs, cluster(1, 8), "easy"))] == [0, 10, 30]


def test_the_next_to_be_first_has_its_reservation_before_others_take_the_room() -> None:
    """At minute 10, when the first job ends, the second starts, and the fourth must not delay the third."""
    jobs = recorded((0, 10, 8), (1, 10, 4), (2, 5, 8), (3, 60, 4))
    assert [job[0][0] for job in spans(run(jobs, cluster(1, 8), "easy"))] == [0, 10, 20, 25]


def test_a_gang_is_on_whole_nodes_and_what_is_left_over_on_one_more() -> None:
    rows: list[e.Stamped] = []
    simulate_trace(run(recorded((0, 1, 19)), cluster(3, 8)), rows.append)
    decided = [row.event.plan.decisions for row in rows if isinstance(row.event, e.Decided)]
    shares = [share for decisions in decided for start in decisions for share in getattr(start, "shares", ())]
    assert sorted(len(share.devices) for share in shares) == [3, 8, 8]


def test_a_preempted_job_goes_on_from_what_it_had_done() -> None:
    jobs = recorded((0, 100, 8), (10, 10, 8))
    assert spans(run(jobs, cluster(1, 8), "srtf")) == [[(0, 10), (20, 110)], [(10, 20)]]


def test_a_job_with_less_remaining_gpu_time_preempts_one_with_less_remaining_time() -> None:
    jobs = recorded((0, 20, 8), (5, 60, 1))
    assert spans(run(jobs, cluster(1, 8), "srtf")) == [[(0, 20)], [(20, 80)]]
    assert spans(run(jobs, cluster(1, 8), "srsf")) == [[(0, 5), (65, 80)], [(5, 65)]]


def test_a_start_costs_once_and_what_was_not_saved_is_done_again() -> None:
    costs = Overheads(start_ms=2 * M, checkpoint_ms=3 * M, limit_margin_ms=60 * M)
    jobs = recorded((0, 100, 8), (10, 10, 8))
    # 8 minutes of work by then, 6 of them saved: 94 are left, after another start.
    assert spans(run(jobs, cluster(1, 8), "srtf", overheads=costs)) == [[(0, 10), (22, 118)], [(10, 22)]]


def test_a_node_that_fails_takes_its_jobs_with_it_and_they_go_on_elsewhere() -> None:
    outage = Outage(node="n0", from_ms=5 * M, known_ms=5 * M, until_ms=50 * M)
    found = simulate_trace(
        run(
            recorded((0, 30, 8)),
            cluster(2, 8),
            overheads=Overheads(limit_margin_ms=60 * M),
            faults=Faults(outages=(outage,)),
        )
    )
    (job,) = found.histories
    assert sum(end_ms - start_ms for start_ms, end_ms in job.running) == 30 * M
    assert len(job.running) == 2
    assert job.ended_ms is not None
    assert found.card.allocation == 8 * 30 / (16 * 5 + 8 * 25)


def test_what_cannot_be_simulated_is_named_and_counted() -> None:
    trace = recorded((0, 1, 8), (0, 1, 17), (0, 1, 1))
    odd = replace(trace.records[2], gpu_types=("v100",))
    found = simulate_trace(run(replace(trace, records=(*trace.records[:2], odd)), cluster(2, 8)))
    assert {finding.flaw: finding.examples for finding in found.findings} == {
        "too_large": ((3, "j1 asks for 17 GPUs, 0 CPUs, 0 bytes"),),
        "unknown_gpu_type": ((4, "j2 wants v100; there is h100"),),
    }
    assert found.card.jobs == 1


def test_jobs_of_unknown_duration_are_counted_too() -> None:
    trace = recorded((0, 1, 8), (0, 1, 8))
    records = (replace(trace.records[0], duration_ms=None), trace.records[1])
    found = simulate_trace(run(replace(trace, records=records), cluster(1, 8)))
    assert found.card.jobs == 1
    assert found.unended == {"no_duration": 1}


def test_a_limit_that_ends_a_job_is_counted() -> None:
    found = simulate_trace(
        run(recorded((0, 100, 8), (10, 10, 8)), cluster(1, 8), "srtf", overheads=Overheads(start_ms=2 * M))
    )
    assert found.unended == {"time_limit": 1}


@pytest.mark.parametrize("order", [*POLICIES])
def test_the_same_input_gives_the_same_log_byte_for_byte(order: str) -> None:
    def log() -> bytes:
        rows: list[bytes] = []
        simulate_trace(run(QUEUE, cluster(2, 4), order), lambda row: rows.append(line(row)))
        return b"".join(rows)

    assert log() == log() != b""


@pytest.mark.parametrize("order", [*POLICIES])
def test_publishing_pending_reasons_changes_no_decision(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def decided() -> list[tuple[int, Decision]]:
        rows: list[e.Stamped] = []
        simulate_trace(run(QUEUE, cluster(2, 4), order), rows.append)
        plans = [(row.at_ms, row.event.plan) for row in rows if isinstance(row.event, e.Decided)]
        return [(at_ms, each) for at_ms, plan in plans for each in plan.decisions]

    without_reasons = decided()
    monkeypatch.setattr(StreamLog, "PUBLISHES_REASONS", True)
    with_reasons = decided()
    assert any(isinstance(each, Wait) for _, each in with_reasons)
    assert [(at_ms, each) for at_ms, each in with_reasons if not isinstance(each, Wait)] == without_reasons


def test_a_server_publishes_pending_reasons() -> None:
    assert EventLog.PUBLISHES_REASONS
    assert EventLog(MEMORY).restore().seq == 0


def test_ends_and_submissions_are_what_is_counted() -> None:
    found = simulate_trace(run(QUEUE, cluster(1, 8)))
    assert (found.events, found.starts, found.preemptions, found.unended) == (10, 5, 0, {})
    assert found.card.jct_ms.n == 5
    assert found.rows > 5 * 5
    assert found.card.makespan_ms == 40 * M
