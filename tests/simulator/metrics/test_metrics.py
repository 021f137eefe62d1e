"""Figures of whole runs, compared with an oracle that walks over the rows of the log ms by ms."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from fractions import Fraction

import pytest
from hypothesis import assume, given

from ganger.backends.simulator.virtual_cluster import BEGIN_MS
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Cause, Start, Stop
from ganger.simulation.json_output import occupancy_for, outcome_json
from ganger.simulation.metrics.run_history import Summary
from ganger.simulation.node_outages import Outage
from ganger.simulation.simulate import Outcome
from ganger.simulation.trace_replay import Faults, Overheads, TraceRun, simulate_trace
from tests.examples import examples
from tests.simulator.metrics.test_goodput import ORDERS, Drawn, runs
from tests.simulator.test_trace_replay import QUEUE, M, cluster, recorded, run

USERS = ("ada", "ben")


@dataclass(slots=True)
class Job:
    """A job as the log shows it: its submission, its nodes over time, and how it was stopped."""

    came_ms: int
    milli: int
    user: str
    ended_ms: int | None = None
    tries: list[frozenset[str]] = field(default_factory=list)
    ran: list[list[int]] = field(default_factory=list)
    preempted: int = 0


class Oracle:
    """A reader of rows; a job runs from a start until each of its nodes was cleared or lost."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.left: dict[str, set[str]] = {}
        self.done: dict[str, set[str]] = defaultdict(set)

    def take(self, row: e.Stamped) -> None:
        match row.event:
            case e.Submitted(job=job):
                milli = sum(part.nodes * part.gpus * 1000 for part in job.spec.shape.parts)
                self.jobs[job.id] = Job(row.at_ms, milli, job.user)
            case e.Decided(plan=plan):
                for one in plan.decisions:
                    if isinstance(one, Start):
                        self.jobs[one.gang].tries.append(frozenset(one.nodes))
                        self.jobs[one.gang].ran.append([row.at_ms, row.at_ms])
                        self.left[one.gang], self.done[one.gang] = {*one.nodes}, set()
                    elif isinstance(one, Stop):
                        self.jobs[one.gang].preempted += one.cause is Cause.PREEMPTED
            case e.Finished(gang=gang, nodes=nodes):
                self.done[gang].update(nodes)
            case e.Cleared(gang=gang, nodes=nodes):
                self.leave(gang, {*nodes}, row.at_ms)
            case e.NodeLost(node=node):
                for gang in [*self.left]:
                    self.leave(gang, {node}, row.at_ms)

    def leave(self, gang: str, nodes: set[str], at_ms: int) -> None:
        if not self.left.get(gang, set()) & nodes:
            return
        self.left[gang] -= nodes
        if not self.left[gang]:
            job = self.jobs[gang]
            job.ran[-1][1] = at_ms
            job.ended_ms = at_ms if self.done[gang] == {*job.tries[-1]} else None


def switched(asked: TraceRun) -> TraceRun:
    """Return the same run with one switch for the first node, one for the others, and two users in turn."""
    nodes = tuple(replace(node, domains=("a" if at == 0 else "b",)) for at, node in enumerate(asked.nodes))
    records = tuple(replace(job, user=USERS[at % 2]) for at, job in enumerate(asked.trace.records))
    return replace(asked, nodes=nodes, trace=replace(asked.trace, records=records))


def walked(asked: TraceRun) -> tuple[Outcome, dict[str, Job]]:
    oracle = Oracle()
    outcome = simulate_trace(asked, oracle.take)
    return outcome, oracle.jobs


