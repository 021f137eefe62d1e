"""Every waiting gang has one answer, and the answer is true of the raw facts."""

from collections.abc import Collection
from dataclasses import replace
from math import floor

from ganger.core.explain.explain import UNADMITTED, every_reason, reason_view, standing_reason
from ganger.core.queue_order.policy_interface import Policy, starves_after_ms
from ganger.core.state.gang import Gang, class_text
from ganger.core.state.state import State
from ganger.model.decision import Cause
from ganger.model.job import GangState, Job
from ganger.model.pending_reason import PendingReason, ReasonCode
from tests.laws.raw import RESOURCES, parts, total
from tests.laws.safety import FOR_EVER_MS, maintained, meeting
from tests.laws.where import tallies
from tests.laws.world import LEAVING, World

USER = (ReasonCode.USER_GPUS, ReasonCode.USER_JOBS, ReasonCode.USER_TIME, ReasonCode.USER_NODE_TIME)


def waiting(world: World) -> list[Gang]:
    """Pending gangs that may be started now."""
    pending = (gang for gang in world.state.gangs.values() if gang.state is GangState.PENDING)
    return [gang for gang in pending if gang.not_before_ms <= world.now_ms and not world.raw.waits_for(gang.job)]


def answer(world: World, gang: Gang) -> PendingReason:
    """The standing answer of a waiting gang's class."""
    return world.state.waits[class_text(gang.class_key)]


def everybody_is_answered(world: World) -> None:
    """After a round: one answer each, a sentence, something to do, and true."""
    if not world.state.ready:
        return
    for gang in waiting(world):
        assert class_text(gang.class_key) in world.state.waits, f"{gang.id} waits without an answer"
        reason = answer(world, gang)
        view = reason_view(reason, gang.id, gang.queue)
        assert view.sentence
        assert view.remedy
        assert "{" not in view.sentence + view.remedy
        is_true(world, gang, reason)


def questions_are_answered(world: World) -> None:
    """`standing_reason` names what comes first, else gives the pause of a gang that pauses, or what the cluster refused
    it for, else its class's answer. What is told of all at once is the same."""
    every = every_reason(world.state, world.now_ms, world.policy)
    for gang in world.state.gangs.values():
        if gang.state is GangState.PENDING and world.state.ready:
            reason = standing_reason(world.state, gang, world.now_ms, world.policy)
            first = world.raw.waits_for(gang.job)
            assert (reason.why is ReasonCode.DEPENDENCY) == bool(first)
            has_own = not first and (gang.not_before_ms > world.now_ms or gang.unadmitted > 0)
            assert (reason.why in (ReasonCode.BACKOFF, *UNADMITTED)) == has_own
            assert first or has_own or reason == every.get(gang.class_key, reason), "alone and together"
            assert not first or set(reason.holders) == set(first)
            # Who is in the way, and in which order they end, may have changed with the very round that was recorded.
            assert first or has_own or replace(reason, holders=()) == replace(answer(world, gang), holders=())


