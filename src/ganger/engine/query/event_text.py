"""What happened, in one sentence for each kind of event. Called by `engine.service` for the rows of the log."""

from collections.abc import Iterable

from ganger.core.failure.attribution import attribute
from ganger.core.state.gang import Gang
from ganger.model import event as e
from ganger.model.decision import Cause, Decision, Expect, Moved, ReservedStart, Start, Stop, Wait
from ganger.model.evidence import FlawedCheckpoint
from ganger.model.pending_reason import sentence as answer
from ganger.model.units import format_duration

SHOWN_NAMES = 4
SHOWN_LINE = 200
"""Characters of a line of a log in a sentence."""

CAUSES: dict[Cause, str] = {
    Cause.RANK_FAILED: "a process failed",
    Cause.OUT_OF_MEMORY: "a process was ended for want of memory",
    Cause.HUNG: "a process made no progress any more",
    Cause.START_FAILED: "it could not be started",
    Cause.PORT_BUSY: "the rendezvous port was taken",
    Cause.ADMISSION_DENIED: "the cluster denied its pods",
    Cause.NAMESPACE_QUOTA: "a quota of its namespace is used up",
    Cause.WEBHOOK_UNREACHABLE: "a webhook that is asked about its pods cannot be reached",
    Cause.LAUNCHER_LOST: "its launcher was lost",
    Cause.NODE_LOST: "a node was lost",
    Cause.USER: "it was asked to end",
    Cause.TIME_LIMIT: "its time limit is over",
    Cause.QUEUE_TIME: "it waited longer than its limit",
    Cause.PREEMPTED: "it gives way to another job",
    Cause.SUSPENDED: "it is suspended",
    Cause.DRAINED: "its node is drained",
    Cause.NODE_PREEMPTED: "its node is taken away",
    Cause.DONE: "it is done without them",
    Cause.DEPENDENCY: "a job that it comes after did not come to what it asks",
}

MOVED: dict[Moved, str] = {
    Moved.RESERVED: "it is the next of its queue, or has waited for long",
    Moved.EARLIER: "it can be earlier now",
    Moved.NODE_OUT: "a node that was kept for it is out of service",
    Moved.OVERRUN: "others hold its nodes for longer than their limits said",
    Moved.PREDICTED: "others without a time limit run for longer than was predicted",
    Moved.MAINTENANCE: "a node that was kept for it is to be maintained",
    Moved.POLICY_CHANGED: "what its queue or its user may have has changed",
    Moved.RESTARTED: "a job before it failed, and starts again",
}


def sentence(event: e.Event) -> str:
    """One sentence, without a time: the row has it."""
    match event:
        case e.Submitted(job=job):
            times = f"{len(job.spec.array.indices)} times " if job.spec.array else ""
            return f"{job.user} submitted {job.id} to queue {job.spec.queue}: {times}{job.spec.shape}"
        case e.StopRequested() | e.SuspendRequested() | e.ResumeRequested() | e.PriorityChanged():
            return _request(event)
        case e.Deleted(gang=gang, by=by):
            return f"{by or 'somebody'} deleted {gang}"
        case e.Described(gang=gang, by=by):
            return f"{by or 'somebody'} changed {_described(event)} of {gang}"
        case e.Decided(plan=plan):
            return "; ".join(_decision(decision) for decision in plan.decisions) or "nothing to decide"
        case e.Failed():
            return _failed(event)
        case e.Resumed() | e.Slow():
            return _remarkable(event)
        case e.Started() | e.Progressed() | e.Checkpointed() | e.Finished() | e.Done() | e.Cleared():
            return _fact(event)
        case _:
            return _of_cluster(event)


def job_of(event: e.Event) -> str | None:
    """The one job that the event is about, or None."""
    match event:
        case e.Submitted(job=job):
            return job.id
        case e.Decided(plan=plan):
            gangs = {decision.gang for decision in plan.decisions if not isinstance(decision, Wait)}
            return gangs.pop() if len(gangs) == 1 else None
        case _:
            gang: str | None = getattr(event, "gang", None)
            return gang


def ending(failed: e.Failed) -> str:
    """How a rank or a node failed, and who is to blame; and which of the job's rules decides what that leads to."""
    who = failed.node if failed.rank is None else f"rank {failed.rank} on {failed.node}"
    said = attribute(failed).sentence or f"{who} failed: {CAUSES[failed.cause]}"
    return said + (_by_rule(failed.match) if failed.match else "")


