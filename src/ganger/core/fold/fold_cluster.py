"""The fold of events about nodes and queues.

A node that is lost, or returns too small for what it ran, ends the generations that it ran.
"""

from dataclasses import replace

from ganger.core.fold import fold_attempt, fold_policy
from ganger.core.node_health import transitions
from ganger.core.queues.quota_figures import invalid_figure
from ganger.core.state import maintenance, spares
from ganger.core.state.elastic_gangs import without_nodes
from ganger.core.state.gang import Gang
from ganger.core.state.lifecycle import NODE, GangStep, NodeStep, node_next
from ganger.core.state.state import Shares, State
from ganger.model import event as e
from ganger.model.cluster import Cluster, Node, NodeState, is_same_node
from ganger.model.decision import Cause
from ganger.model.job import GangState
from ganger.model.queue import DEFAULT, ROOT, Queue

Touched = tuple[Gang, ...]
NodeEvent = e.NodeLost | e.NodeReturned | e.NodeCordoned | e.NodeUncordoned | e.NodeDrained | e.NodePreempted
AdminEvent = e.MaintenanceSet | e.MaintenanceCleared | e.QueueSet | e.QueueDeleted
ClusterEvent = NodeEvent | AdminEvent | e.NodesListed | e.NodeChanged
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
        case e.NodeChanged(listed=node):
            return _change_listed(state, node, at_ms)
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


def refusal(state: State, change: AdminEvent | e.NodeChanged) -> str | None:
    """Return the reason why a queue, a maintenance window or a node cannot be set, changed or removed, or None."""
    match change:
        case e.NodeChanged(listed=node):
            return None if node.name in state.nodes.index else f"there is no node {node.name}"
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
    record, node_state = state.health.by_node.get(name), state.nodes.states[state.nodes.index[name]]
    if record is not None and kind == "node_uncordoned" and record.state in transitions.IN_HAND:
        return f"node {name} is {record.state}: wait for the end of its hook"
    return None if (node_state, _NODE_STEPS[kind]) in NODE else f"node {name} is {node_state}"


def _change_node(state: State, change: NodeEvent, at_ms: int) -> Touched:
    index = state.nodes.index[change.node]
    state.nodes.set_state(change.node, node_next(state.nodes.states[index], _NODE_STEPS[change.kind]))
    match change:
        case e.NodeLost(node=node, detail=detail):
            if state.health.leaving.pop(node, None) is None and not state.nodes.is_cordoned(node):
                transitions.note_loss(state, node, detail, at_ms)
            state.history.repairs = state.history.repairs.lose([node], at_ms)
            return _lose(state, [node], at_ms)
        case e.NodeDrained(node=node):
            transitions.keep_cordon(state, node)
            return drain(state, node, None, at_ms)
        case e.NodePreempted(node=node, notice_ms=notice_ms):
            return _preempt(state, node, at_ms + notice_ms, at_ms)
        case e.NodeUncordoned(node=node, by=by):
            state.health.leaving.pop(node, None)  # the notice was withdrawn
            transitions.vouch(state, node, by, at_ms)
            return ()
        case e.NodeReturned(node=node):
            state.history.repairs = state.history.repairs.bring_back([node], at_ms)
            return ()
        case e.NodeCordoned():
            return ()


def _preempt(state: State, node: str, leave_by_ms: int, at_ms: int) -> Touched:
    """Drain a node that is taken away at `leave_by_ms`, or at an earlier announced time, unless it is lost already."""
    if not state.nodes.is_lost(node):
        state.health.leaving[node] = leave_by_ms = min(leave_by_ms, state.health.leaving.get(node, leave_by_ms))
    return drain(state, node, leave_by_ms, at_ms)


