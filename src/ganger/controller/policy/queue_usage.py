"""Recorded usage of a queue and run times of its jobs, as text in `status.usage` of its object.

It is what the state has of the queue, so a successor orders jobs as the previous controller would have. It is validated
strictly, as it may have been edited: figures in the future would hold back a user forever.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ganger.core.queues.fair_share import REMEMBERED, DecayedUsage, recut_usage
from ganger.core.queues.node_time import NodeTimeRecord, NodeTimeUsage
from ganger.core.queues.quota import Vector
from ganger.core.queues.share_bounds import ZERO_VECTOR
from ganger.core.state.runtime_estimate import ESTIMATE_SAMPLES, MAX_SAMPLES, MAX_SIZES, RunTimes
from ganger.core.state.state import State
from ganger.engine.eventlog.codec import adapter
from ganger.model.queue import ROOT
from ganger.model.units import DAY_MS, HOUR_MS

MAX_BYTES: Final = 768 * 1024
"""Maximum in one object, whose limit is 1.5 MiB."""
_LIMITS: Final = (
    (MAX_SAMPLES, 2 * REMEMBERED, 367),
    (ESTIMATE_SAMPLES, 2 * REMEMBERED, 367),
    (8, 2 * REMEMBERED, 93),
    (0, 8, 31),
)
"""Numbers of run times per job kind, of half-lives, and of days of node time to keep: the first that fit."""
CLOCK_SKEW_MS: Final = 60_000
"""Tolerated difference between the clocks of two machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Usage of one queue at a time, with the half-life that `decayed` is counted in.

    Attributes:
        failures: Of root: the failures of all gangs, and the node time in which they occurred.
    """

    at_ms: int
    half_life_ms: int
    decayed: tuple[DecayedUsage, ...] = ()
    runs: tuple[RunTimes, ...] = ()
    node_time: tuple[NodeTimeRecord, ...] = ()
    failures: tuple[int, int] = (0, 0)

    @property
    def figures(
        self,
    ) -> tuple[tuple[DecayedUsage, ...], tuple[RunTimes, ...], tuple[NodeTimeRecord, ...], tuple[int, int]]:
        """Everything but the time."""
        return self.decayed, self.runs, self.node_time, self.failures


def usage_of(state: State, queues: Container[str]) -> dict[str, Usage]:
    """Return the usage of each queue that was used.

    The usage of a queue without an object (not in `queues`) is recorded with root's for as long as its jobs keep it in
    force.
    """
    recorded_with = {name: name if name in queues else ROOT for name in state.tree.index}
    decayed, runs = dict[str, list[DecayedUsage]](), dict[str, list[RunTimes]]()
    node_time = dict[str, list[NodeTimeRecord]]()
    for usage in state.fair_shares.decayed_usage():
        decayed.setdefault(recorded_with.get(usage.queue, ROOT), []).append(usage)
    for run_times in state.history.runs():
        runs.setdefault(recorded_with.get(run_times.queue, run_times.queue), []).append(run_times)
    for record in state.tree.node_time.records(state.at_ms):
        node_time.setdefault(recorded_with.get(record.queue, ROOT), []).append(record)
    failures = (state.history.failures.failures, state.history.failures.node_ms)
    empty = Usage(at_ms=state.at_ms, half_life_ms=state.fair_shares.half_life_ms)
    return {
        name: replace(
            empty,
            decayed=tuple(decayed.get(name, ())),
            runs=tuple(runs.get(name, ())),
            node_time=tuple(node_time.get(name, ())),
            failures=failures if name == ROOT else (0, 0),
        )
        for name in state.tree.index
        if name in decayed or name in runs or name in node_time or (name == ROOT and any(failures))
    }


def encode(usage: Usage) -> str:
    """Return the usage as text, of very many users without what counts least."""
    text = ""
    for times, periods, days in _LIMITS:
        decayed = tuple(replace(item, periods=item.periods[-periods:]) for item in usage.decayed)
        runs = tuple(replace(item, times_ms=item.times_ms[-times:]) for item in usage.runs) if times else ()
        node_time = tuple(replace(record, days=record.days[-days:]) for record in usage.node_time)
        text = adapter(Usage).dump_json(replace(usage, decayed=decayed, runs=runs, node_time=node_time)).decode()
        if len(text) <= MAX_BYTES:
            break
    return text


def decode(text: str, queue: str, now_ms: int) -> Usage:
    """Return the usage of that queue. Raises ValueError, saying where, if the text is not valid."""
    usage = adapter(Usage).validate_json(text)
    if not 0 <= usage.at_ms <= now_ms + CLOCK_SKEW_MS or usage.half_life_ms < 1:
        raise ValueError(f"at_ms {usage.at_ms}, half_life_ms {usage.half_life_ms}: not a past time")
    owners = {*(item.queue for item in usage.decayed), *(item.queue for item in usage.runs)}
    if queue != ROOT and owners.union(item.queue for item in usage.node_time) - {queue}:
        raise ValueError(f"the usage belongs to another queue than {queue}")
    for item in usage.decayed:
        for period, amounts in item.periods:
            if (
                not 0 <= period * usage.half_life_ms < usage.at_ms
                or len(amounts) != len(ZERO_VECTOR)
                or min(amounts) < 0
            ):
                raise ValueError(f"decayed usage of {item.user}: {amounts} in half-life {period} is impossible")
    for runs in usage.runs:
        if not 0 < len(runs.times_ms) <= MAX_SAMPLES or min(runs.gpu_milli, *runs.times_ms) < 0:
            raise ValueError(f"runs of {runs.user}: invalid run times {runs.times_ms}")
    for record in usage.node_time:
        _check_node_time(record, usage.at_ms)
    if min(usage.failures) < 0:
        raise ValueError(f"failures {usage.failures}: less than none")
    if len({(item.queue, item.user) for item in usage.decayed}) != len(usage.decayed):
        raise ValueError("decayed usage: a user occurs twice")
    return usage


def _check_node_time(record: NodeTimeRecord, at_ms: int) -> None:
    """Raise ValueError for node time in the future, or less than none."""
    for length_ms, buckets in ((HOUR_MS, record.hours), (DAY_MS, record.days)):
        for bucket, amount in buckets:
            if not 0 <= bucket * length_ms <= at_ms or amount < 0:
                raise ValueError(f"node time of {record.user}: {amount} in bucket {bucket} is impossible")


def current_node_time(usages: Iterable[Usage], queues: Container[str]) -> list[NodeTimeRecord]:
    """Return the node time of all usage; that of deleted queues is root's."""
    sums = NodeTimeUsage()
    for record in (record for usage in usages for record in usage.node_time):
        sums.restore(record if record.queue in queues else replace(record, queue=ROOT))
    return sums.records(0)


