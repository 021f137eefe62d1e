"""The explanation of one gang: why it waits, who holds what, since when, until when, and what would start it now.

The checks of the scheduling cycle itself give the reason, the earliest start and every suggested change, so the
explanation matches what the scheduler does.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

from ganger.core.cycle import publish_reasons
from ganger.core.cycle.cycle import simulated_cycle
from ganger.core.cycle.cycle_state import Cycle
from ganger.core.explain.domains import domain_lines
from ganger.core.explain.what_if import WhatIfResult, find_changes, priority_changes
from ganger.core.failure.save_interval import estimate_saves
from ganger.core.forecast.start_forecast import GangForecast, StartForecasts
from ganger.core.placement.start_check import could_ever_start, start_request
from ganger.core.queue_order.policy_interface import Key, Policy, join_key, large_reservation_age_ms
from ganger.core.queue_order.priority_factors import size
from ganger.core.queues.quota import UNLIMITED, need
from ganger.core.queues.quota_figures import EXTENDED_PREFIX, GPU_TYPE_PREFIX
from ganger.core.reservations.earliest_start import EarliestStart, find_earliest_start
from ganger.core.state import spares
from ganger.core.state.gang import ClassKey, Gang, class_text
from ganger.core.state.pending_index import LaneEntry, QueueLanes
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import State
from ganger.model.decision import UNADMITTED as UNADMITTED_CAUSES
from ganger.model.job import GangState, shell_quoted_id
from ganger.model.pending_reason import REMEDY, USER_REMEDY, PendingReason, ReasonCode, sentence
from ganger.model.units import DEVICE_MILLI, format_duration, format_failure_rate
from ganger.model.views.service_views import Explanation, Factor, ReasonView, StartRange

NOT_FORECAST = (
    ReasonCode.NO_NODE,
    ReasonCode.EXCLUDED,
    ReasonCode.USER_TIME,
    ReasonCode.USER_NODE_TIME_USED,
    ReasonCode.RESERVED,
    ReasonCode.NOT_LISTED,
    ReasonCode.DEPENDENCY,
    ReasonCode.ARRAY_LIMIT,
)
"""Reasons that time does not resolve, that include the time, or that wait for a gang of unknown run time."""
UNADMITTED = tuple(map(ReasonCode, UNADMITTED_CAUSES))
NOT_CHANGEABLE = (ReasonCode.BACKOFF, *UNADMITTED, ReasonCode.NOT_LISTED, ReasonCode.DEPENDENCY, ReasonCode.ARRAY_LIMIT)
"""Reasons that no change to the job would resolve."""


def explain(state: State, name: str, now_ms: int, policy: Policy, *, is_administrator: bool = True) -> Explanation:
    """Explain a live gang or array element; raise KeyError if it is not live.

    `is_administrator`: whether the reader may do what other users may not; only what the reader may do is suggested.
    """
    gang = state.gang_or_head(name)
    if gang is None:
        raise KeyError(name)
    if gang.state is not GangState.PENDING:
        lines = (*_unready_lines(state, gang), *_spare_lines(state, gang), *_save_lines(state, gang, now_ms))
        return Explanation(job=name, state=gang.state, sentence=_state_sentence(gang, now_ms), domains=lines)
    reason, what_if = _reason_and_changes(state, gang, now_ms, policy, is_administrator=is_administrator)
    position, waiting = _position(state, gang, now_ms, policy)
    reserved = state.reservations.get(gang.id)
    earliest_start = None if reason.code in NOT_FORECAST else find_earliest_start(state, start_request(gang), now_ms)
    return Explanation(
        job=name,
        state=gang.state,
        sentence=sentence(reason),
        reason=reason_view(
            _with_forecast(reason, gang, earliest_start), gang.id, gang.queue, is_administrator=is_administrator
        ),
        position=position,
        pending=waiting,
        waited_ms=now_ms - gang.since_ms,
        earliest_ms=_earliest_ms(gang, reason, earliest_start),
        reserved_start_ms=reserved.start_ms if reserved else None,
        predicted=tuple(_prediction_lines(state, gang, earliest_start, now_ms)),
        domains=() if gang.awaits else tuple(domain_lines(state, gang, now_ms)),
        quota="" if gang.awaits else _quota_line(state, gang),
        changes=what_if.changes,
        smallest_tried=what_if.smallest_tried,
        policy=policy.NAME,
        factors=_factors(state, gang, now_ms, policy),
    )


def start_range(state: State, gang: Gang, forecasts: StartForecasts, policy: Policy) -> StartRange:
    """Return when a pending gang is expected to start: with a reservation at its start at the latest."""
    forecast, reserved = forecasts.of(gang), state.reservations.get(gang.id)
    if forecast.expected_ms is None:
        return StartRange(
            from_ms=None,
            until_ms=None,
            expected_ms=None,
            basis=forecast.basis,
            depends_on=(_unknown_start(state, gang, policy),),
        )
    latest_ms = NEVER_MS if reserved is None or reserved.start_ms is None else reserved.start_ms
    return StartRange(
        from_ms=min(latest_ms, forecast.low_ms or 0),
        until_ms=min(latest_ms, forecast.high_ms or 0),
        expected_ms=min(latest_ms, forecast.expected_ms),
        basis=forecast.basis,
        depends_on=tuple(_dependency_lines(state, gang, forecast)),
    )


def _unknown_start(state: State, gang: Gang, policy: Policy) -> str:
    if gang.awaits:
        return "it depends on other jobs, and when these end is not known"
    if not could_ever_start(state, start_request(gang)):
        return "no nodes in service could hold it, even if idle"
    if policy.ORDERS_RUNNING:
        return f"order {policy.NAME} preempts running jobs"
    unpredicted = "a job that runs or is ahead of it has no time limit"
    return f"{unpredicted}, and too few jobs of that job's user have ended to predict it"


def _dependency_lines(state: State, gang: Gang, forecast: GangForecast) -> Iterator[str]:
    """Iterate over sentences about what has to happen before the gang starts as forecast."""
    before = None if forecast.after is None else state.gangs[forecast.after]
    if before is not None:
        reserved = " with a reserved start" if before.id in state.reservations else ""
        ahead = f"is ahead of it{reserved} and has to start and end"
        activity = ahead if before.state is GangState.PENDING else "has to end"
        yield f"{before.id} {activity} first"
    if forecast.waits_for_quota:
        yield f"queue {gang.queue} or its user {gang.job.user} is at a limit until then"


def with_forecast(explanation: Explanation, state: State, policy: Policy, forecasts: StartForecasts) -> Explanation:
    """Return the explanation of a live gang with its forecast start, if it is pending."""
    gang = state.gang_or_head(explanation.job)
    if gang is None or gang.state is not GangState.PENDING:
        return explanation
    if explanation.reason is not None and explanation.reason.code is ReasonCode.USER_NODE_TIME_USED:
        return explanation  # it waits for time to pass, and the reason says until when
    return replace(explanation, forecast=start_range(state, gang, forecasts, policy))


def current_reason(state: State, gang: Gang, now_ms: int, policy: Policy) -> PendingReason:
    """Return the current reason of a pending gang: its own, or that of its class."""
    own = own_reason(state, gang, now_ms)
    if own is not None:
        return own
    with simulated_cycle(state, now_ms, policy) as (cycle, reasons):
        return _cycle_reason(cycle, gang, reasons)


def all_reasons(state: State, now_ms: int, policy: Policy) -> dict[ClassKey, PendingReason]:
    """Return the reason of every class of pending gangs without dependencies."""
    if not state.ready:
        return dict.fromkeys(state.pending.classes, PendingReason(code=ReasonCode.NOT_LISTED))
    with simulated_cycle(state, now_ms, policy) as (cycle, reasons):
        return publish_reasons.reasons_of_all_classes(cycle, reasons)


def own_reason(state: State, gang: Gang, now_ms: int) -> PendingReason | None:
    """Return the reason why a pending gang is not even tried, whatever its class; None when it is."""
    if not state.ready:
        return PendingReason(code=ReasonCode.NOT_LISTED)
    if gang.awaits:
        conditions = dict.fromkeys(after.when for after in gang.awaits)
        scope = next(iter(conditions)) if len(conditions) == 1 else "come to what it asks"
        return PendingReason(
            code=ReasonCode.DEPENDENCY, scope=scope, holders=tuple(dict.fromkeys(a.job for a in gang.awaits))
        )
    retries, failure = gang.retries, gang.attempt.failure
    is_paused = retries.not_before_ms > now_ms
    if retries.unadmitted and failure is not None:
        until_ms = retries.not_before_ms if is_paused else None
        return PendingReason(code=ReasonCode(failure.cause), scope=failure.detail, until_ms=until_ms)
    if is_paused:
        need, until_ms = retries.attempts_without_progress, retries.not_before_ms
        return PendingReason(code=ReasonCode.BACKOFF, need=need, until_ms=until_ms)
    return None


def reason_view(reason: PendingReason, job: str, queue: str, *, is_administrator: bool = True) -> ReasonView:
    """Return a reason as clients display it, with the remedy for its reader filled in."""
    holder = shell_quoted_id(reason.holders[0]) if reason.holders else "another job"
    flags = {"gpu_milli": "gpus N", "cpu_milli": "cpu N", "memory_bytes": "memory SIZE"}
    flags[reason.resource] = flags.get(reason.resource) or _flag_of_named(reason.resource)
    remedies = REMEDY if is_administrator else REMEDY | USER_REMEDY
    remedy = remedies[reason.code].format(
        gang=shell_quoted_id(job), queue=reason.scope or queue, resource=flags[reason.resource], holder=holder
    )
    return ReasonView(
        code=reason.code, sentence=sentence(reason), remedy=remedy, holders=reason.holders, until_ms=reason.until_ms
    )


def _flag_of_named(resource: str) -> str:
    """Return the option of `ganger queue set` for a type of GPUs, or an extended resource."""
    if resource.startswith(EXTENDED_PREFIX):
        return f"extended {resource.removeprefix(EXTENDED_PREFIX)}:N"
    return f"gpus {resource.removeprefix(GPU_TYPE_PREFIX)}:N"


def _reason_and_changes(
    state: State, gang: Gang, now_ms: int, policy: Policy, *, is_administrator: bool
) -> tuple[PendingReason, WhatIfResult]:
    """Return why the gang waits and what would help.

    Changes are tried in the same cycle, or in a second one without what was reserved for the gang.
    """
    own = own_reason(state, gang, now_ms)
    if own is not None:
        return own, WhatIfResult((), "")
    with simulated_cycle(state, now_ms, policy) as (cycle, reasons):
        reason = _cycle_reason(cycle, gang, reasons)
        is_unreserved = (
            gang.id not in cycle.started_gangs
            and gang.id not in cycle.holds.by_gang
            and gang.id not in cycle.reservations.by_gang
        )
        what_if = (
            find_changes(cycle, gang, is_administrator=is_administrator)
            if is_unreserved and reason.code not in NOT_CHANGEABLE
            else WhatIfResult((), "")
        )
    if reason.code in NOT_CHANGEABLE:
        return reason, what_if
    if not is_unreserved:
        with simulated_cycle(state, now_ms, policy, without=gang.id) as (cycle, _):
            what_if = find_changes(cycle, gang, is_administrator=is_administrator)
    if reason.code is ReasonCode.RESERVED:
        priority = tuple(priority_changes(state, gang, now_ms, policy, is_administrator=is_administrator))
        what_if = WhatIfResult((*what_if.changes, *priority), "") if priority else what_if
    return reason, what_if


def _cycle_reason(cycle: Cycle, gang: Gang, reasons: dict[ClassKey, PendingReason]) -> PendingReason:
    """Return the gang's reason in a cycle; for a gang that starts in it, the published one."""
    reason = publish_reasons.reasons_of_classes(cycle, [gang.class_key], reasons).get(gang.class_key)
    return (
        reason
        or cycle.state.pending.reasons.get(class_text(gang.class_key))
        or PendingReason(code=ReasonCode.NOT_LISTED)
    )