def _by_rule(match: e.RuleMatch) -> str:
    """The end of a sentence: what a rule says, and the line that it was found in."""
    says = f"; retry.rules[{match.rule}] says {match.do}"
    if match.line:
        rank = "the setup" if match.rank is None else f"rank {match.rank}"
        line = match.line if len(match.line) <= SHOWN_LINE else match.line[:SHOWN_LINE] + "..."
        return f"{says}: {rank} on {match.node} wrote {line!r}"
    return says


def passed_over(flawed: Iterable[FlawedCheckpoint]) -> tuple[str, ...]:
    """A sentence for each checkpoint that is not whole."""
    return tuple(f"the checkpoint of step {each.step} is passed over: {each.flaw}" for each in flawed)


def on_checkpoints(gang: Gang) -> str:
    """Return the end of a sentence about a failure: the checkpoint that may have caused it, and the one tried next."""
    tried, step = gang.fallback.tried, gang.resumed_step
    if not tried or tried[-1] != step:
        return ""
    if step in gang.fallback.skipped and step != gang.checkpoint_step:
        return f"; failed on the checkpoint of step {step}, trying the one of step {gang.checkpoint_step}"
    if len(tried) > 1:
        return f"; failed on each of the checkpoints of steps {', '.join(map(str, tried))}"
    alone = ", and there is no older one" if gang.fallback.older_step is None else ""
    return f"; failed on the checkpoint of step {step}{alone}"


def overdue(killed: tuple[int, ...], grace_ms: int) -> str:
    """The end of a sentence about a stop: who did not end in time."""
    if not killed:
        return ""
    more = len(killed) - SHOWN_NAMES
    names = ", ".join(map(str, killed[:SHOWN_NAMES])) + (f" and {more} more" if more > 0 else "")
    who, whose = (f"ranks {names}", "their") if len(killed) > 1 else (f"rank {names}", "its")
    until = f"within {whose} grace of {format_duration(grace_ms)}" if grace_ms else "on SIGTERM"
    return f"; {who} did not end {until}: killed"


def _request(event: e.StopRequested | e.SuspendRequested | e.ResumeRequested | e.PriorityChanged) -> str:
    who = event.by or "somebody"
    match event:
        case e.StopRequested(gang=gang):
            return f"{who} asked {gang} to end"
        case e.SuspendRequested(gang=gang):
            return f"{who} suspended {gang}"
        case e.ResumeRequested(gang=gang):
            return f"{who} resumed {gang}"
        case e.PriorityChanged(gang=gang, priority=priority):
            return f"{who} set the priority of {gang} to {priority}"


def _fact(event: e.Started | e.Progressed | e.Checkpointed | e.Finished | e.Done | e.Cleared) -> str:
    attempt = f"{event.gang} (attempt {event.generation})"
    match event:
        case e.Started(nodes=nodes):
            return f"{attempt} runs on {_names(nodes)}"
        case e.Progressed(step=step):
            return f"{attempt} has done step {step}"
        case e.Checkpointed(step=step):
            return f"{attempt} saved a checkpoint of step {step}"
        case e.Finished(nodes=nodes):
            return f"{attempt} finished on {_names(nodes)}"
        case e.Done():
            return f"{attempt} is done: the processes it ends with have finished"
        case e.Cleared(nodes=nodes, killed=killed, grace_ms=grace_ms):
            return f"nothing of {attempt} is left on {_names(nodes)}" + overdue(killed, grace_ms)


def _remarkable(event: e.Resumed | e.Slow) -> str:
    attempt = f"{event.gang} (attempt {event.generation})"
    match event:
        case e.Resumed(step=step):
            where = "begins from the start" if step is None else f"goes on from the checkpoint of step {step}"
            return "; ".join((f"{attempt} {where}", *passed_over(event.passed)))
        case e.Slow(node=node, rank=rank, step_ms=step_ms, peers_ms=peers_ms):
            who = f"rank {rank} of {attempt} on {node}"
            if event.work is not None and event.peers_work is not None:
                return f"{who} is at work while the others wait: {_work(event.work, event.peers_work, step_ms)}"
            times = f"{format_duration(step_ms)} a step where the others take {format_duration(peers_ms)}"
            return f"{who} is slow: {times}"


def _work(work: e.StepWork, peers: e.StepWork, step_ms: int) -> str:
    """The wait for a processor is told where it is a good part of the step."""
    step, own, others = format_duration(step_ms), format_duration(work.ran_ms), format_duration(peers.ran_ms)
    if work.queued_ms * 10 < step_ms:
        return f"it uses {own} of processor time in a step of {step}, they {others}"
    queued = f"waits {format_duration(work.queued_ms)} for a processor, they {format_duration(peers.queued_ms)}"
    return f"in a step of {step} it uses {own} of processor time, they {others}, and {queued}"


