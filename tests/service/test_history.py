"""A job's attempts, read out of its events."""

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


def of(generation: int) -> dict[str, object]:
    return {"gang": "a", "generation": generation}


def told(events: list[e.Event], ended_ms: int | None = None, *, at_once: bool = True) -> list[tuple]:
    """(generation, started, ended, outcome, resumed) of every attempt; event n happens at n x 10 ms."""
    rows = [Stamped(n, 10 * n, event) for n, event in enumerate(events, 1)]
    history = JobHistory("a")
    for part in [rows] if at_once else [[row] for row in rows]:
        history.take(part)
        history.attempts(None)
    return [(a.generation, a.started_ms, a.ended_ms, a.outcome, a.resumed_step) for a in history.attempts(ended_ms)]


LONG: list[e.Event] = [
    decided(start(1, "n1", "n2"), start(4, "n3", gang="b")),
    e.Started(nodes=("n1",), **of(1)),
    e.Started(nodes=("n2",), **of(1)),
    e.Checkpointed(step=7, **of(1)),
    e.Failed(node="n2", cause=Cause.RANK_FAILED, rank=1, exit_code=1, **of(1)),
    decided(Stop(gang="a", generation=1, cause=Cause.RANK_FAILED)),
    e.Cleared(nodes=("n2",), **of(1)),
    e.Cleared(nodes=("n1",), **of(1)),
    decided(start(2, "n1", "n2")),
    e.Started(nodes=("n1", "n2"), **of(2)),
    decided(Stop(gang="a", generation=2, cause=Cause.PREEMPTED, notice_ms=5)),
    e.Failed(node="n1", cause=Cause.RANK_FAILED, rank=0, signal=15, **of(2)),
    e.Cleared(nodes=("n1", "n2"), **of(2)),
    decided(start(3, "n1", "n3")),
    e.Started(nodes=("n1", "n3"), **of(3)),
    e.Finished(nodes=("n1",), **of(3)),
    e.Finished(nodes=("n3",), **of(3)),
    e.Cleared(nodes=("n1", "n3"), **of(3)),
]


def test_the_first_word_of_an_end_counts() -> None:
    assert told(LONG, ended_ms=180) == [
        (1, 30, 80, "failed", None),
        (2, 100, 130, "stopped", 7),
        (3, 150, 180, "finished", 7),
    ]


def test_what_is_told_of_the_beginning_is_right() -> None:
    flawed = FlawedCheckpoint(step=7, flaw="model.pt has 3 bytes instead of 10")
    at = LONG.index(decided(start(3, "n1", "n3"))) + 1
    rows = [*LONG[:at], e.Resumed(step=5, passed=(flawed,), **of(3)), *LONG[at:], decided(start(4, "n1"))]
    assert [attempt[-1] for attempt in told(rows)] == [None, 7, 5, 5]
    history = JobHistory("a")
    history.take([Stamped(n, n, event) for n, event in enumerate(rows, 1)])
    said = "the checkpoint of step 7 is passed over: model.pt has 3 bytes instead of 10"
    assert [attempt.passed for attempt in history.attempts(None)] == [(), (), (said,), ()]


def test_it_makes_no_difference_when_one_looks() -> None:
    assert told(LONG, at_once=False) == told(LONG)


def test_an_attempt_on_a_lost_node_ends_with_the_next_or_with_the_job() -> None:
    lost = [decided(start(1, "n1")), e.Started(nodes=("n1",), **of(1)), decided(start(2, "n2"))]
    assert told(lost) == [(1, 20, 30, "failed", None), (2, None, None, "running", None)]
    assert told(lost, ended_ms=90)[1] == (2, None, 90, "failed", None)


def test_a_log_that_begins_in_the_midst_of_it_has_what_is_under_way() -> None:
    flawed = FlawedCheckpoint(step=7, flaw="model.pt is empty")
    at = LONG.index(decided(start(3, "n1", "n3"))) + 1
    events: list[e.Event] = [e.NodesListed(nodes=tuple(nodes(3))), submit("a", nodes=2), decided(start(1, "n1", "n2"))]
    events += [*LONG[1:at], e.Resumed(step=5, passed=(flawed,), **of(3)), *LONG[at:-2]]
    events += [e.Done(**of(3)), decided(Stop(gang="a", generation=3, cause=Cause.DONE)), *LONG[-1:]]
    rows = [Stamped(n, 10 * n, event) for n, event in enumerate(events, 1)]
    whole, state = JobHistory("a"), State()
    whole.take(rows)
    there = whole.attempts(None)
    for row in rows:
        fold(state, row)
        gang = state.gangs.get("a")
        if gang is None:
            continue
        later = JobHistory("a", deepcopy(gang))
        later.take(rows[row.seq :])
        found, first = later.attempts(None), gang.generation + (gang.start is None)
        assert len(found) == len(there[first - 1 :]), row
        for mine, its in zip(found, there[first - 1 :], strict=True):
            assert replace(mine, started_ms=its.started_ms) == its, row
            assert mine.started_ms == its.started_ms or (mine.started_ms, gang.generation > 1) == (None, True), row
    assert state.gangs == {}, "it has ended"
