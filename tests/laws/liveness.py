"""What must come to pass when nothing else happens: laws about the end of a life, for worlds that stand still."""

from dataclasses import replace

from ganger.core.cycle.plan import plan
from ganger.core.explain.explain import explain
from ganger.core.fold.fold import fold
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.decision import Decision, Start, Stop
from ganger.model.job import GangState, GpuRequest, Job, JobSpec, Origin, Resources
from ganger.model.pending_reason import ReasonCode
from ganger.model.policy import FRAGMENTATION
from ganger.model.queue import Amount, Queue, UserLimits
from ganger.model.units import DAY_MS, parse_bytes, parse_duration_ms
from tests.laws.answers import answer, waiting
from tests.laws.safety import copy_of
from tests.laws.world import World

MANY_ROUNDS = 300


def everybody_can_be_stopped(world: World) -> None:
    """A live gang accepts a stop in any state, and then ends once nothing of it is left."""
    world.list_again()
    for gang in list(world.state.gangs):
        world.stop(gang)
    world.round()
    world.clear()
    world.round()
    assert [*world.state.gangs] == []


def evictions_serve_somebody(world: World) -> None:
    """Once those that gave way are gone, and nothing else happened, the gang they were stopped for starts.

    Or one before it in the order does, which the same stop let in.
    """
    world.list_again()
    rounds_due(world)
    for _ in range(MANY_ROUNDS):
        preemptors = [gang for gang in waiting(world) if answer(world, gang).why is ReasonCode.STOPPING_OTHERS]
        if not preemptors:
            return
        order = {gang.id: world.policy.key(gang, world.state, world.now_ms) for gang in waiting(world)}
        first = min(preemptors, key=lambda gang: order[gang.id])
        world.clear()
        started = [decision.gang for decision in rounds_due(world) if isinstance(decision, Start)]
        assert any(order.get(gang, order[first.id]) <= order[first.id] for gang in started), (
            f"others were stopped for {first.id}, and it does not start"
        )
    raise AssertionError("gangs are stopped for others for ever")


def rounds_due(world: World) -> list[Decision]:
    """A round, and those that it makes due at once: it may end what others wait for. All that was decided."""
    decisions = [*world.round().decisions]
    while world.is_due():
        decisions += world.round().decisions
    return decisions


def demand_that_stands_still_settles(world: World) -> None:
    """Nobody submits, nothing ends by itself: after a while nobody is stopped or started any more. What runs without a
    limit is expected to run for longer again and again, for ever: a thousand years of that will do."""
    until_ms = world.now_ms + 1_000 * 365 * DAY_MS
    for _ in range(MANY_ROUNDS):
        world.confirm()
        world.clear()
        decisions = [decision for decision in world.round().decisions if isinstance(decision, Start | Stop)]
        if decisions:
            continue
        if world.wake_ms is None or world.wake_ms > until_ms:
            return
        world.now_ms = world.wake_ms
    raise AssertionError(f"never settles: {decisions}")


def impossible_jobs_change_nothing(world: World) -> None:
    """Jobs that can never run, submitted first and with the highest priority: everybody else fares the same. Not where
    places are chosen by what those who wait ask for."""
    rules = [row.event.document for row in world.log if isinstance(row.event, e.PolicySet)]
    if any(document.gpu_shares.score == FRAGMENTATION for document in rules):
        return
    state, extra = State(), 0
    for event in _impossible():
        extra += 1
        fold(state, e.Stamped(extra, world.log[0].at_ms, event))
    for row in world.log:
        event = row.event
        if isinstance(event, e.PolicySet):
            theirs = {queue.name: queue for queue in _QUEUES}
            document = replace(event.document, queues=event.document.queues | theirs)
            event = replace(event, document=document, version=state.policy_version + 1)
        if isinstance(event, e.Decided):
            planned = plan(state, row.at_ms, world.policy)
            assert _acts(planned.decisions) == _acts(event.plan.decisions), "they blocked or evicted somebody"
            event = replace(event, plan=planned)
        fold(state, e.Stamped(row.seq + extra, row.at_ms, event))


_QUEUES = (
    Queue(name="none", borrowing=Amount(gpus=0)),
    Queue(name="barred", user_limits=UserLimits(gpus=0)),
)
"""One without quota that may not borrow, and one where no user has an allowance."""


