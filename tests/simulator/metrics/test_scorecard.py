"""The scorecard, compared with a walk over every tick of small drawn runs, and with figures computed by hand."""

import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import isclose

from hypothesis import given
from hypothesis import strategies as st

from ganger.simulation.metrics.fairness import jain
from ganger.simulation.metrics.run_history import JobHistory, Summary, summary
from ganger.simulation.metrics.scorecard import TAU_MS, Scorecard, score

TENANTS = ("ada", "ben", "cyd")
TICK_MS = 100_000
"""Runs are drawn, and walked over, in ticks: long enough for jobs on either side of both taus."""


@st.composite
def histories(draw: st.DrawFn) -> JobHistory:
    """Draw a job of a run of some 40 ticks that waits, runs now and then, and may end, be cancelled, or neither."""
    submitted_ms = draw(st.integers(0, 15))
    moments = sorted(draw(st.sets(st.integers(submitted_ms, 40), max_size=6)))
    running = tuple(zip(moments[0:-1:2], moments[1::2], strict=True)) if len(moments) > 1 else ()
    latest_ms = running[-1][1] if running else submitted_ms
    return JobHistory(
        tenant=draw(st.sampled_from(TENANTS)),
        gpu_milli=draw(st.sampled_from([250, 1000, 4000])),
        submitted_ms=submitted_ms,
        duration_ms=draw(st.integers(0, 30)),
        running=running,
        ended_ms=draw(st.sampled_from([None, latest_ms, latest_ms + 3])),
        gone_ms=draw(st.sampled_from([None, latest_ms, latest_ms + 2])),
    )


def in_ms(job: JobHistory) -> JobHistory:
    """Return a job that was drawn in ticks with its times in ms."""
    return replace(
        job,
        submitted_ms=job.submitted_ms * TICK_MS,
        duration_ms=job.duration_ms * TICK_MS,
        running=tuple((start * TICK_MS, end * TICK_MS) for start, end in job.running),
        ended_ms=None if job.ended_ms is None else job.ended_ms * TICK_MS,
        gone_ms=None if job.gone_ms is None else job.gone_ms * TICK_MS,
    )


ENTITLED = {"ada": 1, "ben": 2, "cyd": 0}
capacities = st.dictionaries(st.integers(0, 30), st.integers(0, 12).map(lambda gpus: 1000 * gpus), max_size=3).map(
    lambda steps: sorted(({0: 12_000} | steps).items())
)


def close(got: float | None, wanted: Fraction | int | None) -> bool:
    return got is wanted if wanted is None or got is None else isclose(got, wanted)


def part(some: int, of: int) -> Fraction | None:
    return Fraction(some, of) if of else None


def runs(job: JobHistory, tick: int) -> bool:
    return any(start <= tick < end for start, end in job.running)


def waits(job: JobHistory, tick: int) -> bool:
    over = job.gone_ms if job.ended_ms is None else job.ended_ms
    return job.submitted_ms <= tick and (over is None or tick < over) and not runs(job, tick)


def there(capacity: list[tuple[int, int]], tick: int) -> int:
    return [milli for at, milli in capacity if at <= tick][-1]


def last_tick(jobs: list[JobHistory]) -> int:
    """Return when the last job was submitted, stopped running, ended or was stopped for good."""
    overs = [job.submitted_ms if job.over_ms is None else job.over_ms for job in jobs]
    return max([*overs, *(end for job in jobs for _, end in job.running)], default=0)


def fairness(job: JobHistory, jobs: list[JobHistory], capacity: list[tuple[int, int]]) -> list[Fraction]:
    """Return the finish-time fairness of a job that ended, computed tick by tick; nothing without GPUs."""
    assert job.ended_ms is not None
    stay = range(job.submitted_ms, job.ended_ms)
    beside = sum(runs(each, tick) or waits(each, tick) for tick in stay for each in jobs)
    gpus = sum(there(capacity, tick) for tick in stay)
    if not job.duration_ms and not stay:
        return [Fraction(1)]
    if not gpus:
        return []
    part, added = Fraction(gpus, beside), Fraction(0 if job.duration_ms else 1000, TICK_MS)
    return [(len(stay) + added) / ((job.duration_ms + added) * max(Fraction(1), job.gpu_milli / part))]


