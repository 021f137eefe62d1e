"""Laws of liveness: what must happen eventually in a world in which no other event occurs."""

from dataclasses import replace

from ganger import registry
from ganger.core.cycle.cycle import plan
from ganger.core.explain.explain import explain
from ganger.core.fold.fold import fold
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.decision import Decision, Start, Stop
from ganger.model.job import GangState, GpuRequest, Job, JobSpec, Origin, Resources
from ganger.model.job_sections.placement_spec import Placement
from ganger.model.pending_reason import ReasonCode
from ganger.model.policy import FRAGMENTATION
from ganger.model.queue import Amount, Queue, UserLimits
from ganger.model.units import DAY_MS, parse_bytes, parse_duration_ms
from tests.laws.reason_laws import class_reason, pending_gangs
from tests.laws.safety import copy_of
from tests.laws.world import World

MAX_CYCLES = 300


def every_gang_can_be_stopped(world: World) -> None:
    """Check that a live gang accepts a stop in any state, and ends once nothing of it is left."""
    world.restart_server()
    for gang in list(world.state.gangs):
        world.stop(gang)
    world.run_cycle()
    world.clear_leaving()
    world.run_cycle()
    assert [*world.state.gangs] == []


def preemption_serves_preemptors(world: World) -> None:
    """Check that the preemptor starts once its victims are gone and no other event occurred.

    A gang before it in the order may start instead, if the same stops made room for it.
    """
    world.restart_server()
    run_due_cycles(world)
    for _ in range(MAX_CYCLES):
        preemptors = [
            gang for gang in pending_gangs(world) if class_reason(world, gang).code is ReasonCode.STOPPING_OTHERS
        ]
        if not preemptors:
            return
        order = {gang.id: world.policy.key(gang, world.state, world.now_ms) for gang in pending_gangs(world)}
        first = min(preemptors, key=lambda gang: order[gang.id])
        world.clear_leaving()
        started = [decision.gang for decision in run_due_cycles(world) if isinstance(decision, Start)]
        assert any(order.get(gang, order[first.id]) <= order[first.id] for gang in started), (
            f"others were preempted for {first.id}, which does not start"
        )
    raise AssertionError("gangs are preempted for ever")


def run_due_cycles(world: World) -> list[Decision]:
    """Run a cycle, and those that it makes due at once, and return all decisions."""
    decisions = [*world.run_cycle().decisions]
    while world.is_due():
        decisions += world.run_cycle().decisions
    return decisions


def constant_demand_settles(world: World) -> None:
    """Check that starts and stops cease when no job is submitted and none ends by itself.

    The predicted run time of a gang without a limit is extended for ever: a thousand years of that suffice.
    """
    until_ms = world.now_ms + 1_000 * 365 * DAY_MS
    for _ in range(MAX_CYCLES):
        world.confirm_starts()
        world.clear_leaving()
        decisions = [decision for decision in world.run_cycle().decisions if isinstance(decision, Start | Stop)]
        if decisions:
            continue
        if world.wake_ms is None or world.wake_ms > until_ms:
            return
        world.now_ms = world.wake_ms
    raise AssertionError(f"never settles: {decisions}")


def impossible_jobs_change_nothing(world: World) -> None:
    """Check that jobs that can never run, submitted first and with the highest priority, change no other decision.

    Not where placement depends on what pending jobs request.
    """
    rules = [row.event.document for row in world.log if isinstance(row.event, e.PolicySet)]
    if any(document.gpu_shares.score == FRAGMENTATION for document in rules):
        return
    state, extra = State(find_score=registry.score), 0
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
            assert _acts(planned.decisions) == _acts(event.plan.decisions), "they blocked or preempted a gang"
            event = replace(event, plan=planned)
        fold(state, e.Stamped(row.seq + extra, row.at_ms, event))


_QUEUES = (
    Queue(name="none", borrowing=Amount(gpus=0)),
    Queue(name="barred", user_limits=UserLimits(gpus=0)),
)
"""A queue without quota that may not borrow, and one in which no user has an allowance."""


def _acts(decisions: tuple[object, ...]) -> list[object]:
    return [decision for decision in decisions if isinstance(decision, Start | Stop)]


def _impossible() -> list[e.Event]:
    """Return events of jobs with too many nodes, in a queue without quota, and by a user without an allowance."""
    one_gpu = Resources(gpu=GpuRequest(count=1))
    first_specs = (JobSpec(run="x", nodes=99), JobSpec(run="x", queue="none", resources=one_gpu))
    specs = (*first_specs, JobSpec(run="x", queue="barred", resources=one_gpu))
    jobs = (
        Job(id=f"impossible-{index}", user="zoe", spec=replace(spec, priority=1000), origin=Origin(directory="/"))
        for index, spec in enumerate(specs)
    )
    return [*(e.QueueSet(queue=queue) for queue in _QUEUES), *(e.Submitted(job=job) for job in jobs)]


