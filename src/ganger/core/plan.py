"""One round: what to stop, what to start, and what to tell those who wait. The state is left as it was found.

Called by `engine.loop` after every batch of events and at `next_wake_ms`. Same state, time and policy: same plan.

1. stop     jobs that were asked to end or have used up their time; what is left of a failed generation
2. order    heads of the classes of pending gangs, by the policy
3. fit      each in turn: user limits, quota, nodes and devices; a gang starts whole or not at all
4. preempt  only under a policy that orders running gangs
5. keep     room for a gang that has waited beyond the starvation threshold
6. answer   every class that still waits, when its answer has changed
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from ganger.core import arrays, preempt
from ganger.core.backfill import earliest
from ganger.core.fit import ask, fit, where
from ganger.core.gang import ClassKey, Gang, class_text
from ganger.core.policy import Policy
from ganger.core.round import CURABLE, Round
from ganger.core.state import Shares, State
from ganger.model.decision import Cause, Decision, Plan, Start, Stop, Wait
from ganger.model.job import GangState
from ganger.model.reason import Reason, Why

WITHOUT_NOTICE_MS = 0
RUNS = (GangState.STARTING, GangState.RUNNING)


def plan(state: State, now_ms: int, policy: Policy) -> Plan:
    """The decisions of one round, and when the next is due although nothing happens (None: never; now: at once)."""
    if not state.ready:
        return Plan(as_of=state.seq)
    stops = tuple(_stops(state, now_ms))
    now = Round(state, now_ms, policy, {stop.gang: None for stop in stops})
    with state.trial():
        starts, waits = _place_pending(now)
    preempted = [_give_way(victim) for victim in now.victims]
    answers = [
        Wait(gang_class=text, reason=reason) for text, reason in waits.items() if state.waits.get(text) != reason
    ]
    decisions: list[Decision] = [*stops, *preempted, *starts, *answers]
    wake_ms = now_ms if _frees_others(state, stops) else _next_wake_ms(now, starts)
    return Plan(as_of=state.seq, decisions=tuple(decisions), next_wake_ms=wake_ms)


@contextmanager
def carried_out(state: State, now_ms: int, policy: Policy, without: str) -> Iterator[None]:
    """Inside it the nodes and quotas are as this round would leave them if the gang `without` did not wait."""
    ending = {stop.gang: None for stop in _stops(state, now_ms)}
    with state.trial():
        _place_pending(Round(state, now_ms, policy, ending | {without: None}))
        yield


def _stops(state: State, now_ms: int) -> Iterator[Stop]:
    """Gangs that are to end, and generations that failed somewhere: these are stopped everywhere."""
    for gang in state.gangs.values():
        cause = _end_cause(gang, now_ms) or _failure_cause(gang) or _pause_cause(gang)
        if cause:
            yield Stop(gang=gang.id, generation=gang.generation, cause=cause, notice_ms=_notice_left_ms(gang, now_ms))


def _end_cause(gang: Gang, now_ms: int) -> Cause | None:
    """Somebody asked for its end, or its time is over; None too where it ends already."""
    if gang.state in (GangState.FINISHING, GangState.FAILING, GangState.STOPPING):
        return None
    if gang.end_cause:
        return gang.end_cause
    limit_ms, deadline_ms = gang.job.spec.limits.time_ms, _deadline_ms(gang)
    if gang.state is GangState.PENDING and limit_ms is not None and gang.ran_ms >= limit_ms:
        return Cause.TIME_LIMIT
    if deadline_ms is None or now_ms < deadline_ms:
        return None
    return Cause.QUEUE_TIME if gang.state is GangState.PENDING else Cause.TIME_LIMIT


def _failure_cause(gang: Gang) -> Cause | None:
    ending = gang.state in (GangState.REQUEUEING, GangState.FAILING)
    return gang.failure.cause if gang.failure and gang.stop_sent is None and ending else None


def _pause_cause(gang: Gang) -> Cause | None:
    """It is to be suspended, or to leave a node; or what it was for is done, and the rest of it may go."""
    if gang.state in RUNS and (gang.suspends or gang.drains):
        if gang.suspends:
            return Cause.SUSPENDED
        return Cause.DRAINED if gang.leave_by_ms is None else Cause.NODE_PREEMPTED
    return Cause.DONE if gang.state is GangState.FINISHING and gang.stop_sent is None else None


def _deadline_ms(gang: Gang) -> int | None:
    """When one of the gang's own limits ends it, if it stays as it is."""
    limits = gang.job.spec.limits
    if gang.state is GangState.PENDING:
        if gang.awaits:
            return None
        return None if limits.queue_time_ms is None else gang.since_ms + limits.queue_time_ms
    if gang.state in RUNS and limits.time_ms is not None:
        return gang.began_ms + limits.time_ms - gang.ran_ms
    return None


def notice_ms(gang: Gang) -> int:
    """How long a gang has to save its work before it is stopped: only one that says how gets any."""
    checkpoint = gang.job.spec.checkpoint
    return checkpoint.grace_ms if checkpoint and gang.state in RUNS else WITHOUT_NOTICE_MS


def _notice_left_ms(gang: Gang, now_ms: int) -> int:
    """The same, and no longer than the node is there."""
    return notice_ms(gang) if gang.leave_by_ms is None else max(0, min(notice_ms(gang), gang.leave_by_ms - now_ms))


