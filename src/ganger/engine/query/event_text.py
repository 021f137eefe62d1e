"""Events as text: one sentence for each kind of event."""

from collections.abc import Iterable

from ganger.core.failure.attribution import attribute
from ganger.core.failure.retry import GivenUp
from ganger.core.fold.fold_cluster import ClusterEvent
from ganger.core.state.gang import Gang
from ganger.engine.query.health_text import health_decision_text, health_event_text
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import (
    Cause,
    Decision,
    Defragmented,
    Expect,
    PreemptionRule,
    ReservationCause,
    ReservedStart,
    SpareNodes,
    Start,
    Stop,
    Wait,
)
from ganger.model.evidence import FlawedCheckpoint, RuleMatch, StepWork
from ganger.model.idle.idle_event import Idle, IdleStep
from ganger.model.idle.idle_rules import STOP, SUSPEND
from ganger.model.job import shell_quoted_id
from ganger.model.job_metrics import SHOWN_METRICS, JobMetrics, format_metric
from ganger.model.node_health import health_event as h
from ganger.model.node_health.health_decision import ActOnNode, GroupFaults, OpenHealthBreaker
from ganger.model.pending_reason import sentence as reason_text
from ganger.model.units import format_bytes, format_cpu, format_duration
from ganger.model.watch import watch_event as w
from ganger.model.watch.watch_rules import Finding

MAX_NAMES = 4
SHOWN_SAVE_MS = 1_000
"""Time of a save from which on it is shown."""
MAX_LINE_CHARACTERS = 200
"""Maximum number of characters of a log line in a sentence."""

CAUSES: dict[Cause, str] = {
    Cause.RANK_FAILED: "a process failed",
    Cause.OUT_OF_MEMORY: "a process ran out of memory",
    Cause.HUNG: "a process stopped making progress",
    Cause.START_FAILED: "it could not be started",
    Cause.PORT_BUSY: "the rendezvous port was taken",
    Cause.ADMISSION_DENIED: "the cluster denied its pods",
    Cause.INSTALLATION_FAULT: "the installation of ganger in the cluster lacks a right or an image",
    Cause.NAMESPACE_QUOTA: "a quota of its namespace is used up",
    Cause.WEBHOOK_UNREACHABLE: "an admission webhook for its pods cannot be reached",
    Cause.VOLUME_UNAVAILABLE: "a volume of it cannot be used there",
    Cause.DEVICES_UNAVAILABLE: "its devices cannot be had there now",
    Cause.PREFLIGHT_FAILED: "a node failed the test before the start",
    Cause.LAUNCHER_LOST: "its launcher was lost",
    Cause.NODE_LOST: "a node was lost",
    Cause.USER: "a stop was requested",
    Cause.TIME_LIMIT: "it reached its time limit",
    Cause.QUEUE_TIME: "it was pending for longer than its limit",
    Cause.PREEMPTED: "it was preempted by another job",
    Cause.SUSPENDED: "it is suspended",
    Cause.DRAINED: "its node is drained",
    Cause.NODE_PREEMPTED: "its node is preempted",
    Cause.EVICTED: "it is evicted from its node",
    Cause.RESIZED: "it is resized",
    Cause.MOVED: "it is moved to other nodes",
    Cause.ROLLED_BACK: "it returns to an older checkpoint",
    Cause.DIVERGED: "the loss watch found that its loss diverged",
    Cause.STALLED: "the loss watch found that its training stalled",
    Cause.IDLE_SUSPEND: "it is suspended: it was idle for the window of its queue",
    Cause.IDLE_STOP: "it was idle for the window of its queue",
    Cause.DONE: "what is left of it is not needed: its work is done",
    Cause.DEPENDENCY: "a dependency can no longer be satisfied",
}

PREEMPTION_RULES: dict[PreemptionRule, str] = {
    PreemptionRule.ORDER: "which comes first in the queue order",
    PreemptionRule.GUARANTEE: "whose queue takes back what it is guaranteed",
    PreemptionRule.FAIR_SHARE: "whose queue has less than its fair share",
    PreemptionRule.PRIORITY: "which has a higher priority",
    PreemptionRule.SURPLUS: "which needs nodes that it holds beyond its minimum",
    PreemptionRule.SPARE: "which lent it spare nodes",
}

