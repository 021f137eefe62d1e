"""The fold of events about nodes and queues.

A node that is lost, or returns too small for what it ran, ends the generations that it ran.
"""

from dataclasses import replace

from ganger.core.fold import fold_attempt, fold_policy
from ganger.core.queues.quota import invalid_figure
from ganger.core.state import maintenance
from ganger.core.state.gang import Gang
from ganger.core.state.lifecycle import NODE, NodeStep, node_next
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.cluster import Cluster, Node, NodeState
from ganger.model.decision import Cause
from ganger.model.queue import DEFAULT, ROOT, Queue

Touched = tuple[Gang, ...]
NodeEvent = e.NodeLost | e.NodeReturned | e.NodeCordoned | e.NodeUncordoned | e.NodeDrained | e.NodePreempted
AdminEvent = e.MaintenanceSet | e.MaintenanceCleared | e.QueueSet | e.QueueDeleted
ClusterEvent = NodeEvent | AdminEvent | e.NodesListed
_NODE_STEPS = {"node_lost": NodeStep.LOSE, "node_returned": NodeStep.RETURN} | {
    "node_cordoned": NodeStep.CORDON,
    "node_uncordoned": NodeStep.UNCORDON,
    "node_drained": NodeStep.DRAIN,
    "node_preempted": NodeStep.DRAIN,
}


def fold(state: State, change: ClusterEvent, at_ms: int) -> Touched:
    """Fold an event about nodes or queues; return the gangs that it changed."""
    match change:
        case e.NodesListed():
            return _list_nodes(state, change, at_ms)
        case e.MaintenanceSet():
            state.maintenance[change.id] = change
            state.maintenance.forget(at_ms)
            return ()
        case e.MaintenanceCleared(id=name):
            state.maintenance.pop(name, None)  # it may have ended in the meantime
            return ()
        case e.QueueSet(queue=queue):
            return fold_policy.set_queues(state, state.document.queues | {queue.name: queue})
        case e.QueueDeleted(queue=name):
            parent = state.document.queues[name].parent or ROOT
            state.fair_shares.move_usage_to_parent(name, parent)
            state.tree.node_time.move(name, parent)
            queues = state.document.queues
            return fold_policy.set_queues(state, {key: queue for key, queue in queues.items() if key != name})
        case _:
            return _change_node(state, change, at_ms)


def refusal(state: State, change: AdminEvent) -> str | None:
    """Return the reason why a queue or a maintenance window cannot be set or removed, or None."""
    match change:
        case e.QueueSet(queue=queue):
            return queue_refusal(state, queue)
        case e.QueueDeleted(queue=name):
            return deletion_refusal(state, name)
        case e.MaintenanceSet():
            return maintenance.refusal(state.maintenance, state.nodes, change)
        case e.MaintenanceCleared(id=name):
            return None if name in state.maintenance else f"there is no maintenance {name}"


def node_step_refusal(state: State, name: str, kind: str) -> str | None:
    """Return the reason why a node cannot take that step, or None."""
    if name not in state.nodes.index:
        return f"there is no node {name}"
    node_state = state.nodes.states[state.nodes.index[name]]
    return None if (node_state, _NODE_STEPS[kind]) in NODE else f"node {name} is {node_state}"


def _change_node(state: State, change: NodeEvent, at_ms: int) -> Touched:
    index = state.nodes.index[change.node]
    state.nodes.set_state(change.node, node_next(state.nodes.states[index], _NODE_STEPS[change.kind]))
    match change:
        case e.NodeLost(node=node):
            state.leaving.pop(node, None)
            return _lose(state, [node], at_ms)
        case e.NodeDrained(node=node):
            return _drain(state, node, None)
        case e.NodePreempted(node=node, notice_ms=notice_ms):
            return _preempt(state, node, at_ms + notice_ms)
        case e.NodeReturned() | e.NodeCordoned() | e.NodeUncordoned():
            return ()


def _preempt(state: State, node: str, leave_by_ms: int) -> Touched:
    """Drain a node that is taken away at `leave_by_ms`, or at an earlier announced time, unless it is lost already."""
    if not state.nodes.is_lost(node):
        state.leaving[node] = leave_by_ms = min(leave_by_ms, state.leaving.get(node, leave_by_ms))
    return _drain(state, node, leave_by_ms)


def _drain(state: State, node: str, leave_by_ms: int | None) -> Touched:
    """Mark the running gangs of a node so that the next cycle stops them; those being stopped need no second stop."""
    gangs = [gang for gang in state.on_nodes([node]) if gang.state in fold_attempt.ACTIVE]
    for gang in gangs:
        gang.attempt.vacates, gang.attempt.leave_by_ms = node, leave_by_ms
    return tuple(gangs)


