"""Checks at submission, here and for a cluster: new ids, directories, and dependencies of the jobs of one file.

So are those of requests for another size.
"""

import os
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ganger.errors import RequestError
from ganger.model.job import ENDED, WORKER, After, GangState, JobSpec, shell_quoted_id
from ganger.spec.job_cross_checks import find_contradictions

_SUFFIX_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz234567"
_SUFFIX_LENGTH: Final = 4


def new_id(name: str, taken: Callable[[str], object]) -> str:
    """Return the name with a suffix that is not taken."""
    while True:
        suffix = "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(_SUFFIX_LENGTH))
        if not taken(f"{name}-{suffix}"):
            return f"{name}-{suffix}"


def check_directory(text: str, label: str) -> Path:
    """Return the directory, absolute. Raise RequestError when a job could not run in it."""
    path = Path(text)
    if not path.is_absolute():
        raise RequestError(
            "bad_directory", f"{label} {text!r} is not an absolute path", "send the directory's absolute path"
        )
    try:
        with os.scandir(path):
            pass
    except FileNotFoundError:
        raise RequestError("no_directory", f"{label} {path} does not exist", f"check it: ls -d {path}") from None
    except NotADirectoryError:
        raise RequestError("no_directory", f"{label} {path} is not a directory", f"check it: ls -ld {path}") from None
    except OSError as error:
        message = f"{label} {path} cannot be read: {error.strerror}"
        raise RequestError("unreadable_directory", message, f"check its permissions: ls -ld {path}") from None
    if not os.access(path, os.R_OK | os.X_OK):
        message = f"{label} {path} cannot be entered: permission denied"
        raise RequestError("unreadable_directory", message, f"check its permissions: ls -ld {path}")
    return path


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


def scaled_size(id: str, spec: JobSpec, present: int, wanted: str) -> int:
    """Return the size that a request asks for: `4`, or `+1` or `-2` from the present one.

    Raise RequestError (not_elastic, bad_scale; 409).
    """
    name, sizes = shell_quoted_id(id), spec.sizes
    if spec.elastic_role is None:
        message = f"{id} has one size, {_nodes_text(spec.nodes)}: only a job with a range of nodes can be scaled"
        raise RequestError("not_elastic", message, _elastic_clone(spec, name), 409)
    size = int(wanted) + (present if wanted[0] in "+-" else 0)
    if size not in sizes:
        noun = "nodes" if spec.max_nodes else f"processes of {spec.elastic_role}"
        steps = f", in steps of {sizes.step}" if sizes.step > 1 else ""
        now = f"; it has {present} now" if wanted[0] in "+-" else ""
        allowed = f"its job file allows {sizes[0]} to {sizes[-1]} {noun}{steps}{now}"
        nearest = min(sizes, key=lambda other: abs(other - size))
        message = f"{id} cannot have {_nodes_text(size) if spec.max_nodes else size}: {allowed}"
        raise RequestError("bad_scale", message, f"ganger scale {name} {nearest}", 409)
    return size


def _elastic_clone(spec: JobSpec, name: str) -> str:
    """Return what makes an elastic job of one of one size: a clone, unless something else keeps it at that size."""
    if WORKER in spec.roles:
        count = spec.roles[WORKER].count
        return f"submit its job file with a range of a role: roles.{WORKER}.count: {count}..{2 * count}"
    sizes = f"{spec.nodes}..{2 * spec.nodes}"
    known = {problem.what: None for problem in find_contradictions(spec, {})}
    problems = find_contradictions(replace(spec, max_nodes=2 * spec.nodes), {})
    reason = next((problem.what for problem in problems if problem.what not in known), None)
    if reason is None:
        return f"ganger clone {name} --nodes {sizes}"
    return f"submit its job file with nodes: {sizes}, and change what does not go with that: {reason}"


def _nodes_text(nodes: int) -> str:
    return f"{nodes} node" if nodes == 1 else f"{nodes} nodes"