RESERVATION_CAUSES: dict[ReservationCause, str] = {
    ReservationCause.RESERVED: "it is the next of its queue, or has been pending for long",
    ReservationCause.EARLIER: "it can start earlier now",
    ReservationCause.NODE_UNAVAILABLE: "a node reserved for it is out of service",
    ReservationCause.OVERRUN: "other jobs hold its nodes beyond their time limits",
    ReservationCause.PREDICTED: "other jobs without a time limit run longer than predicted",
    ReservationCause.MAINTENANCE: "a node reserved for it has a maintenance window",
    ReservationCause.POLICY_CHANGED: "the policy, or a limit of its queue or user, has changed",
    ReservationCause.RESTARTED: "a job ahead of it failed, and starts again",
    ReservationCause.HIGHER_PRIORITY: "a job of higher priority is ahead of it",
    ReservationCause.GUARANTEE: "a job of a queue within its guarantee takes precedence: its own queue exceeds its own",
}

_OF_NO_JOB = Wait | Defragmented | ActOnNode | GroupFaults | OpenHealthBreaker
_ClusterEvent = ClusterEvent | e.ServerStarted | e.Unreadable | e.PolicySet


def sentence(event: e.Event) -> str:
    """Return one sentence about an event, without a time: the row has it."""
    match event:
        case e.Submitted(job=job):
            times = f"{len(job.spec.array.indices)} times " if job.spec.array else ""
            return f"{job.user} submitted {job.id} to queue {job.spec.queue}: {times}{job.spec.shape}"
        case (
            e.StopRequested()
            | e.SuspendRequested()
            | e.ResumeRequested()
            | e.PriorityChanged()
            | e.ScaleRequested()
            | w.RollbackRequested()
        ):
            return _request_text(event)
        case e.DefragRequested(moves=moves, gang=gang, by=by):
            room = f" to make room for {gang}" if gang else ""
            return f"{by or 'someone'} asked to move {_name_list(tuple(move.gang for move in moves))}{room}"
        case e.Deleted(gang=gang, by=by):
            return f"{by or 'someone'} deleted {gang}"
        case e.NodesRestricted(gang=gang, required=required):
            return f"the volumes of {gang} require nodes with {' or '.join(map(str, required)) or 'any labels'}"
        case e.Described(gang=gang, by=by):
            return f"{by or 'someone'} changed {_changed_parts(event)} of {gang}"
        case e.Decided(plan=plan):
            return "; ".join(_decision_text(decision) for decision in plan.decisions) or "nothing to decide"
        case e.Failed():
            return _failed_text(event)
        case (
            e.Resumed()
            | e.CopyDropped()
            | e.MetricsKept()
            | e.Slow()
            | e.Quiet()
            | e.CodeEdited()
            | w.Anomaly()
            | Idle()
        ):
            return _progress_text(event)
        case e.Started() | e.Progressed() | e.Checkpointed() | e.Evicted() | e.Finished() | e.Done() | e.Cleared():
            return _fact_text(event)
        case (
            h.NodeFaulty()
            | h.RepairEnded()
            | h.NodesMeasured()
            | h.RepairRequested()
            | h.NodeReturnRequested()
            | h.NodeRetired()
            | h.BreakerReset()
        ):
            return health_event_text(event)
        case _:
            return _cluster_text(event)


def story(rows: Iterable[e.Stamped], gang: str) -> str:
    """Return what happened to a gang, a line for each event of some rows and decision in them that is about it.

    For assertions and debuggers: a line has the number of the event, its time in ms since that of the first line, and
    its sentence.
    """
    lines, first_ms = list[str](), None
    for row in rows:
        if isinstance(row.event, e.Decided):
            decisions = (item for item in row.event.plan.decisions if not isinstance(item, _OF_NO_JOB))
            texts = [_decision_text(item) for item in decisions if gang in (item.gang, getattr(item, "preemptor", ""))]
        else:
            texts = [sentence(row.event)] if job_of(row.event) == gang else []
        first_ms = row.at_ms if texts and first_ms is None else first_ms
        lines += [f"{row.seq} +{row.at_ms - (first_ms or 0)} ms: {text}" for text in texts]
    return "\n".join(lines)


