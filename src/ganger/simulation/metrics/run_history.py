"""What became of a job in a run, simulated or recorded, and the summary of many figures. Pure: no clock, no file.

Made by `simulation.history_recorder` and its callers; every figure of a run is computed from it: `scorecard`,
`goodput`, `series`."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

NEVER_MS: Final = 1 << 62
"""After every moment of a run."""
Interval = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One time that a job had its nodes, from `began_ms` to `ended_ms`.

    first_ms: work that was kept of it before; kept_ms: and after, None where the job came to its good end; stopped_ms:
    when it was told to stop; failed_ms: since when a node of it was lost, and lost_ms: when the last such loss was
    known. preempted: it was stopped for another; moved: the one before was not on the same nodes; switches: in how many
    domains of the innermost level its nodes are, 0 where that is not known of all.
    """

    began_ms: int
    ended_ms: int
    nodes: int
    first_ms: int = 0
    kept_ms: int | None = None
    stopped_ms: int | None = None
    failed_ms: int | None = None
    lost_ms: int | None = None
    preempted: bool = False
    moved: bool = False
    switches: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What became of one job. `running`: from when to when, in order and apart; `ended_ms`: None where it never did;
    `gone_ms`: when one that did not end was stopped for good, None where it waits or runs yet; `duration_ms`: how long
    it runs by itself; `deadline_ms`: by when it should have ended; `attempts`: how each run of it went.
    """

    tenant: str
    gpu_milli: int
    submitted_ms: int
    duration_ms: int
    running: tuple[Interval, ...] = ()
    ended_ms: int | None = None
    gone_ms: int | None = None
    deadline_ms: int | None = None
    attempts: tuple[Attempt, ...] = ()

    @property
    def over_ms(self) -> int | None:
        """When nobody had to do with it any more."""
        return self.gone_ms if self.ended_ms is None else self.ended_ms

    @property
    def ran_ms(self) -> int:
        """How long it ran in all."""
        return sum(end_ms - begin_ms for begin_ms, end_ms in self.running)


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean and percentiles of `n` values: of the sorted ones p95 is the one at floor(0.95 n), counted from 0. None
    without any."""

    n: int
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


def summary(values: Iterable[float]) -> Summary:
    """How many there are, their mean and percentiles."""
    ordered = sorted(values)
    n = len(ordered)
    if not n:
        return Summary(0)
    p50, p95, p99 = (ordered[n * percent // 100] for percent in (50, 95, 99))
    return Summary(n, math.fsum(ordered) / n, p50, p95, p99)


def waited(job: History) -> Iterator[Interval]:
    """From when to when it waited: from its submission until it ended or was stopped for good, while it did not run.
    One that did neither waits for ever."""
    since_ms = job.submitted_ms
    for begin_ms, end_ms in job.running:
        if begin_ms > since_ms:
            yield since_ms, begin_ms
        since_ms = end_ms
    over_ms = NEVER_MS if job.over_ms is None else job.over_ms
    if over_ms > since_ms:
        yield since_ms, over_ms
