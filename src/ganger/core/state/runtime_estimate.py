"""Estimates learned from what has happened: of run times without a limit, and of the errors of forecast starts.

Run times come from those of the user's ended jobs.

Of each user the last MAX_SAMPLES run times of similar jobs are known: same queue, same number of GPUs. A gang is
estimated at the 90th percentile of the newest ESTIMATE_SAMPLES (nearest rank, in whole minutes); with fewer than
MIN_SAMPLES of them, at that of all the user's jobs; with too few of these too, it has no estimate and counts as running
for ever. Forecasts of starts draw from all samples: jobs come in batches that run for about the same time, so that the
newest say how long the last batch took, and not what a queue of several is going to take. Only jobs that
succeeded or reached their limit count: how long a failed or stopped one ran says nothing about the next. An estimate is
no limit: no job is stopped for it.

Sources: D. Tsafrir, Y. Etsion, D. Feitelson, "Backfilling Using System-Generated Predictions Rather than User Runtime
Estimates" (2007): a user's own last jobs predict best, and a prediction that is outlived is corrected upwards. A high
quantile instead of their average, since a gang with a reservation waits for those that run longer; extended by half the
age, since long run times tend to go on for long (M. Harchol-Balter, A. Downey, 1997).

Forecasts of starts (`core.forecast`) are recorded now and then, and compared with the starts that follow.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from ganger.core.queues.quota import need
from ganger.core.state.node_repairs import NodeRepairs
from ganger.core.state.time_accounting import FailureRecord
from ganger.model.decision import StartForecast
from ganger.model.job import Job
from ganger.model.shape import Shape
from ganger.model.units import MINUTE_MS

NEVER_MS: Final = 1 << 62
"""A time, or a duration, beyond all others."""
MAX_SAMPLES: Final = 256
"""Run times kept of similar jobs, which forecasts of starts draw from."""
ESTIMATE_SAMPLES: Final = 32
"""The newest of them, which an estimate is made from."""
MAX_SIZES: Final = 16
"""Kinds of jobs of which a user's run times are kept; the one without an end for longest is forgotten first."""
MIN_SAMPLES: Final = 5
"""Run times required for an estimate."""
PERCENT: Final = 90
STEP_MS: Final = 10 * MINUTE_MS
"""The minimum extension of an estimate that a job has outlived."""

FORECAST_EVENTS: Final = 256
"""Events between two recorded forecasts, beside one for each pending gang: what they cost grows with the gangs."""
MAX_ERRORS: Final = 512
"""Errors of forecasts that are kept, the newest ones."""

SizeKey = tuple[str, int]
"""(queue, thousandths of GPUs in all)"""