def job_of(event: e.Event) -> str | None:
    """Return the one job that the event is about, or None."""
    match event:
        case e.Submitted(job=job):
            return job.id
        case e.Decided(plan=plan):
            gangs = {decision.gang for decision in plan.decisions if not isinstance(decision, _OF_NO_JOB)}
            return gangs.pop() if len(gangs) == 1 else None
        case _:
            gang: str | None = getattr(event, "gang", None)
            return gang


def stop_text(stop: Stop) -> str:
    """Return why a generation is stopped; the node that it leaves, or the job that is put first."""
    if stop.rule is PreemptionRule.SURPLUS:
        return f"it is resized for {stop.preemptor}, {PREEMPTION_RULES[stop.rule]}"
    if stop.rule is PreemptionRule.SPARE:
        why = f"which lost {stop.node}" if stop.node else "which does not hold them any more"
        return f"its nodes were lent by {stop.preemptor}, {why}"
    if stop.rule is not None:
        return f"it was preempted for {stop.preemptor}, {PREEMPTION_RULES[stop.rule]}"
    if not stop.node:
        return CAUSES[stop.cause]
    if stop.cause is Cause.NODE_LOST:
        return f"its node {stop.node} was lost"
    return CAUSES[stop.cause].replace("its node", f"its node {stop.node}")


def failure_text(event: e.Failed) -> str:
    """Return how a rank or a node failed, the cause, and the job's rule that decides what follows."""
    subject = event.node if event.rank is None else f"rank {event.rank} on {event.node}"
    message = attribute(event).sentence or f"{subject} failed: {CAUSES[event.cause]}"
    return message + (_rule_text(event.match) if event.match else "")


def _rule_text(match: RuleMatch) -> str:
    """Return the end of a sentence: a rule, and the line that matched it."""
    text = f"; retry.rules[{match.rule}] says {match.do}"
    if match.line:
        writer = "the setup" if match.rank is None else f"rank {match.rank}"
        line = match.line if len(match.line) <= MAX_LINE_CHARACTERS else match.line[:MAX_LINE_CHARACTERS] + "..."
        return f"{text}: {writer} on {match.node} wrote {line!r}"
    return text


def skipped_texts(checkpoints: Iterable[FlawedCheckpoint]) -> tuple[str, ...]:
    """Return a sentence for each incomplete checkpoint that was skipped."""
    return tuple(
        f"the checkpoint of step {checkpoint.step} is skipped: {checkpoint.flaw}" for checkpoint in checkpoints
    )


def _checkpoint_text(gang: Gang) -> str:
    """Return the end of a sentence about a failure: the checkpoint that may have caused it, and the one tried next."""
    checkpoints, fallback = gang.checkpoints, gang.checkpoints.fallback
    tried, step = fallback.tried, checkpoints.resumed_step
    if not tried or tried[-1] != step:
        return ""
    if step in fallback.skipped and step != checkpoints.newest_step:
        return f"; failed on the checkpoint of step {step}, trying the one of step {checkpoints.newest_step}"
    if len(tried) > 1:
        return f"; failed on each of the checkpoints of steps {', '.join(map(str, tried))}"
    no_older = ", and there is no older one" if fallback.older_step is None else ""
    return f"; failed on the checkpoint of step {step}{no_older}"


def failure_end_text(gang: Gang) -> str:
    """Return how the newest attempt failed, on which checkpoint, and why it is not retried; empty if it did not."""
    failure = gang.attempt.failure
    return "" if failure is None else failure_text(failure) + _checkpoint_text(gang) + _given_up_text(gang)


