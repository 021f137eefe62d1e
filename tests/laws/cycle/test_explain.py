"""Invariant 16: a dry run is what the next cycle does, and every pending gang's reason names the binding constraint.

When just that constraint changes, the result does.
"""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from ganger.core.cycle.cycle import plan
from ganger.core.explain.explain import UNADMITTED, current_reason
from ganger.core.explain.hypothetical import hypothetical_gang
from ganger.core.fold.fold import fold, refusal
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.gang import ACTIVE, Gang
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Cause, Start, Stop
from ganger.model.job import ENDED, Array, GangState, GpuRequest, JobSpec, Resources, Shape
from ganger.model.job_sections.retry_spec import Limits
from ganger.model.pending_reason import PendingReason, ReasonCode
from ganger.model.queue import Amount, Queue, UserLimits
from ganger.model.terms import WHOLE, Selector
from ganger.model.units import GIB_BYTES
from tests.laws import draws
from tests.laws.policies import every_policy
from tests.laws.safety import copy_of, fingerprint
from tests.laws.world import LEAVING, World

NODES = (ReasonCode.NO_CAPACITY, ReasonCode.NO_NODE, ReasonCode.EXCLUDED)
OF_USERS = {
    ReasonCode.USER_GPUS: "gpus",
    ReasonCode.USER_JOBS: "jobs",
    ReasonCode.USER_TIME: "time_ms",
    ReasonCode.USER_NODE_TIME: "node_ms",
    ReasonCode.USER_NODE_TIME_USED: "node_time_used",
}


def lived(policy: Policy, data: st.DataObject) -> World:
    world = World(policy, data.draw(draws.nodes()), data.draw(draws.queues())).with_drawn_policy(data)
    for _ in range(data.draw(st.integers(1, 6), label="batches")):
        world.draw_events(data)
        world.run_cycle()
    return world


def crowded(policy: Policy, data: st.DataObject) -> World:
    """Return a world with two equal, contended nodes: arrays, dependent jobs, starving and failing ones."""
    nodes = (Node(name=f"n{index}", gpus=4, cpu_milli=64_000, memory_bytes=64) for index in (1, 2))
    world = World(policy, tuple(nodes))
    resources = st.builds(
        Resources, gpu=st.builds(GpuRequest, count=st.sampled_from((4, 4, 2, 1))), cpu_milli=st.just(1)
    )
    spec = st.builds(
        JobSpec,
        run=st.just("x"),
        nodes=st.sampled_from((1, 1, 2)),
        resources=resources,
        limits=st.builds(Limits, time_ms=st.sampled_from((None, draws.HOUR_MS, 5 * draws.HOUR_MS))),
        array=st.sampled_from((None, None, Array(indices=(0, 1, 2), limit=1), Array(indices=(0, 1), limit=1))),
    )
    for number in range(data.draw(st.integers(2, 7), label="jobs")):
        is_after = world.raw.jobs and data.draw(st.integers(0, 5)) == 5
        after = data.draw(draws.afters([*world.raw.jobs])) if is_after else ()
        world.submit(replace(draws.job(number, "ann", data.draw(spec)), awaits=after))
        world.run_cycle()
        world.confirm_starts()
        world.now_ms += data.draw(st.sampled_from((0, 1, 60_000, 31 * 60_000, 2 * draws.HOUR_MS)))
        running = world.in_state(GangState.RUNNING)
        if running and data.draw(st.integers(0, 3)) == 3:
            name = data.draw(st.sampled_from(running))
            fact = {"gang": name, "generation": world.generation(name), "node": world.left(name)[0]}
            world.try_event(e.Failed(**fact, cause=Cause.RANK_FAILED, exit_code=1))
            world.clear_leaving()
        world.run_cycle()
    return world


@every_policy(each=2, data=st.data())
def test_invariant_16_a_dry_run_is_what_the_next_cycle_does(policy: Policy, data: st.DataObject) -> None:
    world = lived(policy, data)
    queues = tuple(world.state.document.queues)
    job = draws.job(999, data.draw(st.sampled_from(draws.USERS)), data.draw(draws.specs(queues)))
    before = fingerprint(world.state)
    with hypothetical_gang(world.state, job, world.now_ms):
        foretold = plan(world.state, world.now_ms, policy)
    assert fingerprint(world.state) == before, "a dry run leaves the state unchanged"
    world.state.validate()
    assert world.submit(job)
    acts = [decision for decision in world.run_cycle().decisions if isinstance(decision, Start | Stop)]
    assert acts == [decision for decision in foretold.decisions if isinstance(decision, Start | Stop)]


@every_policy(each=2, data=st.data())
def test_invariant_16_a_reason_names_what_binds(policy: Policy, data: st.DataObject) -> None:
    _every_reason_binds(lived(policy, data))


