"""The fold for array jobs: an array begins, elements become gangs of their own, counts follow the gangs."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Final

from ganger.core.state.gang import RESTING, Gang
from ganger.core.state.job_arrays import ArrayJob, array_of_unsplit, element
from ganger.core.state.state import State
from ganger.model.decision import Cause
from ganger.model.job import GangState, split_element_id

IDLE: Final = (*RESTING, GangState.RESIZING, GangState.REQUEUEING, GangState.SUSPENDING)
"""States of a replica group that takes no part in the training; nor does one that starts when others have trained."""


def begin(state: State, head: Gang) -> ArrayJob:
    """Add a submitted array, all of whose elements its head stands for."""
    indices = list(head.job.spec.array.indices) if head.job.spec.array else []
    array = ArrayJob(job=head.job, number=head.number, submitted_ms=head.submitted_ms, rest=indices)
    array.count(head.state, len(indices))
    state.arrays[head.id] = array
    head.shape = head.job.spec.together(array.starting_together)
    return array


def split_off(state: State, array: ArrayJob, index: int) -> Gang:
    """Give an element a gang of its own. With the last element the head goes."""
    head = state.gangs[array.id]
    gang = element(head, index)
    del array.rest[bisect_left(array.rest, index)]
    state.gangs[gang.id] = gang
    state.pending.dependents.add(gang, state.is_live)
    if gang.state is GangState.PENDING:
        state.enqueue(gang)
    if not array.rest:
        if head.state is GangState.PENDING:
            state.dequeue(head)
        state.pending.dependents.forget(head)
        state.timers.note(head, live=False)
        del state.gangs[head.id]
    return gang


def named_gangs(state: State, name: str) -> list[Gang]:
    """Return the live gangs that an id names: all of an array, or one gang.

    An element that the head stands for is split off.
    """
    if name in state.arrays:
        return [gang for gang in state.gangs.values() if gang.array == name]
    array, parts = array_of_unsplit(state.arrays, name), split_element_id(name)
    if array is not None and parts is not None:
        return [split_off(state, array, parts[1])]
    return [state.gangs[name]] if name in state.gangs else []


def recount(state: State, touched: Iterable[Gang], at_ms: int) -> tuple[Gang | ArrayJob, ...]:
    """Update the arrays of the gangs that an event changed and return all that changed.

    An array ends with its last element; the gangs that waited for it are among those that changed. So are replica
    groups that another one, which has finished the training, does not need any more.
    """
    by_id = {gang.id: gang for gang in touched}
    changed: dict[str, ArrayJob] = {}
    dependents: list[Gang] = []
    for gang in by_id.values():
        array = state.arrays.get(gang.array) if gang.array else None
        if array is not None:
            array.recount(gang)
            changed[array.id] = array
    for array in changed.values():
        if array.job.spec.replica_groups:
            _resize_head(state, array)
            by_id |= {gang.id: gang for gang in _end_idle_groups(state, array, by_id)}
        if array.ended:
            del state.arrays[array.id]
            dependents += state.settle(array.id, array.state, at_ms)
    return (*by_id.values(), *(gang for gang in dependents if gang.id not in by_id), *changed.values())


def _resize_head(state: State, array: ArrayJob) -> None:
    """Have the head ask for as much as it starts at once: less when its first replica groups have started."""
    head, shape = state.gangs.get(array.id), array.job.spec.together(array.starting_together)
    if head is None or shape == head.shape:
        return
    if head.state is GangState.PENDING:
        state.dequeue(head)
    head.shape = shape
    if head.state is GangState.PENDING:
        state.enqueue(head)


def _end_idle_groups(state: State, array: ArrayJob, touched: Mapping[str, Gang]) -> list[Gang]:
    """Have replica groups that do not run end when one has succeeded: they would train on alone, for nothing.

    All are looked at when a group succeeds, later those that the event has changed. A group that still starts is idle
    if it began once another one was up; those of the first start may all be as quick as the one that has succeeded.
    """
    if not array.counts.get(GangState.SUCCEEDED):
        return []
    own = [gang for gang in touched.values() if gang.array == array.id]
    if any(gang.state is GangState.SUCCEEDED for gang in own):
        own = [gang for gang in state.gangs.values() if gang.array == array.id]
    first_up_ms = array.started_ms or 0
    idle = [
        gang
        for gang in own
        if not gang.end_cause
        and (gang.state in IDLE or (gang.state is GangState.STARTING and gang.attempt.began_ms > first_up_ms))
    ]
    for gang in idle:
        gang.end_cause = Cause.DONE
    return idle