def _given_up_text(gang: Gang) -> str:
    """Return the end of a sentence about a failure that is not retried: why, and what retries it."""
    failure, retries = gang.attempt.failure, gang.retries
    error = None if failure is None else attribute(failure).error
    subject = "the same end" if error is None else error.type
    match retries.given_up:
        case GivenUp.RECURS:
            return f"; not retried: {subject} would recur; use --retry N to retry anyway"
        case GivenUp.MAY_RECUR:
            return f"; not retried again: {subject} may recur; use --retry N to retry more often"
        case GivenUp.RECURRED:
            return f"; not retried: {subject} has recurred at the same step; use --retry N to retry anyway"
        case GivenUp.LIMIT if retries.used:
            times = f"{retries.used} attempt{'s' * (retries.used > 1)}"
            return f"; not retried again: {times} without a new checkpoint; --retry N allows more"
        case GivenUp.LIMIT:
            return "; not retried: --retry is 0"
        case GivenUp.ROLE:
            return "; not retried: on_failure of its role is fail"
        case _:
            return ""


def past_participle(state: str) -> str:
    """Return the word that follows "it has" for an ended state."""
    return {"stopped": "been stopped"}.get(state, state)


def killed_text(killed: tuple[int, ...], grace_ms: int) -> str:
    """Return the end of a sentence about a stop: the ranks that did not end in time."""
    if not killed:
        return ""
    more = len(killed) - MAX_NAMES
    names = ", ".join(map(str, killed[:MAX_NAMES])) + (f" and {more} more" if more > 0 else "")
    subject, pronoun = (f"ranks {names}", "their") if len(killed) > 1 else (f"rank {names}", "its")
    until = f"within {pronoun} grace of {format_duration(grace_ms)}" if grace_ms else "on SIGTERM"
    return f"; {subject} did not end {until}: killed"


def _request_text(event: e.ChangeRequest) -> str:
    author = event.by or "someone"
    match event:
        case e.StopRequested(gang=gang, now=now):
            return f"{author} asked {gang} to end" + (" now" if now else "")
        case e.SuspendRequested(gang=gang):
            return f"{author} suspended {gang}"
        case e.ResumeRequested(gang=gang):
            return f"{author} resumed {gang}"
        case e.PriorityChanged(gang=gang, priority=priority):
            return f"{author} set the priority of {gang} to {priority}"
        case e.ScaleRequested(gang=gang, nodes=nodes):
            return f"{author} scaled {gang} to {nodes}"
        case w.RollbackRequested(gang=gang, step=step):
            return f"{author} asked {gang} to return to its newest checkpoint until step {step}"


def _fact_text(event: e.Started | e.Progressed | e.Checkpointed | e.Evicted | e.Finished | e.Done | e.Cleared) -> str:
    attempt = f"{event.gang} (attempt {event.generation})"
    match event:
        case e.Started(nodes=nodes):
            return f"{attempt} runs on {_name_list(nodes)}"
        case e.Progressed(step=step):
            return f"{attempt} has completed step {step}"
        case e.Checkpointed(step=step):
            took = f" in {format_duration(event.took_ms)}" if event.took_ms >= SHOWN_SAVE_MS else ""
            return f"{attempt} saved a checkpoint of step {step}{took}"
        case e.Finished(nodes=nodes):
            return f"{attempt} finished on {_name_list(nodes)}"
        case e.Evicted(node=node, notice_ms=notice_ms):
            ends = "its pod, its launcher or the node is to end"
            return f"{attempt} is evicted from {node} in {format_duration(notice_ms)}: {ends}"
        case e.Done():
            return f"{attempt} is done: the processes that decide its end have finished"
        case e.Cleared(nodes=nodes, killed=killed, grace_ms=grace_ms):
            return f"nothing of {attempt} is left on {_name_list(nodes)}" + killed_text(killed, grace_ms)


def _resumption_text(event: e.Resumed) -> str:
    """Return from which checkpoint, and of which other job, an attempt begins."""
    if event.step is None and not event.source:
        return "begins from the start"
    checkpoint = "the checkpoint" if event.step is None else f"the checkpoint of step {event.step}"
    return f"begins from {checkpoint} of {event.source}" if event.source else f"resumes from {checkpoint}"


