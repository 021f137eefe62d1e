"""Every pending gang has one reason, and the reason is true of the raw facts."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from math import floor

from ganger.core.explain.explain import UNADMITTED, all_reasons, current_reason, reason_view
from ganger.core.queue_order.policy_interface import Policy, preemption_rules, starvation_age_ms
from ganger.core.state.gang import Gang, class_text
from ganger.core.state.state import State
from ganger.model.affinity import Affinity
from ganger.model.decision import Cause
from ganger.model.job import GangState, Job
from ganger.model.job_sections.placement_spec import Placement
from ganger.model.pending_reason import PendingReason, ReasonCode
from tests.laws.oracles.job_parts import HCA, RESOURCES, parts, total
from tests.laws.oracles.placement_oracle import tallies
from tests.laws.safety import FOR_EVER_MS, maintained, meeting
from tests.laws.world import LEAVING, World

USER = tuple(code for code in ReasonCode if code.startswith("user_"))


def pending_gangs(world: World) -> list[Gang]:
    """Return pending gangs that may be started now."""
    pending = (gang for gang in world.state.gangs.values() if gang.state is GangState.PENDING)
    return [
        gang for gang in pending if gang.retries.not_before_ms <= world.now_ms and not world.raw.waits_for(gang.job)
    ]


def class_reason(world: World, gang: Gang) -> PendingReason:
    """Return the reason of a pending gang's class: as published, or as it is now if the last cycle considered not all.

    A published reason may be of an earlier cycle then, before capacity was held back from the gang.
    """
    if not world.publishes_all:
        return all_reasons(world.state, world.now_ms, world.policy)[gang.class_key]
    text = class_text(gang.class_key)
    assert text in world.state.pending.reasons, f"{gang.id} is pending without a reason"
    return world.state.pending.reasons[text]


def every_class_has_a_true_reason(world: World) -> None:
    """Check that after a cycle every class has one reason, with a sentence and a remedy, and that it is true."""
    if not world.state.ready:
        return
    for gang in pending_gangs(world):
        reason = class_reason(world, gang)
        view = reason_view(reason, gang.id, gang.queue)
        assert view.sentence
        assert view.remedy
        assert "{" not in view.sentence + view.remedy
        assert_reason_is_true(world, gang, reason)


def explanations_agree(world: World) -> None:
    """Check what `standing_reason` returns of each pending gang.

    That is an unmet dependency first, then a backoff pause or the cluster's refusal, otherwise the reason of its class.
    Reasons of all classes at once are the same.
    """
    by_class = all_reasons(world.state, world.now_ms, world.policy)
    for gang in world.state.gangs.values():
        if gang.state is GangState.PENDING and world.state.ready:
            reason = current_reason(world.state, gang, world.now_ms, world.policy)
            first = world.raw.waits_for(gang.job)
            assert (reason.code is ReasonCode.DEPENDENCY) == bool(first)
            has_own = not first and (gang.retries.not_before_ms > world.now_ms or gang.retries.unadmitted > 0)
            assert (reason.code in (ReasonCode.BACKOFF, *UNADMITTED)) == has_own
            assert first or has_own or reason == by_class.get(gang.class_key, reason), "one class and all classes agree"
            assert not first or set(reason.holders) == set(first)
            # Holders, and the order in which they end, may have changed with the very cycle that was recorded.
            assert first or has_own or replace(reason, holders=()) == replace(class_reason(world, gang), holders=())


def assert_reason_is_true(world: World, gang: Gang, reason: PendingReason) -> None:
    """Check that the constraint binds by the raw facts, that the numbers are theirs, and that holders hold."""
    raw, job = world.raw, world.raw.wanted(gang.job)
    wanted_parts = parts(job.spec)
    out = raw.excluded.get(gang.id, {})
    limit_ms = job.spec.limits.time_ms
    stays_ms = FOR_EVER_MS if limit_ms is None else max(1, limit_ms - gang.ran_ms)
    stays_ms = min(stays_ms, job.spec.limits.time_min_ms or stays_ms)
    away = maintained(raw, world.now_ms, world.now_ms + stays_ms)
    windows = meeting(raw, world.now_ms, world.now_ms + stays_ms)
    free, able, whole = [
        tallied(world, job, **options)
        for options in ({"without": {**out, **away}}, {"empty": True, "without": out}, {"empty": True})
    ]
    holders = [other for other in pending_gangs(world) if may_hold_capacity(world, other)]
    if reason.code in (ReasonCode.NO_NODE, ReasonCode.EXCLUDED, ReasonCode.NO_CAPACITY) and not holders and not away:
        _assert_restrictions_are_named(world, job, reason)
    match reason.code:
        case ReasonCode.NO_NODE:
            assert has_figures(reason, able)
            assert reason.have < reason.need
            assert any(is_short(figures) for figures in able)
        case ReasonCode.EXCLUDED:
            assert reason.excluded
            assert {*reason.excluded} <= {*out}
            assert reason.have < reason.need
            assert has_figures(reason, able)
            assert any(not is_short(figures) for figures in whole)
        case ReasonCode.NO_CAPACITY:
            assert {*reason.excluded} <= {*out}
            # Parts may be in each other's way although there is room for each.
            assert reason.need > reason.have or len(wanted_parts) > 1
            assert reason.limit is not None
            assert has_figures(replace(reason, have=reason.limit), able)
            assert reason.limit >= reason.need
            assert holders or has_figures(reason, free)
            assert {*reason.maintenances} <= {figures.id for figures in windows}
            assert bool(reason.in_maintenance) == bool(reason.maintenances)
            assert holders or has_figures(
                replace(reason, have=reason.have + reason.in_maintenance), tallied(world, job, without=out)
            )
            assert raw.user_allows(job)
            assert raw.quota_allows(job, as_set=True), "a quota that was set goes before the nodes"
            for holder in reason.holders:
                assert any(other == holder for other, _ in raw.left), f"{holder} holds nothing"
        case ReasonCode.OVER_QUOTA:
            resource = reason.resource.removeprefix("gpu_milli.").removeprefix("extended.")
            needed = (
                total(job.spec, resource) if resource in (*RESOURCES, HCA) else raw.demand_of_type(job.spec, resource)
            )
            assert reason.need == needed > reason.have
            assert holders or reason.have == max(0, floor(raw.available(job.spec.queue, resource)))
            assert holders or not raw.quota_allows(job) or resource in raw.closed(job)
            assert all(holder in raw.starts for holder in reason.holders)
        case code if code in USER:
            assert reason.need > reason.have
            assert holders or not raw.user_allows(job)
            assert all(raw.jobs[holder].user == job.user for holder in reason.holders)
        case ReasonCode.RESERVED:
            _assert_held_is_true(world, gang, reason)
        case ReasonCode.STOPPING_OTHERS:
            assert world.policy.ORDERS_RUNNING or preemption_rules(world.policy, world.state.document) is not None
            assert reason.holders
            assert all(world.state.gangs[holder].state in LEAVING for holder in reason.holders)
        case ReasonCode.MAINTENANCE:
            # For several parts a placement is not guaranteed to be found.
            assert holders or len(wanted_parts) > 1 or raw.fits(job), f"{gang.id} has no room without maintenance"
            assert away
            assert reason.until_ms is not None
            assert reason.until_ms > world.now_ms
            assert reason.have < reason.need
        case ReasonCode.ARRAY_LIMIT:
            assert raw.is_full(job)
        case _:
            raise AssertionError(f"{gang.id} waits because of {reason}")


def _assert_restrictions_are_named(world: World, job: Job, reason: PendingReason) -> None:
    """Check that the reason names each restriction to certain nodes without which the job would have a place now."""
    for text, without in _without_each_restriction(world, job.spec.placement):
        if world.raw.fits(replace(job, spec=replace(job.spec, placement=without))):
            assert text in reason.scope, f"{job.id} fits with {without}, and its reason says {reason.scope}"


def _without_each_restriction(world: World, placement: Placement) -> Iterator[tuple[str, Placement]]:
    if placement.nodes:
        yield f"name {' or '.join(placement.nodes)}", replace(placement, nodes=())
    for key, value in placement.node_selector.items():
        labels = {other: text for other, text in placement.node_selector.items() if other != key}
        yield f"label {key}={value}", replace(placement, node_selector=labels)
    if required := placement.affinity.required:
        yield f"label {' or '.join(map(str, required))}", replace(placement, affinity=Affinity())
    if placement.network:
        yield f"network {' or '.join(placement.network)}", replace(placement, network=())
    if placement.devices:
        yield f"of {', '.join(f'#{index}' for index in placement.devices)}", replace(placement, devices=())
    for taints in dict.fromkeys(node.taints for node in world.raw.nodes.values()):
        yield "no taint ", replace(placement, tolerations=(*placement.tolerations, *taints))


Tallies = list[tuple[int, int]]


def tallied(world: World, job: Job, *, empty: bool = False, without: Collection[str] = ()) -> list[Tallies]:
    """Return for every part, and each of its variants, what it needs and what there is."""
    raw = world.raw
    return [
        tallies(job.spec, part.count, raw.room(kind, empty=empty, without=without), raw.nodes, sliced=not part.stacked)
        for part in parts(job.spec)
        for kind in part.variants
    ]


def is_short(tallies_of_part: Tallies) -> bool:
    """Return whether something is not enough."""
    return any(have < needed for needed, have in tallies_of_part)


def has_figures(reason: PendingReason, all_tallies: list[Tallies]) -> bool:
    """Return whether the reason's figures are among these."""
    return any((reason.need, reason.have) in tallies_of_part for tallies_of_part in all_tallies)