Preemption = tuple[str, int]
"""(queue of the preempted gang, Unix ms)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimes:
    """Times for which a user's last similar jobs held nodes over all attempts, in the order in which they ended."""

    user: str
    queue: str
    gpu_milli: int
    times_ms: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryImage:
    """Stored form of a `RunTimeHistory`, ordered by last end among the run times of a user."""

    run_times: tuple[RunTimes, ...] = ()
    failures: int = 0
    failure_node_ms: int = 0
    repairs: NodeRepairs = NodeRepairs()
    preemptions: tuple[Preemption, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRunTime:
    """Time for which a job without a limit is expected to hold nodes, over all attempts.

    of: the number of the user's jobs that the estimate is based on.
    alike: these have its queue and size.
    outlived: it ran longer than estimated, and this is extended from its age.
    """

    run_ms: int
    of: int
    alike: bool
    outlived: bool = False


class RunTimeHistory:
    """Run times by user and size, and the waiting gangs that are estimated from them; what befell gangs and nodes.

    failures: of all gangs.
    repairs: how long lost nodes were away.
    preemptions: those by a rule within the last hour.
    """

    def __init__(self, image: HistoryImage | None = None) -> None:
        """Take over the image, with no gang waiting and none running."""
        image = image or HistoryImage()
        self.failures = FailureRecord(image.failures, image.failure_node_ms)
        self.repairs, self.preemptions = image.repairs, image.preemptions
        self._runs: dict[str, dict[SizeKey, tuple[int, ...]]] = {}
        self._waiting: dict[str, dict[SizeKey, dict[str, None]]] = {}
        self._estimates: dict[str, dict[SizeKey, ExpectedRunTime | None]] = {}
        self._drawn_from: dict[str, dict[SizeKey, list[int]]] = {}
        """Rising, made when first drawn from."""
        for sample in image.run_times:
            self._runs.setdefault(sample.user, {})[sample.queue, sample.gpu_milli] = sample.times_ms

    def image(self) -> HistoryImage:
        """Return the stored form."""
        record = self.failures
        return HistoryImage(
            run_times=self.runs(),
            failures=record.failures,
            failure_node_ms=record.node_ms,
            repairs=self.repairs,
            preemptions=self.preemptions,
        )

    def runs(self) -> tuple[RunTimes, ...]:
        """Return all run times."""
        return tuple(
            RunTimes(user=user, queue=queue, gpu_milli=gpu_milli, times_ms=times_ms)
            for user, sizes in self._runs.items()
            for (queue, gpu_milli), times_ms in sizes.items()
        )

    def copy(self) -> "RunTimeHistory":
        """Return an independent copy."""
        history = RunTimeHistory(self.image())
        history.failures = replace(self.failures)
        history._waiting = {
            user: {size: dict(names) for size, names in sizes.items()} for user, sizes in self._waiting.items()
        }
        return history

    def estimate(self, job: Job, shape: Shape, ran_ms: int) -> ExpectedRunTime | None:
        """Return the estimate for a job that has run for `ran_ms`; None if it has a limit or too little is known."""
        if job.spec.limits.time_ms is not None:
            return None
        expected = self._estimate(job.user, (job.spec.queue, need(shape)[0]))
        return extend_estimate(expected, ran_ms) if expected is not None and expected.run_ms <= ran_ms else expected

    def draw_ms(self, job: Job, shape: Shape, ran_ms: int, fraction: float) -> int | None:
        """Return the run time at a fraction of those known that exceed `ran_ms`; None if too little is known.

        With fractions that are spread evenly, many gangs run as long as the known ones did. An estimate at a high
        quantile is right for a reservation, but not for the work of a whole queue.
        """
        sizes, own = self._drawn_from.setdefault(job.user, {}), (job.spec.queue, need(shape)[0])
        if own not in sizes:
            sizes[own] = sorted(self._samples(job.user, own, MAX_SAMPLES))
        samples = sizes[own]
        if len(samples) < MIN_SAMPLES:
            return None
        longer = samples[bisect_right(samples, ran_ms) :]
        if not longer:
            return ran_ms + max(STEP_MS, ran_ms // 2)
        return longer[int(fraction * len(longer))]

    def learn(self, job: Job, shape: Shape, ran_ms: int) -> list[str]:
        """Add the run time of an ended job and return the ids of waiting gangs whose estimate changed."""
        sizes, own = self._runs.setdefault(job.user, {}), (job.spec.queue, need(shape)[0])
        waiting = self._waiting.get(job.user, {})
        before = {size: self._estimate(job.user, size) for size in waiting}
        sizes[own] = (*sizes.pop(own, ()), ran_ms)[-MAX_SAMPLES:]
        if len(sizes) > MAX_SIZES:
            del sizes[next(iter(sizes))]
        self._estimates.pop(job.user, None)
        self._drawn_from.pop(job.user, None)
        changed = (size for size in waiting if self._estimate(job.user, size) != before[size])
        return [name for size in changed for name in waiting[size]]

    def add_waiting(self, name: str, job: Job, shape: Shape) -> None:
        """Add a waiting gang, if it has no time limit."""
        if job.spec.limits.time_ms is None:
            sizes = self._waiting.setdefault(job.user, {})
            sizes.setdefault((job.spec.queue, need(shape)[0]), {})[name] = None

    def remove_waiting(self, name: str, job: Job, shape: Shape) -> None:
        """Remove a gang that no longer waits."""
        if job.spec.limits.time_ms is None:
            size = (job.spec.queue, need(shape)[0])
            sizes = self._waiting[job.user]
            del sizes[size][name]
            if not sizes[size]:
                del sizes[size]
            if not sizes:
                del self._waiting[job.user]

    def forget_waiting(self) -> None:
        """Forget all waiting gangs, and what running ones hold, before they are added again."""
        self._waiting = {}
        self.failures.nodes = self.failures.began_node_ms = 0

    def all_waiting(self) -> Iterator[tuple[str, SizeKey, str]]:
        """Iterate over (user, size, id) of the waiting gangs without a limit."""
        return ((user, size, name) for user, sizes in self._waiting.items() for size in sizes for name in sizes[size])

    def validate(self, rebuilt: "RunTimeHistory") -> None:
        """Raise AssertionError naming the difference from a history rebuilt from the same run times and gangs."""
        assert sorted(self.all_waiting()) == sorted(rebuilt.all_waiting()), "who waits without a limit differs"
        assert self.runs() == rebuilt.runs(), "run times differ"
        assert self.failures == rebuilt.failures, f"{self.failures} is not {rebuilt.failures}"
        assert all(len(sizes) <= MAX_SIZES for sizes in self._runs.values()), (
            "more kinds of a user are kept than may be"
        )
        assert all(0 < len(sample.times_ms) <= MAX_SAMPLES for sample in self.runs()), (
            "more run times are kept than may be"
        )
        for user, sizes in self._estimates.items():
            for size, expected in sizes.items():
                assert expected == self._computed(user, size), f"what is expected of {user}'s jobs differs"
        for user, drawn_from in self._drawn_from.items():
            for size, times_ms in drawn_from.items():
                assert times_ms == sorted(self._samples(user, size, MAX_SAMPLES)), f"{user}'s run times differ"

    def _estimate(self, user: str, size: SizeKey) -> ExpectedRunTime | None:
        if user not in self._runs:
            return None
        estimates = self._estimates.setdefault(user, {})
        if size not in estimates:
            estimates[size] = self._computed(user, size)
        return estimates[size]

    def _computed(self, user: str, size: SizeKey) -> ExpectedRunTime | None:
        similar, samples = self._runs[user].get(size, ()), self._samples(user, size, ESTIMATE_SAMPLES)
        if len(samples) < MIN_SAMPLES:
            return None
        longest_ms = sorted(samples)[(PERCENT * len(samples) + 99) // 100 - 1]
        return ExpectedRunTime(
            run_ms=-(-longest_ms // MINUTE_MS) * MINUTE_MS, of=len(samples), alike=len(similar) >= MIN_SAMPLES
        )

    def _samples(self, user: str, size: SizeKey, most: int) -> tuple[int, ...]:
        """Return the newest run times of the user's jobs of that size, or of each size while there are too few."""
        sizes = self._runs.get(user, {})
        similar = sizes.get(size, ())
        if len(similar) >= MIN_SAMPLES:
            return similar[-most:]
        return tuple(chain.from_iterable(times_ms[-most:] for times_ms in sizes.values()))


def extend_estimate(expected: ExpectedRunTime, ran_ms: int) -> ExpectedRunTime:
    """Return the estimate for a gang that outlived it: that it goes on for half of what it has run."""
    return replace(expected, run_ms=ran_ms + max(STEP_MS, ran_ms // 2), outlived=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedForecasts:
    """Forecasts of starts in their stored form.

    seq: the event with the newest of them; 0 before the first scheduling cycle.
    awaited: (gang, time of the forecast, forecast start) of gangs that are still pending.
    waits: (forecast wait, actual wait) of gangs that have started.
    """

    seq: int = 0
    awaited: tuple[tuple[str, int, int], ...] = ()
    waits: tuple[tuple[int, int], ...] = ()


class ForecastErrors:
    """Forecasts of starts that were recorded, and how long the gangs waited in the end."""

    def __init__(self, recorded: RecordedForecasts) -> None:
        """Restore the image."""
        self._seq = recorded.seq
        self._awaited: dict[str, list[tuple[int, int]]] = {}
        for name, at_ms, start_ms in recorded.awaited:
            self._awaited.setdefault(name, []).append((at_ms, start_ms))
        self._waits = list(recorded.waits)

    def image(self) -> RecordedForecasts:
        """Return what a snapshot keeps."""
        awaited = tuple((name, *forecast) for name, forecasts in self._awaited.items() for forecast in forecasts)
        return RecordedForecasts(seq=self._seq, awaited=awaited, waits=tuple(self._waits))

    def is_due(self, seq: int, pending: int) -> bool:
        """Return whether forecasts are to be recorded again with the next cycle."""
        return self._seq > 0 and seq - self._seq >= FORECAST_EVENTS + pending

    def record(self, forecasts: Iterable[StartForecast], seq: int, at_ms: int) -> None:
        """Record forecasts that a cycle made, if it did, and note the first cycle of all."""
        for forecast in forecasts:
            self._awaited.setdefault(forecast.gang, []).append((at_ms, forecast.start_ms))
            self._seq = seq
        self._seq = self._seq or seq

    def score(self, name: str, at_ms: int) -> None:
        """Learn from the start of a gang."""
        for forecast_at_ms, start_ms in self._awaited.pop(name, ()):
            self._waits.append((start_ms - forecast_at_ms, at_ms - forecast_at_ms))
        del self._waits[:-MAX_ERRORS]

    def forget(self, name: str) -> None:
        """Forget the forecasts of a gang that was changed or ended while it was pending."""
        self._awaited.pop(name, None)

    def waits(self, now_ms: int) -> list[tuple[int, int]]:
        """Return (forecast wait, actual wait) of each; a gang that is late by now counts as if it started now."""
        late = [
            (start_ms - at_ms, now_ms - at_ms)
            for forecasts in self._awaited.values()
            for at_ms, start_ms in forecasts
            if start_ms < now_ms
        ]
        return self._waits + late
