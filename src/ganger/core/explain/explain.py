"""The whole answer for one gang: why it waits, who holds what, since when, until when, and what would start it now.

Called by `engine.service` on demand, on a copy of the state. The same checks that the round uses give the reason, the
opening and every suggested change, so what it says is what happens.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

from ganger.core.cycle import pending_reasons
from ganger.core.cycle.cycle import Cycle
from ganger.core.cycle.plan import simulated_cycle
from ganger.core.explain.domains import domain_lines
from ganger.core.explain.what_if import Tried, ahead, changes
from ganger.core.placement.start_check import ask
from ganger.core.queue_order.policy_interface import Key, Policy, join_key, large_reservation_age_ms
from ganger.core.queue_order.priority_factors import size
from ganger.core.queues.quota import GPU_TYPE_PREFIX, UNLIMITED, need
from ganger.core.reservations.earliest_start import EarliestStart, find_earliest_start
from ganger.core.state.gang import ClassKey, Gang, class_text
from ganger.core.state.pending_index import Crowd, Entry
from ganger.core.state.state import State
from ganger.model.decision import Cause
from ganger.model.job import GangState, shell_quoted_id
from ganger.model.pending_reason import REMEDY, PendingReason, ReasonCode, sentence
from ganger.model.units import DEVICE_MILLI, format_duration
from ganger.model.views.service_views import Explanation, Factor, ReasonView

NOT_FORESEEN = (
    *(
        ReasonCode.NO_NODE,
        ReasonCode.EXCLUDED,
        ReasonCode.USER_TIME,
        ReasonCode.HELD,
        ReasonCode.NOT_LISTED,
        ReasonCode.DEPENDENCY,
        ReasonCode.ARRAY_LIMIT,
    ),
    ReasonCode.MAINTENANCE,
)
"""Reasons that time does not cure, or that tell the time themselves; room kept for others, whose run time nobody
knows yet; others that come first; and nothing known at all."""
UNADMITTED = (ReasonCode.NAMESPACE_QUOTA, ReasonCode.WEBHOOK_UNREACHABLE)
NOT_CHANGEABLE = (ReasonCode.BACKOFF, *UNADMITTED, ReasonCode.NOT_LISTED, ReasonCode.DEPENDENCY, ReasonCode.ARRAY_LIMIT)
"""Reasons that no other form of the job would help."""


def explain(state: State, name: str, now_ms: int, policy: Policy) -> Explanation:
    """The answer for a live gang, or for an element of an array. KeyError if it is not live."""
    gang = state.stand_in(name)
    if gang is None:
        raise KeyError(name)
    if gang.state is not GangState.PENDING:
        unready = tuple(_unready(state, gang))
        return Explanation(job=name, state=gang.state, sentence=_not_waiting(gang), where=unready)
    reason, tried = _answered(state, gang, now_ms, policy)
    position, waiting = _position(state, gang, now_ms, policy)
    promise = state.promises.get(gang.id)
    opening = None if reason.why in NOT_FORESEEN else find_earliest_start(state, ask(gang), now_ms)
    return Explanation(
        job=name,
        state=gang.state,
        sentence=sentence(reason),
        reason=reason_view(_timed(reason, gang, opening), gang.id, gang.queue),
        position=position,
        waiting=waiting,
        waited_ms=now_ms - gang.since_ms,
        earliest_ms=reason.until_ms if reason.why is ReasonCode.MAINTENANCE else _expected_ms(gang, opening),
        promised_ms=promise.start_ms if promise else None,
        predicted=tuple(_predictions(state, gang, opening, now_ms)),
        where=() if gang.awaits else tuple(domain_lines(state, gang, now_ms)),
        quota="" if gang.awaits else _quota(state, gang),
        changes=tried.changes,
        proof=tried.proof,
        policy=policy.NAME,
        factors=_factors(state, gang, now_ms, policy),
    )


def standing_reason(state: State, gang: Gang, now_ms: int, policy: Policy) -> PendingReason:
    """The one current answer for a pending gang: its own, or its class's."""
    own = own_reason(state, gang, now_ms)
    if own is not None:
        return own
    with simulated_cycle(state, now_ms, policy) as (now, known):
        return _of_round(now, gang, known)


