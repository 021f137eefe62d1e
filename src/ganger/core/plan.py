"""One round: what to stop, what to start, and what to tell those who wait. The state is left as it was found.

Called by `engine.loop` after every batch of events and at `next_wake_ms`. Same state, time and policy: same plan.

1. heal     what is left of a failed generation is stopped
2. limits   jobs that were asked to end, or have used up their time, are stopped
3. order    heads of the classes of pending gangs, by the policy
4. fit      each in turn: user limits, quota, nodes and devices; a gang starts whole or not at all
5. preempt  only under a policy that orders running gangs
6. hold     nodes for a gang that has waited beyond the starvation threshold
7. answer   every class that still waits, when its answer has changed
"""

from collections.abc import Iterator

from ganger.core import preempt
from ganger.core.backfill import earliest
from ganger.core.fit import ask, fit
from ganger.core.gang import ClassKey, Gang, class_text
from ganger.core.policy import Policy
from ganger.core.state import State
from ganger.model.decision import Cause, Decision, NodeShare, Plan, Start, Stop, Wait
from ganger.model.job import GangState
from ganger.model.reason import Reason, Why

WITHOUT_NOTICE_MS = 0
RUNS = (GangState.STARTING, GangState.RUNNING)


def plan(state: State, now_ms: int, policy: Policy) -> Plan:
    """The decisions of one round, and when the next is due although nothing happens (None: never)."""
    if not state.ready:
        return Plan(as_of=state.seq)
    with state.trial():
        stops = [*_heal(state), *_limits(state, now_ms)]
        ending = {stop.gang: None for stop in stops}
        starts, preempted, waits = _place_pending(state, now_ms, policy, ending)
    answers = [
        Wait(gang_class=text, reason=reason) for text, reason in waits.items() if state.waits.get(text) != reason
    ]
    decisions: list[Decision] = [*stops, *preempted, *starts, *answers]
    return Plan(as_of=state.seq, decisions=tuple(decisions), next_wake_ms=_next_wake_ms(state, now_ms, policy))


def _heal(state: State) -> Iterator[Stop]:
    """A generation that failed somewhere is stopped everywhere."""
    for gang in state.gangs.values():
        if gang.failure and gang.stop_sent is None and gang.state in (GangState.REQUEUEING, GangState.FAILING):
            yield Stop(gang=gang.id, generation=gang.generation, cause=gang.failure.cause, notice_ms=WITHOUT_NOTICE_MS)


def _limits(state: State, now_ms: int) -> Iterator[Stop]:
    """Gangs that are to end: somebody asked, or their time is over."""
    for gang in state.gangs.values():
        if gang.state in (GangState.FAILING, GangState.STOPPING):
            continue
        cause = gang.end_cause or _overdue(gang, now_ms)
        if cause:
            yield Stop(gang=gang.id, generation=gang.generation, cause=cause, notice_ms=notice_ms(gang))


def _overdue(gang: Gang, now_ms: int) -> Cause | None:
    deadline_ms = _deadline_ms(gang)
    if deadline_ms is None or now_ms < deadline_ms:
        return None
    return Cause.QUEUE_TIME if gang.state is GangState.PENDING else Cause.TIME_LIMIT


def _deadline_ms(gang: Gang) -> int | None:
    """When one of the gang's own limits ends it, if it stays as it is."""
    limits = gang.job.spec.limits
    if gang.state is GangState.PENDING:
        return None if limits.queue_time_ms is None else gang.since_ms + limits.queue_time_ms
    if gang.state in RUNS and limits.time_ms is not None:
        return gang.began_ms + limits.time_ms - gang.ran_ms
    return None


def notice_ms(gang: Gang) -> int:
    """How long a gang has to save its work before it is stopped: only one that says how gets any."""
    checkpoint = gang.job.spec.checkpoint
    return checkpoint.grace_ms if checkpoint and gang.state in RUNS else WITHOUT_NOTICE_MS


