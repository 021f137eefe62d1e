"""What each event does to the state: one function a kind of event. Called by `core.state` alone.

`refusal` says which events cannot be folded in now. Facts about an older generation are stale: the log never holds
them, so that the fold never has to tell them apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ganger.core import heal
from ganger.core.gang import Gang
from ganger.core.lifecycle import NODE, GangStep, NodeStep, node_next
from ganger.core.usage import Account
from ganger.model import event as e
from ganger.model.cluster import Node, NodeState
from ganger.model.decision import Cause, Decision, Start, Stop, Wait
from ganger.model.job import GangState
from ganger.model.queue import DEFAULT, ROOT, Queue

if TYPE_CHECKING:
    from ganger.core.state import State

Touched = tuple[Gang, ...]
ALIVE = (GangState.STARTING, GangState.RUNNING)
_NODE_STEPS = {"node_lost": NodeStep.LOSE, "node_returned": NodeStep.RETURN} | {
    "node_cordoned": NodeStep.CORDON,
    "node_uncordoned": NodeStep.UNCORDON,
}

_Fact = e.Started | e.Progressed | e.Checkpointed | e.Finished | e.Failed | e.Cleared
_OfNode = e.NodeLost | e.NodeReturned | e.NodeCordoned | e.NodeUncordoned


def refusal(state: State, event: e.Event) -> str | None:
    """Why the event cannot be folded in now, in words, or None."""
    match event:
        case e.Submitted(job=job):
            return f"job {job.id} exists already" if job.id in state.gangs else _no_queue(state, job.spec.queue)
        case e.StopRequested(gang=gang):
            return None if gang in state.gangs else f"{gang} is not pending or running"
        case e.Deleted(gang=gang):
            return f"{gang} is still {state.gangs[gang].state}" if gang in state.gangs else None
        case e.QueueSet(queue=queue):
            return _misplaced(state, queue)
        case e.QueueDeleted(queue=name):
            return _kept(state, name)
        case (
            e.NodeLost(node=name) | e.NodeReturned(node=name) | e.NodeCordoned(node=name) | e.NodeUncordoned(node=name)
        ):
            return _no_node_step(state, name, event.kind)
        case e.Started() | e.Progressed() | e.Checkpointed() | e.Finished() | e.Failed() | e.Cleared():
            return _stale(state, event)
        case _:
            return None


def fold(state: State, stamped: e.Stamped) -> Touched:
    """Change the state by one event that was not refused; gives the gangs it changed."""
    at_ms = stamped.at_ms
    match stamped.event:
        case e.ServerStarted():
            state.ready = False
            if stamped.seq == 1:
                state.port_turn = at_ms
            return ()
        case e.NodesListed() as listed:
            return _nodes_listed(state, listed, at_ms)
        case e.NodeLost() | e.NodeReturned() | e.NodeCordoned() | e.NodeUncordoned() as change:
            return _node_changed(state, change, at_ms)
        case e.QueueSet(queue=queue):
            state.queues[queue.name] = queue
            state.set_queues()
            return ()
        case e.QueueDeleted(queue=name):
            del state.queues[name]
            state.set_queues()
            return ()
        case e.Submitted(job=job):
            account = Account(opened_ms=at_ms, since_ms=at_ms)
            gang = Gang(
                job=job, shape=job.spec.shape, number=stamped.seq, submitted_ms=at_ms, since_ms=at_ms, account=account
            )
            state.gangs[gang.id] = gang
            state.enqueue(gang)
            return (gang,)
        case e.StopRequested(gang=name):
            gang = state.gangs[name]
            gang.end_cause = Cause.USER
            return (gang,)
        case e.Deleted():
            return ()
        case e.Decided(plan=plan):
            return _decided(state, plan.decisions, at_ms)
        case e.Started() | e.Progressed() | e.Checkpointed() | e.Finished() | e.Failed() | e.Cleared() as fact:
            return _fact(state, fact, at_ms)


# -- decisions --------------------------------------------------------------------------------------------------------


def _decided(state: State, decisions: tuple[Decision, ...], at_ms: int) -> Touched:
    touched: list[Gang] = []
    for decision in decisions:
        match decision:
            case Start():
                touched.append(_begin(state, decision, at_ms))
            case Stop():
                touched.append(_stop(state, decision, at_ms))
            case Wait(gang_class=text, reason=reason):
                state.waits[text] = reason
    return tuple(touched)


def _begin(state: State, start: Start, at_ms: int) -> Gang:
    gang = state.gangs[start.gang]
    state.dequeue(gang)
    state.port_turn += 1
    gang.generation, gang.start, gang.began_ms = start.generation, start, at_ms
    gang.step(GangStep.PLACED, at_ms)
    gang.left, gang.started, gang.finished = [share.node for share in start.shares], [], []
    gang.stepped, gang.failure, gang.stop_sent = False, None, None
    gang.resumed_step = gang.checkpoint_step
    state.take(gang, start.shares)
    return gang


def _stop(state: State, stop: Stop, at_ms: int) -> Gang:
    gang = state.gangs[stop.gang]
    gang.stop_sent = stop.cause
    if stop.cause is Cause.PREEMPTED:
        gang.step(GangStep.GIVE_WAY, at_ms)
    elif stop.cause in (Cause.USER, Cause.TIME_LIMIT, Cause.QUEUE_TIME):
        gang.end_cause = gang.end_cause or stop.cause
        if gang.state is GangState.PENDING:
            state.dequeue(gang)
        gang.step(GangStep.END, at_ms)
        if gang.ended:
            del state.gangs[gang.id]
    return gang


# -- facts about a generation ---------------------------------------------------------------------------------------


def _stale(state: State, fact: _Fact) -> str | None:
    gang = state.gangs.get(fact.gang)
    if gang is None or gang.generation != fact.generation or gang.start is None:
        return f"generation {fact.generation} of {fact.gang} is over"
    match fact:
        case e.Started(nodes=nodes):
            news = any(node in gang.left and node not in gang.started for node in nodes)
        case e.Finished(nodes=nodes):
            news = any(node in gang.left and node not in gang.finished for node in nodes)
        case e.Cleared(nodes=nodes):
            news = any(node in gang.left for node in nodes)
        case e.Checkpointed(step=step):
            news = gang.checkpoint_step is None or step > gang.checkpoint_step
        case e.Failed():
            news = gang.failure is None and fact.node in gang.left
        case _:
            news = True
    return None if news else f"{fact.kind} of {fact.gang} generation {fact.generation} is known"


def _fact(state: State, fact: _Fact, at_ms: int) -> Touched:
    gang = state.gangs[fact.gang]
    match fact:
        case e.Started(nodes=nodes):
            gang.started += [node for node in nodes if node in gang.left and node not in gang.started]
            if gang.state is GangState.STARTING and len(gang.started) == gang.shape.nodes:
                gang.step(GangStep.STARTED, at_ms)
                gang.first_started_ms = at_ms if gang.first_started_ms is None else gang.first_started_ms
        case e.Progressed():
            if not gang.stepped and gang.state is GangState.RUNNING:
                gang.account.first_step(at_ms, "recovery" if gang.generation > 1 else "starting")
            gang.stepped = True
        case e.Checkpointed(step=step):
            gang.checkpoint_step = step
            gang.account.save(at_ms)
        case e.Failed():
            _failed(gang, fact, at_ms)
        case e.Finished(nodes=nodes):
            gang.finished += [node for node in nodes if node in gang.left and node not in gang.finished]
        case e.Cleared(nodes=nodes):
            _cleared(state, gang, nodes, at_ms)
    return (gang,)


def _failed(gang: Gang, failed: e.Failed, at_ms: int) -> None:
    """The first failure of a generation decides what becomes of the gang; later ones are its wake."""
    if gang.failure is not None:
        return
    gang.failure = failed
    if gang.state not in ALIVE:
        return
    judged = heal.verdict(gang, failed)
    gang.fruitless = 0 if gang.progressed else gang.fruitless + 1
    gang.spent += judged.spends and judged.again
    gang.not_before_ms = at_ms + judged.pause_ms
    gang.step(GangStep.RETRY if judged.again else GangStep.GIVE_UP, at_ms)


def _cleared(state: State, gang: Gang, nodes: tuple[str, ...], at_ms: int) -> None:
    """Nothing is left there, and what it held there is free. With the last node the generation is over."""
    silent = [node for node in nodes if node in gang.left and node not in gang.finished]
    if silent and gang.state in ALIVE and gang.failure is None:
        detail = "its processes were gone without a word of how they ended"
        lost = e.Failed(
            gang=gang.id, generation=gang.generation, node=silent[0], cause=Cause.LAUNCHER_LOST, detail=detail
        )
        _failed(gang, lost, at_ms)
    gang.left = [node for node in gang.left if node not in nodes]
    state.leave(gang, nodes)
    if gang.left:
        return
    state.release(gang)
    gang.ran_ms += at_ms - gang.began_ms
    gang.step(GangStep.FINISHED if gang.state in ALIVE else GangStep.CLEARED, at_ms)
    if gang.state in (GangState.PENDING, GangState.FAILED):
        gang.account.lose(at_ms)
    if gang.ended:
        del state.gangs[gang.id]
    else:
        gang.start = None
        state.enqueue(gang)


# -- nodes -----------------------------------------------------------------------------------------------------------


def _no_node_step(state: State, name: str, kind: str) -> str | None:
    if name not in state.nodes.index:
        return f"there is no node {name}"
    at = state.nodes.states[state.nodes.index[name]]
    return None if (at, _NODE_STEPS[kind]) in NODE else f"node {name} is {at}"


def _node_changed(state: State, change: _OfNode, at_ms: int) -> Touched:
    at = state.nodes.index[change.node]
    state.nodes.set_state(change.node, node_next(state.nodes.states[at], _NODE_STEPS[change.kind]))
    return _lose(state, [change.node], at_ms) if isinstance(change, e.NodeLost) else ()


def _nodes_listed(state: State, listed: e.NodesListed, at_ms: int) -> Touched:
    """A node that is gone, or too small now for what it ran, has lost its gangs."""
    state.ready = True
    before = {node.name: node for node in state.nodes.nodes}
    after = {node.name: node for node in listed.nodes}
    if before == after and not any(now in (NodeState.LOST, NodeState.LOST_CORDONED) for now in state.nodes.states):
        return ()
    shrunk = [name for name, node in before.items() if name not in after or _smaller(after[name], node)]
    touched = _lose(state, shrunk, at_ms)
    states = {name: state.nodes.states[state.nodes.index[name]] for name in before if name in after}
    state.set_nodes(listed.nodes, {name: _returned(now) for name, now in states.items()})
    return touched


def _smaller(now: Node, was: Node) -> bool:
    return now.gpus < was.gpus or now.cpu_milli < was.cpu_milli or now.memory_bytes < was.memory_bytes


def _returned(now: NodeState) -> NodeState:
    """A listing says that the node is there."""
    return node_next(now, NodeStep.RETURN) if (now, NodeStep.RETURN) in NODE else now


def _lose(state: State, names: list[str], at_ms: int) -> Touched:
    """Whatever ran on these nodes is gone."""
    touched: list[Gang] = []
    for gang, _ in state.holding():
        gone = tuple(node for node in gang.left if node in names)
        if not gone:
            continue
        silent = [node for node in gone if node not in gang.finished]
        if silent:
            lost = e.Failed(gang=gang.id, generation=gang.generation, node=silent[0], cause=Cause.NODE_LOST)
            _failed(gang, lost, at_ms)
        _cleared(state, gang, gone, at_ms)
        touched.append(gang)
    return tuple(touched)


# -- queues ----------------------------------------------------------------------------------------------------------


def _no_queue(state: State, name: str) -> str | None:
    return None if name in state.queues else f"there is no queue {name}; there are {', '.join(sorted(state.queues))}"


def _misplaced(state: State, queue: Queue) -> str | None:
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


def _kept(state: State, name: str) -> str | None:
    if name in (ROOT, DEFAULT):
        return f"queue {name} is always there"
    if name not in state.queues:
        return _no_queue(state, name)
    below = sorted(queue.name for queue in state.queues.values() if queue.parent == name)
    if below:
        return f"queue {name} has queues below it: {', '.join(below)}"
    jobs = [gang.id for gang in state.gangs.values() if gang.queue == name]
    if len(jobs) == 1:
        return f"queue {name} has a live job: {jobs[0]}"
    return f"queue {name} has {len(jobs)} live jobs, {jobs[0]} among them" if jobs else None
