"""A job's attempts, read from its events."""

from copy import deepcopy
from dataclasses import replace

from ganger.core.fold.fold import fold
from ganger.core.state.state import State
from ganger.engine.query.job_history import JobHistory
from ganger.model import event as e
from ganger.model.decision import Cause, NodeShare, Plan, Start, Stop
from ganger.model.event import Stamped
from ganger.model.evidence import FlawedCheckpoint
from tests.engine.scenes import nodes, submit


def decided(*decisions: Start | Stop) -> e.Decided:
    return e.Decided(plan=Plan(as_of=0, decisions=decisions), policy="p", version="1")


def start(generation: int, *nodes: str, gang: str = "a") -> Start:
    shares = tuple(NodeShare(node, (rank,)) for rank, node in enumerate(nodes))
    return Start(gang=gang, generation=generation, shares=shares, host="h", port=1)


def ids(generation: int) -> dict[str, object]:
    return {"gang": "a", "generation": generation}


def attempts_of(events: list[e.Event], ended_ms: int | None = None, *, at_once: bool = True) -> list[tuple]:
    """Return (generation, started, ended, outcome, resumed) of every attempt; event n happens at n x 10 ms."""
    rows = [Stamped(n, 10 * n, event) for n, event in enumerate(events, 1)]
    history = JobHistory("a")
    for part in [rows] if at_once else [[row] for row in rows]:
        history.add(part)
        history.attempts(None)
    return [(a.generation, a.started_ms, a.ended_ms, a.outcome, a.resumed_step) for a in history.attempts(ended_ms)]


LONG: list[e.Event] = [
    decided(start(1, "n1", "n2"), start(4, "n3", gang="b")),
    e.Started(nodes=("n1",), **ids(1)),
    e.Started(nodes=("n2",), **ids(1)),
    e.Checkpointed(step=7, **ids(1)),
    e.Failed(node="n2", cause=Cause.RANK_FAILED, rank=1, exit_code=1, **ids(1)),
    decided(Stop(gang="a", generation=1, cause=Cause.RANK_FAILED)),
    e.Cleared(nodes=("n2",), **ids(1)),
    e.Cleared(nodes=("n1",), **ids(1)),
    decided(start(2, "n1", "n2")),
    e.Started(nodes=("n1", "n2"), **ids(2)),
    decided(Stop(gang="a", generation=2, cause=Cause.PREEMPTED, notice_ms=5)),
    e.Failed(node="n1", cause=Cause.RANK_FAILED, rank=0, signal=15, **ids(2)),
    e.Cleared(nodes=("n1", "n2"), **ids(2)),
    decided(start(3, "n1", "n3")),
    e.Started(nodes=("n1", "n3"), **ids(3)),
    e.Finished(nodes=("n1",), **ids(3)),
    e.Finished(nodes=("n3",), **ids(3)),
    e.Cleared(nodes=("n1", "n3"), **ids(3)),
]


def test_the_first_cause_of_an_end_counts() -> None:
    assert attempts_of(LONG, ended_ms=180) == [
        (1, 30, 80, "failed", None),
        (2, 100, 130, "stopped", 7),
        (3, 150, 180, "finished", 7),
    ]


def test_resumed_steps_and_skipped_checkpoints() -> None:
    flawed = FlawedCheckpoint(step=7, flaw="model.pt has 3 bytes instead of 10")
    index = LONG.index(decided(start(3, "n1", "n3"))) + 1
    rows = [*LONG[:index], e.Resumed(step=5, skipped=(flawed,), **ids(3)), *LONG[index:], decided(start(4, "n1"))]
    assert [attempt[-1] for attempt in attempts_of(rows)] == [None, 7, 5, 5]
    history = JobHistory("a")
    history.add([Stamped(n, n, event) for n, event in enumerate(rows, 1)])
    sentence = "the checkpoint of step 7 is skipped: model.pt has 3 bytes instead of 10"
    assert [attempt.skipped for attempt in history.attempts(None)] == [(), (), (sentence,), ()]


def test_reading_in_between_makes_no_difference() -> None:
    assert attempts_of(LONG, at_once=False) == attempts_of(LONG)


