"""The fold for array jobs: an array begins, elements become gangs of their own, counts follow the gangs."""

from bisect import bisect_left
from collections.abc import Iterable

from ganger.core.state.gang import Gang
from ganger.core.state.job_arrays import ArrayJob, array_of_unsplit, element
from ganger.core.state.state import State
from ganger.model.job import GangState, split_element_id


def begin(state: State, head: Gang) -> ArrayJob:
    """Add a submitted array, all of whose elements its head stands for."""
    indices = list(head.job.spec.array.indices) if head.job.spec.array else []
    array = ArrayJob(job=head.job, number=head.number, submitted_ms=head.submitted_ms, rest=indices)
    array.count(head.state, len(indices))
    state.arrays[head.id] = array
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

    An array ends with its last element; the gangs that waited for it are among those that changed.
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
        if array.ended:
            del state.arrays[array.id]
            dependents += state.settle(array.id, array.state, at_ms)
    return (*by_id.values(), *(gang for gang in dependents if gang.id not in by_id), *changed.values())