def _assert_held_is_true(world: World, gang: Gang, reason: PendingReason) -> None:
    policy, state = world.policy, world.state
    assert reason.holders
    for name in reason.holders:
        holder = state.gangs[name]
        assert holder.state is GangState.PENDING, f"{gang.id} is behind {name}, which is not pending"
        assert may_hold_capacity(world, holder)
        own_key, holder_key = (policy.key(either, state, world.now_ms) for either in (gang, holder))
        before = holder_key < own_key or _depends_on_usage(policy, state, world.now_ms)
        assert before or name in state.reservations, "capacity is held from later gangs only"


def _depends_on_usage(policy: Policy, state: State, now_ms: int) -> bool:
    """Return whether starts of this very cycle may have changed the order."""
    users = {(gang.queue, gang.job.user): None for gang in state.gangs.values()}
    return any(policy.account_key(state, queue, user, now_ms) != (0,) for queue, user in users)


def may_hold_capacity(world: World, gang: Gang) -> bool:
    """Return whether a cycle may hold capacity for a gang: it starves, preempts others, or blocks all others."""
    if gang.id in world.state.reservations or world.policy.STRICT_ORDER:
        return True
    threshold_ms = starvation_age_ms(world.policy, world.state.document, gang.job.spec.priority)
    if threshold_ms is not None and world.now_ms - gang.since_ms >= threshold_ms:
        return True
    return (
        any(
            other.attempt.stop_sent is Cause.PREEMPTED or other.state in LEAVING for other in world.state.gangs.values()
        )
        and class_reason(world, gang).code is ReasonCode.STOPPING_OTHERS
    )


def work_is_conserved(world: World) -> None:
    """Check that what fits by the raw facts and is still pending waits for a gang that capacity is held for.

    If it fits only on nodes that are in maintenance before it would end, it may wait for others to leave, too.
    """
    if "work_conservation" not in world.policy.LIVENESS_GUARANTEES or not world.state.ready:
        return
    for gang in pending_gangs(world):
        job = world.raw.wanted(gang.job)
        if not world.raw.fits(job):
            continue
        if world.raw.is_full(job):
            allowed: tuple[ReasonCode, ...] = (ReasonCode.ARRAY_LIMIT,)
        else:
            allowed = (ReasonCode.RESERVED, ReasonCode.MAINTENANCE)
            limit_ms = gang.job.spec.limits.time_ms
            stays_ms = FOR_EVER_MS if limit_ms is None else max(1, limit_ms - gang.ran_ms)
            if not world.raw.fits(job, without=maintained(world.raw, world.now_ms, world.now_ms + stays_ms)):
                allowed += (ReasonCode.STOPPING_OTHERS,)
        assert class_reason(world, gang).code in allowed, f"{gang.id} fits and waits: {class_reason(world, gang)}"
