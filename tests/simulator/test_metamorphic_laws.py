"""Laws of whole simulations: a change of the input that must change no figure, or change it in one direction only."""

from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.model.cluster import Node
from ganger.model.units import MINUTE_MS
from ganger.simulation.json_output import occupancy_for, outcome_json
from ganger.simulation.metrics.gpu_fragmentation import largest_gang
from ganger.simulation.node_outages import Outage
from ganger.simulation.trace_replay import Faults, TraceRun, simulate_trace
from tests.simulator.test_trace_replay import recorded, run

ORDERS = ("dynamic", "strict_fifo", "easy", "srtf")
NODES = tuple(Node(name=f"n{at}", gpus=gpus, gpu_type="h100", cpu_milli=1_000) for at, gpus in enumerate((8, 4, 4)))
JOBS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 40), st.sampled_from((1, 2, 4, 8, 12, 16))), min_size=1, max_size=8
)
"""(minute of submission, minutes, GPUs): 16 GPUs are two nodes of 8, and there is one, so that one waits on."""
DAY_MINUTES = 24 * 60


def figures(asked: TraceRun) -> dict[str, Any]:
    """Return all figures of a run but those of the machine, and the closed form that needs faults."""
    occupancy = occupancy_for(asked)
    outcome = simulate_trace(asked, occupancy.fold)
    left_out = ("self_cost", "forecast")
    found = {name: value for name, value in outcome_json(outcome, occupancy).items() if name not in left_out}
    return found | {"jobs": [asdict(job) for job in outcome.histories], "bars": occupancy.bars}


@given(order=st.sampled_from(ORDERS), jobs=JOBS, days=st.lists(st.integers(2, 400), max_size=4, unique=True))
def test_faults_that_hit_no_job_change_no_figure(order: str, jobs: list[tuple[int, int, int]], days: list[int]) -> None:
    """A run went on to the last row of a record of 348 days, and its means were those of an empty cluster."""
    asked = run(recorded(*sorted(jobs)), NODES, order)
    outages = tuple(
        Outage(node="n1", from_ms=from_ms, known_ms=from_ms, until_ms=from_ms + 60 * MINUTE_MS)
        for from_ms in (day * DAY_MINUTES * MINUTE_MS for day in sorted(days))
    )
    assert figures(replace(asked, faults=Faults(outages=outages))) == figures(asked)


def gangs_with_room(jobs: list[tuple[int, int, int]], faults: Faults) -> list[int]:
    """Return the GPUs of the largest gang that had room at each sample."""
    asked = run(recorded(*jobs), NODES, "easy", faults=faults)
    occupancy = occupancy_for(asked)
    simulate_trace(asked, occupancy.fold)
    return [largest_gang(nodes) for _, nodes in occupancy.samples]


@given(lost=st.sampled_from(("n0", "n1", "n2")), from_minute=st.integers(1, 50), spares=st.integers(0, 2))
def test_losing_a_node_never_enlarges_the_largest_gang(lost: str, from_minute: int, spares: int) -> None:
    """Lost nodes and spares counted as idle room. The only jobs need no GPU that is lost: they take no time."""
    jobs = [(minute, 0, 1) for minute in (0, 30, 60)]
    from_ms, until_ms = from_minute * MINUTE_MS, (from_minute + 15) * MINUTE_MS
    outage = Outage(node=lost, from_ms=from_ms, known_ms=from_ms, until_ms=until_ms)
    whole, part = gangs_with_room(jobs, Faults()), gangs_with_room(jobs, Faults(outages=(outage,), spares=spares))
    assert len(whole) == len(part)
    assert all(less <= more for less, more in zip(part, whole, strict=True))
    if not spares and lost == "n0":
        assert (max(whole), min(part)) == (12, 8)
    if spares == 2:
        assert max(part) == 8


@pytest.mark.parametrize("order", ORDERS)
def test_jobs_of_no_duration_are_in_every_n(order: str) -> None:
    """Two of these four jobs were left out of the first starts and of fairness, where openb has hundreds of them."""
    outcome = simulate_trace(run(recorded((0, 1, 8), (0, 0, 8), (1, 0, 4), (9, 5, 1)), NODES[:1], order))
    assert outcome.goodput is not None
    card = outcome.card
    summaries = (card.jct_ms, card.queueing_ms, card.first_start_ms, card.starvation_ms, card.finish_time_fairness)
    assert [each.n for each in (*summaries, *card.slowdown.values(), outcome.goodput.ettr_by_job)] == [4] * 8
