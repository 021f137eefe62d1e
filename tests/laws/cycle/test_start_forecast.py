"""Forecast starts against the scheduler itself, and those far back in the queue against their simulation."""

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.core.forecast.later_starts import later_starts
from ganger.core.forecast.start_forecast import StartForecasts
from ganger.core.queue_order.policy_interface import Policy
from ganger.model import event as e
from ganger.model.units import MINUTE_MS
from ganger.policies import dynamic, easy, fifo, strict_fifo
from tests.examples import examples
from tests.pictures.film import Film

NODES = 3


@dataclass(frozen=True)
class Job:
    """A job on whole nodes."""

    nodes: int
    minutes: int
    adapters: int = 0

    def token(self, name: str) -> str:
        """Return it as a film submits it."""
        gpus = f"1,hca={self.adapters}" if self.adapters else 2
        return f"{name}:{self.nodes}x{gpus},time={self.minutes}m"


JOBS = st.lists(st.builds(Job, st.integers(1, NODES), st.integers(1, 9)), min_size=1, max_size=9)
ON_ADAPTERS = st.lists(
    st.builds(Job, st.integers(1, NODES), st.integers(1, 9), st.integers(2, 3)), min_size=1, max_size=9
)
"""Jobs of which no node takes two, for it has three adapters; of its two GPUs each leaves one."""
IN_USE = "n1:AA n2:AA n3:BB A,time=4m B,time=7m"
ADAPTERS_IN_USE = "n1:A.,hca=3 n2:A.,hca=3 n3:B.,hca=3 A,time=4m,hca=2 B,time=7m,hca=3"


def _film(policy: Policy, jobs: list[Job], in_use: str = IN_USE) -> Film:
    """Return a cluster in use, with all jobs pending."""
    film = Film(policy, in_use, "")
    for index, job in enumerate(jobs):
        film.do(job.token(f"J{index}"))
    film.run_cycles()
    return film


def _forecast_ms(film: Film) -> dict[str, int | None]:
    forecasts = StartForecasts(film.state, film.policy, film.now_ms)
    film.state.validate()
    pending = (gang for members in film.state.pending.classes.values() for gang in members)
    return {gang.id: forecasts.of(gang).expected_ms for gang in pending}


def _starts_ms(film: Film) -> dict[str, int]:
    """Let every job run for its limit; return when each started."""
    starts_ms: dict[str, int] = {}
    ends: list[tuple[int, str]] = []
    while True:
        for gang in film.state.gangs.values():
            if gang.attempt.start is not None and gang.id not in starts_ms:
                starts_ms[gang.id] = gang.attempt.began_ms
                heappush(ends, (gang.attempt.began_ms + (gang.time_ms or 0), gang.id))
        if not ends:
            return starts_ms
        film.now_ms = ends[0][0]
        while ends and ends[0][0] == film.now_ms:
            gang = film.state.gangs[heappop(ends)[1]]
            for kind in (e.Finished, e.Cleared):
                film.apply(kind(gang=gang.id, generation=gang.attempt.generation, nodes=gang.nodes))
        film.run_cycles()


@examples(gate=8)
@given(JOBS)
def test_in_strict_order_all_jobs_on_whole_nodes_start_when_forecast(jobs: list[Job]) -> None:
    film = _film(strict_fifo, jobs)
    forecast_ms = _forecast_ms(film)
    starts_ms = _starts_ms(film)
    assert forecast_ms == {name: starts_ms[name] for name in forecast_ms}


@examples(gate=8)
@given(ON_ADAPTERS)
def test_so_do_jobs_that_wait_for_other_resources_of_nodes_alone(jobs: list[Job]) -> None:
    film = _film(strict_fifo, jobs, ADAPTERS_IN_USE)
    forecast_ms = _forecast_ms(film)
    starts_ms = _starts_ms(film)
    assert forecast_ms == {name: starts_ms[name] for name in forecast_ms}


@pytest.mark.parametrize("policy", [fifo, easy, dynamic], ids=lambda policy: policy.NAME)
@examples(gate=8)
@given(JOBS)
def test_the_first_job_starts_when_forecast(policy: Policy, jobs: list[Job]) -> None:
    # Those behind it may start on either of two nodes that become free at one time, which decides about later ones.
    film = _film(policy, jobs)
    forecast_ms = _forecast_ms(film)
    assert forecast_ms["J0"] == _starts_ms(film)["J0"]


@given(st.lists(st.integers(1, 9), min_size=2, max_size=9))
def test_jobs_on_all_nodes_start_far_back_as_simulated(minutes: list[int]) -> None:
    film = _film(fifo, [Job(NODES, length) for length in minutes])
    forecasts = StartForecasts(film.state, fifo, film.now_ms)
    first, *others = (gang for members in film.state.pending.classes.values() for gang in members)
    first, *others = sorted((first, *others), key=lambda gang: gang.number)
    begin_ms = (forecasts.of(first).expected_ms or 0) + minutes[0] * MINUTE_MS
    later = later_starts(film.state, fifo, film.now_ms, np.array([first.number]), begin_ms)
    for gang in others:
        # Parts of the cluster are floats.
        assert abs(later.of(gang) - (forecasts.of(gang).expected_ms or 0)) <= 1
