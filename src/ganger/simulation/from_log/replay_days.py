"""The days of ganger's own log lived through again, on the same nodes or on others, under the same policy or another.

Called by the errand `sim`. The loop, the core and the policies are a server's, those who wait are told why as a server
tells them, and nothing here decides.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from ganger.backends.simulator.job_behaviour import Behaviour
from ganger.backends.simulator.virtual_cluster import World
from ganger.core.placement.start_check import StartRequest
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.state import Image, State
from ganger.engine.eventlog.stream_log import StreamedEvent
from ganger.engine.loop import Loop
from ganger.engine.submit import quota_check
from ganger.errors import RequestError
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.job import Job, array_of
from ganger.model.policy import PolicyDocument
from ganger.model.units import DEVICE_MILLI
from ganger.simulation.cycle_cost import Cycles
from ganger.simulation.from_log.recorded_days import Past, history_of
from ganger.simulation.history_recorder import Histories
from ganger.simulation.metrics.cost import Cost, cost
from ganger.simulation.metrics.run_history import History, Interval
from ganger.simulation.metrics.scorecard import Scorecard, score
from ganger.simulation.run import Outcome, unended
from ganger.simulation.traces.trace import Findings, Flaw

Prices = Mapping[str, Fraction]
SHOWN: Final = 5
"""Of jobs that a document strands so many queues are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """How it is lived through: on these nodes, under this document; start_ms, checkpoint_ms: what a start costs, and
    the work between checkpoints, where they are not to be as they were; prices: of an hour of a node, by GPU type."""

    past: Past
    nodes: tuple[Node, ...]
    document: PolicyDocument
    order: Callable[[str], Policy]
    start_ms: int | None = None
    checkpoint_ms: int | None = None
    prices: Prices | None = None


def as_recorded(past: Past, prices: Prices | None = None) -> Outcome:
    """What the log itself says of these days, in the same figures."""
    found = tuple(past.recorded.values())
    ended = sum(each.ended_ms is not None for each in found)
    return Outcome(
        card=_card(past, past.nodes, found),
        cost=_cost(past, past.nodes, prices, found),
        histories=found,
        findings=past.findings,
        unended=unended([life for life, each in zip(past.lives, found, strict=True) if each.ended_ms is None]),
        starts=past.starts,
        preemptions=past.preemptions,
        events=len(found) + ended,
    )


def live_again(again: Again, *readers: Callable[[e.Stamped], None]) -> Outcome:
    """Until nothing is due any more, or nothing can come of it. Refused: jobs are of a queue that is not there."""
    past = again.past
    _check_queues(past, again.document)
    asked, findings = _fitting(again)
    histories = Histories()
    world = World(list(again.nodes), levels=past.levels, begin_ms=past.begin_ms)
    loop = Loop(StreamedEvent(histories.take, *readers), world, again.order, world, "simulated")
    loop.open()
    in_force = loop.post(e.PolicySet(document=again.document, version=1))
    loop.turn(loop.drain())
    in_force.result()
    there = {node.name: None for node in again.nodes}
    for fault in past.faults:
        if fault.node in there:
            world.lose(fault.start_ms, fault.node)
            world.restore(fault.end_ms, fault.node)
    world.feed(iter(asked), lambda name: _act(again, name))
    cycles = Cycles(loop)
    world.run(cycles, _until_ms(again))
    jobs = _jobs(asked)
    found = {
        name: history_of(jobs[name], life, past.acts[name].work_ms, life.ended_ms, histories.now_ms)
        for name, life in histories.lives.items()
    }
    ended = sum(each.ended_ms is not None for each in found.values())
    return Outcome(
        card=_card(past, again.nodes, tuple(found.values())),
        cost=_cost(past, again.nodes, again.prices, tuple(found.values())),
        self_cost=cycles.cost(len(found) + ended),
        histories=tuple(found.values()),
        findings=findings.all(),
        unended=unended(histories.lives.values()),
        starts=histories.starts,
        preemptions=histories.preemptions,
        events=len(found) + ended,
        rows=loop.wait(0, 0),
    )


def _until_ms(again: Again) -> int:
    """By when all would be done one after the other, and all could be done again once: whoever still waits or runs
    then may do so for ever, as two jobs without checkpoints that stop each other do."""
    acts = [_act(again, name) for name in again.past.acts]
    return again.past.end_ms + 2 * sum((act.work_ms or 0) + act.begin_ms + (act.stop_ms or 0) for act in acts)