def every_reason(state: State, now_ms: int, policy: Policy) -> dict[ClassKey, PendingReason]:
    """The answer of every class of pending gangs that come after nobody, but of those that pause."""
    if not state.ready:
        return dict.fromkeys(state.classes, PendingReason(why=ReasonCode.NOT_LISTED))
    with simulated_cycle(state, now_ms, policy) as (now, known):
        return pending_reasons.reasons_of_all_classes(now, known)


def own_reason(state: State, gang: Gang, now_ms: int) -> PendingReason | None:
    """Why a pending gang is not even tried, whatever its class; None when it is."""
    if not state.ready:
        return PendingReason(why=ReasonCode.NOT_LISTED)
    if gang.awaits:
        whens = dict.fromkeys(after.when for after in gang.awaits)
        scope = next(iter(whens)) if len(whens) == 1 else "come to what it asks"
        return PendingReason(
            why=ReasonCode.DEPENDENCY, scope=scope, holders=tuple(dict.fromkeys(a.job for a in gang.awaits))
        )
    pauses = gang.not_before_ms > now_ms
    if gang.unadmitted and gang.failure is not None:
        why = (
            ReasonCode.NAMESPACE_QUOTA
            if gang.failure.cause is Cause.NAMESPACE_QUOTA
            else ReasonCode.WEBHOOK_UNREACHABLE
        )
        return PendingReason(why=why, scope=gang.failure.detail, until_ms=gang.not_before_ms if pauses else None)
    if pauses:
        return PendingReason(why=ReasonCode.BACKOFF, need=gang.fruitless, until_ms=gang.not_before_ms)
    return None


def reason_view(reason: PendingReason, job: str, queue: str) -> ReasonView:
    """A reason as the faces show it, its remedy filled in."""
    holder = shell_quoted_id(reason.holders[0]) if reason.holders else "another job"
    flags = {"gpu_milli": "gpus N", "cpu_milli": "cpu N", "memory_bytes": "memory SIZE"}
    flag = flags.get(reason.resource, f"gpus {reason.resource.removeprefix(GPU_TYPE_PREFIX)}:N")
    remedy = REMEDY[reason.why].format(
        gang=shell_quoted_id(job), queue=reason.scope or queue, resource=flag, holder=holder
    )
    return ReasonView(
        code=reason.why, sentence=sentence(reason), remedy=remedy, holders=reason.holders, until_ms=reason.until_ms
    )


def _answered(state: State, gang: Gang, now_ms: int, policy: Policy) -> tuple[PendingReason, Tried]:
    """Why it waits, and what would help: by one round, where that keeps nothing for it."""
    own = own_reason(state, gang, now_ms)
    if own is not None:
        return own, Tried((), "")
    with simulated_cycle(state, now_ms, policy) as (now, known):
        reason = _of_round(now, gang, known)
        is_free = (
            gang.id not in now.started_gangs
            and gang.id not in now.capacity_holds
            and gang.id not in now.reservations.by_gang
        )
        tried = changes(now, gang) if is_free and reason.why not in NOT_CHANGEABLE else Tried((), "")
    if reason.why in NOT_CHANGEABLE:
        return reason, tried
    if not is_free:
        with simulated_cycle(state, now_ms, policy, without=gang.id) as (now, _):
            tried = changes(now, gang)
    if reason.why is ReasonCode.HELD and (more := tuple(ahead(state, gang, now_ms, policy))):
        tried = Tried((*tried.changes, *more), "")
    return reason, tried


def _of_round(now: Cycle, gang: Gang, known: dict[ClassKey, PendingReason]) -> PendingReason:
    """The answer of a round; of one that would start in it what was said before."""
    found = pending_reasons.reasons_of_classes(now, [gang.class_key], known).get(gang.class_key)
    return found or now.state.waits.get(class_text(gang.class_key)) or PendingReason(why=ReasonCode.NOT_LISTED)


def _position(state: State, gang: Gang, now_ms: int, policy: Policy) -> tuple[int | None, int]:
    """Its place among those of its queue, from 1, and how many they are. Who comes after others has no place yet.

    Each line is in order by itself, so that halving finds how many of it go first.
    """
    crowd = state.lines(policy).queues.get(gang.queue, Crowd())
    waiting = sum(len(line.entries) for line in crowd.lines)
    if gang.awaits:
        return None, waiting
    mine, before, accounts = policy.key(gang, state, now_ms), 0, dict[tuple[str, str], Key]()
    for line in crowd.lines:
        account = accounts.get(line.owner)
        if account is None:
            account = accounts[line.owner] = policy.account_key(state, *line.owner, now_ms)

        def key(entry: Entry, account: Key = account) -> Key:
            return join_key(account, policy.gang_key(entry.gang, state, now_ms))

        before += bisect_left(line.entries, mine, key=key)
    return 1 + before, waiting


