"""Invariant 16: a dry run is what the next round does; and every waiting gang has a reason that names what binds, so
that when just that changes, the result does."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ganger.core.cycle.plan import plan
from ganger.core.explain.explain import UNADMITTED, standing_reason
from ganger.core.explain.hypothetical import supposed
from ganger.core.fold.fold import fold, refusal
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.gang import RUNS, Gang
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Cause, Start, Stop
from ganger.model.job import ENDED, Array, GangState, GpuRequest, JobSpec, Limits, Resources, Shape
from ganger.model.pending_reason import PendingReason, ReasonCode
from ganger.model.queue import Amount, Queue, UserLimits
from ganger.model.terms import WHOLE, Selector
from ganger.model.units import GIB_BYTES
from tests.laws import draws
from tests.laws.policies import SHARED, every_policy
from tests.laws.safety import copy_of, fingerprint
from tests.laws.world import LEAVING, World

NODES = (ReasonCode.NO_CAPACITY, ReasonCode.NO_NODE, ReasonCode.EXCLUDED)
OF_USERS = {
    ReasonCode.USER_GPUS: "gpus",
    ReasonCode.USER_JOBS: "jobs",
    ReasonCode.USER_TIME: "time_ms",
    ReasonCode.USER_NODE_TIME: "node_ms",
}


def lived(policy: Policy, data: st.DataObject) -> World:
    world = World(policy, data.draw(draws.nodes()), data.draw(draws.queues())).governed(data)
    for _ in range(data.draw(st.integers(1, 6), label="batches")):
        world.batch(data)
        world.round()
    return world


def crowded(policy: Policy, data: st.DataObject) -> World:
    """Two equal nodes that many want: arrays, jobs that come one after the other, those that starve and that fail."""
    nodes = (Node(name=f"n{at}", gpus=4, cpu_milli=64_000, memory_bytes=64) for at in (1, 2))
    world = World(policy, tuple(nodes))
    asked = st.builds(Resources, gpu=st.builds(GpuRequest, count=st.sampled_from((4, 4, 2, 1))), cpu_milli=st.just(1))
    spec = st.builds(
        JobSpec,
        run=st.just("x"),
        nodes=st.sampled_from((1, 1, 2)),
        resources=asked,
        limits=st.builds(Limits, time_ms=st.sampled_from((None, draws.HOUR_MS, 5 * draws.HOUR_MS))),
        array=st.sampled_from((None, None, Array(indices=(0, 1, 2), limit=1), Array(indices=(0, 1), limit=1))),
    )
    for number in range(data.draw(st.integers(2, 7), label="jobs")):
        is_after = world.raw.jobs and data.draw(st.integers(0, 5)) == 5
        after = data.draw(draws.afters([*world.raw.jobs])) if is_after else ()
        world.submit(replace(draws.job(number, "ann", data.draw(spec)), awaits=after))
        world.round()
        world.confirm()
        world.now_ms += data.draw(st.sampled_from((0, 1, 60_000, 31 * 60_000, 2 * draws.HOUR_MS)))
        running = world.in_state(GangState.RUNNING)
        if running and data.draw(st.integers(0, 3)) == 3:
            name = data.draw(st.sampled_from(running))
            fact = {"gang": name, "generation": world.generation(name), "node": world.left(name)[0]}
            world.happens(e.Failed(**fact, cause=Cause.RANK_FAILED, exit_code=1))
            world.clear()
        world.round()
    return world


@every_policy
@SHARED
@given(data=st.data())
def test_invariant_16_a_dry_run_is_what_the_next_round_does(policy: Policy, data: st.DataObject) -> None:
    world = lived(policy, data)
    job = draws.job(999, data.draw(st.sampled_from(draws.USERS)), data.draw(draws.specs(tuple(world.state.queues))))
    before = fingerprint(world.state)
    with supposed(world.state, job, world.now_ms):
        foretold = plan(world.state, world.now_ms, policy)
    assert fingerprint(world.state) == before, "a dry run leaves the state as it found it"
    world.state.validate()
    assert world.submit(job)
    acts = [each for each in world.round().decisions if isinstance(each, Start | Stop)]
    assert acts == [each for each in foretold.decisions if isinstance(each, Start | Stop)]


@every_policy
@SHARED
@given(data=st.data())
def test_invariant_16_a_reason_names_what_binds(policy: Policy, data: st.DataObject) -> None:
    _every_reason_binds(lived(policy, data))


@every_policy
@SHARED
@given(data=st.data())
def test_invariant_16_a_reason_names_what_binds_where_all_wait_for_others(policy: Policy, data: st.DataObject) -> None:
    _every_reason_binds(crowded(policy, data))


def _every_reason_binds(world: World) -> None:
    policy = world.policy
    pending = [gang for gang in world.state.gangs.values() if gang.state is GangState.PENDING]
    for gang in pending[:4] if world.state.ready else ():
        reason = standing_reason(world.state, gang, world.now_ms, policy)
        if reason.why in NODES and _names_nodes(gang):
            continue  # there cannot be more of those that are named
        if _starts(world.state, gang.id, world.now_ms, policy):
            continue
        state, now_ms = copy_of(world.state), world.now_ms
        if reason.why in (ReasonCode.BACKOFF, *UNADMITTED):
            assert reason.until_ms is not None
            now_ms = reason.until_ms
        for event in _cured(world.state, gang, reason):
            assert refusal(state, event) is None
            fold(state, e.Stamped(state.seq + 1, now_ms, event))
        if reason.why is ReasonCode.DEPENDENCY and not _come_first(state, gang, now_ms, policy):
            continue
        again = state.gangs[gang.id]
        if not _starts(state, gang.id, now_ms, policy):
            other = standing_reason(state, again, now_ms, policy)
            assert not _same(reason, other), f"{gang.id}: {reason} was cured, and still it is {other}"


def _same(reason: PendingReason, other: PendingReason) -> bool:
    if reason.why in NODES:
        there = (reason.level, *(each.level for each in reason.slices.layers))
        again = (other.level, *(each.level for each in other.slices.layers))
        return other.why in NODES and there == again and {*there} <= {"", *draws.LEVELS}
    if reason.why in (ReasonCode.HELD, ReasonCode.STOPPING_OTHERS):
        return other.why is reason.why and not {*reason.holders}.isdisjoint(other.holders)
    return (reason.why, reason.scope, reason.resource) == (other.why, other.scope, other.resource)


def _starts(state: State, gang: str, now_ms: int, policy: Policy) -> bool:
    decisions = plan(state, now_ms, policy).decisions
    starts = [each.gang for each in decisions if isinstance(each, Start)]
    return gang in starts or any(name.startswith(f"{gang}[") for name in starts)


def _cured(state: State, gang: Gang, reason: PendingReason) -> list[e.Event]:
    """Events that change the one constraint that the reason names."""
    if reason.why in NODES:
        waiting = [other for other in state.gangs.values() if other.state is GangState.PENDING]
        new = _nodes_for(gang, sum(map(_all_nodes, waiting)))
        return [e.NodesListed(nodes=(*state.nodes.nodes, *new), levels=draws.LEVELS)]
    if reason.why is ReasonCode.OVER_QUOTA:
        tree = state.tree
        path = reversed([tree.queues[at] for at in tree.path(tree.index[gang.queue])])
        return [e.QueueSet(queue=_unbounded(queue, reason.resource, depth)) for depth, queue in enumerate(path)]
    if reason.why in OF_USERS:
        queue = state.queues[reason.scope]
        limits: UserLimits = replace(queue.user_limits, **{OF_USERS[reason.why]: None})
        return [e.QueueSet(queue=replace(queue, user_limits=limits))]
    if reason.why is ReasonCode.MAINTENANCE:
        return [e.MaintenanceCleared(id=name) for name in reason.scope.split(", ")]
    if reason.why is ReasonCode.HELD:
        return [e.StopRequested(gang=name) for name in reason.holders]
    if reason.why is ReasonCode.STOPPING_OTHERS:
        return [event for name in reason.holders for event in _gone(state.gangs[name])]
    if reason.why is ReasonCode.ARRAY_LIMIT:
        return _without_the_others(state, gang)
    return []


def _without_the_others(state: State, gang: Gang) -> list[e.Event]:
    """All other elements of its array end, or are to."""
    array = gang.array or gang.id
    rest = [] if gang.is_head else [f"{array}[{index}]" for index in state.arrays[array].rest]
    # To ask a head is to ask the whole array: the elements that it stands for are asked one by one.
    every = [each for each in state.gangs.values() if each.array == array and each is not gang and not each.is_head]
    asked = [each.id for each in every if each.state not in RUNS]
    return [
        *(e.StopRequested(gang=name) for name in (*asked, *rest)),
        *(event for each in every if each.left for event in _gone(each)),
    ]


def _gone(gang: Gang) -> list[e.Event]:
    """It ends, or what is left of it does."""
    of_it: dict[str, Any] = {"gang": gang.id, "generation": gang.generation, "nodes": tuple(gang.left)}
    runs = gang.state in RUNS
    return [*([e.Finished(**of_it)] if runs else []), e.Cleared(**of_it)]


def _come_first(state: State, gang: Gang, now_ms: int, policy: Policy) -> bool:
    """Those that the gang comes after come to what it asks; False where they cannot by an end alone."""
    whens = {after.job: {each.when for each in gang.awaits if each.job == after.job} for after in gang.awaits}
    for job, asked in whens.items():
        first = [each for each in state.gangs.values() if job in (each.id, each.array)]
        counts = state.arrays[job].counts if job in state.arrays else {}
        failed = any(counts.get(ended) for ended in ENDED if ended is not GangState.SUCCEEDED)
        runs = all(each.state in RUNS for each in first) and not failed
        succeeds = any(each.state is GangState.FINISHING for each in first)
        if (
            not first
            or ("succeeded" in asked and not runs)
            or ("failed" in asked and ("succeeded" in asked or succeeds))
        ):
            return False
        events = [event for each in first for event in _gone(each)] if "succeeded" in asked else []
        for event in events or [e.StopRequested(gang=job)]:
            if refusal(state, event) is None:  # it ends anyway
                fold(state, e.Stamped(state.seq + 1, now_ms, event))
    while any(after.job in (each.id, each.array) for after in gang.awaits for each in state.gangs.values()):
        planned = plan(state, now_ms, policy)
        if planned.decisions:
            fold(state, e.Stamped(state.seq + 1, now_ms, e.Decided(plan=planned, policy=policy.NAME, version="0")))
        for each in [each for each in state.gangs.values() if each.state in LEAVING]:
            for event in _gone(each):
                fold(state, e.Stamped(state.seq + 1, now_ms, event))
    return True


def _names_nodes(gang: Gang) -> bool:
    named = gang.shape.selector
    few = any(part.devices > len(named.devices) for part in gang.shape.parts) if named.devices else False
    # Whole nodes have as many devices as it asks for: one beyond these is on none.
    whole = [part for part in gang.shape.parts if part.selector.sharing == WHOLE]
    beyond = any(device >= part.devices for part in whole for device in part.selector.devices)
    return bool(named.nodes) or few or beyond or _labels(named) is None


def _labels(named: Selector) -> dict[str, str] | None:
    """Labels that a gang asks of its nodes; None where none of those that are drawn are so."""
    every = (labels for labels in draws.LABELS if {*named.labels} <= {*labels.items()})
    return next((each for each in every if not named.required or any(t.holds(each) for t in named.required)), None)


def _all_nodes(gang: Gang) -> int:
    elements = len(gang.job.spec.array.indices) if gang.job.spec.array else 1
    return elements * gang.shape.all_nodes


def _nodes_for(gang: Gang, many: int) -> list[Node]:
    """New nodes, in a new domain of every level: enough of each part's, whoever else takes of them."""
    domains = tuple("new" for _ in draws.LEVELS)
    return [_node(f"new{at}-{each}", domains, part) for at, part in enumerate(gang.shape.parts) for each in range(many)]


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
    )


def _unbounded(queue: Queue, resource: str, depth: int) -> Queue:
    much = 1 << (50 - 4 * depth)
    resource = resource.replace("gpu_milli", "gpus")
    kind = resource.removeprefix("gpus.") if resource.startswith("gpus.") else ""

    def put(amount: Amount, figure: int | None) -> Amount:
        if not kind:
            return replace(amount, **{resource: figure})
        others = {name: value for name, value in amount.gpu_types.items() if name != kind}
        # Without a figure for all GPUs it is the sum of those by type.
        return replace(amount, gpus=None, gpu_types=others if figure is None else others | {kind: figure})

    return replace(queue, nominal=put(queue.nominal, much), borrowing=put(queue.borrowing, None))
