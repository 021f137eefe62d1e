"""What was used of a queue, and how long its jobs took, as text on its object: `status.usage`. Written by
`queue_figures`, read by `policy_objects` when a controller begins. Pure.

It is what the state has of it, so a successor orders jobs as whoever wrote it would have. What somebody changed by hand
is read strictly: figures of a time to come would keep a user back for ever.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from pydantic import TypeAdapter

from ganger.core.queues.fair_share import REMEMBERED, DecayedUsage, recut_usage
from ganger.core.queues.quota import Vector
from ganger.core.queues.share_bounds import ZERO_VECTOR
from ganger.core.state.runtime_estimate import KEPT, SIZES, RunTimes
from ganger.core.state.state import State
from ganger.model.queue import ROOT

MOST_BYTES: Final = 768 * 1024
"""What is kept in one object, whose limit is 1.5 MiB."""
_SHORTER: Final = ((KEPT, 2 * REMEMBERED), (8, 2 * REMEMBERED), (0, 8))
"""How many run times of jobs alike, and how many half-lives, are kept: the first that fit."""
AHEAD_MS: Final = 60_000
"""Clocks of two machines may differ by so much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Of one queue, at a time; half_life_ms: of which half-lives `spent` is."""

    at_ms: int
    half_life_ms: int
    spent: tuple[DecayedUsage, ...] = ()
    runs: tuple[RunTimes, ...] = ()

    @property
    def figures(self) -> tuple[tuple[DecayedUsage, ...], tuple[RunTimes, ...]]:
        """All but when that was."""
        return self.spent, self.runs


@cache
def _usage() -> TypeAdapter[Usage]:
    return TypeAdapter(Usage)


def usage_of(state: State, shown: Container[str]) -> dict[str, Usage]:
    """By queue, of those that were used. What was used of one whose object is gone, so that it is not `shown`, is kept
    with root's for as long as its jobs keep it in force."""
    homes = {name: name if name in shown else ROOT for name in state.tree.index}
    spent, runs = dict[str, list[DecayedUsage]](), dict[str, list[RunTimes]]()
    for each in state.standings.spent():
        spent.setdefault(homes.get(each.queue, ROOT), []).append(each)
    for known in state.history.runs():
        runs.setdefault(homes.get(known.queue, known.queue), []).append(known)
    when = Usage(at_ms=state.at_ms, half_life_ms=state.standings.half_life_ms)
    return {
        name: replace(when, spent=tuple(spent.get(name, ())), runs=tuple(runs.get(name, ())))
        for name in state.tree.index
        if name in spent or name in runs
    }


def encode(usage: Usage) -> str:
    """As text; of very many users shortened by what counts least."""
    text = ""
    for times, periods in _SHORTER:
        spent = tuple(replace(each, periods=each.periods[-periods:]) for each in usage.spent)
        runs = tuple(replace(each, times_ms=each.times_ms[-times:]) for each in usage.runs) if times else ()
        text = _usage().dump_json(replace(usage, spent=spent, runs=runs)).decode()
        if len(text) <= MOST_BYTES:
            break
    return text


def decode(text: str, queue: str, now_ms: int) -> Usage:
    """The usage of that queue again. ValueError: it is none; it says where."""
    usage = _usage().validate_json(text)
    if not 0 <= usage.at_ms <= now_ms + AHEAD_MS or usage.half_life_ms < 1:
        raise ValueError(f"at_ms {usage.at_ms}, half_life_ms {usage.half_life_ms}: no such time was yet")
    if queue != ROOT and ({each.queue for each in usage.spent} | {each.queue for each in usage.runs}) - {queue}:
        raise ValueError(f"it is of another queue than {queue}")
    for each in usage.spent:
        for period, amounts in each.periods:
            if (
                not 0 <= period * usage.half_life_ms < usage.at_ms
                or len(amounts) != len(ZERO_VECTOR)
                or min(amounts) < 0
            ):
                raise ValueError(f"spent of {each.user}: nobody can have used {amounts} in half-life {period}")
    for known in usage.runs:
        if not 0 < len(known.times_ms) <= KEPT or min(known.gpu_milli, *known.times_ms) < 0:
            raise ValueError(f"runs of {known.user}: no run times are {known.times_ms}")
    if len({(each.queue, each.user) for each in usage.spent}) != len(usage.spent):
        raise ValueError("spent: a user is there twice")
    return usage


def spent_by_now(found: Iterable[Usage], half_life_ms: int, queues: Container[str]) -> list[DecayedUsage]:
    """What was used of all these, in half-lives as they are now; of queues that are gone it is root's."""
    every = list[DecayedUsage]()
    for usage in found:
        if usage.half_life_ms == half_life_ms:
            every += usage.spent
        else:
            every += recut_usage(usage.spent, usage.half_life_ms, half_life_ms, usage.at_ms)
    sums = dict[tuple[str, str], dict[int, Vector]]()
    for each in every:
        periods = sums.setdefault((each.queue if each.queue in queues else ROOT, each.user), {})
        for period, (gpus, cpus, memory) in each.periods:
            had = periods.get(period, ZERO_VECTOR)
            periods[period] = (had[0] + gpus, had[1] + cpus, had[2] + memory)
    return [
        DecayedUsage(queue=queue, user=user, periods=tuple(sorted(periods.items())))
        for (queue, user), periods in sums.items()
    ]


def runs_known(found: Mapping[str, Usage]) -> list[RunTimes]:
    """Run times of all these. Of a user no more kinds of jobs than are ever known: objects are not written at once."""
    by_user = dict[str, list[RunTimes]]()
    for name in sorted(found):
        for each in found[name].runs:
            by_user.setdefault(each.user, []).append(each)
    return [each for known in by_user.values() for each in known[-SIZES:]]
