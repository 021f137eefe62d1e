"""One round: what to stop, what to start, and what to tell those who wait. The state is left as it was found.

Called by `engine.loop` after every batch of events and at `next_wake_ms`. Same state, time and policy: same plan.

0. expect   when jobs without a limit run for longer than was predicted: a round of that alone
1. stop     jobs that were asked to end or have used up their time; what is left of a failed generation
2. order    heads of the lines of pending gangs, by the policy
3. fit      each in turn: user limits, quota, nodes and devices; a gang starts whole or not at all
4. preempt  only under a policy that orders running gangs
5. promise  a start to a gang that has waited beyond the starvation threshold, or is the next of its queue; or keep room
6. answer   classes that still wait, when their answer has changed
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain

from ganger.core.cycle import pending_reasons, preemption
from ganger.core.cycle.candidates import Candidates
from ganger.core.cycle.cycle import CURABLE, Cycle
from ganger.core.cycle.cycle_skip import CycleSkip
from ganger.core.placement.start_check import ask, could_ever, over_quota
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state import job_arrays
from ganger.core.state.gang import RUNS, ClassKey, Gang
from ganger.core.state.runtime_estimate import outlived
from ganger.core.state.state import Shares, State
from ganger.core.state.timers import deadline_ms, moments_ms
from ganger.model.decision import Cause, Decision, Expect, Plan, Start, Stop
from ganger.model.job import GangState
from ganger.model.pending_reason import PendingReason, ReasonCode

WITHOUT_NOTICE_MS = 0
Known = dict[ClassKey, PendingReason]


def plan(state: State, now_ms: int, policy: Policy, settled: CycleSkip | None = None) -> Plan:
    """The decisions of one round, and when the next is due although nothing happens (None: never; now: at once).
    `settled`: what the last round left, where nobody reads why jobs wait: then they are not told, and a round that
    would change nothing is left out."""
    if not state.ready:
        return Plan(as_of=state.seq)
    if settled is not None and settled.holds(state, now_ms, policy):
        return Plan(as_of=state.seq, next_wake_ms=_moment_ms(state, now_ms))
    late = tuple(_outlived(state, now_ms))
    if late:
        return Plan(as_of=state.seq, decisions=late, next_wake_ms=now_ms)
    state.nodes.trim()
    state.shares.now_ms = state.windows.now_ms = now_ms
    stops = tuple(_stops(state, now_ms))
    now = Cycle(state, now_ms, policy, {stop.gang: None for stop in stops})
    with state.trial():
        starts, known = _place_pending(now)
        told = pending_reasons.told(now, known) if settled is None else []
    preempted = [_give_way(victim) for victim in now.victims]
    promised = now.promises.decided.values()
    decisions: list[Decision] = [*stops, *preempted, *starts, *promised, *told]
    is_unfinished = now.is_unfinished
    if settled is not None:
        settled.leave(None if stops or preempted or policy.ORDERS_RUNNING or is_unfinished else now)
    wake_ms = now_ms if is_unfinished or _frees_others(state, stops) else _next_wake_ms(now, starts)
    return Plan(as_of=state.seq, decisions=tuple(decisions), next_wake_ms=wake_ms)


@contextmanager
def held(state: State, now_ms: int, policy: Policy, without: str = "") -> Iterator[tuple[Cycle, Known]]:
    """Inside it the nodes and quotas are as a round held now would leave them, if the gang `without` did not wait.
    Gives the round, and the answers that it found on its way."""
    state.shares.now_ms = state.windows.now_ms = now_ms
    out = {stop.gang: None for stop in _stops(state, now_ms)} | ({without: None} if without else {})
    with state.trial():
        now = Cycle(state, now_ms, policy, out)
        _, known = _place_pending(now)
        yield now, known


def _stops(state: State, now_ms: int) -> Iterator[Stop]:
    """Gangs that are to end, and generations that failed somewhere: these are stopped everywhere. Oldest first."""
    over = {name: state.gangs[name] for name in state.due.over(now_ms)}
    away = {gang.id: gang for gang in state.on_nodes(state.windows.under_way(now_ms)) if gang.state in RUNS}
    for gang in sorted((state.due.restless | over | away).values(), key=lambda gang: gang.number):
        cause = _end_cause(gang, now_ms) or _failure_cause(gang) or _pause_cause(gang)
        cause = cause or (Cause.DRAINED if gang.id in away else None)
        if cause:
            yield Stop(gang=gang.id, generation=gang.generation, cause=cause, notice_ms=_notice_left_ms(gang, now_ms))


def _outlived(state: State, now_ms: int) -> Iterator[Expect]:
    """What is expected of gangs without a limit that run for longer than was: a round of its own, and the next, at
    once, counts on it."""
    for name in dict.fromkeys(state.due.over(now_ms)):
        gang = state.gangs[name]
        if gang.state in RUNS and gang.time_ms is None and gang.expected is not None:
            ran_ms = gang.ran_ms + now_ms - gang.began_ms
            yield Expect(gang=name, generation=gang.generation, run_ms=outlived(gang.expected, ran_ms).run_ms)


def _end_cause(gang: Gang, now_ms: int) -> Cause | None:
    """Somebody asked for its end, or its time is over; None too where it ends already."""
    if gang.state in (GangState.FINISHING, GangState.FAILING, GangState.STOPPING):
        return None
    if gang.end_cause:
        return gang.end_cause
    if gang.is_worn:
        return Cause.TIME_LIMIT
    end_ms = deadline_ms(gang)
    if end_ms is None or now_ms < end_ms:
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


def notice_ms(gang: Gang) -> int:
    """How long a gang has to save its work before it is stopped: only one that says how gets any."""
    checkpoint = gang.job.spec.checkpoint
    return checkpoint.grace_ms if checkpoint and gang.state in RUNS else WITHOUT_NOTICE_MS


def _notice_left_ms(gang: Gang, now_ms: int) -> int:
    """The same, and no longer than the node is there."""
    return notice_ms(gang) if gang.leave_by_ms is None else max(0, min(notice_ms(gang), gang.leave_by_ms - now_ms))


def _place_pending(now: Cycle) -> tuple[list[Start], Known]:
    """Steps 2 to 5: starts, and the classes whose answer is known already; who gives way is noted in the round."""
    state = now.state
    starts: list[Start] = []
    known: Known = {}
    if not state.lines(now.policy).of:
        return starts, known
    turns = Candidates(now, partial(_urgent_since_ms, now))
    while (entry := turns.next()) is not None:
        found = _try(now, entry.gang)
        if not isinstance(found, tuple):
            # Equal gangs get the same answer: the class is done.
            if isinstance(found, PendingReason):
                known[entry.gang.class_key] = found
            turns.refuse(entry, found.why if isinstance(found, PendingReason) else found)
            if now.is_shut:
                break
            continue
        begun, is_last = _next_of(now, entry.gang)
        start = _start(now, begun, found, starts[-1] if starts else None, now.granted.get(entry.gang.id))
        if start.time_ms is not None:
            begun = replace(begun, start=start)  # it ends sooner than it asked for: the rest of the round must know
        state.take(begun, found)
        now.took(begun, entry.gang.id, found)
        now.begun[begun.id] = begun
        starts.append(start)
        if is_last:
            turns.go_on()
    return starts, known


def _next_of(now: Cycle, gang: Gang) -> tuple[Gang, bool]:
    """What starts when a gang's turn has come, and whether that is all of it: a head has many elements."""
    if not gang.is_head:
        return gang, True
    rest, begun = now.state.arrays[gang.id].rest, now.elements.get(gang.id, 0)
    now.elements[gang.id] = begun + 1
    return job_arrays.element(gang, rest[begun]), begun + 1 == len(rest)