def _position(state: State, gang: Gang, now_ms: int, policy: Policy) -> tuple[int | None, int]:
    """Return the gang's position in its queue, from 1 (None with dependencies), and the length of the queue.

    Each lane is sorted, so bisection finds how many of its gangs come first.
    """
    queue_lanes = state.pending.lanes(policy).queues.get(gang.queue, QueueLanes())
    waiting = sum(len(lane.entries) for lane in queue_lanes.lanes)
    if gang.awaits:
        return None, waiting
    own_key, before, accounts = policy.key(gang, state, now_ms), 0, dict[tuple[str, str], Key]()
    for lane in queue_lanes.lanes:
        account = accounts.get(lane.owner)
        if account is None:
            account = accounts[lane.owner] = policy.account_key(state, *lane.owner, now_ms)

        def key(entry: LaneEntry, account: Key = account) -> Key:
            return join_key(account, policy.gang_key(entry.gang, state, now_ms))

        # Most lanes are before the gang, or after it, as a whole.
        if key(lane.entries[-1]) < own_key:
            before += len(lane.entries)
        elif key(lane.entries[0]) < own_key:
            before += bisect_left(lane.entries, own_key, key=key)
    return 1 + before, waiting


def _factors(state: State, gang: Gang, now_ms: int, policy: Policy) -> tuple[Factor, ...]:
    """Return the factors of the gang's position, and its size if that gets it a reservation."""
    factors, after_ms = policy.factors(gang, state, now_ms), large_reservation_age_ms(policy, state.document, gang)
    if after_ms is None:
        return factors
    size_factor = size(gang, after_ms)
    return (
        *factors,
        replace(size_factor, points=None) if all(factor.points is None for factor in factors) else size_factor,
    )


