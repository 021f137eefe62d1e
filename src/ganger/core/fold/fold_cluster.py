"""What events about nodes and queues do to the state. Called by `core.fold.fold` alone.

A node that is lost, or comes back smaller than what it ran, takes its gangs' generations with it.
"""

from dataclasses import replace

from ganger.core.fold import fold_attempt
from ganger.core.queues.quota import invalid_figure
from ganger.core.state.gang import Gang
from ganger.core.state.lifecycle import NODE, NodeStep, node_next
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.cluster import Cluster, Node, NodeState
from ganger.model.decision import Cause
from ganger.model.queue import DEFAULT, ROOT, Queue

Touched = tuple[Gang, ...]
OfNode = e.NodeLost | e.NodeReturned | e.NodeCordoned | e.NodeUncordoned | e.NodeDrained | e.NodePreempted
Change = OfNode | e.NodesListed | e.MaintenanceSet | e.MaintenanceCleared | e.QueueSet | e.QueueDeleted
_NODE_STEPS = {"node_lost": NodeStep.LOSE, "node_returned": NodeStep.RETURN} | {
    "node_cordoned": NodeStep.CORDON,
    "node_uncordoned": NodeStep.UNCORDON,
    "node_drained": NodeStep.DRAIN,
    "node_preempted": NodeStep.DRAIN,
}


def take(state: State, change: Change, at_ms: int) -> Touched:
    """Fold in a change of nodes or queues; gives the gangs it touched."""
    match change:
        case e.NodesListed():
            return _nodes_listed(state, change, at_ms)
        case e.MaintenanceSet():
            state.windows[change.id] = change
            state.windows.forget(at_ms)
            return ()
        case e.MaintenanceCleared(id=name):
            state.windows.pop(name, None)  # it may be over by now
            return ()
        case e.QueueSet(queue=queue):
            state.queues[queue.name] = queue
            state.policy_version += 1
            state.recount()
            return ()
        case e.QueueDeleted(queue=name):
            state.standings.move_usage_to_parent(name, state.queues[name].parent or ROOT)
            del state.queues[name]
            state.policy_version += 1
            state.recount()
            return ()
        case _:
            return _node_changed(state, change, at_ms)


def no_node_step(state: State, name: str, kind: str) -> str | None:
    """Why a node cannot take that step, or None."""
    if name not in state.nodes.index:
        return f"there is no node {name}"
    at = state.nodes.states[state.nodes.index[name]]
    return None if (at, _NODE_STEPS[kind]) in NODE else f"node {name} is {at}"


def _node_changed(state: State, change: OfNode, at_ms: int) -> Touched:
    at = state.nodes.index[change.node]
    state.nodes.set_state(change.node, node_next(state.nodes.states[at], _NODE_STEPS[change.kind]))
    match change:
        case e.NodeLost(node=node):
            state.leaving.pop(node, None)
            return _lose(state, [node], at_ms)
        case e.NodeDrained(node=node):
            return _drain(state, node, None)
        case e.NodePreempted(node=node, notice_ms=notice_ms):
            return _preempt(state, node, at_ms + notice_ms)
        case _:
            return ()


def _preempt(state: State, node: str, leave_by_ms: int) -> Touched:
    """It is taken away then, or earlier, as was said before; what is lost already is not taken away."""
    if not state.nodes.is_lost(node):
        state.leaving[node] = leave_by_ms = min(leave_by_ms, state.leaving.get(node, leave_by_ms))
    return _drain(state, node, leave_by_ms)


def _drain(state: State, node: str, leave_by_ms: int | None) -> Touched:
    """Whatever runs there is to be stopped by the next round; what is being stopped already is not asked twice."""
    there = [gang for gang in state.on_nodes([node]) if gang.state in fold_attempt.ALIVE]
    for gang in there:
        gang.drains, gang.leave_by_ms = True, leave_by_ms
    return tuple(there)