def _give_way(victim: Gang) -> Stop:
    return Stop(gang=victim.id, generation=victim.generation, cause=Cause.PREEMPTED, notice_ms=notice_ms(victim))


def _urgent_since_ms(now: Cycle, queue: str, large: bool) -> int | None:  # noqa: FBT001 - a part of what is asked
    """Since when a gang must have waited to get its turn though it has no place: others may be stopped for it, a start
    promised, or room kept. `large`: one on many nodes. None: nobody gets one."""
    if now.policy.BLOCKS:
        return None if now.is_blocked(queue) else now.now_ms
    if (now.policy.ORDERS_RUNNING and not now.nobody_gives_way) or now.may_be_head(queue):
        return now.now_ms
    rules = now.state.rules
    soonest_ms = rules.starvation.soonest_ms(now.policy.STARVES_AFTER_MS)
    ages_ms = [soonest_ms] if now.may_starve(queue, large=large) else []
    if large and now.may_be_head(queue, large=True):
        after_ms = rules.reservations.large.after_ms
        ages_ms.append(soonest_ms if after_ms is None else after_ms)
    return max((now.now_ms - age_ms for age_ms in ages_ms if age_ms is not None), default=None)


def _try(now: Cycle, gang: Gang) -> Shares | ReasonCode | PendingReason:
    """Return where the gang starts, or why it waits. For one that starves or stops others, room is kept from later
    ones; for one that the cluster did not admit nothing is taken from others: it may never be used."""
    if now.state.is_full(gang):
        return ReasonCode.ARRAY_LIMIT
    found = now.start(gang)
    if not isinstance(found, ReasonCode):
        return found
    why = found
    if gang.unadmitted or why not in CURABLE or not could_ever(now.state, ask(gang)):
        return why
    if now.policy.ORDERS_RUNNING and _lacks_room(now, gang, why) and not now.bars(gang):
        stopping = preemption.make_room(now, gang)
        if stopping:
            return stopping
    now.reserve(gang, why)
    return why


