"""The scorecard against a walk over every tick of small drawn runs, and against figures known by hand."""

from dataclasses import replace
from fractions import Fraction
from math import isclose

from hypothesis import given
from hypothesis import strategies as st

from ganger.backends.simulator.scorecard import TAU_MS, History, Scorecard, Summary, alone_ms, jain, score, summary

TENANTS = ("ada", "ben", "cyd")
TICK_MS = 100_000
"""Runs are drawn, and walked over, in ticks: long enough for jobs on either side of both taus."""


@st.composite
def histories(draw: st.DrawFn) -> History:
    """A job of a run of some 40 ticks: waits, runs now and then, and may end, be cancelled, or neither."""
    submitted_ms = draw(st.integers(0, 15))
    moments = sorted(draw(st.sets(st.integers(submitted_ms, 40), max_size=6)))
    running = tuple(zip(moments[0:-1:2], moments[1::2], strict=True)) if len(moments) > 1 else ()
    latest_ms = running[-1][1] if running else submitted_ms
    return History(
        tenant=draw(st.sampled_from(TENANTS)),
        gpu_milli=draw(st.sampled_from([250, 1000, 4000])),
        submitted_ms=submitted_ms,
        duration_ms=draw(st.integers(1, 30)),
        running=running,
        ended_ms=draw(st.sampled_from([None, latest_ms, latest_ms + 3])),
        alone_ms=draw(st.sampled_from([None, 1, 7, 20])),
    )


def in_ms(job: History) -> History:
    """A job that was drawn in ticks."""
    return replace(
        job,
        submitted_ms=job.submitted_ms * TICK_MS,
        duration_ms=job.duration_ms * TICK_MS,
        running=tuple((start * TICK_MS, end * TICK_MS) for start, end in job.running),
        ended_ms=None if job.ended_ms is None else job.ended_ms * TICK_MS,
        alone_ms=None if job.alone_ms is None else job.alone_ms * TICK_MS,
    )


ENTITLED = {"ada": 1, "ben": 2, "cyd": 0}
capacities = st.dictionaries(st.integers(0, 30), st.integers(0, 12).map(lambda gpus: 1000 * gpus), max_size=3).map(
    lambda steps: sorted(({0: 12_000} | steps).items())
)


def close(got: float | None, wanted: Fraction | int | None) -> bool:
    return got is wanted if wanted is None or got is None else isclose(got, wanted)


def part(some: int, of: int) -> Fraction | None:
    return Fraction(some, of) if of else None


def runs(job: History, tick: int) -> bool:
    return any(start <= tick < end for start, end in job.running)


def waits(job: History, tick: int) -> bool:
    return job.submitted_ms <= tick and (job.ended_ms is None or tick < job.ended_ms) and not runs(job, tick)


def middle(values: list[Fraction], percent: int) -> Fraction | None:
    """The first of the sorted values that more than so many percent of them reach up to."""
    return next((value for at, value in enumerate(sorted(values)) if 100 * (at + 1) > percent * len(values)), None)


def agrees(got: Summary, values: list[Fraction]) -> bool:
    mean = sum(values, Fraction()) / len(values) if values else None
    percentiles = zip((got.p50, got.p95, got.p99), (50, 95, 99), strict=True)
    return (
        got.n == len(values)
        and close(got.mean, mean)
        and all(close(value, middle(values, percent)) for value, percent in percentiles)
    )


def scored(jobs: list[History], capacity: list[tuple[int, int]]) -> Scorecard:
    return score([in_ms(job) for job in jobs], [(at * TICK_MS, milli) for at, milli in capacity], ENTITLED)


@given(st.lists(histories(), max_size=5), capacities)
def test_waiting_is_what_a_walk_over_the_run_says(jobs: list[History], capacity: list[tuple[int, int]]) -> None:
    card = scored(jobs, capacity)
    jct, queueing, starts, rho = [], [], [], []
    slow: dict[int, list[Fraction]] = {tau_ms: [] for tau_ms in TAU_MS}
    for job in jobs:
        ran = [tick for tick in range(100) if runs(job, tick)]
        starts += [Fraction(tick - job.submitted_ms) * TICK_MS for tick in ran[:1]]
        if job.ended_ms is not None:
            jct_ms = Fraction(job.ended_ms - job.submitted_ms) * TICK_MS
            jct.append(jct_ms)
            queueing.append(jct_ms - len(ran) * TICK_MS)
            rho += [jct_ms / (job.alone_ms * TICK_MS)] if job.alone_ms else []
            for tau_ms, values in slow.items():
                values.append(max(Fraction(1), jct_ms / max(job.duration_ms * TICK_MS, tau_ms)))
    assert card.jobs == len(jobs)
    assert agrees(card.jct_ms, jct)
    assert agrees(card.queueing_ms, queueing)
    assert agrees(card.first_start_ms, starts)
    assert all(agrees(card.slowdown[tau_ms], values) for tau_ms, values in slow.items())
    assert agrees(card.finish_time_fairness, rho)
    assert close(card.worst_fairness, max(rho, default=None))
    assert close(card.unfair, part(sum(value > Fraction(105, 100) for value in rho), len(rho)))