def suggestions_hold(world: World) -> None:
    """Check that what `explain` suggests starts now if the job is withdrawn and submitted so."""
    for gang in world.state.gangs.values():
        explanation = explain(world.state, gang.id, world.now_ms, world.policy)
        assert explanation.sentence
        if gang.state is not GangState.PENDING:
            continue
        assert explanation.reason
        assert gang.awaits or 1 <= (explanation.position or 0) <= (explanation.pending or 0)
        assert explanation.earliest_ms is None or explanation.earliest_ms >= world.now_ms
        # To withdraw an array stops its running elements, and what they leave may be reserved for others.
        if any(other.job.array == gang.id for other in world.state.gangs.values()):
            continue
        # To withdraw an element of an array with a limit lets the next one in, before the resubmitted job.
        if gang.job.array is not None and gang.job.spec.array is not None and gang.job.spec.array.limit is not None:
            continue
        for change in explanation.changes:
            _starts_now(world, gang, change.flags)


def _starts_now(world: World, gang: Gang, flags: str) -> None:
    state = copy_of(world.state)
    spec = apply_flags(gang.job.spec, flags)
    spec = replace(spec, limits=replace(spec.limits, queue_time_ms=None))
    resubmitted = replace(gang.job, id="again", spec=spec, awaits=(), array=None, index=None)
    for event in (
        e.StopRequested(gang=gang.id),
        e.Submitted(job=resubmitted),
    ):
        fold(state, e.Stamped(state.seq + 1, world.now_ms, event))
    started = [d.gang for d in plan(state, world.now_ms, world.policy).decisions if isinstance(d, Start)]
    assert any(name.startswith("again") for name in started), f"{gang.id} was suggested {flags}, but {started} start"


def apply_flags(spec: JobSpec, flags: str) -> JobSpec:
    """Return the spec with the flags that a user would type, or the keys of its file that they would change."""
    if flags.startswith("remove "):
        for key in flags.removeprefix("remove ").split(" and "):
            spec = replace(spec, placement=without_key(spec.placement, key.removeprefix("placement.")))
        return spec
    if flags.startswith("placement.tolerations="):
        tolerations = flags.removeprefix("placement.tolerations=").strip("[]").split(", ")
        return replace(spec, placement=replace(spec.placement, tolerations=tuple(tolerations)))
    role, _, count = flags.removeprefix("roles.").partition(".count=")
    if count:
        return replace(spec, roles=spec.roles | {role: replace(spec.roles[role], count=int(count))})
    words = iter(flags.split())
    for name, value in zip(words, words, strict=True):
        spec = _with(spec, name, value)
    return spec


def without_key(placement: Placement, key: str) -> Placement:
    """Return the placement without one key of the job file: nodes, affinity.required, node_selector.LABEL."""
    first, _, rest = key.partition(".")
    match first:
        case "node_selector":
            assert rest in placement.node_selector
            labels = {label: value for label, value in placement.node_selector.items() if label != rest}
            return replace(placement, node_selector=labels)
        case "affinity":
            return replace(placement, affinity=replace(placement.affinity, **{rest: ()}))
        case _:
            return replace(placement, **{first: ()})


def _with(spec: JobSpec, name: str, value: str) -> JobSpec:
    resources = spec.resources
    match name:
        case "--mode":
            return replace(spec, placement=replace(spec.placement, mode=value))
        case "--topology":
            return replace(spec, placement=replace(spec.placement, topology=value))
        case "--nodes":
            return replace(spec, nodes=int(value))
        case "--replica-groups":
            least, _, most = value.partition("..")
            return replace(spec, replica_groups=int(least), max_replica_groups=int(most))
        case "--gpu":
            kinds, _, count = value.rpartition(":")
            kind, *other_types = kinds.split(",")
            gpu = GpuRequest(count=int(count), type=kind or None, other_types=tuple(other_types))
            # What depends on the number of GPUs was given by the size it was tried in.
            resources = replace(resources, gpu=gpu, cpu_milli=resources.cpu_milli or 1000 * spec.processes_per_node)
            return replace(spec, resources=resources)
        case "--gpu-milli":
            return replace(spec, resources=replace(resources, gpu=replace(resources.gpu, milli=int(value))))
        case "--memory":
            return replace(spec, resources=replace(resources, memory_bytes=parse_bytes(value)))
        case "--time":
            return replace(spec, limits=replace(spec.limits, time_ms=parse_duration_ms(value)))
        case "--queue":
            return replace(spec, queue=value)
        case "--priority":
            return replace(spec, priority=int(value))
        case _:
            return replace(spec, resources=replace(resources, cpu_milli=round(float(value) * 1000)))