def _with_forecast(reason: PendingReason, gang: Gang, earliest_start: EarliestStart | None) -> PendingReason:
    is_known = reason.until_ms is not None and reason.code is not ReasonCode.MAINTENANCE
    if is_known or earliest_start is None:
        return reason
    blockers = tuple(name for name in earliest_start.after if name != gang.id)
    return replace(reason, until_ms=earliest_start.at_ms, holders=blockers or reason.holders)


def _earliest_ms(gang: Gang, reason: PendingReason, earliest_start: EarliestStart | None) -> int | None:
    if reason.code is ReasonCode.USER_NODE_TIME_USED:
        return reason.until_ms
    if earliest_start is None or earliest_start.at_ms is None:
        return None
    return max(earliest_start.at_ms, gang.retries.not_before_ms)


def _prediction_lines(state: State, gang: Gang, earliest_start: EarliestStart | None, now_ms: int) -> Iterator[str]:
    """Iterate over a sentence for the gang, and for each in its way, whose run time is estimated."""
    reserved = state.reservations.get(gang.id)
    blockers = [state.gangs[name] for name in (earliest_start.after if earliest_start else ())]
    blockers += state.on_nodes(reserved.nodes) if reserved else []
    for blocker in {blocker.id: blocker for blocker in (gang, *blockers)}.values():
        if blocker.is_predicted and blocker.expected:
            similarity = " like it" if blocker.expected.alike else ""
            source = f"the last {blocker.expected.of} jobs of {blocker.job.user}{similarity}"
            end_ms = blocker.ends_ms(now_ms) or now_ms
            verb = "run for" if blocker is gang else "end in"
            basis = "longer than" if blocker.expected.outlived else "predicted from"
            yield f"{blocker.id} is expected to {verb} {format_duration(end_ms - now_ms)}, {basis} {source}"


