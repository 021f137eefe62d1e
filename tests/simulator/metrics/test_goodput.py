"""Goodput: exact sums, compared with an oracle that walks over the rows of the log tick by tick."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.backends.simulator.virtual_cluster import BEGIN_MS
from ganger.engine.eventlog.stream_log import line
from ganger.model import event as e
from ganger.model.decision import Start, Stop
from ganger.simulation.metrics.goodput import Loss
from ganger.simulation.node_outages import FaultModel, draw_outages
from ganger.simulation.simulate import Outcome
from ganger.simulation.trace_replay import Faults, Overheads, TraceRun, simulate_trace
from ganger.simulation.traces.trace import NodeFault, RecordedJob, Trace
from tests.examples import examples
from tests.simulator.test_trace_replay import M, cluster, recorded, run

NODES = cluster(3, 4)
ORDERS = ("dynamic", "srtf", "first_fit", "tiresias")

jobs = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=5)
faults = st.lists(
    st.builds(
        lambda at, start_ms, lasts_ms: NodeFault(
            node=f"n{at}", start_ms=start_ms, end_ms=start_ms + lasts_ms, level="", category="", detail=""
        ),
        st.integers(0, 2),
        st.integers(0, 80),
        st.integers(0, 25),
    ),
    max_size=8,
)
paces = st.builds(
    lambda start, checkpoint, write: Overheads(
        start_ms=start, checkpoint_ms=checkpoint, write_ms=write if checkpoint else 0, limit_margin_ms=10_000
    ),
    st.integers(0, 4),
    st.integers(0, 9),
    st.integers(0, 3),
)


@dataclass(slots=True)
class Walked:
    """The time of a gang, in ms by cause."""

    began_ms: int
    nodes: tuple[str, ...]
    is_first: bool
    left: set[str]
    stopped_ms: int | None = None
    finished: set[str] = field(default_factory=set)


class Oracle:
    """A reader of rows that knows when nodes failed and walks over each attempt tick by tick when it is over."""

    def __init__(self, asked: TraceRun) -> None:
        self.asked, self.of, self.useful = asked, Counter[Loss](), 0
        self.saved, self.now, self.seen = Counter[str](), dict[str, Walked](), set[str]()
        self.milli = {job.name: job.asked_gpu_milli for job in asked.trace.records}
        self.lasts = {job.name: job.duration_ms or 0 for job in asked.trace.records}

    def take(self, row: e.Stamped) -> None:
        match row.event:
            case e.Decided(plan=plan):
                for decision in plan.decisions:
                    if isinstance(decision, Start):
                        is_first = decision.gang not in self.seen
                        self.seen.add(decision.gang)
                        self.now[decision.gang] = Walked(row.at_ms, decision.nodes, is_first, {*decision.nodes})
                    elif isinstance(decision, Stop) and decision.gang in self.now:
                        self.now[decision.gang].stopped_ms = row.at_ms
            case e.Finished(gang=gang, nodes=nodes):
                self.now[gang].finished.update(nodes)
            case e.Cleared(gang=gang, nodes=nodes):
                for node in nodes:
                    self.leave(gang, node, row.at_ms)
            case e.NodeLost(node=node):
                for gang in [*self.now]:
                    self.leave(gang, node, row.at_ms)

    def leave(self, gang: str, node: str, at_ms: int) -> None:
        if gang in self.now and node in self.now[gang].left:
            self.now[gang].left.remove(node)
            if not self.now[gang].left:
                self.walk(gang, self.now.pop(gang), at_ms)

    def walk(self, gang: str, one: Walked, until_ms: int) -> None:
        costs, every = self.asked.overheads, self.asked.overheads.checkpoint_ms or 1
        done, starting, writing, since = self.saved[gang], costs.start_ms, 0, Counter[Loss]()
        broke = False
        for tick in range(one.began_ms, until_ms):
            broke = broke or any(self.fails(node, tick, one.began_ms) for node in one.nodes)
            if not broke and one.stopped_ms is not None and tick >= one.stopped_ms:
                since[Loss.STOP] += 1
            elif broke:
                since[Loss.DETECTION] += 1
            elif starting:
                starting -= 1
                since[Loss.START if one.is_first else Loss.RESTART] += 1
            elif writing:
                writing -= 1
                since[Loss.ROLLBACK] += 1
                if not writing:
                    since[Loss.CHECKPOINT] += costs.write_ms
                    since[Loss.ROLLBACK] -= costs.write_ms + (done - self.saved[gang])
                    self.useful += self.milli[gang] * (done - self.saved[gang])
                    self.saved[gang] = done
            else:
                done += 1
                since[Loss.ROLLBACK] += 1
                is_over = done == self.lasts[gang]
                if done % every == 0 and costs.write_ms and not is_over:
                    writing = costs.write_ms
                elif (done % every == 0 and not costs.write_ms) or (is_over and len(one.finished) == len(one.nodes)):
                    since[Loss.ROLLBACK] -= done - self.saved[gang]
                    self.useful += self.milli[gang] * (done - self.saved[gang])
                    self.saved[gang] = done
        assert not one.finished or done == self.lasts[gang]
        for cause, ms in since.items():
            self.of[cause] += self.milli[gang] * ms

    def fails(self, node: str, at_ms: int, since_ms: int) -> bool:
        """Return whether a node is down, or was down for no time, since a gang began there."""
        there = [each for each in self.asked.faults.outages if each.node == node]
        return any(
            each.from_ms <= at_ms - BEGIN_MS < each.until_ms or since_ms < each.from_ms + BEGIN_MS == at_ms
            for each in there
        )


@dataclass(frozen=True, slots=True)
class Drawn:
    """A drawn simulation, without its queue order."""

    jobs: list[tuple[int, int, int]]
    record: list[NodeFault]
    overheads: Overheads
    detect_ms: int
    spares: int

    def run(self, order: str) -> TraceRun:
        records = tuple(
            RecordedJob(name=f"j{at}", submitted_ms=of[0], duration_ms=of[1], gpus=of[2])
            for at, of in enumerate(sorted(self.jobs))
        )
        found = draw_outages(self.record, [node.name for node in NODES], FaultModel(detect_ms=self.detect_ms))
        trace = Trace(path="here", format="ganger", rows=len(records), records=records)
        return run(trace, NODES, order, overheads=self.overheads, faults=Faults(outages=found, spares=self.spares))


runs = st.builds(Drawn, jobs, faults, paces, st.integers(0, 12), st.integers(0, 1))


def total(outcome: Outcome) -> int:
    good = outcome.goodput
    return good.useful_gpu_us + sum(good.lost_gpu_us.values())


@pytest.mark.parametrize("order", ORDERS)
@examples(gate=15, otherwise=60)
@given(drawn=runs)
def test_all_gpu_time_is_useful_or_lost_to_one_cause_and_a_walk_over_the_log_agrees(order: str, drawn: Drawn) -> None:
    asked = drawn.run(order)
    oracle = Oracle(asked)
    found = simulate_trace(asked, oracle.take)
    good = found.goodput
    assert good.allocated_gpu_us == total(found)
    assert good.allocated_gpu_us == sum(job.gpu_milli * (b - a) for job in found.histories for a, b in job.running)
    assert min(good.lost_gpu_us.values()) >= 0
    assert (good.useful_gpu_us, good.lost_gpu_us) == (oracle.useful, {cause: oracle.of[cause] for cause in Loss})
    ended = [job for job in found.histories if job.ended_ms is not None]
    assert good.useful_gpu_us >= sum(job.gpu_milli * job.duration_ms for job in ended)


@pytest.mark.parametrize("order", ORDERS)
@examples(gate=5, otherwise=20)
@given(drawn=runs)
def test_a_run_with_faults_gives_the_same_log_byte_for_byte(order: str, drawn: Drawn) -> None:
    def log() -> list[bytes]:
        rows: list[bytes] = []
        simulate_trace(drawn.run(order), lambda row: rows.append(line(row)))
        return rows

    assert log() == log()


def lost(node: str, start: int, end: int) -> NodeFault:
    return NodeFault(node=node, start_ms=start * M, end_ms=end * M, level="", category="", detail="")


def minutes(found: Outcome) -> dict[str, int]:
    """Return GPU minutes by cause, without zeros."""
    good = found.goodput
    each = {"useful": good.useful_gpu_us, "waiting": good.waiting_for_nodes_gpu_us, **good.lost_gpu_us}
    return {str(name): gpu_time // (1000 * M) for name, gpu_time in each.items() if gpu_time}


def test_a_loss_that_is_not_known_costs_the_work_since_the_checkpoint_the_detection_and_a_start() -> None:
    """The job has worked for 28 minutes, with two checkpoints; the other node is busy until minute 50."""
    found = draw_outages([lost("n0", 30, 100)], ["n0", "n1"], FaultModel(detect_ms=5 * M))
    costs = Overheads(start_ms=1 * M, checkpoint_ms=10 * M, write_ms=1 * M, limit_margin_ms=600 * M)
    outcome = simulate_trace(run(recorded((0, 40, 4)), cluster(2, 4), overheads=costs, faults=Faults(outages=found)))
    (job,) = outcome.histories
    assert [(each.began_ms - BEGIN_MS) // M for each in job.attempts] == [0, 35]
    # By minute 30: a start, 10 + 1 + 10 + 1 with two checkpoints, 7 of work that is lost. Then 20 and one more.
    assert minutes(outcome) == {
        "useful": 4 * 40, "start": 4, "restart": 4, "checkpoint": 4 * 3, "rollback": 4 * 7, "detection": 4 * 5,
    }  # fmt: skip
    assert outcome.goodput.ettr == 40 / (35 + 1 + 20 + 1)
    assert outcome.goodput.recovery_ms.mean == 6 * M
    assert outcome.goodput.interruptions == 1


def test_a_job_waits_for_the_repair_and_with_a_spare_it_does_not() -> None:
    record = [lost("n0", 10, 70)]
    costs = Overheads(limit_margin_ms=600 * M)
    alone = draw_outages(record, ["n0"], FaultModel())
    waits = simulate_trace(run(recorded((0, 40, 4)), cluster(1, 4), overheads=costs, faults=Faults(outages=alone)))
    assert minutes(waits) == {"useful": 160, "waiting": 240}
    both = draw_outages(record, ["n0", "n1"], FaultModel())
    held = simulate_trace(
        run(recorded((0, 40, 4)), cluster(2, 4), overheads=costs, faults=Faults(outages=both, spares=1))
    )
    assert minutes(held) == {"useful": 160}
    assert held.goodput.ettr == 1


def test_a_gang_on_a_node_whose_loss_is_unknown_waits_for_detection() -> None:
    found = draw_outages([lost("n0", 0, 30)], ["n0"], FaultModel(detect_ms=10 * M))
    trace = recorded((0, 1, 4), (5, 20, 4))
    outcome = simulate_trace(
        run(trace, cluster(1, 4), overheads=Overheads(limit_margin_ms=600 * M), faults=Faults(outages=found))
    )
    assert minutes(outcome)["useful"] == 4 * 21
    assert minutes(outcome)["detection"] == 4 * 10


def test_deadlines_are_of_the_clock_of_the_trace() -> None:
    first, second = recorded((100, 10, 4), (100, 10, 4)).records
    records = (RecordedJob(name="a", submitted_ms=first.submitted_ms, duration_ms=first.duration_ms, gpus=4,
                           deadline_ms=110 * M),
               RecordedJob(name="b", submitted_ms=second.submitted_ms, duration_ms=second.duration_ms, gpus=4,
                           deadline_ms=119 * M))  # fmt: skip
    good = simulate_trace(run(Trace(path="", format="", rows=2, records=records), cluster(1, 4))).goodput
    assert (good.deadlines, good.met) == (2, 1)