@every_policy(each=2, data=st.data())
def test_invariant_16_a_reason_names_what_binds_where_all_wait_for_others(policy: Policy, data: st.DataObject) -> None:
    _every_reason_binds(crowded(policy, data))


def _every_reason_binds(world: World) -> None:
    policy = world.policy
    pending = [gang for gang in world.state.gangs.values() if gang.state is GangState.PENDING]
    for gang in pending[:4] if world.state.ready else ():
        reason = current_reason(world.state, gang, world.now_ms, policy)
        if reason.code in NODES and _names_nodes(gang):
            continue  # there cannot be more of those that are named
        if _starts(world.state, gang.id, world.now_ms, policy):
            continue
        state, now_ms = copy_of(world.state), world.now_ms
        if reason.code in (ReasonCode.BACKOFF, *UNADMITTED):
            assert reason.until_ms is not None
            now_ms = reason.until_ms
        for event in _events_that_cure(world.state, gang, reason):
            assert refusal(state, event) is None
            fold(state, e.Stamped(state.seq + 1, now_ms, event))
        if reason.code is ReasonCode.DEPENDENCY and not _resolve_dependencies(state, gang, now_ms, policy):
            continue
        copied = state.gangs[gang.id]
        if not _starts(state, gang.id, now_ms, policy):
            new_reason = current_reason(state, copied, now_ms, policy)
            assert not _is_same_reason(reason, new_reason), (
                f"{gang.id}: {reason} was cured, and still it is {new_reason}"
            )


def _is_same_reason(reason: PendingReason, other: PendingReason) -> bool:
    if reason.code in NODES:
        levels = (reason.level, *(layer.level for layer in reason.slices.layers))
        other_levels = (other.level, *(layer.level for layer in other.slices.layers))
        return other.code in NODES and levels == other_levels and {*levels} <= {"", *draws.LEVELS}
    if reason.code in (ReasonCode.RESERVED, ReasonCode.STOPPING_OTHERS):
        return other.code is reason.code and not {*reason.holders}.isdisjoint(other.holders)
    return (reason.code, reason.scope, reason.resource) == (other.code, other.scope, other.resource)


def _starts(state: State, gang: str, now_ms: int, policy: Policy) -> bool:
    decisions = plan(state, now_ms, policy).decisions
    starts = [decision.gang for decision in decisions if isinstance(decision, Start)]
    return gang in starts or any(name.startswith(f"{gang}[") for name in starts)


def _events_that_cure(state: State, gang: Gang, reason: PendingReason) -> list[e.Event]:
    """Return events that change the one constraint that the reason names."""
    if reason.code in NODES:
        waiting = [other_gang for other_gang in state.gangs.values() if other_gang.state is GangState.PENDING]
        new = _nodes_for(gang, sum(map(_all_nodes, waiting)))
        return [e.NodesListed(nodes=(*state.nodes.nodes, *new), levels=draws.LEVELS)]
    if reason.code is ReasonCode.OVER_QUOTA:
        tree = state.tree
        path = reversed([tree.queues[index] for index in tree.path(tree.index[gang.queue])])
        return [e.QueueSet(queue=_unbounded(queue, reason.resource, depth)) for depth, queue in enumerate(path)]
    if reason.code in OF_USERS:
        queue = state.document.queues[reason.scope]
        name = OF_USERS[reason.code]
        limits: UserLimits = replace(queue.user_limits, **{name: getattr(UserLimits(), name)})
        return [e.QueueSet(queue=replace(queue, user_limits=limits))]
    if reason.code is ReasonCode.MAINTENANCE:
        return [e.MaintenanceCleared(id=name) for name in reason.scope.split(", ")]
    if reason.code is ReasonCode.RESERVED:
        return [e.StopRequested(gang=name) for name in reason.holders]
    if reason.code is ReasonCode.STOPPING_OTHERS:
        return [event for name in reason.holders for event in _ending_events(state.gangs[name])]
    if reason.code is ReasonCode.ARRAY_LIMIT:
        return _events_ending_other_elements(state, gang)
    return []


def _events_ending_other_elements(state: State, gang: Gang) -> list[e.Event]:
    """Return events that end, or request to end, all other elements of its array."""
    array = gang.array or gang.id
    rest = [] if gang.is_head else [f"{array}[{index}]" for index in state.arrays[array].rest]
    # What is requested of an array head is requested of the whole array: its elements are handled one by one.
    others = [
        other for other in state.gangs.values() if other.array == array and other is not gang and not other.is_head
    ]
    waiting = [other.id for other in others if other.state not in ACTIVE]
    return [
        *(e.StopRequested(gang=name) for name in (*waiting, *rest)),
        *(event for other in others if other.attempt.left for event in _ending_events(other)),
    ]