def _place_pending(now: Round) -> tuple[list[Start], dict[str, Reason]]:
    """Steps 2 to 5: starts, and the answer of every class that still waits; who gives way is noted in the round."""
    state = now.state
    starts: list[Start] = []
    waits: dict[ClassKey, tuple[Gang, Reason]] = {}
    queue = {key: _eligible(members, now) for key, members in state.classes.items()}
    while open_classes := [key for key, members in queue.items() if members]:
        key = min(open_classes, key=lambda of: now.policy.key(queue[of][0], state, now.now_ms))
        gang = queue[key][0]
        answer = _answer(now, gang)
        if isinstance(answer, tuple):
            begun, is_last = _next_of(now, gang)
            state.take(begun, answer)
            now.begun[begun.id] = begun
            starts.append(_start(state, begun, answer, starts[-1] if starts else None))
            if is_last:
                queue[key].pop(0)
            continue
        # Equal gangs get the same answer: the class is done.
        waits[key] = gang, answer
        queue[key] = []
    return starts, {class_text(key): _final(now, *waits[key]) for key in waits}


def _next_of(now: Round, gang: Gang) -> tuple[Gang, bool]:
    """What starts when a gang's turn has come, and whether that is all of it: a head has many elements."""
    if not gang.is_head:
        return gang, True
    rest, begun = now.state.arrays[gang.id].rest, now.elements.get(gang.id, 0)
    now.elements[gang.id] = begun + 1
    return arrays.element(gang, rest[begun]), begun + 1 == len(rest)


def _final(now: Round, gang: Gang, answer: Reason) -> Reason:
    """The answer as it stands when the round is over: gangs after this one may have started meanwhile."""
    if answer.why in (Why.HELD, Why.STOPPING_OTHERS, Why.ARRAY_LIMIT):
        return answer
    found = now.fit(gang)
    return found if isinstance(found, Reason) else answer


def _give_way(victim: Gang) -> Stop:
    return Stop(gang=victim.id, generation=victim.generation, cause=Cause.PREEMPTED, notice_ms=notice_ms(victim))


def _answer(now: Round, gang: Gang) -> Shares | Reason:
    """Where the gang starts, or why it waits. For one that starves or stops others, room is kept from later ones."""
    if now.state.is_full(gang):
        return Reason(why=Why.ARRAY_LIMIT, need=gang.array_limit or 0)
    found = fit(now.state, ask(gang), now.now_ms)
    if not isinstance(found, Reason):
        return _elsewhere(now, gang) or found
    if found.why not in CURABLE:
        return found
    answer = now.behind(gang) or found
    if now.policy.ORDERS_RUNNING and answer.why is Why.NO_CAPACITY and (stopping := preempt.make_room(now, gang)):
        return stopping
    if starves(gang, now.now_ms, now.policy):
        opening = earliest(now.state, ask(gang), now.now_ms)
        if opening:
            now.keep(gang, found.why, opening.shares)
    return answer


def _elsewhere(now: Round, gang: Gang) -> Shares | None:
    """Where it starts without the node on which it failed again and again, if it can."""
    wanted = ask(gang)
    return where(now.state, replace(wanted, avoids=(*wanted.avoids, *gang.shuns))) if gang.shuns else None


def starves(gang: Gang, now_ms: int, policy: Policy) -> bool:
    """Whether it has waited beyond the policy's threshold."""
    return policy.STARVES_AFTER_MS is not None and now_ms - gang.since_ms >= policy.STARVES_AFTER_MS


def _eligible(members: list[Gang], now: Round) -> list[Gang]:
    """Those of a class that may start now, first in the policy's order first: it may look at more than their age."""
    ready = [gang for gang in members if gang.not_before_ms <= now.now_ms and gang.id not in now.ending]
    return sorted(ready, key=lambda gang: now.policy.key(gang, now.state, now.now_ms))


def _start(state: State, gang: Gang, shares: Shares, before: Start | None) -> Start:
    first = state.nodes.nodes[state.nodes.index[shares[0].node]]
    port = state.rendezvous_port(shares, before)
    return Start(gang=gang.id, generation=gang.generation + 1, shares=shares, host=first.address, port=port)


def _next_wake_ms(now: Round, starts: list[Start]) -> int | None:
    """The first moment at which time alone starts or stops somebody: a limit, a pause, a turn in the order, the end of
    a node's notice.

    Not the starvation threshold: from it on nodes are held back, which is soon enough when somebody could have them.
    """
    now_ms, policy = now.now_ms, now.policy
    begun = {
        start.gang: replace(now.begun[start.gang], state=GangState.STARTING, start=start, began_ms=now_ms)
        for start in starts
    }
    moments = list(now.state.leaving.values())
    for gang in (now.state.gangs | begun).values():
        deadline_ms = _deadline_ms(gang)
        if deadline_ms is not None:
            moments.append(deadline_ms)
        if gang.state is GangState.PENDING:
            moments.append(gang.not_before_ms)
        if policy.ORDERS_RUNNING:
            turn_ms = policy.turn_ms(gang, now_ms)
            moments += [] if turn_ms is None else [turn_ms]
    return min((moment for moment in moments if moment > now_ms), default=None)


def _frees_others(state: State, stops: Iterable[Stop]) -> bool:
    """Whether a gang ends with this very plan that others come after: for these another round is due at once."""
    waiting = [state.gangs[stop.gang] for stop in stops if state.gangs[stop.gang].start is None]
    return any(gang.id in state.dependents or gang.array in state.dependents for gang in waiting)


def pending_order(state: State, now_ms: int, policy: Policy) -> list[Gang]:
    """Every pending gang in the order in which this round would try them."""
    waiting = [gang for members in state.classes.values() for gang in members]
    return sorted(waiting, key=lambda gang: policy.key(gang, state, now_ms))
