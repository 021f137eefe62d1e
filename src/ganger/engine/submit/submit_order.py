"""What `after` means when jobs come in: in which order those of one file do, and whom a job still waits for.

Called by `engine.submit.submit_service`, and by `wiring` where jobs come in as objects of a cluster.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from ganger.errors import RequestError
from ganger.model.job import ENDED, After, GangState, JobSpec


def in_order(specs: Sequence[JobSpec]) -> list[int]:
    """Indices of `specs`, those that others come after first, else as written. Refused (bad_spec): a circle of jobs
    that wait for each other, or a name in `after` that two of them have."""
    indices: dict[str, list[int]] = {}
    for index, spec in enumerate(specs):
        indices.setdefault(spec.name, []).append(index)
    order: dict[int, None] = {}
    for first in range(len(specs)):
        # Each on this path waits for the next. No recursion: a file may be one long chain.
        path = {} if first in order else {first: _named(specs[first], indices)}
        while path:
            index, named = next(reversed(path.items()))
            behind = next((each for each in named if each not in order), None)
            if behind is None:
                order[index] = None
                del path[index]
            elif behind in path:
                waiting = [*path, behind]
                circle = " after ".join(specs[each].name for each in waiting[waiting.index(behind) :])
                why = f"after: the jobs wait for each other: {circle}"
                raise RequestError("bad_spec", why, "take one of them out of `after`")
            else:
                path[behind] = _named(specs[behind], indices)
    return [*order]


def awaited(
    all_of: Iterable[After], state_of: Callable[[str], GangState | None], together: Collection[str] = ()
) -> tuple[After, ...]:
    """Those that have not ended; the jobs `together` are about to be submitted. state_of: of a job, by id; None of one
    that is not there. Refused (cannot_come_true, 409) for one that ended otherwise than is asked."""
    live = []
    for after in all_of:
        if after.job in together:
            live.append(after)
            continue
        state = state_of(after.job)
        if state is None or (state in ENDED and not after.holds(state)):
            became = {None: "was deleted", GangState.STOPPED: "was stopped"}.get(state, f"has {state}")
            why = f"after: {after.job} {became}, so it will never have {after.when}"
            raise RequestError(
                "cannot_come_true", why, f"take it out of `after`, or run it again: ganger retry {after.job}"
            )
        if state not in ENDED:
            live.append(after)
    return tuple(live)


def _named(spec: JobSpec, indices: Mapping[str, Sequence[int]]) -> Iterator[int]:
    """Indices of the jobs of the file that a job comes after."""
    for after in spec.after:
        named = indices.get(after.job, ())
        if len(named) > 1:
            why = f"after: {len(named)} jobs of the file have the name {after.job}"
            raise RequestError("bad_spec", why, "give each its own name")
        yield from named
