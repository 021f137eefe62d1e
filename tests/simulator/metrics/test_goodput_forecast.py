"""The closed form of goodput, compared with simulations of its process and with known values."""

import math
from collections.abc import Callable
from random import Random
from statistics import fmean, stdev

import pytest

from ganger.model.units import HOUR_MS, MINUTE_MS
from ganger.simulation.metrics.goodput import CheckpointCosts
from ganger.simulation.metrics.goodput_forecast import (
    Failures,
    daly_ms,
    expected_ms,
    observed_failures,
    wait_ms,
    young_ms,
)
from ganger.simulation.node_outages import Outage
from ganger.simulation.trace_replay import Faults, Overheads, simulate_trace
from tests.examples import one_in_gate
from tests.simulator.test_trace_replay import cluster, recorded, run

H, M = HOUR_MS, MINUTE_MS
RUNS, WORK_MS, MTBF_MS = 40, 40 * H, 6 * H
ERRORS = 4
"""Standard errors of a mean of 40 that it may be away from what is expected: by chance once in 3,600 means."""
COSTS = {
    "everything costs": Overheads(start_ms=12 * M, checkpoint_ms=2 * H, write_ms=6 * M),
    "checkpoints cost nothing": Overheads(start_ms=12 * M, checkpoint_ms=50 * M),
    "all work is kept": Overheads(start_ms=12 * M),
    "long intervals": Overheads(start_ms=30 * M, checkpoint_ms=7 * H, write_ms=20 * M),
}


def process(draw: Random, nodes: int, detect_ms: int, repair_ms: int) -> tuple[Outage, ...]:
    """Return outages of a process in which a node fails after a drawn time; while one is down no other fails."""
    found, at_ms = [], 0
    while at_ms < 40 * WORK_MS:
        from_ms = at_ms + round(draw.expovariate(1 / MTBF_MS))
        at_ms = from_ms + repair_ms
        node = f"n{draw.randrange(nodes)}"
        found.append(Outage(node=node, from_ms=from_ms, known_ms=from_ms + detect_ms, until_ms=at_ms))
    return tuple(found)


@pytest.mark.parametrize("name", one_in_gate(COSTS))
@pytest.mark.parametrize("failing", one_in_gate([(4, 15 * M, 15 * M), (1, 10 * M, 90 * M), (1, 0, 0)]), ids=str)
def test_simulations_of_an_exponential_process_agree_with_the_closed_form(
    name: str, failing: tuple[int, int, int]
) -> None:
    """One job runs on all nodes and resumes when the lost one is back: compare wall time, time on nodes and losses."""
    nodes, detect_ms, repair_ms = failing
    costs, draw = COSTS[name], Random(f"{name}/{nodes}/{repair_ms}")
    walls, allocated, losses = [], [], []
    for _ in range(RUNS):
        faults = Faults(outages=process(draw, nodes, detect_ms, repair_ms))
        trace = recorded((0, WORK_MS // M, 8 * nodes))
        found = simulate_trace(
            run(trace, cluster(nodes, 8), "first_fit", overheads=costs, faults=faults, limits_known=False)
        )
        (job,) = found.histories
        assert job.ended_ms is not None
        walls.append(job.ended_ms - job.submitted_ms)
        allocated.append(found.goodput.allocated_gpu_us / (8_000 * nodes))
        losses.append(found.goodput.interruptions)
    rate = 1 / MTBF_MS
    _agree(walls, expected_ms(WORK_MS, rate, costs.checkpoint_costs, repair_ms))
    _agree(allocated, expected_ms(WORK_MS, rate, costs.checkpoint_costs, detect_ms))
    _agree(losses, rate * expected_ms(WORK_MS, rate, costs.checkpoint_costs, 0))


def _agree(values: list[float], expected: float) -> None:
    error = stdev(values) / math.sqrt(len(values))
    assert abs(fmean(values) - expected) <= ERRORS * error, (fmean(values), expected, error)


def test_without_failures_a_job_takes_its_work_its_start_and_its_checkpoints() -> None:
    pace = CheckpointCosts(start_ms=5, checkpoint_ms=10, write_ms=3)
    assert [expected_ms(work, 0.0, pace, 99) for work in (0, 1, 10, 11, 20, 21)] == [5, 6, 15, 19, 28, 32]
    assert expected_ms(7, 0.0, CheckpointCosts(start_ms=5), 0) == 12


def test_a_job_that_hardly_ever_ends_takes_infinite_time() -> None:
    assert expected_ms(10**9, 1.0, CheckpointCosts(checkpoint_ms=10**6, write_ms=1), 0) == math.inf


@pytest.mark.parametrize("write_ms", [M, 10 * M, H])
def test_the_best_intervals_are_where_the_closed_form_is_least(write_ms: int) -> None:
    """Of all intervals of whole minutes Daly's is the best within 0.1 %, and better than Young's."""
    mtbf_ms, work_ms = 10 * H, 10_000 * H

    def takes(interval_ms: float) -> float:
        return expected_ms(
            work_ms, 1 / mtbf_ms, CheckpointCosts(checkpoint_ms=round(interval_ms), write_ms=write_ms), 0
        )

    least = min(takes(minutes * M) for minutes in range(5, 1_200))
    assert takes(daly_ms(write_ms, mtbf_ms)) <= 1.001 * least
    assert takes(daly_ms(write_ms, mtbf_ms)) <= takes(young_ms(write_ms, mtbf_ms))
    assert daly_ms(2 * mtbf_ms, mtbf_ms) == mtbf_ms


@pytest.mark.parametrize(
    ("nodes", "missed", "is_it"),
    [
        (1, 0, lambda repair_ms, _: repair_ms),
        (1, 1, lambda _, __: 0),
        (2, 0, lambda repair_ms, down: repair_ms + down * repair_ms / 2),
        (2, 1, lambda repair_ms, down: down * repair_ms / 2),
    ],
)
def test_the_wait_for_a_node_by_hand(nodes: int, missed: int, is_it: Callable[[float, float], float]) -> None:
    rate, repair_ms = 1 / (90 * H), 10.0 * H
    down = 10 / 100
    found = wait_ms(Failures(nodes=nodes, rate=rate, repair_ms=repair_ms, detect_ms=0), missed)
    assert found == pytest.approx(is_it(repair_ms, down))


def test_a_large_cluster_has_a_finite_wait() -> None:
    assert 0 <= wait_ms(Failures(nodes=100_000, rate=1e-9, repair_ms=1e8, detect_ms=0), 9_000) < math.inf


def test_the_rate_is_of_nodes_that_are_up_until_the_run_ends() -> None:
    times = (("a", 10, 30), ("b", 90, 150), ("a", 100, 160))
    found = [Outage(node=node, from_ms=at_ms, known_ms=at_ms + 5, until_ms=until) for node, at_ms, until in times]
    assert observed_failures(found, 2, 100) == Failures(nodes=2, rate=2 / (200 - 20 - 10), repair_ms=40, detect_ms=5)