def _nodes_listed(state: State, listed: e.NodesListed, at_ms: int) -> Touched:
    """A node that is gone, or too small now for what it ran, has lost its gangs."""
    state.ready = True
    before = {node.name: node for node in state.nodes.listed}
    after = {node.name: node for node in listed.nodes}
    same = before == after and listed.levels == state.nodes.listed_levels
    if same and all(state.nodes.is_lost(name) == (name in listed.lost) for name in before):
        return ()
    gone = [name for name in before if name not in after or name in listed.lost]
    gone += [name for name in before if name not in gone and _too_small(state, after[name])]
    touched = _lose(state, gone, at_ms)
    state.leaving = {name: at for name, at in state.leaving.items() if name in after and name not in listed.lost}
    now = {name: state.nodes.states[state.nodes.index[name]] if name in before else NodeState.READY for name in after}
    states = {name: _stepped(at, NodeStep.LOSE if name in listed.lost else NodeStep.RETURN) for name, at in now.items()}
    state.set_nodes(Cluster(tuple(_less_ours(state, node) for node in listed.nodes), listed.levels), states)
    return touched


def _too_small(state: State, now: Node) -> bool:
    """Whether what gangs hold there does not fit any more. Others may have come that leave it less."""
    table, at = state.nodes, state.nodes.index[now.name]
    was = table.nodes[at]
    if now.gpus < was.gpus or now.gpu_memory_bytes < was.gpu_memory_bytes:
        return True
    held_cpu_milli, held_bytes = (
        was.cpu_milli - table.free_cpu_milli[at],
        was.memory_bytes - table.free_memory_bytes[at],
    )
    return bool(now.cpu_milli < held_cpu_milli or now.memory_bytes < held_bytes)


def _stepped(now: NodeState, step: NodeStep) -> NodeState:
    """What a listing says of a node, as far as it is news."""
    return node_next(now, step) if (now, step) in NODE else now


def _less_ours(state: State, node: Node) -> Node:
    """A device that a gang holds is not others', whatever was seen of it: whoever lists looks again when it is over."""
    if not node.foreign:
        return node
    shares = (share for gang in state.on_nodes([node.name]) for share in state.shares[gang.id])
    ours = dict.fromkeys(device for share in shares if share.node == node.name for device in share.devices)
    foreign = tuple(device for device in range(node.gpus) if device in node.foreign and device not in ours)
    return replace(node, foreign=foreign)


def _lose(state: State, names: list[str], at_ms: int) -> Touched:
    """Whatever ran on these nodes is gone."""
    touched: list[Gang] = []
    for gang in state.on_nodes(names):
        gone = tuple(node for node in gang.left if node in names)
        silent = [node for node in gone if node not in gang.finished]
        if silent:
            lost = e.Failed(gang=gang.id, generation=gang.generation, node=silent[0], cause=Cause.NODE_LOST)
            fold_attempt.fail(gang, lost, at_ms)
        touched += [gang, *fold_attempt.clear(state, gang, gone, at_ms)]
    return tuple(touched)


# -- queues ----------------------------------------------------------------------------------------------------------


def no_queue(state: State, name: str) -> str | None:
    """Why a job cannot go to that queue, or None."""
    return None if name in state.queues else f"there is no queue {name}; there are {', '.join(sorted(state.queues))}"


def misplaced(state: State, queue: Queue) -> str | None:
    """Why the queue cannot stand where it says, or as it is, or None."""
    if (wrong := invalid_figure(queue)) is not None:
        return f"queue {queue.name}: {wrong}"
    if queue.name == ROOT:
        return "root is above all queues and has no parent" if queue.parent is not None else None
    if queue.parent is None or queue.parent not in state.queues:
        return (
            f"parent {queue.parent} of queue {queue.name} is not a queue; there are {', '.join(sorted(state.queues))}"
        )
    above: str | None = queue.parent
    while above is not None:
        if above == queue.name:
            return f"queue {queue.name} would be above itself: {queue.parent} is below it"
        above = state.queues[above].parent
    return None


def kept(state: State, name: str) -> str | None:
    """Why the queue cannot be deleted, or None."""
    if name in (ROOT, DEFAULT):
        return f"queue {name} is always there"
    if name not in state.queues:
        return no_queue(state, name)
    below = sorted(queue.name for queue in state.queues.values() if queue.parent == name)
    if below:
        return f"queue {name} has queues below it: {', '.join(below)}"
    jobs = [gang.id for gang in state.gangs.values() if gang.queue == name]
    if len(jobs) == 1:
        return f"queue {name} has a live job: {jobs[0]}"
    return f"queue {name} has {len(jobs)} live jobs, {jobs[0]} among them" if jobs else None
