"""What events do to array jobs: an array begins, elements become gangs of their own, counts follow their gangs."""

from bisect import bisect_left
from collections.abc import Iterable

from ganger.core.state.gang import Gang
from ganger.core.state.job_arrays import ArrayJob, element, untouched
from ganger.core.state.state import State
from ganger.model.job import GangState, split_element_id


def begin(state: State, head: Gang) -> ArrayJob:
    """An array was submitted: its head stands for all of it."""
    rest = list(head.job.spec.array.indices) if head.job.spec.array else []
    array = ArrayJob(job=head.job, number=head.number, submitted_ms=head.submitted_ms, rest=rest)
    array.count(head.state, len(rest))
    state.arrays[head.id] = array
    return array


def split_off(state: State, array: ArrayJob, index: int) -> Gang:
    """From here on the element is a gang of its own. With the last of them the head goes."""
    head = state.gangs[array.id]
    gang = element(head, index)
    del array.rest[bisect_left(array.rest, index)]
    state.gangs[gang.id] = gang
    state.dependents.add(gang, state.is_live)
    if gang.state is GangState.PENDING:
        state.enqueue(gang)
    if not array.rest:
        if head.state is GangState.PENDING:
            state.dequeue(head)
        state.dependents.forget(head)
        state.due.note(head, lives=False)
        del state.gangs[head.id]
    return gang


def meant(state: State, name: str) -> list[Gang]:
    """The live gangs that an id means: of an array all there are; of an untouched element, which it then is no more,
    the one it gets."""
    if name in state.arrays:
        return [gang for gang in state.gangs.values() if gang.array == name]
    array, parts = untouched(state.arrays, name), split_element_id(name)
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
            array.recount(gang)
            changed[array.id] = array
    for array in changed.values():
        if array.ended:
            del state.arrays[array.id]
            told += state.settle(array.id, array.state, at_ms)
    return (*by_id.values(), *(gang for gang in told if gang.id not in by_id), *changed.values())