def _progress_text(event: e.ProgressFact) -> str:
    attempt = f"{event.gang} (attempt {event.generation})"
    match event:
        case e.Resumed():
            action = _resumption_text(event)
            return "; ".join((f"{attempt} {action}", *skipped_texts(event.skipped)))
        case e.CopyDropped():
            return f"{event.gang} (attempt {event.generation}): {dropped_copy_text(event)}"
        case e.MetricsKept(metrics=metrics):
            return f"{attempt} reported: {metrics_text(metrics)}"
        case e.CodeEdited(directory=directory, files=files, more=more):
            names = ", ".join(files) + (f" and {more} more" if more else "")
            kept = "with --code . (code: .) a job keeps a copy of the code of its submission"
            return f"{attempt} runs other code than the first: edited since then in {directory}: {names}; {kept}"
        case e.Quiet(gang=gang, quiet_ms=quiet_ms, usual_ms=usual_ms, places=places):
            quiet = format_duration(quiet_ms)
            detail = f"has neither written anything nor used a processor for {quiet}"
            if usual_ms is not None:
                detail = f"has written nothing for {quiet}; it usually writes every {format_duration(usual_ms)}"
            elif places:
                detail = f"has shown no progress for {quiet}"
            if places:
                detail += f"; {places}"
            return f"{attempt} {detail}; ganger logs {shell_quoted_id(gang)} --stacks shows where its ranks are"
        case w.Anomaly():
            return f"{attempt}: {anomaly_text(event)}"
        case Idle():
            return f"{attempt} {idle_text(event)}"
        case e.Slow(node=node, rank=rank, step_ms=step_ms, peers_ms=peers_ms):
            subject = f"rank {rank} of {attempt} on {node}"
            if event.work is not None and event.peers_work is not None:
                return f"{subject} computes while the others wait: {_work_text(event.work, event.peers_work, step_ms)}"
            durations = f"{format_duration(step_ms)} a step where the others take {format_duration(peers_ms)}"
            return f"{subject} is slow: {durations}"


def idle_text(event: Idle) -> str:
    """Return what follows for a job without activity."""
    what = {SUSPEND: "suspended", STOP: "stopped"}[event.action]
    lasted, left = format_duration(event.idle_ms), format_duration(event.left_ms)
    match event.step:
        case IdleStep.WARNED:
            return f"has had no GPU, CPU or session activity for {lasted}: it will be {what} in {left}"
        case IdleStep.ACTIVE:
            return f"is not idle any more, after {lasted}: it will not be {what}"
        case IdleStep.ENDED:
            return f"was idle for {lasted}: it is {what}"


def anomaly_text(event: w.Anomaly) -> str:
    """Return what the loss watch found."""
    step, value, usual = event.step, event.value or 0, event.usual or 0
    match event.finding:
        case Finding.NAN:
            before = "" if event.usual is None else f"; it was {usual:.4g} before"
            return f"the loss of step {step} is not a finite number{before}"
        case Finding.SPIKE:
            return f"the loss spikes from step {step} on: {value:.4g}, where it usually is {usual:.4g}"
        case Finding.STALL:
            return f"the loss has not fallen below {usual:.4g} in {event.lasted} reports until step {step}: {value:.4g}"
        case Finding.SLOW:
            durations = f"{format_duration(int(value))}, where they usually take {format_duration(int(usual))}"
            return f"steps are slow from step {step} on: {durations}"


def metrics_text(metrics: JobMetrics) -> str:
    """Return the last value of the first metrics, and how many more there are."""
    values = [f"{metric.name} {format_metric(metric.last)}" for metric in metrics.values[:SHOWN_METRICS]]
    more = len(metrics.values) - len(values)
    return ", ".join(values) + (f" and {more} more" if more else "")


def dropped_copy_text(event: e.CopyDropped) -> str:
    """Return which checkpoint another node has no copy of, and why."""
    return f"the checkpoint of step {event.step} on {event.node} was not copied to {event.peer}: {event.reason}"