def _act(again: Again, name: str) -> Behaviour:
    act = again.past.acts[name]
    if again.start_ms is not None:
        act = replace(act, begin_ms=again.start_ms)
    return act if again.checkpoint_ms is None else replace(act, checkpoint_every=again.checkpoint_ms)


def _fitting(again: Again) -> tuple[list[tuple[int, e.Event]], Findings]:
    """What is asked for, without jobs that would wait for ever, and without requests about nodes that are not there."""
    image = Image(
        nodes=list(again.nodes),
        levels=again.past.levels,
        rules=again.document.rules,
        queues=list(again.document.queues.values()),
    )
    state, findings = State(image), Findings(again.past.findings)
    there, left_out = {node.name: None for node in again.nodes}, dict[str, None]()
    asked: list[tuple[int, e.Event]] = []
    for at_ms, event in again.past.asked:
        match event:
            case e.Submitted(job=job):
                if (why := _why_never(again.past, state, job)) is not None:
                    findings.add(Flaw.TOO_LARGE, again.past.seqs[_names(job)[0]], f"{job.id}: {why}")
                    left_out[job.id] = None
                    continue
            case e.MaintenanceSet(nodes=nodes):
                event = replace(event, nodes=tuple(node for node in nodes if node in there))  # noqa: PLW2901 - the same, for these nodes
        if getattr(event, "node", None) in (None, *there) and _gang_of(event) not in left_out:
            asked.append((at_ms, event))
    return asked, findings


def _why_never(past: Past, state: State, job: Job) -> str | None:
    """Why a job that would not be withdrawn could never start here."""
    if all(past.acts[name].steps is None for name in _names(job)):
        return None
    try:
        limit_ms = job.spec.limits.time_ms
        quota_check.check(
            state, StartRequest(queue=job.spec.queue, user=job.user, shape=job.spec.shape, time_ms=limit_ms)
        )
    except RequestError as refused:
        return refused.detail
    return None


def _gang_of(event: e.Event) -> str | None:
    gang = getattr(event, "gang", None)
    element = array_of(gang) if gang else None
    return element[0] if element else gang


def _names(job: Job) -> list[str]:
    return [job.id] if job.spec.array is None else [job.element(index).id for index in job.spec.array.indices]


def _jobs(asked: Sequence[tuple[int, e.Event]]) -> Mapping[str, Job]:
    submitted = [event.job for _, event in asked if isinstance(event, e.Submitted)]
    return {name: job for job in submitted for name in _names(job)}


def _check_queues(past: Past, document: PolicyDocument) -> None:
    """As a policy that strands live jobs is refused."""
    lost = Counter(
        event.job.spec.queue
        for _, event in past.asked
        if isinstance(event, e.Submitted) and event.job.spec.queue not in document.queues
    )
    if lost:
        named = ", ".join(f"{queue} ({many})" for queue, many in lost.most_common(SHOWN))
        more = f" and {len(lost) - SHOWN} more" if len(lost) > SHOWN else ""
        what = f"jobs of {past.place} wait in queues that the document does not have: {named}{more}"
        raise RequestError("strands_jobs", what, f"give the document the queue {lost.most_common(1)[0][0]}")


def _card(past: Past, nodes: Sequence[Node], found: Sequence[History]) -> Scorecard:
    return score(found, _capacity(past, nodes), dict.fromkeys((each.tenant for each in found), 1))


def _cost(past: Past, nodes: Sequence[Node], prices: Prices | None, found: Sequence[History]) -> Cost | None:
    begin_ms = past.begin_ms
    gone = ((each.node, begin_ms + each.start_ms, begin_ms + each.end_ms) for each in past.faults)
    return None if prices is None else cost(found, nodes, prices, gone)


def _capacity(past: Past, nodes: Sequence[Node]) -> list[Interval]:
    """Thousandths of GPUs that were there, from when on."""
    milli = {node.name: node.gpus * DEVICE_MILLI for node in nodes}
    changes = Counter({past.begin_ms: sum(milli.values())})
    for fault in past.faults:
        changes[past.begin_ms + fault.start_ms] -= milli.get(fault.node, 0)
        changes[past.begin_ms + fault.end_ms] += milli.get(fault.node, 0)
    there, found = 0, []
    for at_ms in sorted(changes):
        there += changes[at_ms]
        found.append((at_ms, there))
    return found
