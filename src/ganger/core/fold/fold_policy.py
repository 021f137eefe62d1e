"""The fold of a new policy document.

The whole document is in force with the event that brings it, between two cycles; what is derived from it (lanes, fair
shares, the tree) is rebuilt. Jobs whose queue is gone move to the nearest queue above it that still exists.
"""

from dataclasses import replace

from ganger.core.queues.quota_figures import invalid_figure
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.event import PolicySet
from ganger.model.job import GangState, Job
from ganger.model.policy import document_of
from ganger.model.queue import DEFAULT, ROOT, Queue


def refusal(state: State, policy: PolicySet) -> str | None:
    """Return the reason why the document cannot be put in force, or None."""
    if policy.version != state.policy_version + 1:
        return f"version {policy.version} does not follow on version {state.policy_version}, which is in force now"
    queues = policy.document.queues
    if (error := queues_refusal(queues)) is not None:
        return error
    if policy.forced:
        return None
    stranded = [gang for gang in state.gangs.values() if gang.queue not in queues]
    if not stranded:
        return None
    first = stranded[0]
    others = f", and {len(stranded) - 1} more" if len(stranded) > 1 else ""
    return f"job {first.id} is in queue {first.queue}, which the document does not have{others}"


def queues_refusal(queues: dict[str, Queue]) -> str | None:
    """Return the reason why these queues are no tree with root and default, or have impossible values, or None."""
    for name in (ROOT, DEFAULT):
        if name not in queues:
            return f"queue {name} is always there, and the document does not have it"
    for name, queue in queues.items():
        if queue.name != name:
            return f"queue {name} is called {queue.name}"
        if (error := invalid_figure(queue)) is not None:
            return f"queue {name}: {error}"
        if name == ROOT:
            if queue.parent is not None:
                return "root is above all queues and has no parent"
        elif queue.parent is None or queue.parent not in queues:
            return f"parent {queue.parent} of queue {name} is not a queue; there are {', '.join(sorted(queues))}"
    loop = next((loop for name in queues if (loop := parent_loop(queues, name))), ())
    return f"queues {', '.join(loop)} are above each other" if loop else None


def parent_loop(queues: dict[str, Queue], name: str) -> tuple[str, ...]:
    """Return the queues that are above each other, beginning with `name`; empty if `name` is not one of them."""
    chain, above = {name: None}, queues[name].parent
    while above is not None and above in queues and above not in chain:
        chain[above] = None
        above = queues[above].parent
    return tuple(chain) if above == name else ()


def fold(state: State, policy: PolicySet) -> tuple[Gang, ...]:
    """Put the document in force; return the gangs that are in another queue now."""
    document = policy.document
    gone = [name for name in state.document.queues if name not in document.queues]
    moves = {name: _nearest_queue(state, name, document.queues) for name in gone}
    moved = [gang for gang in state.gangs.values() if gang.queue in moves]
    for gang in moved:
        is_pending = gang.state is GangState.PENDING
        if is_pending:
            state.dequeue(gang)
        gang.job = _in_queue(gang.job, moves[gang.queue])
        if is_pending:
            state.enqueue(gang)
    for array in state.arrays.values():
        if array.job.spec.queue in moves:
            array.job = _in_queue(array.job, moves[array.job.spec.queue])
    for name, target in moves.items():
        state.fair_shares.move_usage_to_parent(name, target)
        state.tree.node_time.move(name, target)
    state.document, state.policy_version = document_of(document, document.queues), policy.version
    state.recount()
    return tuple(moved)


def set_queues(state: State, queues: dict[str, Queue]) -> tuple[Gang, ...]:
    """Put other queues in force; no gang moves to another queue."""
    state.document, state.policy_version = document_of(state.document, queues), state.policy_version + 1
    state.recount()
    return ()


def _nearest_queue(state: State, name: str, queues: dict[str, Queue]) -> str:
    """Return the nearest queue above one that is gone."""
    above: str | None = name
    while above is not None and above not in queues:
        above = state.document.queues[above].parent
    return ROOT if above is None else above


def _in_queue(job: Job, queue: str) -> Job:
    return replace(job, spec=replace(job.spec, queue=queue))
