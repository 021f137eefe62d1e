"""What another policy document does to the state. Called by `core.fold.fold` alone.

All of it is in force with the event that brings it, between two rounds; what is derived from it (lines, standings, the
tree) is made anew. Jobs whose queue is gone go to the nearest queue above it that is still there.
"""

from dataclasses import replace

from ganger.core.queues.quota import invalid_figure
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.event import PolicySet
from ganger.model.job import GangState, Job
from ganger.model.queue import DEFAULT, ROOT, Queue


def refusal(state: State, policy: PolicySet) -> str | None:
    """Why the document cannot be in force as things stand, or None."""
    if policy.version != state.policy_version + 1:
        return f"version {policy.version} does not follow on version {state.policy_version}, which is in force now"
    queues = policy.document.queues
    if (wrong := unsound(queues)) is not None:
        return wrong
    if policy.forced:
        return None
    stranded = [gang for gang in state.gangs.values() if gang.queue not in queues]
    if not stranded:
        return None
    first = stranded[0]
    others = f", and {len(stranded) - 1} more" if len(stranded) > 1 else ""
    return f"job {first.id} is in queue {first.queue}, which the document does not have{others}"


def unsound(queues: dict[str, Queue]) -> str | None:
    """Why these queues are no tree with a root and a default queue, or have figures that cannot be; None: they are."""
    for name in (ROOT, DEFAULT):
        if name not in queues:
            return f"queue {name} is always there, and the document does not have it"
    for name, queue in queues.items():
        if queue.name != name:
            return f"queue {name} is called {queue.name}"
        if (wrong := invalid_figure(queue)) is not None:
            return f"queue {name}: {wrong}"
        if name == ROOT:
            if queue.parent is not None:
                return "root is above all queues and has no parent"
        elif queue.parent is None or queue.parent not in queues:
            return f"parent {queue.parent} of queue {name} is not a queue; there are {', '.join(sorted(queues))}"
    circle = next((circle for name in queues if (circle := circle_of(queues, name))), ())
    return f"queues {', '.join(circle)} are above each other" if circle else None


def circle_of(queues: dict[str, Queue], name: str) -> tuple[str, ...]:
    """The queues that are above each other, beginning with `name`, if it is one of them."""
    found, above = {name: None}, queues[name].parent
    while above is not None and above in queues and above not in found:
        found[above] = None
        above = queues[above].parent
    return tuple(found) if above == name else ()


def take(state: State, policy: PolicySet) -> tuple[Gang, ...]:
    """Put the document in force; gives the gangs that are in another queue now."""
    document = policy.document
    moves = {name: _heir(state, name, document.queues) for name in state.queues if name not in document.queues}
    moved = [gang for gang in state.gangs.values() if gang.queue in moves]
    for gang in moved:
        waits = gang.state is GangState.PENDING
        if waits:
            state.dequeue(gang)
        gang.job = _in_queue(gang.job, moves[gang.queue])
        if waits:
            state.enqueue(gang)
    for array in state.arrays.values():
        if array.job.spec.queue in moves:
            array.job = _in_queue(array.job, moves[array.job.spec.queue])
    for name, heir in moves.items():
        state.standings.move_usage_to_parent(name, heir)
    state.rules, state.queues = document.rules, dict(document.queues)
    state.policy_version = policy.version
    state.recount()
    return tuple(moved)


def _heir(state: State, name: str, queues: dict[str, Queue]) -> str:
    """The nearest queue above one that is gone."""
    above: str | None = name
    while above is not None and above not in queues:
        above = state.queues[above].parent
    return ROOT if above is None else above


def _in_queue(job: Job, queue: str) -> Job:
    return replace(job, spec=replace(job.spec, queue=queue))