def _state_sentence(gang: Gang, now_ms: int) -> str:
    if gang.state is GangState.SUSPENDED:
        return f"{gang.id} is suspended: it waits for `ganger resume {shell_quoted_id(gang.id)}`"
    if gang.retries.kept_until_ms is not None and not (gang.suspends or gang.end_cause):
        return _kept_sentence(gang, gang.retries.kept_until_ms - now_ms)
    nodes = ", ".join(gang.nodes[:4]) or "no node"
    more = f" and {len(gang.nodes) - 4} more" if len(gang.nodes) > 4 else ""
    number = gang.attempt.generation
    return f"{gang.id} is not waiting: it is {gang.state} (attempt {number}) on {nodes}{more}{_excluded(gang)}"


def _kept_sentence(gang: Gang, left_ms: int) -> str:
    """Return what a gang that has lost a node waits for, with the others."""
    names = [share.node for share in gang.attempt.target]
    kept = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    lost = f"{gang.id} lost {gang.attempt.failure.node if gang.attempt.failure else 'a node'}"
    if gang.attempt.left:
        return f"{lost}: it keeps {kept}, where its processes are being stopped"
    others = "is another node" if gang.missing_nodes == 1 else f"are {gang.missing_nodes} other nodes"
    return f"{lost}: it keeps {kept} for {format_duration(max(0, left_ms))} more, and starts as soon as there {others}"