def _place_pending(
    state: State, now_ms: int, policy: Policy, ending: dict[str, None]
) -> tuple[list[Start], list[Stop], dict[str, Reason]]:
    """Steps 3 to 6: starts, gangs stopped for them, and the answer of every class that still waits."""
    starts: list[Start] = []
    stops: list[Stop] = []
    waits: dict[ClassKey, tuple[Gang, Reason]] = {}
    queue = {key: _eligible(members, now_ms, ending) for key, members in state.classes.items()}
    while open_classes := [key for key, members in queue.items() if members]:
        key = min(open_classes, key=lambda of: policy.key(queue[of][0], state, now_ms))
        gang = queue[key][0]
        answer = _answer(state, gang, now_ms, policy)
        if isinstance(answer, tuple):
            state.take(gang, answer)
            starts.append(_start(state, gang, answer, len(starts)))
            queue[key].pop(0)
            continue
        if policy.ORDERS_RUNNING and answer.why is Why.NO_CAPACITY:
            victims = preempt.victims(preempt.Round(state, now_ms, policy, ending), gang)
            stops += [_give_way(victim) for victim in victims.stop]
            ending |= {victim.id: None for victim in victims.stop}
            answer = victims.reason or answer
        # Equal gangs get the same answer: the class is done.
        waits[key] = gang, answer
        queue[key] = []
    return starts, stops, {class_text(key): _final(state, *waits[key], now_ms) for key in waits}


def _final(state: State, gang: Gang, answer: Reason, now_ms: int) -> Reason:
    """The answer as it stands when the round is over: gangs after this one may have started meanwhile."""
    if answer.why in (Why.HELD, Why.STOPPING_OTHERS):
        return answer
    found = fit(state, ask(gang), now_ms)
    return found if isinstance(found, Reason) else answer


def _give_way(victim: Gang) -> Stop:
    return Stop(gang=victim.id, generation=victim.generation, cause=Cause.PREEMPTED, notice_ms=notice_ms(victim))


def _answer(state: State, gang: Gang, now_ms: int, policy: Policy) -> tuple[NodeShare, ...] | Reason:
    """Where the gang starts, or why it waits; a starving one keeps nodes from those after it."""
    found = fit(state, ask(gang), now_ms)
    if isinstance(found, Reason) and found.why is Why.NO_CAPACITY:
        if starves(gang, now_ms, policy):
            opening = earliest(state, ask(gang), now_ms)
            if opening:
                state.nodes.hold(share.node for share in opening.shares)
        elif state.nodes.held.any():
            return _held(state, gang, now_ms, policy) or found
    return found


def _held(state: State, gang: Gang, now_ms: int, policy: Policy) -> Reason | None:
    """The answer for a gang that would fit but for the nodes held for others."""
    with state.trial():
        state.undo.put(state.nodes.held, slice(None), False)
        if isinstance(fit(state, ask(gang), now_ms), Reason):
            return None
    starving = [members[0].id for members in state.classes.values() if starves(members[0], now_ms, policy)]
    return Reason(why=Why.HELD, holders=tuple(sorted(starving)))


def starves(gang: Gang, now_ms: int, policy: Policy) -> bool:
    """Whether it has waited beyond the policy's threshold."""
    return policy.STARVES_AFTER_MS is not None and now_ms - gang.since_ms >= policy.STARVES_AFTER_MS


def _eligible(members: list[Gang], now_ms: int, ending: dict[str, None]) -> list[Gang]:
    return [gang for gang in members if gang.not_before_ms <= now_ms and gang.id not in ending]


def _start(state: State, gang: Gang, shares: tuple[NodeShare, ...], starts_before: int) -> Start:
    first = state.nodes.nodes[state.nodes.index[shares[0].node]]
    port = state.rendezvous_port(starts_before)
    return Start(gang=gang.id, generation=gang.generation + 1, shares=shares, host=first.address, port=port)


def _next_wake_ms(state: State, now_ms: int, policy: Policy) -> int | None:
    """The first moment at which time alone changes an answer: a limit, a pause, the starvation threshold."""
    moments: list[int] = []
    for gang in state.gangs.values():
        deadline_ms = _deadline_ms(gang)
        if deadline_ms is not None:
            moments.append(deadline_ms)
        if gang.state is GangState.PENDING:
            moments.append(gang.not_before_ms)
            if policy.STARVES_AFTER_MS is not None:
                moments.append(gang.since_ms + policy.STARVES_AFTER_MS)
        if policy.ORDERS_RUNNING:
            turn_ms = policy.turn_ms(gang, now_ms)
            moments += [] if turn_ms is None else [turn_ms]
    return min((moment for moment in moments if moment > now_ms), default=None)


def pending_order(state: State, now_ms: int, policy: Policy) -> list[Gang]:
    """Every pending gang in the order in which this round would try them."""
    waiting = [gang for members in state.classes.values() for gang in members]
    return sorted(waiting, key=lambda gang: policy.key(gang, state, now_ms))