def drain(state: State, node: str, leave_by_ms: int | None, at_ms: int) -> Touched:
    """Mark the running gangs of a node so that the next cycle stops them; those being stopped need no second stop.

    A gang that has the node as a spare gives that up.
    """
    given_up = [gang for gang in state.on_nodes([node]) if spares.give_up(state, gang, [node], at_ms)]
    gangs = [gang for gang in state.on_nodes([node]) if gang.state in fold_attempt.ACTIVE or gang.is_bound_for(node)]
    for gang in gangs:
        if not gang.end_cause or gang.attempt.leave_by_ms is None:  # what is to end now gets no time by a drain
            gang.attempt.vacates, gang.attempt.leave_by_ms = node, leave_by_ms
    return (*given_up, *gangs)


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
    repairs = state.history.repairs.lose(listed.lost, at_ms).forget([name for name in before if name not in after])
    state.history.repairs = repairs.bring_back([name for name in after if name not in listed.lost], at_ms)
    state.health.leaving = {
        name: node_state
        for name, node_state in state.health.leaving.items()
        if name in after and name not in listed.lost
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


def _change_listed(state: State, node: Node, at_ms: int) -> Touched:
    """Replace a node; one that is too small for what it ran loses its gangs."""
    touched = _lose(state, [node.name], at_ms) if _is_too_small(state, node) else ()
    after, listing = _without_allocated(state, node), state.nodes.listing
    if is_same_node(listing.nodes[state.nodes.index[node.name]], after):
        state.change_node(after)
    else:  # what a gang held kept a resource on it that it has no more
        nodes = tuple(after if before.name == node.name else before for before in listing.nodes)
        state.set_nodes(Cluster(nodes, listing.levels), state.node_states())
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
    """Return the node without foreign devices that a gang holds: the listing saw the gang's own use of them.

    It has at least the extended resources that gangs hold: a device plugin that starts again lists none for a while.
    """
    table = state.nodes
    if (index := table.index.get(node.name)) is not None:
        free = table.extended.free
        held = {name: int(total[index] - free[name][index]) for name, total in table.extended.total.items()}
        if any(amount > node.extended.get(name, 0) for name, amount in held.items()):
            names = dict.fromkeys((*node.extended, *held))
            extended = {name: max(node.extended.get(name, 0), held.get(name, 0)) for name in names}
            node = replace(node, extended=extended)
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
        if spares.give_up(state, gang, names, at_ms):
            touched.append(gang)
        nodes = tuple(node for node in gang.attempt.left if node in names)
        silent = [node for node in nodes if node not in gang.attempt.finished]
        if silent:
            lost = e.Failed(gang=gang.id, generation=gang.attempt.generation, node=silent[0], cause=Cause.NODE_LOST)
            target, kept_until_ms = _next_shares(state, gang, names, at_ms)
            fold_attempt.fail(state, gang, lost, at_ms, target, kept_until_ms)
        if any(map(gang.is_bound_for, names)):
            if gang.retries.kept_until_ms is not None:
                gang.attempt.target = tuple(share for share in gang.attempt.target if share.node not in names)
            else:
                gang.attempt.target = without_nodes(state.nodes, gang, gang.attempt.target, names)
            if not gang.attempt.target:
                gang.account.requeue(Cause.NODE_LOST)
                gang.step(GangStep.REQUEUE, at_ms)
                touched += [gang, *fold_attempt.abandon_target(state, gang, at_ms)]
        if gang.attempt.start is not None:
            touched += [gang, *fold_attempt.clear(state, gang, nodes, at_ms)]
        if gang.state is GangState.RESIZING:
            state.reallocate(gang, at_ms)
    return tuple(touched)


def _next_shares(state: State, gang: Gang, lost: list[str], at_ms: int) -> tuple[Shares, int | None]:
    """Return what a running gang goes on with when it loses nodes, and until when it keeps that if it is too little.

    These are spares, fewer nodes if it is elastic, or else its healthy nodes, until there is one for each that it lost.
    Nothing is kept of roles or slices, whose nodes depend on each other, of nodes that are lent or to be left, nor if
    it has left some already: then it queues again.
    """
    attempt, spec = gang.attempt, gang.job.spec
    if gang.state not in fold_attempt.ACTIVE or attempt.left != gang.nodes or attempt.start is None:
        return (), None
    shares = attempt.start.shares
    closed = [*lost, *(share.node for share in shares if not spares.is_usable(state, share.node))]
    if gang.is_elastic:
        return without_nodes(state.nodes, gang, shares, closed), None
    if spec.spares:
        return spares.takeover(state, gang, lost), None
    if spec.roles or gang.shape.slices.level or attempt.lent or attempt.vacates:
        return (), None
    closed += state.maintenance.affected_nodes(state.at_ms)
    kept = tuple(share for share in shares if share.node not in closed)
    return kept, (at_ms + state.history.repairs.kept_ms if kept else None)


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