def _unready_lines(state: State, gang: Gang) -> Iterator[str]:
    """Iterate over a line for each of its nodes that is not ready."""
    for node in (state.nodes.nodes[state.nodes.index[name]] for name in gang.attempt.left if name in state.nodes.index):
        if node.unready:
            yield f"{node.name}: {node.unready}"


def _spare_lines(state: State, gang: Gang) -> Iterator[str]:
    """Iterate over a line for each spare that it holds or is lent, and one for those that it lacks."""
    lender_of = spares.lenders(gang)
    for node in gang.attempt.lent:
        yield f"{node}: a spare of {lender_of[node]}, which gets it back when it needs it"
    for share in gang.attempt.spares:
        on_it = [other for other in state.timers.borrowers.values() if share.node in other.attempt.lent]
        names = ", ".join(other.id for other in on_it if spares.lenders(other)[share.node] == gang.id)
        yield f"{share.node}: its spare" + (f", lent to {names}" if names else "")
    lacks = spares.missing(gang) if gang.holds_nodes else 0
    if lacks > 0:
        yield f"it lacks {lacks} spare node{'s' * (lacks > 1)}: it takes one as soon as one is free in its domain"


def _save_lines(state: State, gang: Gang, now_ms: int) -> Iterator[str]:
    """Iterate over a line about the failures that a gang with checkpoints is to expect."""
    if gang.job.spec.checkpoint is not None and gang.nodes:
        estimate = estimate_saves(state, gang, len(gang.nodes), now_ms)
        rate = format_failure_rate(estimate.node_failure_ms)
        best, failure = format_duration(estimate.best_interval_ms), format_duration(estimate.failure_ms)
        yield f"{rate} in this cluster, so one in {failure} of {gang.id}: a save every {best} costs least"


def _excluded(gang: Gang) -> str:
    """Return the end of a sentence that names the excluded nodes and the rules that exclude them."""
    rules = [f"{node} is excluded by retry.rules[{rule}]" for node, rule in gang.retries.excluded]
    return f"; {', '.join(rules)}" if rules else ""


def _quota_line(state: State, gang: Gang) -> str:
    """Return a line about the queue's quota of GPUs, or of CPUs for a gang without GPUs."""
    queue, r = state.tree.index[gang.queue], 0 if need(gang.shape)[0] else 1
    limit, used = state.tree.potential(queue, r, as_set=True), state.tree.usage[r][queue]
    unit, scale = ("GPUs", DEVICE_MILLI) if r == 0 else ("CPUs", 1000)
    guaranteed = state.tree.guaranteed[queue][r]
    guarantee = f" of {guaranteed / scale:g} guaranteed" if guaranteed else ""
    limit_text = "no quota" if limit >= UNLIMITED // 2 else f"limit {limit / scale:g}"
    binds = state.tree.exceeded_resource(gang.queue, need(gang.shape), as_set=True) is not None
    note = "" if binds else "; not what it waits for"
    return f"queue {gang.queue}: {used / scale:g}{guarantee} {unit} used, {limit_text}{note}"
