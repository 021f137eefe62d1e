"""Array jobs: one submission, many gangs. What an array costs depends on how many of its elements somebody touched.

The head, a gang under the array's own id, stands in the queue for all elements that nobody has touched; an element gets
a gang of its own, `ID[7]`, when it starts, or when somebody asks something of it alone. Called by `core.state.state`
and `core.fold.fold`; `core.cycle.plan` starts elements through `element`. The idea is Slurm's (job arrays: one record,
split when a task starts or is changed)."""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ganger.core.state import dependencies
from ganger.core.state.gang import HEAD, RESTING, Gang
from ganger.model.job import ENDED, GangState, Job, array_of

if TYPE_CHECKING:
    from ganger.core.state.state import State


@dataclass(slots=True, kw_only=True)
class ArrayJob:
    """An array that lives. `rest`: indices, rising, of the elements that its head stands for; counts: all its elements
    by state, ended ones too, none of 0; exit_code: the highest that an element ended with, None before one ended by
    itself; submitted_ms, started_ms (of the first element, None before) in Unix ms; number: the head's; unbegun: how
    many elements ended with the head, after they had waited for unbegun_ms."""

    job: Job
    number: int
    submitted_ms: int
    rest: list[int]
    counts: dict[GangState, int] = field(default_factory=dict)
    exit_code: int | None = None
    started_ms: int | None = None
    unbegun: int = 0
    unbegun_ms: int = 0

    @property
    def id(self) -> str:
        """The job's."""
        return self.job.id

    @property
    def state(self) -> GangState:
        """Running while anything of it does; pending or suspended while anything waits; then as the worst ended."""
        if any(state not in ENDED and state not in RESTING for state in self.counts):
            return GangState.RUNNING
        order = (*RESTING, GangState.FAILED, GangState.STOPPED, GangState.SUCCEEDED)
        return next(state for state in order if state in self.counts)

    @property
    def ended(self) -> bool:
        """Whether all its elements have."""
        return all(state in ENDED for state in self.counts)

    def count(self, state: GangState, by: int) -> None:
        """So many elements more, or fewer, are in a state."""
        amount = self.counts.get(state, 0) + by
        if amount:
            self.counts[state] = amount
        else:
            self.counts.pop(state, None)


def begin(state: State, head: Gang) -> ArrayJob:
    """An array was submitted: its head stands for all of it."""
    rest = list(head.job.spec.array.indices) if head.job.spec.array else []
    array = ArrayJob(job=head.job, number=head.number, submitted_ms=head.submitted_ms, rest=rest)
    array.count(head.state, len(rest))
    state.arrays[head.id] = array
    return array


def element(head: Gang, index: int) -> Gang:
    """A gang for one of the elements that the head stands for; the state does not know it yet."""
    return replace(
        head,
        job=head.job.element(index),
        number=head.number - HEAD + index,
        account=copy.copy(head.account),
        awaits=list(head.awaits),
        left=[],
        started=[],
        finished=[],
    )


def split_off(state: State, array: ArrayJob, index: int) -> Gang:
    """From here on the element is a gang of its own. With the last of them the head goes."""
    head = state.gangs[array.id]
    gang = element(head, index)
    del array.rest[bisect_left(array.rest, index)]
    state.gangs[gang.id] = gang
    dependencies.waits(state, gang)
    if gang.state is GangState.PENDING:
        state.enqueue(gang)
    if not array.rest:
        if head.state is GangState.PENDING:
            state.dequeue(head)
        dependencies.forget(state, head)
        state.due.note(head, lives=False)
        del state.gangs[head.id]
    return gang


def untouched(state: State, name: str) -> ArrayJob | None:
    """The array whose head stands for the element of that id, if one does."""
    parts = array_of(name)
    array = state.arrays.get(parts[0]) if parts else None
    if parts is None or array is None:
        return None
    at = bisect_left(array.rest, parts[1])
    return array if array.rest[at : at + 1] == [parts[1]] else None


def meant(state: State, name: str) -> list[Gang]:
    """The live gangs that an id means: of an array all there are; of an untouched element, which it then is no more,
    the one it gets."""
    if name in state.arrays:
        return [gang for gang in state.gangs.values() if gang.array == name]
    array, parts = untouched(state, name), array_of(name)
    if array is not None and parts is not None:
        return [split_off(state, array, parts[1])]
    return [state.gangs[name]] if name in state.gangs else []


def recount(state: State, touched: Iterable[Gang], at_ms: int) -> tuple[Gang | ArrayJob, ...]:
    """Those that an event touched, and the arrays they belong to, brought up to date. With its last element an array
    ends; those that waited for that are told, and touched too."""
    by_id = {gang.id: gang for gang in touched}
    changed: dict[str, ArrayJob] = {}
    told: list[Gang] = []
    for gang in by_id.values():
        array = state.arrays.get(gang.array) if gang.array else None
        if array is not None:
            _recount(array, gang)
            changed[array.id] = array
    for array in changed.values():
        if array.ended:
            del state.arrays[array.id]
            told += dependencies.settle(state, array.id, array.state, at_ms)
    return (*by_id.values(), *(gang for gang in told if gang.id not in by_id), *changed.values())


def _recount(array: ArrayJob, gang: Gang) -> None:
    amount = len(array.rest) if gang.is_head else 1
    if gang.counted is not gang.state:
        array.count(gang.counted, -amount)
        array.count(gang.state, amount)
        gang.counted = gang.state
    if gang.is_head:
        if gang.ended:
            array.unbegun, array.unbegun_ms = len(array.rest), gang.since_ms - gang.submitted_ms
            array.rest = []
        array.job = gang.job
        return
    if array.started_ms is None:
        array.started_ms = gang.first_started_ms
    if gang.ended and gang.exit_code is not None:
        array.exit_code = max(gang.exit_code, array.exit_code or 0)