def _ending_events(gang: Gang) -> list[e.Event]:
    """Return events that end a gang, or what is left of it."""
    generation_fields: dict[str, Any] = {
        "gang": gang.id,
        "generation": gang.attempt.generation,
        "nodes": tuple(gang.attempt.left),
    }
    runs = gang.state in ACTIVE
    return [*([e.Finished(**generation_fields)] if runs else []), e.Cleared(**generation_fields)]


def _resolve_dependencies(state: State, gang: Gang, now_ms: int, policy: Policy) -> bool:
    """Bring a gang's dependencies to the required outcome; return False if they cannot by an end alone."""
    whens = {after.job: {other.when for other in gang.awaits if other.job == after.job} for after in gang.awaits}
    for job, outcomes in whens.items():
        required = [other for other in state.gangs.values() if job in (other.id, other.array)]
        counts = state.arrays[job].counts if job in state.arrays else {}
        failed = any(counts.get(ended) for ended in ENDED if ended is not GangState.SUCCEEDED)
        runs = all(other.state in ACTIVE for other in required) and not failed
        succeeds = any(other.state is GangState.FINISHING for other in required)
        if (
            not required
            or ("succeeded" in outcomes and not runs)
            or ("failed" in outcomes and ("succeeded" in outcomes or succeeds))
        ):
            return False
        events = [event for other in required for event in _ending_events(other)] if "succeeded" in outcomes else []
        for event in events or [e.StopRequested(gang=job)]:
            if refusal(state, event) is None:  # it ends anyway
                fold(state, e.Stamped(state.seq + 1, now_ms, event))
    while any(after.job in (other.id, other.array) for after in gang.awaits for other in state.gangs.values()):
        planned = plan(state, now_ms, policy)
        if planned.decisions:
            fold(state, e.Stamped(state.seq + 1, now_ms, e.Decided(plan=planned, policy=policy.NAME, version="0")))
        for other in [other for other in state.gangs.values() if other.state in LEAVING]:
            for event in _ending_events(other):
                fold(state, e.Stamped(state.seq + 1, now_ms, event))
    return True


def _names_nodes(gang: Gang) -> bool:
    named = gang.shape.selector
    has_too_few = any(part.devices > len(named.devices) for part in gang.shape.parts) if named.devices else False
    # Whole nodes have as many devices as the gang requests: a device beyond these is on none.
    whole = [part for part in gang.shape.parts if part.selector.sharing == WHOLE]
    beyond = any(device >= part.devices for part in whole for device in part.selector.devices)
    return bool(named.nodes) or has_too_few or beyond or _labels(named) is None


def _labels(named: Selector) -> dict[str, str] | None:
    """Return labels that satisfy a gang's node selector, or None if no drawn labels do."""
    matching = (labels for labels in draws.LABELS if {*named.labels} <= {*labels.items()})
    return next(
        (labels for labels in matching if not named.required or any(t.holds(labels) for t in named.required)), None
    )


def _all_nodes(gang: Gang) -> int:
    elements = len(gang.job.spec.array.indices) if gang.job.spec.array else 1
    return elements * gang.shape.all_nodes


def _nodes_for(gang: Gang, count: int) -> list[Node]:
    """Return new nodes, in a new domain of every level: enough for each part, whatever other gangs take of them."""
    domains = tuple("new" for _ in draws.LEVELS)
    return [
        _node(f"new{index}-{number}", domains, part)
        for index, part in enumerate(gang.shape.parts)
        for number in range(count)
    ]


def _node(name: str, domains: tuple[str, ...], part: Shape) -> Node:
    return Node(
        name=name,
        domains=domains,
        gpus=max(part.devices, *(device + 1 for device in part.selector.devices), 0),
        gpu_type=part.gpu_type or "",
        gpu_memory_bytes=part.gpu_memory_bytes,
        cpu_milli=max(1000, part.cpu_milli),
        memory_bytes=max(GIB_BYTES, part.memory_bytes),
        labels=_labels(part.selector) or {},
        networks=part.selector.networks,
        extended=dict(part.extended),
    )


def _unbounded(queue: Queue, resource: str, depth: int) -> Queue:
    large_figure = 1 << (50 - 4 * depth)
    resource = resource.replace("gpu_milli", "gpus")
    kind = resource.removeprefix("gpus.") if resource.startswith("gpus.") else ""

    def put(amount: Amount, figure: int | None) -> Amount:
        if name := resource.partition("extended.")[2]:
            others = {other: value for other, value in amount.extended.items() if other != name}
            return replace(amount, extended=others if figure is None else others | {name: figure})
        if not kind:
            return replace(amount, **{resource: figure})
        other_types = {name: value for name, value in amount.gpu_types.items() if name != kind}
        # Without a figure for all GPUs it is the sum of those by type.
        return replace(amount, gpus=None, gpu_types=other_types if figure is None else other_types | {kind: figure})

    return replace(queue, nominal=put(queue.nominal, large_figure), borrowing=put(queue.borrowing, None))