def _lacks_room(now: Cycle, gang: Gang, why: ReasonCode) -> bool:
    """Whether it waits for the nodes, and for no quota that somebody has set."""
    if why is ReasonCode.OVER_QUOTA:
        return over_quota(now.state, ask(gang), as_set=True) is None
    return why in (ReasonCode.NO_CAPACITY, ReasonCode.MAINTENANCE)


def _start(now: Cycle, gang: Gang, shares: Shares, before: Start | None, time_ms: int | None) -> Start:
    nodes = now.state.nodes
    return Start(
        gang=gang.id,
        generation=gang.generation + 1,
        shares=shares,
        host=nodes.nodes[nodes.index[shares[0].node]].address,
        port=now.state.rendezvous_port(shares, before),
        time_ms=time_ms,
        skipped=gang.fallback.skipped,
    )


def _next_wake_ms(now: Cycle, starts: list[Start]) -> int | None:
    """The first moment at which time alone starts or stops somebody: a limit, a pause, a turn in the order, the end of
    a node's notice, the beginning and the end of maintenance.

    Not the starvation threshold: from it on nodes are held back, which is soon enough when somebody could have them.
    """
    now_ms, policy = now.now_ms, now.policy
    begun = [replace(now.begun[start.gang], state=GangState.STARTING, start=start, began_ms=now_ms) for start in starts]
    moments = [_moment_ms(now.state, now_ms), *chain.from_iterable(map(moments_ms, begun))]
    if policy.ORDERS_RUNNING:
        holds = [now.state.gangs[name] for name in now.state.shares]
        # Of those that wait only the first of each line competes with them.
        heads = [line.entries[0].gang for line in now.state.lines(policy).of.values()]
        moments += [policy.turn_ms(gang, now_ms) for gang in (*holds, *begun, *heads)]
    return min((moment for moment in moments if moment is not None and moment > now_ms), default=None)


def _moment_ms(state: State, now_ms: int) -> int | None:
    """The first moment at which time alone does something to what runs and waits, the nodes, or maintenance."""
    moments = (state.due.next_ms(now_ms), state.windows.next_ms(now_ms), *state.leaving.values())
    return min((moment for moment in moments if moment is not None and moment > now_ms), default=None)


def _frees_others(state: State, stops: Iterable[Stop]) -> bool:
    """Whether a gang ends with this very plan that others come after: for these another round is due at once."""
    waiting = [state.gangs[stop.gang] for stop in stops if state.gangs[stop.gang].start is None]
    return any(gang.id in state.dependents or gang.array in state.dependents for gang in waiting)