def _factors(state: State, gang: Gang, now_ms: int, policy: Policy) -> tuple[Factor, ...]:
    """What decides its place, and whether nodes are reserved for it because it is large."""
    found, after_ms = policy.factors(gang, state, now_ms), large_reservation_age_ms(policy, state.rules, gang)
    if after_ms is None:
        return found
    told = size(gang, after_ms)
    return (*found, replace(told, points=None) if all(factor.points is None for factor in found) else told)


def _timed(reason: PendingReason, gang: Gang, opening: EarliestStart | None) -> PendingReason:
    if reason.until_ms is not None or opening is None:
        return reason
    others = tuple(name for name in opening.after if name != gang.id)
    return replace(reason, until_ms=opening.at_ms, holders=others or reason.holders)


def _expected_ms(gang: Gang, opening: EarliestStart | None) -> int | None:
    if opening is None or opening.at_ms is None:
        return None
    return max(opening.at_ms, gang.not_before_ms)


def _predictions(state: State, gang: Gang, opening: EarliestStart | None, now_ms: int) -> Iterator[str]:
    """A sentence for itself, and each that is in its way, whose time is not limited but predicted."""
    promise = state.promises.get(gang.id)
    there = [state.gangs[name] for name in (opening.after if opening else ())]
    there += state.on_nodes(promise.nodes) if promise else []
    for each in {other.id: other for other in (gang, *there)}.values():
        if each.is_predicted and each.expected:
            like = " like it" if each.expected.alike else ""
            from_ = f"the last {each.expected.of} jobs of {each.job.user}{like}"
            end_ms = each.ends_ms(now_ms) or now_ms
            what = "run for" if each is gang else "end in"
            how = "longer than" if each.expected.outlived else "predicted from"
            yield f"{each.id} is expected to {what} {format_duration(end_ms - now_ms)}, {how} {from_}"


def _not_waiting(gang: Gang) -> str:
    if gang.state is GangState.SUSPENDED:
        return f"{gang.id} is suspended: it waits for `ganger resume {shell_quoted_id(gang.id)}`"
    nodes = ", ".join(gang.nodes[:4]) or "no node"
    more = f" and {len(gang.nodes) - 4} more" if len(gang.nodes) > 4 else ""
    return f"{gang.id} is not waiting: it is {gang.state} (attempt {gang.generation}) on {nodes}{more}{_excluded(gang)}"


def _unready(state: State, gang: Gang) -> Iterator[str]:
    """Yield a line for each node that it has and that is not ready."""
    for node in (state.nodes.nodes[state.nodes.index[name]] for name in gang.left if name in state.nodes.index):
        if node.unready:
            yield f"{node.name}: {node.unready}"


def _excluded(gang: Gang) -> str:
    """The end of a sentence: on which nodes it will not start again, and which of its rules say so."""
    rules = [f"{node} is excluded by retry.rules[{rule}]" for node, rule in gang.excluded]
    return f"; {', '.join(rules)}" if rules else ""


def _quota(state: State, gang: Gang) -> str:
    """One line about GPUs, or CPUs where none are asked for, in its queue."""
    at, r = state.tree.index[gang.queue], 0 if need(gang.shape)[0] else 1
    limit, used = state.tree.potential(at, r, as_set=True), state.tree.usage[r][at]
    unit, scale = ("GPUs", DEVICE_MILLI) if r == 0 else ("CPUs", 1000)
    guaranteed = state.tree.guaranteed[at][r]
    kept = f" of {guaranteed / scale:g} guaranteed" if guaranteed else ""
    bound = "no limit of its own" if limit >= UNLIMITED // 2 else f"limit {limit / scale:g}"
    binds = state.tree.exceeded_resource(gang.queue, need(gang.shape), as_set=True) is not None
    why = "" if binds else "; not what it waits for"
    return f"queue {gang.queue}: {used / scale:g}{kept} {unit} used, {bound}{why}"