def _work_text(work: StepWork, peers: StepWork, step_ms: int) -> str:
    """Return the processor times; the wait for a processor where it is a good part of the step."""
    step, rank_time, peer_time = format_duration(step_ms), format_duration(work.ran_ms), format_duration(peers.ran_ms)
    if work.queued_ms * 10 < step_ms:
        return f"it uses {rank_time} of processor time in a step of {step}, they {peer_time}"
    queued = f"waits {format_duration(work.queued_ms)} for a processor, they {format_duration(peers.queued_ms)}"
    return f"in a step of {step} it uses {rank_time} of processor time, they {peer_time}, and {queued}"


def _failed_text(event: e.Failed) -> str:
    return f"{event.gang} (attempt {event.generation}): {failure_text(event)}"


def _cluster_text(event: _ClusterEvent) -> str:
    match event:
        case e.ServerStarted(version=version):
            return f"a server took over (ganger {version})"
        case e.NodesListed() | e.NodeChanged():
            return _nodes_text(event)
        case e.Unreadable(event_kind=kind, reason=reason):
            return f"an event ({kind}) was set aside: {reason}"
        case e.NodeLost(node=node, detail=detail):
            return f"node {node} was lost" + (f": {detail}" if detail else "")
        case e.NodeReturned(node=node):
            return f"node {node} came back"
        case e.NodeCordoned(node=node, by=by, reason=reason):
            return f"{by or 'someone'} took node {node} out of service" + (f": {reason}" if reason else "")
        case e.NodeUncordoned(node=node, by=by):
            return f"{by or 'someone'} put node {node} back into service"
        case e.NodeDrained(node=node, by=by, reason=reason):
            return f"{by or 'someone'} drains node {node}" + (f": {reason}" if reason else "")
        case e.NodePreempted(node=node, notice_ms=notice_ms, by=by):
            return f"{by or 'someone'} preempts node {node} in {format_duration(notice_ms)}"
        case e.QueueSet(queue=queue, by=by):
            return f"{by or 'someone'} set queue {queue.name}"
        case e.QueueDeleted(queue=queue, by=by):
            return f"{by or 'someone'} deleted queue {queue}"
        case _:
            return _plan_text(event)


def _plan_text(event: e.PolicySet | e.MaintenanceSet | e.MaintenanceCleared) -> str:
    """Return the sentence of an event about the policy or maintenance."""
    match event:
        case e.PolicySet(version=version, by=by, note=note):
            return f"{by or 'someone'} applied version {version} of the policy" + (f": {note}" if note else "")
        case e.MaintenanceSet(id=name, nodes=nodes, from_ms=from_ms, until_ms=until_ms, note=note, by=by):
            duration = format_duration(until_ms - from_ms) + (f": {note}" if note else "")
            return f"{by or 'someone'} set maintenance {name} of {_name_list(nodes)} for {duration}"
        case e.MaintenanceCleared(id=name, by=by):
            return f"{by or 'someone'} cleared maintenance {name}"