@given(st.lists(histories(), max_size=5), capacities)
def test_use_is_what_a_walk_over_the_run_says(jobs: list[History], capacity: list[tuple[int, int]]) -> None:
    card = scored(jobs, capacity)
    first = min((job.submitted_ms for job in jobs), default=0)
    last_submitted = max((job.submitted_ms for job in jobs), default=0)
    ends = [end for job in jobs for _, end in job.running]
    done = [job.ended_ms for job in jobs if job.ended_ms is not None]

    def used(tick: int) -> int:
        return sum(job.gpu_milli for job in jobs if runs(job, tick))

    def there(tick: int) -> int:
        return [milli for at, milli in capacity if at <= tick][-1]

    def possible(tick: int) -> int:
        return min(there(tick), used(tick) + sum(job.gpu_milli for job in jobs if waits(job, tick)))

    whole, submitting = range(first, max([*ends, *done, last_submitted])), range(first, last_submitted)
    assert close(card.allocation, part(sum(map(used, whole)), sum(map(there, whole))))
    assert close(card.allocation_in_submission, part(sum(map(used, submitting)), sum(map(there, submitting))))
    assert close(card.occupancy, part(sum(map(used, whole)), sum(map(possible, whole))))
    assert card.makespan_ms == ((max(done) - first) * TICK_MS if done else None)
    got = {who: sum(job.gpu_milli for tick in range(100) for job in jobs if job.tenant == who and runs(job, tick))
           for who in TENANTS}  # fmt: skip
    ada, ben = Fraction(got["ada"]), Fraction(got["ben"], 2)
    assert close(card.jain, (ada + ben) ** 2 / (2 * (ada**2 + ben**2)) if ada or ben else None)


def test_a_run_known_by_hand() -> None:
    """Two GPUs for 100 s: one job has both for 60 s, one is preempted and waits 70 s in all, one asks in vain."""
    jobs = [
        History(tenant="ada", gpu_milli=2000, submitted_ms=0, duration_ms=60_000, running=((10_000, 70_000),),
                ended_ms=70_000, alone_ms=alone_ms_of(2000, 60_000)),
        History(tenant="ben", gpu_milli=1000, submitted_ms=0, duration_ms=30_000,
                running=((0, 10_000), (80_000, 100_000)), ended_ms=100_000, alone_ms=alone_ms_of(1000, 30_000)),
        History(tenant="ben", gpu_milli=500, submitted_ms=50_000, duration_ms=5_000),
    ]  # fmt: skip
    card = score(jobs, [(0, 2000)], {"ada": 1, "ben": 1})
    assert card.jct_ms == Summary(2, 85_000, 100_000, 100_000, 100_000)
    assert card.queueing_ms == Summary(2, 40_000, 70_000, 70_000, 70_000)
    assert card.first_start_ms == Summary(2, 5_000, 10_000, 10_000, 10_000)
    assert card.slowdown[600_000].mean == 1
    assert (card.makespan_ms, card.allocation, card.allocation_in_submission) == (100_000, 0.75, 0.9)
    assert card.occupancy == 150 / (70 * 2 + 30 * 1.5)
    assert card.jain == 150**2 / (2 * (120**2 + 30**2))
    assert (card.worst_fairness, card.unfair) == (100 / 30, 0.5)


def alone_ms_of(gpu_milli: int, duration_ms: int) -> int:
    job = History(tenant="x", gpu_milli=gpu_milli, submitted_ms=0, duration_ms=duration_ms)
    return alone_ms(job, capacity_milli=2000, sharers=2)


def test_alone_a_job_has_its_part_of_the_cluster() -> None:
    assert (alone_ms_of(1000, 30_000), alone_ms_of(2000, 60_000), alone_ms_of(500, 7)) == (30_000, 120_000, 7)
    assert alone_ms_of(1001, 1_000) == 1_001


def test_percentiles_are_those_of_the_pool_reference() -> None:
    """p99 is the element floor(0.99 n) of the sorted values."""
    assert summary(range(100, 0, -1)) == Summary(100, 50.5, 51, 96, 100)
    assert summary([7]) == Summary(1, 7, 7, 7, 7)
    assert summary([]) == Summary(0)


def test_jain_knows_its_ends() -> None:
    assert (jain([3, 3, 3]), jain([1, 0, 0, 0]), jain([]), jain([0, 0])) == (1, 0.25, None, None)