def is_true(world: World, gang: Gang, reason: PendingReason) -> None:
    """The binding constraint binds, by the raw facts; the numbers are theirs; holders hold."""
    raw, job = world.raw, gang.job
    wanted = parts(job.spec)
    out = raw.excluded.get(gang.id, {})
    limit_ms = job.spec.limits.time_ms
    stays_ms = FOR_EVER_MS if limit_ms is None else max(1, limit_ms - gang.ran_ms)
    stays_ms = min(stays_ms, job.spec.limits.time_min_ms or stays_ms)
    away = maintained(raw, world.now_ms, world.now_ms + stays_ms)
    windows = meeting(raw, world.now_ms, world.now_ms + stays_ms)
    free, able, whole = [
        tallied(world, job, **how)
        for how in ({"without": {**out, **away}}, {"empty": True, "without": out}, {"empty": True})
    ]
    kept = [other for other in waiting(world) if keeps(world, other)]
    match reason.why:
        case ReasonCode.NO_NODE:
            assert told(reason, able)
            assert reason.have < reason.need
            assert any(is_short(each) for each in able)
        case ReasonCode.EXCLUDED:
            assert reason.excluded
            assert {*reason.excluded} <= {*out}
            assert reason.have < reason.need
            assert told(reason, able)
            assert any(not is_short(each) for each in whole)
        case ReasonCode.NO_CAPACITY:
            assert {*reason.excluded} <= {*out}
            # Parts may be in each other's way, while there is room for each.
            assert reason.need > reason.have or len(wanted) > 1
            assert reason.limit is not None
            assert told(replace(reason, have=reason.limit), able)
            assert reason.limit >= reason.need
            assert kept or told(reason, free)
            assert {*reason.windows} <= {each.id for each in windows}
            assert bool(reason.away) == bool(reason.windows)
            assert kept or told(replace(reason, have=reason.have + reason.away), tallied(world, job, without=out))
            assert raw.user_allows(job)
            assert raw.quota_allows(job, as_set=True), "a quota that somebody set goes before the nodes"
            for holder in reason.holders:
                assert any(other == holder for other, _ in raw.left), f"{holder} holds nothing"
        case ReasonCode.OVER_QUOTA:
            resource = reason.resource.removeprefix("gpu_milli.")
            needed = total(job.spec, resource) if resource in RESOURCES else raw.of_type(job.spec, resource)
            assert reason.need == needed > reason.have
            assert kept or reason.have == max(0, floor(raw.available(job.spec.queue, resource)))
            assert kept or not raw.quota_allows(job) or resource in raw.closed(job)
            assert all(holder in raw.starts for holder in reason.holders)
        case ReasonCode.USER_GPUS | ReasonCode.USER_JOBS | ReasonCode.USER_TIME | ReasonCode.USER_NODE_TIME:
            assert reason.need > reason.have
            assert kept or not raw.user_allows(job)
            assert all(raw.jobs[holder].user == job.user for holder in reason.holders)
        case ReasonCode.HELD:
            _held_is_true(world, gang, reason)
        case ReasonCode.STOPPING_OTHERS:
            assert world.policy.ORDERS_RUNNING
            assert reason.holders
            assert all(world.state.gangs[holder].state in LEAVING for holder in reason.holders)
        case ReasonCode.MAINTENANCE:
            # Of several parts it is not promised that a place is found.
            assert kept or len(wanted) > 1 or raw.fits(job), f"{gang.id} has no room without maintenance"
            assert away
            assert reason.until_ms is not None
            assert reason.until_ms > world.now_ms
            assert reason.have < reason.need
        case ReasonCode.ARRAY_LIMIT:
            assert raw.is_full(job)
        case _:
            raise AssertionError(f"{gang.id} waits because of {reason}")


Tallies = list[tuple[int, int]]


def tallied(world: World, job: Job, *, empty: bool = False, without: Collection[str] = ()) -> list[Tallies]:
    """For every part, and for whatever it may be, what it needs and what there is."""
    raw = world.raw
    return [
        tallies(job.spec, part.count, raw.room(kind, empty=empty, without=without), raw.nodes, sliced=not part.stacked)
        for part in parts(job.spec)
        for kind in part.variants
    ]


def is_short(of: Tallies) -> bool:
    """Whether something is not enough."""
    return any(there < needed for needed, there in of)


def told(reason: PendingReason, of: list[Tallies]) -> bool:
    """Whether the reason's figures are among these."""
    return any((reason.need, reason.have) in each for each in of)


def _held_is_true(world: World, gang: Gang, reason: PendingReason) -> None:
    policy, state = world.policy, world.state
    assert reason.holders
    for name in reason.holders:
        holder = state.gangs[name]
        assert holder.state is GangState.PENDING, f"{gang.id} is behind {name}, which does not wait"
        assert keeps(world, holder)
        mine, its = (policy.key(of, state, world.now_ms) for of in (gang, holder))
        before = its < mine or _heeds_usage(policy, state, world.now_ms)
        assert before or name in state.promises, "room is kept from those after it only"


def _heeds_usage(policy: Policy, state: State, now_ms: int) -> bool:
    """Whether starts of this very round may have changed who goes first."""
    users = {(gang.queue, gang.job.user): None for gang in state.gangs.values()}
    return any(policy.account_key(state, queue, user, now_ms) != (0,) for queue, user in users)


def keeps(world: World, gang: Gang) -> bool:
    """Whether a round may keep room for a gang: it starves, others are stopped for it, or it blocks all others."""
    if gang.id in world.state.promises or world.policy.BLOCKS:
        return True
    threshold_ms = starves_after_ms(world.policy, world.state.rules, gang.job.spec.priority)
    if threshold_ms is not None and world.now_ms - gang.since_ms >= threshold_ms:
        return True
    return (
        any(other.stop_sent is Cause.PREEMPTED or other.state in LEAVING for other in world.state.gangs.values())
        and answer(world, gang).why is ReasonCode.STOPPING_OTHERS
    )


def nobody_waits_for_nothing(world: World) -> None:
    """Work conservation: what fits by the raw facts and still waits, waits behind one for whom room is kept."""
    if "work_conservation" not in world.policy.PROMISES or not world.state.ready:
        return
    for gang in waiting(world):
        if world.raw.fits(gang.job):
            held = (
                (ReasonCode.ARRAY_LIMIT,) if world.raw.is_full(gang.job) else (ReasonCode.HELD, ReasonCode.MAINTENANCE)
            )
            assert answer(world, gang).why in held, f"{gang.id} fits and waits: {answer(world, gang)}"