def _decision_text(decision: Decision) -> str:
    match decision:
        case Start(gang=gang, generation=generation, skipped=skipped):
            skips = f"; it skips checkpoints that attempts failed on: {_step_list(skipped)}" if skipped else ""
            skips += f"; it returns to step {decision.rollback.step} or before" if decision.rollback else ""
            spares = tuple(share.node for share in decision.spares)
            beside = f", with {_name_list(spares)} as spare{'s' * (len(spares) > 1)}" if spares else ""
            lent = f", lent by {_name_list(tuple(dict.fromkeys(decision.lenders)))}" if decision.lenders else ""
            return f"{gang} starts (attempt {generation}) on {_name_list(decision.nodes)}{lent}{beside}{skips}"
        case Stop(gang=gang, notice_ms=notice_ms, shares=shares, cause=Cause.RESIZED) if shares:
            notice = f", with {format_duration(notice_ms)} to save its work" if notice_ms else ""
            cause = f" for {decision.preemptor}, {PREEMPTION_RULES[decision.rule]}" if decision.rule else ""
            names = tuple(dict.fromkeys(share.node for share in shares))
            ranks = sum(len(share.ranks) for share in shares)
            size = f"{ranks} processes on " if any(share.part for share in shares) else ""
            size += f"{len(names)} node{'s' * (len(names) > 1)}"
            return f"{gang} is resized to {size} ({_name_list(names)}){notice}{cause}"
        case Stop(gang=gang, gives_up=True):
            return f"{gang} gives up the nodes that it has kept since it lost one, and queues again"
        case Stop(gang=gang, notice_ms=notice_ms):
            notice = f", with {format_duration(notice_ms)} to save its work" if notice_ms else ""
            unsaved = f"; {format_duration(decision.unsaved_ms)} of work is not saved" if decision.unsaved_ms else ""
            next_nodes = tuple(share.node for share in decision.shares)
            onward = f"; it starts again on {_name_list(next_nodes)}" if next_nodes else ""
            if decision.keeps_ms:
                onward = f"; it keeps {_name_list(next_nodes)} for up to {format_duration(decision.keeps_ms)}"
            return f"{gang} is stopped{notice}: {stop_text(decision)}{unsaved}{onward}"
        case ReservedStart(gang=gang, start_ms=None, cause=cause):
            return f"{gang} lost its reserved start: {RESERVATION_CAUSES[cause]}"
        case ReservedStart(gang=gang, nodes=nodes, cause=cause):
            return f"{gang} has a reserved start on {_name_list(nodes)}: {RESERVATION_CAUSES[cause]}"
        case SpareNodes():
            return _spares_text(decision)
        case Expect(gang=gang, run_ms=run_ms):
            return f"{gang} runs longer than predicted: a run time of {format_duration(run_ms)} is expected now"
        case Defragmented(gangs=gangs):
            return f"looked for jobs to move so that a larger one fits: {_name_list(gangs) or 'none'}"
        case ActOnNode() | GroupFaults() | OpenHealthBreaker():
            return health_decision_text(decision)
        case Wait():
            queue, user, *_ = decision.gang_class.split("/")
            return f"jobs of {user} in queue {queue}: {reason_text(decision.reason)}"


def _spares_text(decision: SpareNodes) -> str:
    """Return which spares a job has lost, and which it has now."""
    names = tuple(share.node for share in decision.shares)
    spares = f"{_name_list(names)} as spare{'s' * (len(names) > 1)}" if names else "no spare"
    lost = f"lost its spare{'s' * (len(decision.lost) > 1)} {_name_list(decision.lost)}, and " if decision.lost else ""
    return f"{decision.gang} {lost}has {spares} now"


def _step_list(steps: tuple[int, ...]) -> str:
    return f"step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))}"


def _nodes_text(event: e.NodesListed | e.NodeChanged) -> str:
    if isinstance(event, e.NodeChanged):
        node = event.listed
        return f"node {node.name} {f'is not ready: {node.unready}' if node.unready else _left_for_jobs(node)}"
    names = tuple(node.name for node in event.nodes)
    gpus = sum(node.gpus for node in event.nodes)
    count = "there is 1 node" if len(names) == 1 else f"there are {len(names)} nodes"
    text = f"{count} with {gpus} GPU{'' if gpus == 1 else 's'}: {_name_list(names)}"
    unready = tuple(node.name for node in event.nodes if node.unready)
    return f"{text}; not ready: {_name_list(unready)}" if unready else text


def _left_for_jobs(node: Node) -> str:
    gpus = f", {node.gpus - len(node.foreign)} of {node.gpus} GPUs" if node.gpus else ""
    return f"has {format_cpu(node.cpu_milli)} CPU, {format_bytes(node.memory_bytes)} of memory{gpus} for jobs"


def _name_list(names: tuple[str, ...]) -> str:
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _changed_parts(event: e.Described) -> str:
    """Return which of labels and notes changed: never their text, which may be long."""
    labels = f"label{'s' * (len(event.labels) > 1)} {', '.join(event.labels)}"
    return " and ".join(part for part in (labels * bool(event.labels), "the notes" * (event.notes is not None)) if part)
