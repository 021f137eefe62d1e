"""The order in which the jobs of one file are submitted: each after those it names. Called by `engine.intake`."""

from collections.abc import Sequence

from ganger.engine.refusal import Refused
from ganger.model.job import JobSpec


def in_order(specs: Sequence[JobSpec]) -> list[int]:
    """Indices of `specs`, those that others come after first, else as written. Refused (bad_spec): a circle of jobs
    that wait for each other, or a name in `after` that two of them have."""
    indices: dict[str, list[int]] = {}
    for index, spec in enumerate(specs):
        indices.setdefault(spec.name, []).append(index)
    order: list[int] = []
    for index in range(len(specs)):
        _visit(index, specs, indices, order, ())
    return order


def _visit(
    index: int, specs: Sequence[JobSpec], indices: dict[str, list[int]], order: list[int], waiting: tuple[int, ...]
) -> None:
    """Put a job into the order, behind those it waits for; `waiting` led here."""
    if index in order:
        return
    if index in waiting:
        circle = [specs[each].name for each in (*waiting[waiting.index(index) :], index)]
        why = f"after: the jobs wait for each other: {' after '.join(circle)}"
        raise Refused("bad_spec", why, "take one of them out of `after`")
    for after in specs[index].after:
        named = indices.get(after.job, [])
        if len(named) > 1:
            why = f"after: {len(named)} jobs of the file have the name {after.job}"
            raise Refused("bad_spec", why, "give each its own name")
        for each in named:
            _visit(each, specs, indices, order, (*waiting, index))
    order.append(index)