def test_an_attempt_on_a_lost_node_ends_with_the_next_or_with_the_job() -> None:
    lost = [decided(start(1, "n1")), e.Started(nodes=("n1",), **ids(1)), decided(start(2, "n2"))]
    assert attempts_of(lost) == [(1, 20, 30, "failed", None), (2, None, None, "running", None)]
    assert attempts_of(lost, ended_ms=90)[1] == (2, None, 90, "failed", None)


def test_ranks_that_end_since_their_launcher_was_told_to_are_no_failure() -> None:
    history = JobHistory("a")
    events = [
        decided(start(1, "n1")),
        e.Evicted(node="n1", notice_ms=0, **ids(1)),
        e.Failed(node="n1", cause=Cause.RANK_FAILED, rank=0, signal=15, **ids(1)),
        e.Cleared(nodes=("n1",), **ids(1)),
    ]
    history.add([Stamped(n, n, event) for n, event in enumerate(events)])
    (attempt,) = history.attempts(90)
    assert (attempt.outcome, attempt.sentence) == ("stopped", "it is evicted from its node n1")
    assert (attempt.blame, attempt.failure_class) == ("", "")


def test_an_attempt_names_the_node_that_was_lost() -> None:
    vanished, stopped = JobHistory("a"), JobHistory("a")
    vanished.add(
        [Stamped(n, n, event) for n, event in enumerate([decided(start(1, "n1")), e.Started(nodes=("n1",), **ids(1))])]
    )
    stop = Stop(gang="a", generation=1, cause=Cause.NODE_LOST, node="n2")
    stopped.add(
        [
            Stamped(n, n, event)
            for n, event in enumerate(
                [decided(start(1, "n1", "n2")), decided(stop), e.Cleared(nodes=("n1",), **ids(1))]
            )
        ]
    )
    for history, node in ((vanished, "n1"), (stopped, "n2")):
        (attempt,) = history.attempts(90)
        assert (attempt.outcome, attempt.sentence) == ("failed", f"its node {node} was lost")
        assert (attempt.blame, attempt.failure_class) == ("infrastructure", "node_lost")


def test_an_attempt_that_left_its_nodes_without_a_report_has_failed() -> None:
    begun = [decided(start(1, "n1")), e.Started(nodes=("n1",), **ids(1)), e.Cleared(nodes=("n1",), **ids(1))]
    assert attempts_of(begun) == [(1, 20, 30, "failed", None)]
    history = JobHistory("a")
    history.add([Stamped(n, n, event) for n, event in enumerate(begun, 1)])
    assert "disappeared without an exit record" in history.attempts(None)[0].sentence


def test_a_log_that_begins_with_a_live_gang_has_its_running_attempt() -> None:
    flawed = FlawedCheckpoint(step=7, flaw="model.pt is empty")
    index = LONG.index(decided(start(3, "n1", "n3"))) + 1
    events: list[e.Event] = [e.NodesListed(nodes=tuple(nodes(3))), submit("a", nodes=2), decided(start(1, "n1", "n2"))]
    events += [*LONG[1:index], e.Resumed(step=5, skipped=(flawed,), **ids(3)), *LONG[index:-2]]
    events += [e.Done(**ids(3)), decided(Stop(gang="a", generation=3, cause=Cause.DONE)), *LONG[-1:]]
    rows = [Stamped(n, 10 * n, event) for n, event in enumerate(events, 1)]
    whole, state = JobHistory("a"), State()
    whole.add(rows)
    all_attempts = whole.attempts(None)
    for row in rows:
        fold(state, row)
        gang = state.gangs.get("a")
        if gang is None:
            continue
        later = JobHistory("a", deepcopy(gang))
        later.add(rows[row.seq :])
        attempts, first = later.attempts(None), gang.attempt.generation + (gang.attempt.start is None)
        assert len(attempts) == len(all_attempts[first - 1 :]), row
        for actual, expected in zip(attempts, all_attempts[first - 1 :], strict=True):
            assert replace(actual, started_ms=expected.started_ms) == expected, row
            assert actual.started_ms == expected.started_ms or (actual.started_ms, gang.attempt.generation > 1) == (
                None,
                True,
            ), row
    assert state.gangs == {}, "the job has ended"