def agrees(got: Summary, values: list[Fraction] | list[int]) -> bool:
    ordered = sorted(values)
    if not ordered:
        return got == Summary(0)
    at = {50: got.p50, 95: got.p95, 99: got.p99}
    return got.mean == pytest.approx(float(Fraction(sum(ordered)) / len(ordered))) and all(
        value == pytest.approx(float(ordered[len(ordered) * percent // 100])) for percent, value in at.items()
    )


@pytest.mark.parametrize("order", ORDERS)
@examples(gate=5, otherwise=20)
@given(drawn=runs)
def test_fairness_and_moves_are_what_the_log_says(order: str, drawn: Drawn) -> None:
    asked = switched(drawn.run(order))
    outcome, by_name = walked(asked)
    card, jobs = outcome.card, [*by_name.values()]
    lasts = {record.name: record.duration_ms or 0 for record in asked.trace.records}
    assume(jobs)
    ends_ms = max([job.came_ms for job in jobs] + [ran[1] for job in jobs for ran in job.ran])
    begins_ms = min(job.came_ms for job in jobs)
    gpus = [1000 * sum(there(asked, node, at_ms) * node.gpus for node in asked.nodes)
            for at_ms in range(begins_ms, ends_ms)]  # fmt: skip

    def over_ms(job: Job) -> int:
        return ends_ms if job.ended_ms is None else job.ended_ms

    def runs_at(job: Job, at_ms: int) -> bool:
        return any(begin <= at_ms < end for begin, end in job.ran)

    present = [sum(job.came_ms <= at_ms < over_ms(job) for job in jobs) for at_ms in range(begins_ms, ends_ms)]
    rho, hunger = [], []
    for name, job in by_name.items():
        waits = [job.came_ms <= at_ms < over_ms(job) and not runs_at(job, at_ms) for at_ms in range(begins_ms, ends_ms)]
        hunger.append(max(map(len, "".join(".x"[wait] for wait in waits).split(".")), default=0))
        if job.ended_ms is not None:
            stay = slice(job.came_ms - begins_ms, job.ended_ms - begins_ms)
            if had := sum(gpus[stay]):
                slower = max(Fraction(1), Fraction(job.milli * sum(present[stay]), had))
                rho.append((job.ended_ms - job.came_ms) / (lasts[name] * slower))
    assert agrees(card.finish_time_fairness, rho)
    assert card.unfair == (sum(value > Fraction(105, 100) for value in rho) / len(rho) if rho else None)
    assert agrees(card.starvation_ms, hunger)
    assert card.longest_starvation_ms == max(hunger)
    debts = dict.fromkeys({job.user for job in jobs}, Fraction())
    for user in debts:
        theirs = [job for job in jobs if job.user == user]
        for at_ms in range(begins_ms, ends_ms):
            want = sum(job.milli for job in theirs if job.came_ms <= at_ms < over_ms(job))
            got = sum(job.milli for job in theirs if runs_at(job, at_ms))
            debts[user] += max(Fraction(), min(Fraction(gpus[at_ms - begins_ms], len(debts)), Fraction(want)) - got)
    assert agrees(card.quota_debt_gpu_us, [*debts.values()])
    assert agrees(card.preemptions_per_job, [job.preempted for job in jobs])
    moves = [[a != b for a, b in zip(job.tries, job.tries[1:], strict=False)] for job in jobs]
    assert agrees(card.migrations_per_job, [sum(each) for each in moves])
    left = sum(job.milli * (ran[1] - ran[0]) for job, each in zip(jobs, moves, strict=True)
               for ran, is_move in zip(job.ran, each, strict=False) if is_move)  # fmt: skip
    assert card.moved_gpu_us == left
    several = [nodes for job in jobs for nodes in job.tries if len(nodes) > 1]
    crossing = [nodes for nodes in several if "n0" in nodes]
    assert card.multi_node_starts == len(several)
    assert card.cross_switch == (len(crossing) / len(several) if several else None)


def there(asked: TraceRun, node: Node, at_ms: int) -> bool:
    """Return whether a node is up as far as the scheduler knows."""
    return not any(
        each.node == node.name and each.known_ms <= at_ms - BEGIN_MS < each.until_ms for each in asked.faults.outages
    )


def test_starts_across_switches_are_counted() -> None:
    """With two nodes on each of two switches, a gang of two is on one switch and a gang of three on both."""
    nodes = tuple(replace(node, domains=(f"s{at // 2}",)) for at, node in enumerate(cluster(4, 8)))
    card = simulate_trace(run(recorded((0, 10, 16), (20, 10, 24), (40, 10, 8)), nodes)).card
    assert (card.multi_node_starts, card.cross_switch) == (2, 0.5)
    assert simulate_trace(run(recorded((0, 10, 16)), cluster(4, 8))).card.cross_switch is None


def test_idle_resources_are_sampled_over_time() -> None:
    """For an hour 5 of 8 GPUs of each of two nodes are allocated, while a job waits that needs 8 of a node."""
    nodes, asked = cluster(2, 8), recorded((0, 60, 5), (0, 60, 5), (1, 60, 8), (240, 1, 1))
    occupancy = occupancy_for(run(asked, nodes))
    outcome = simulate_trace(run(asked, nodes), occupancy.fold)
    found = outcome_json(outcome, occupancy)["fragmentation"]
    assert found["largest_gang"]["n"] == found["gpus"]["n"] == 241
    # A look each minute: 6 GPUs idle, 3 on each node; then 8 on the other; then all; then 7 and 8.
    looked = [6] * 60 + [8] * 60 + [16] * 120 + [14]
    assert found["largest_gang"]["mean"] == sum(looked) / 241
    # Of no use to the 8 that waits, and as long as it does.
    assert (found["idle_of_no_use"]["n"], found["idle_of_no_use"]["mean"]) == (59, 1.0)
    # Two of four jobs want 5 GPUs, one 8 and one 1: of 3 left on a node the last can use all, of 8 each can.
    assert found["gpus"]["p99"] == 6 * 3 / 4
    assert found["of_capacity"]["p99"] == 6 * 3 / 4 / 16
    assert found["of_idle"]["p99"] == 3 / 4


def test_nodes_cost_while_they_are_up() -> None:
    """Three nodes run for four hours, one of which is down for one hour; 8 GPU-hours are useful."""
    nodes = (*cluster(2, 4), Node(name="a0", gpus=4, gpu_type="a100", cpu_milli=1_000))
    outage = Outage(node="n1", from_ms=60 * M, known_ms=70 * M, until_ms=120 * M)
    asked = run(
        recorded((0, 60, 4), (180, 60, 4)),
        nodes,
        overheads=Overheads(limit_margin_ms=M),
        faults=Faults(outages=(outage,)),
    )
    found = simulate_trace(replace(asked, prices={"h100": Fraction("8.5"), "a100": Fraction(3)})).cost
    assert found is not None
    assert found.by_gpu_type == {"h100": 8.5 * 7, "a100": 3.0 * 4}
    assert (found.total, found.node_hours, found.finished_gpu_hours) == (71.5, 11, 8)
    assert found.per_gpu_hour == 71.5 / 8
    assert simulate_trace(asked).cost is None


def test_cycles_are_counted_and_nothing_of_them_is_in_the_log() -> None:
    rows: list[e.Stamped] = []
    turns = Counter[str]()
    found = simulate_trace(run(QUEUE, cluster(1, 8)), rows.append, lambda row: turns.update([row.event.kind]))
    assert found.self_cost is not None
    assert found.self_cost.cycle_ms.n >= len({row.at_ms for row in rows}) - 1
    assert found.self_cost.peak_bytes > 10_000_000
    assert turns["submitted"] == 5