def _list_nodes(state: State, listed: e.NodesListed, at_ms: int) -> Touched:
    """Replace the nodes by the listed ones; nodes that are gone or too small for what they ran lose their gangs."""
    state.ready = True
    before = {node.name: node for node in state.nodes.listing.nodes}
    after = {node.name: node for node in listed.nodes}
    same = before == after and listed.levels == state.nodes.listing.levels
    if same and all(state.nodes.is_lost(name) == (name in listed.lost) for name in before):
        return ()
    lost = [name for name in before if name not in after or name in listed.lost]
    lost += [name for name in before if name not in lost and _is_too_small(state, after[name])]
    touched = _lose(state, lost, at_ms)
    state.leaving = {
        name: node_state for name, node_state in state.leaving.items() if name in after and name not in listed.lost
    }
    current = {
        name: state.nodes.states[state.nodes.index[name]] if name in before else NodeState.READY for name in after
    }
    states = {
        name: _listed_state(node_state, NodeStep.LOSE if name in listed.lost else NodeStep.RETURN)
        for name, node_state in current.items()
    }
    state.set_nodes(Cluster(tuple(_without_allocated(state, node) for node in listed.nodes), listed.levels), states)
    return touched


def _is_too_small(state: State, listed: Node) -> bool:
    """Return whether the gangs on a node no longer fit. Workloads outside ganger do not count."""
    table, index = state.nodes, state.nodes.index[listed.name]
    known = table.nodes[index]
    if listed.gpus < known.gpus or listed.gpu_memory_bytes < known.gpu_memory_bytes:
        return True
    held_cpu_milli, held_bytes = (
        known.cpu_milli - table.free.cpu_milli[index],
        known.memory_bytes - table.free.memory_bytes[index],
    )
    return bool(listed.cpu_milli < held_cpu_milli or listed.memory_bytes < held_bytes)


def _listed_state(current: NodeState, step: NodeStep) -> NodeState:
    """Return the state of a node after a listing, which may repeat what is known."""
    return node_next(current, step) if (current, step) in NODE else current


def _without_allocated(state: State, node: Node) -> Node:
    """Return the node without foreign devices that a gang holds: the listing saw the gang's own use of them."""
    if not node.foreign:
        return node
    shares = (share for gang in state.on_nodes([node.name]) for share in state.allocations[gang.id])
    allocated = dict.fromkeys(device for share in shares if share.node == node.name for device in share.devices)
    foreign = tuple(device for device in range(node.gpus) if device in node.foreign and device not in allocated)
    return replace(node, foreign=foreign)


def _lose(state: State, names: list[str], at_ms: int) -> Touched:
    """End what ran on these nodes."""
    touched: list[Gang] = []
    for gang in state.on_nodes(names):
        nodes = tuple(node for node in gang.attempt.left if node in names)
        silent = [node for node in nodes if node not in gang.attempt.finished]
        if silent:
            lost = e.Failed(gang=gang.id, generation=gang.attempt.generation, node=silent[0], cause=Cause.NODE_LOST)
            fold_attempt.fail(gang, lost, at_ms)
        touched += [gang, *fold_attempt.clear(state, gang, nodes, at_ms)]
    return tuple(touched)


# -- queues ----------------------------------------------------------------------------------------------------------


def unknown_queue(state: State, name: str) -> str | None:
    """Return the reason why a job cannot go to that queue, or None."""
    queues = state.document.queues
    return None if name in queues else f"there is no queue {name}; there are {', '.join(sorted(queues))}"


def queue_refusal(state: State, queue: Queue) -> str | None:
    """Return the reason why the queue cannot have its parent or its values, or None."""
    if (error := invalid_figure(queue)) is not None:
        return f"queue {queue.name}: {error}"
    if queue.name == ROOT:
        return "root is above all queues and has no parent" if queue.parent is not None else None
    queues = state.document.queues
    if queue.parent is None or queue.parent not in queues:
        return f"parent {queue.parent} of queue {queue.name} is not a queue; there are {', '.join(sorted(queues))}"
    above: str | None = queue.parent
    while above is not None:
        if above == queue.name:
            return f"queue {queue.name} would be above itself: {queue.parent} is below it"
        above = queues[above].parent
    return None


def deletion_refusal(state: State, name: str) -> str | None:
    """Return the reason why the queue cannot be deleted, or None."""
    if name in (ROOT, DEFAULT):
        return f"queue {name} is always there"
    if name not in state.document.queues:
        return unknown_queue(state, name)
    below = sorted(queue.name for queue in state.document.queues.values() if queue.parent == name)
    if below:
        return f"queue {name} has queues below it: {', '.join(below)}"
    jobs = [gang.id for gang in state.gangs.values() if gang.queue == name]
    if len(jobs) == 1:
        return f"queue {name} has a live job: {jobs[0]}"
    return f"queue {name} has {len(jobs)} live jobs, {jobs[0]} among them" if jobs else None