def current_usage(usages: Iterable[Usage], half_life_ms: int, queues: Container[str]) -> list[DecayedUsage]:
    """Return the sum of all usage, converted to the current half-life; that of deleted queues is root's."""
    all_usage = list[DecayedUsage]()
    for usage in usages:
        if usage.half_life_ms == half_life_ms:
            all_usage += usage.decayed
        else:
            all_usage += recut_usage(usage.decayed, usage.half_life_ms, half_life_ms, usage.at_ms)
    sums = dict[tuple[str, str], dict[int, Vector]]()
    for item in all_usage:
        periods = sums.setdefault((item.queue if item.queue in queues else ROOT, item.user), {})
        for period, (gpus, cpus, memory) in item.periods:
            total = periods.get(period, ZERO_VECTOR)
            periods[period] = (total[0] + gpus, total[1] + cpus, total[2] + memory)
    return [
        DecayedUsage(queue=queue, user=user, periods=tuple(sorted(periods.items())))
        for (queue, user), periods in sums.items()
    ]


def known_run_times(usages: Mapping[str, Usage]) -> tuple[RunTimes, ...]:
    """Return all run times; of a user no more job kinds than are ever known, as objects are not written at one time."""
    by_user = dict[str, list[RunTimes]]()
    for name in sorted(usages):
        for runs in usages[name].runs:
            by_user.setdefault(runs.user, []).append(runs)
    return tuple(runs for of_user in by_user.values() for runs in of_user[-MAX_SIZES:])