def middle(values: list[Fraction], percent: int) -> Fraction | None:
    """Return the first of the sorted values at or below which more than so many per cent of them are."""
    return next((value for at, value in enumerate(sorted(values)) if 100 * (at + 1) > percent * len(values)), None)


def agrees(got: Summary, values: list[Fraction]) -> bool:
    mean = sum(values, Fraction()) / len(values) if values else None
    percentiles = zip((got.p50, got.p95, got.p99), (50, 95, 99), strict=True)
    return (
        got.n == len(values)
        and close(got.mean, mean)
        and all(close(value, middle(values, percent)) for value, percent in percentiles)
    )


def scored(jobs: list[JobHistory], capacity: list[tuple[int, int]]) -> Scorecard:
    return score([in_ms(job) for job in jobs], [(at * TICK_MS, milli) for at, milli in capacity], ENTITLED)


@given(st.lists(histories(), max_size=5), capacities)
def test_waiting_equals_a_walk_over_the_run(jobs: list[JobHistory], capacity: list[tuple[int, int]]) -> None:
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
            rho += fairness(job, jobs, capacity)
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
def test_use_equals_a_walk_over_the_run(jobs: list[JobHistory], capacity: list[tuple[int, int]]) -> None:
    card = scored(jobs, capacity)
    first = min((job.submitted_ms for job in jobs), default=0)
    last_submitted = max((job.submitted_ms for job in jobs), default=0)
    ends = [end for job in jobs for _, end in job.running]
    done = [over for job in jobs if (over := job.over_ms) is not None]
    ended = [job.ended_ms for job in jobs if job.ended_ms is not None]

    def used(tick: int) -> int:
        return sum(job.gpu_milli for job in jobs if runs(job, tick))

    def possible(tick: int) -> int:
        return min(there(capacity, tick), used(tick) + sum(job.gpu_milli for job in jobs if waits(job, tick)))

    whole, submitting = range(first, max([*ends, *done, last_submitted])), range(first, last_submitted)
    assert close(card.allocation, part(sum(map(used, whole)), sum(there(capacity, tick) for tick in whole)))
    assert close(
        card.allocation_in_submission,
        part(sum(map(used, submitting)), sum(there(capacity, tick) for tick in submitting)),
    )
    assert close(card.occupancy, part(sum(map(used, whole)), sum(map(possible, whole))))
    assert card.makespan_ms == ((max(ended) - first) * TICK_MS if ended else None)
    got = {who: sum(job.gpu_milli for tick in range(100) for job in jobs if job.tenant == who and runs(job, tick))
           for who in TENANTS}  # fmt: skip
    ada, ben = Fraction(got["ada"]), Fraction(got["ben"], 2)
    assert close(card.jain, (ada + ben) ** 2 / (2 * (ada**2 + ben**2)) if ada or ben else None)


@given(st.lists(histories(), max_size=5), capacities)
def test_fairness_equals_a_walk_over_the_run(jobs: list[JobHistory], capacity: list[tuple[int, int]]) -> None:
    card = scored(jobs, capacity)
    ticks, longest = range(last_tick(jobs)), []
    for job in jobs:
        stretch, most = 0, 0
        for tick in ticks:
            stretch = stretch + 1 if waits(job, tick) else 0
            most = max(most, stretch)
        longest.append(Fraction(most * TICK_MS))
    assert agrees(card.starvation_ms, longest)
    assert close(card.longest_starvation_ms, max(longest, default=None))

    def amount(who: str, tick: int, is_so: Callable[[JobHistory, int], bool]) -> int:
        return sum(job.gpu_milli for job in jobs if job.tenant == who and is_so(job, tick))

    debts, dues = [], []
    for who, weight in (("ada", 1), ("ben", 2)):
        debt = due = Fraction()
        for tick in ticks:
            had, waited = amount(who, tick, runs), amount(who, tick, waits)
            wanted = min(Fraction(weight * there(capacity, tick), 3), Fraction(had + waited))
            debt, due = debt + max(Fraction(), wanted - had) * TICK_MS, due + wanted * TICK_MS
        debts.append(debt)
        dues.append(due)
    assert agrees(card.quota_debt_gpu_us, debts)
    assert close(card.quota_debt_share, sum(debts) / sum(dues) if sum(dues) else None)


