"""Ids and dependencies at submission: the order of the jobs of one file, and the jobs that a job still waits for.

The command line submits to Kubernetes with them, so nothing of the core is imported here.
"""

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from ganger.errors import RequestError
from ganger.model.job import ENDED, After, GangState, JobSpec

_SUFFIX_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz234567"
_SUFFIX_LENGTH: Final = 4


def new_id(name: str, taken: Callable[[str], object]) -> str:
    """Return the name with a suffix that is not taken."""
    while True:
        suffix = "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(_SUFFIX_LENGTH))
        if not taken(f"{name}-{suffix}"):
            return f"{name}-{suffix}"


def submission_order(specs: Sequence[JobSpec]) -> list[int]:
    """Return the indices of `specs`, dependencies first, else as written.

    Raise RequestError (bad_spec) for a cycle, or a name in `after` that two of them have.
    """
    indices: dict[str, list[int]] = {}
    for index, spec in enumerate(specs):
        indices.setdefault(spec.name, []).append(index)
    order: dict[int, None] = {}
    for first in range(len(specs)):
        # Each job on this path waits for the next. No recursion: a file may be one long chain.
        path = {} if first in order else {first: _dependencies(specs[first], indices)}
        while path:
            index, dependencies = next(reversed(path.items()))
            dependency = next((candidate for candidate in dependencies if candidate not in order), None)
            if dependency is None:
                order[index] = None
                del path[index]
            elif dependency in path:
                chain = [*path, dependency]
                cycle = " after ".join(specs[candidate].name for candidate in chain[chain.index(dependency) :])
                message = f"after: the jobs wait for each other: {cycle}"
                raise RequestError("bad_spec", message, "take one of them out of `after`")
            else:
                path[dependency] = _dependencies(specs[dependency], indices)
    return [*order]


def pending_dependencies(
    dependencies: Iterable[After], state_of: Callable[[str], GangState | None], together: Collection[str] = ()
) -> tuple[After, ...]:
    """Return the dependencies that have not ended.

    together: jobs that are about to be submitted too.
    state_of: returns the state of a job by id, None for a missing one.

    Raise RequestError (dependency_failed, 409) for one that can no longer be satisfied.
    """
    live = []
    for after in dependencies:
        if after.job in together:
            live.append(after)
            continue
        state = state_of(after.job)
        if state is None or (state in ENDED and not after.holds(state)):
            outcome = {None: "was deleted", GangState.STOPPED: "was stopped"}.get(state, f"has {state}")
            message = f"after: {after.job} {outcome}, so it will never have {after.when}"
            raise RequestError(
                "dependency_failed", message, f"take it out of `after`, or run it again: ganger retry {after.job}"
            )
        if state not in ENDED:
            live.append(after)
    return tuple(live)


def _dependencies(spec: JobSpec, indices: Mapping[str, Sequence[int]]) -> Iterator[int]:
    """Yield the indices of the jobs of the file that a job comes after."""
    for after in spec.after:
        matches = indices.get(after.job, ())
        if len(matches) > 1:
            message = f"after: {len(matches)} jobs of the file have the name {after.job}"
            raise RequestError("bad_spec", message, "give each its own name")
        yield from matches