def _acts(decisions: tuple[object, ...]) -> list[object]:
    return [decision for decision in decisions if isinstance(decision, Start | Stop)]


def _impossible() -> list[e.Event]:
    """Too many nodes; a queue without quota that may not borrow; a user without an allowance."""
    one = Resources(gpu=GpuRequest(count=1))
    asked = (JobSpec(run="x", nodes=99), JobSpec(run="x", queue="none", resources=one))
    specs = (*asked, JobSpec(run="x", queue="barred", resources=one))
    jobs = (
        Job(id=f"impossible-{at}", user="zoe", spec=replace(spec, priority=1000), origin=Origin(directory="/"))
        for at, spec in enumerate(specs)
    )
    return [*(e.QueueSet(queue=queue) for queue in _QUEUES), *(e.Submitted(job=job) for job in jobs)]


def suggestions_hold(world: World) -> None:
    """What `explain` says would start now starts now, when the job is withdrawn and submitted so."""
    for gang in world.state.gangs.values():
        said = explain(world.state, gang.id, world.now_ms, world.policy)
        assert said.sentence
        if gang.state is not GangState.PENDING:
            continue
        assert said.reason
        assert gang.awaits or 1 <= (said.position or 0) <= (said.waiting or 0)
        assert said.earliest_ms is None or said.earliest_ms >= world.now_ms
        # To withdraw an array is to stop those of its elements that run, and what they leave may be promised to others.
        if any(other.job.array == gang.id for other in world.state.gangs.values()):
            continue
        # To withdraw an element of an array that has a limit lets the next one in, before the job that comes again.
        if gang.job.array is not None and gang.job.spec.array is not None and gang.job.spec.array.limit is not None:
            continue
        for change in said.changes:
            _starts_now(world, gang, change.flags)


def _starts_now(world: World, gang: Gang, flags: str) -> None:
    state = copy_of(world.state)
    spec = changed(gang.job.spec, flags)
    spec = replace(spec, limits=replace(spec.limits, queue_time_ms=None))
    again = replace(gang.job, id="again", spec=spec, awaits=(), array=None, index=None)
    for event in (
        e.StopRequested(gang=gang.id),
        e.Submitted(job=again),
    ):
        fold(state, e.Stamped(state.seq + 1, world.now_ms, event))
    started = [d.gang for d in plan(state, world.now_ms, world.policy).decisions if isinstance(d, Start)]
    assert any(name.startswith("again") for name in started), (
        f"{gang.id} was told to come again with {flags}; {started} start"
    )


def changed(spec: JobSpec, flags: str) -> JobSpec:
    """The spec with what a user would type."""
    role, _, count = flags.removeprefix("roles.").partition(".count=")
    if count:
        return replace(spec, roles=spec.roles | {role: replace(spec.roles[role], count=int(count))})
    words = iter(flags.split())
    for name, value in zip(words, words, strict=True):
        spec = _with(spec, name, value)
    return spec


def _with(spec: JobSpec, name: str, value: str) -> JobSpec:
    asked = spec.resources
    match name:
        case "--mode":
            return replace(spec, placement=replace(spec.placement, mode=value))
        case "--topology":
            return replace(spec, placement=replace(spec.placement, topology=value))
        case "--nodes":
            return replace(spec, nodes=int(value))
        case "--gpu":
            kinds, _, many = value.rpartition(":")
            kind, *others = kinds.split(",")
            gpu = GpuRequest(count=int(many), type=kind or None, other_types=tuple(others))
            # What depends on the number of GPUs was said by the size it was tried in.
            asked = replace(asked, gpu=gpu, cpu_milli=asked.cpu_milli or 1000 * spec.processes_per_node)
            return replace(spec, resources=asked)
        case "--gpu-milli":
            return replace(spec, resources=replace(asked, gpu=replace(asked.gpu, milli=int(value))))
        case "--memory":
            return replace(spec, resources=replace(asked, memory_bytes=parse_bytes(value)))
        case "--time":
            return replace(spec, limits=replace(spec.limits, time_ms=parse_duration_ms(value)))
        case "--queue":
            return replace(spec, queue=value)
        case "--priority":
            return replace(spec, priority=int(value))
        case _:
            return replace(spec, resources=replace(asked, cpu_milli=round(float(value) * 1000)))