def _failed(event: e.Failed) -> str:
    return f"{event.gang} (attempt {event.generation}): {ending(event)}"


def _of_cluster(event: e.Event) -> str:
    match event:
        case e.ServerStarted(version=version):
            return f"a server took over (ganger {version})"
        case e.NodesListed(nodes=nodes):
            gpus = sum(node.gpus for node in nodes)
            there = "there is 1 node" if len(nodes) == 1 else f"there are {len(nodes)} nodes"
            named = f"{there} with {gpus} GPU{'' if gpus == 1 else 's'}: {_names(tuple(node.name for node in nodes))}"
            unready = tuple(node.name for node in nodes if node.unready)
            return f"{named}; not ready: {_names(unready)}" if unready else named
        case e.Unreadable(was=was, why=why):
            return f"an event ({was}) was set aside: {why}"
        case e.NodeLost(node=node, detail=detail):
            return f"node {node} was lost" + (f": {detail}" if detail else "")
        case e.NodeReturned(node=node):
            return f"node {node} came back"
        case e.NodeCordoned(node=node, by=by, why=why):
            return f"{by or 'somebody'} took node {node} out of service" + (f": {why}" if why else "")
        case e.NodeUncordoned(node=node, by=by):
            return f"{by or 'somebody'} put node {node} back into service"
        case e.NodeDrained(node=node, by=by, why=why):
            return f"{by or 'somebody'} drains node {node}" + (f": {why}" if why else "")
        case e.NodePreempted(node=node, notice_ms=notice_ms, by=by):
            return f"{by or 'somebody'} takes node {node} away in {format_duration(notice_ms)}"
        case e.QueueSet(queue=queue, by=by):
            return f"{by or 'somebody'} set queue {queue.name}"
        case e.QueueDeleted(queue=queue, by=by):
            return f"{by or 'somebody'} deleted queue {queue}"
        case _:
            return _of_plans(event)


def _of_plans(event: e.Event) -> str:
    """What is said of the time to come."""
    match event:
        case e.PolicySet(version=version, by=by, note=note):
            return f"{by or 'somebody'} applied version {version} of the policy" + (f": {note}" if note else "")
        case e.MaintenanceSet(id=name, nodes=nodes, from_ms=from_ms, until_ms=until_ms, note=note, by=by):
            lasts = format_duration(until_ms - from_ms) + (f": {note}" if note else "")
            return f"{by or 'somebody'} set maintenance {name} of {_names(nodes)} for {lasts}"
        case e.MaintenanceCleared(id=name, by=by):
            return f"{by or 'somebody'} cleared maintenance {name}"
        case _:
            return event.kind


def _decision(decision: Decision) -> str:
    match decision:
        case Start(gang=gang, generation=generation, skipped=skipped):
            failed_on = f"; it passes over checkpoints that attempts failed on: {_steps(skipped)}" if skipped else ""
            return f"{gang} starts (attempt {generation}) on {_names(decision.nodes)}{failed_on}"
        case Stop(gang=gang, cause=cause, notice_ms=notice_ms):
            notice = f", with {format_duration(notice_ms)} to save its work" if notice_ms else ""
            return f"{gang} is stopped{notice}: {CAUSES[cause]}"
        case ReservedStart(gang=gang, start_ms=None, cause=cause):
            return f"{gang} is promised no start any more: {MOVED[cause]}"
        case ReservedStart(gang=gang, nodes=nodes, cause=cause):
            return f"{gang} is promised a start on {_names(nodes)}: {MOVED[cause]}"
        case Expect(gang=gang, run_ms=run_ms):
            return f"{gang} runs for longer than was predicted: {format_duration(run_ms)} in all are expected now"
        case Wait():
            queue, user, *_ = decision.gang_class.split("/")
            return f"jobs of {user} in queue {queue}: {answer(decision.reason)}"


def _steps(steps: tuple[int, ...]) -> str:
    return f"step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))}"


def _names(names: tuple[str, ...]) -> str:
    more = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def _described(event: e.Described) -> str:
    """Which of labels and notes: never the words themselves, which may be long."""
    labels = f"label{'s' * (len(event.labels) > 1)} {', '.join(event.labels)}"
    return " and ".join(part for part in (labels * bool(event.labels), "the notes" * (event.notes is not None)) if part)