def test_twice_as_many_jobs_need_no_more_than_twice_the_calls() -> None:
    def calls(many: int) -> int:
        jobs = [
            JobHistory(tenant=f"u{at % 20}", gpu_milli=1000 * (1 + at % 8), submitted_ms=1000 * at, duration_ms=90_000,
                    running=((5000 * at, 5000 * at + 90_000),), ended_ms=5000 * at + 90_000)
            for at in range(many)
        ]  # fmt: skip
        counted = 0

        def count(_frame: object, event: str, _what: object) -> None:
            nonlocal counted
            counted += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            score(jobs, [(at * 50_000, 64_000) for at in range(100)], {f"u{at}": 1 for at in range(20)})
        finally:
            sys.setprofile(before)
        return counted

    assert calls(2_000) < 2.1 * calls(1_000)


def test_a_run_known_by_hand() -> None:
    """On two GPUs for 100 s, one job has both for 60 s, one is preempted and waits 70 s in all, one never starts."""
    jobs = [
        JobHistory(tenant="ada", gpu_milli=2000, submitted_ms=0, duration_ms=60_000, running=((10_000, 70_000),),
                ended_ms=70_000),
        JobHistory(tenant="ben", gpu_milli=1000, submitted_ms=0, duration_ms=30_000,
                running=((0, 10_000), (80_000, 100_000)), ended_ms=100_000),
        JobHistory(tenant="ben", gpu_milli=500, submitted_ms=50_000, duration_ms=5_000),
    ]  # fmt: skip
    card = score(jobs, [(0, 2000)], {"ada": 1, "ben": 1})
    assert card.jct_ms == Summary(2, 85_000, 100_000, 100_000, 100_000)
    assert card.queueing_ms == Summary(2, 40_000, 70_000, 70_000, 70_000)
    assert card.first_start_ms == Summary(2, 5_000, 10_000, 10_000, 10_000)
    assert card.slowdown[600_000].mean == 1
    assert (card.makespan_ms, card.allocation, card.allocation_in_submission) == (100_000, 0.75, 0.9)
    assert card.occupancy == 150 / (70 * 2 + 30 * 1.5)
    assert card.jain == 150**2 / (2 * (120**2 + 30**2))
    # Beside the first there were 2 jobs, and 3 from 50 s on: 160 job-seconds in 70 s, so its part is 140 / 160 GPUs.
    # Beside the second there were 2.2 in the mean.
    assert card.finish_time_fairness.p50 == card.worst_fairness == 100 / 33
    assert card.finish_time_fairness.mean == (70 / (60 * 2 / (140 / 160)) + 100 / 33) / 2
    assert card.unfair == 0.5
    # Half of the GPUs each: ann waits 10 s for one, the other has none from 10 to 80 s, which both of its jobs ask for.
    assert (card.quota_debt_gpu_us.n, card.quota_debt_gpu_us.mean) == (2, 1000 * (10_000 + 70_000) / 2)
    assert card.quota_debt_share == 80 / (70 + 100)
    assert (card.starvation_ms.n, card.longest_starvation_ms) == (3, 70_000)


def test_percentiles_are_those_of_the_pool_reference() -> None:
    """The p99 is the element floor(0.99 n) of the sorted values."""
    assert summary(range(100, 0, -1)) == Summary(100, 50.5, 51, 96, 100)
    assert summary([7]) == Summary(1, 7, 7, 7, 7)
    assert summary([]) == Summary(0)


def test_bounds_of_jains_index() -> None:
    assert (jain([3, 3, 3]), jain([1, 0, 0, 0]), jain([]), jain([0, 0])) == (1, 0.25, None, None)
