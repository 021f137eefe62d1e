"""Consolidation within a cycle: for which gang room is made, which gangs may be moved, and where they go on.

Room is made for the first pending gang that the free nodes are too scattered for; without one for the largest gang of
whole nodes in one domain of a level. So every plan starts a gang or makes the largest one larger: moves end by
themselves.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from heapq import nsmallest
from typing import Final

from ganger.core.cycle.cycle_state import Cycle
from ganger.core.fold import fold_moves
from ganger.core.fold.fold import new_gang
from ganger.core.nodes.largest_gangs import gpu_forms, largest_gangs
from ganger.core.placement.start_check import could_ever_start, exceeded_limit, start_request
from ganger.core.preemption.consolidation import Consolidation, MoveSearch
from ganger.core.preemption.surplus import Shrink, shrink_to
from ganger.core.preemption.victim_order import cost, unsaved_ms
from ganger.core.reservations.capacity_forecast import Reservation
from ganger.core.state.gang import Gang
from ganger.core.state.state import Shares
from ganger.model.decision import Cause, Defragmented, Stop
from ganger.model.job import GangState, Job, JobSpec, Origin
from ganger.model.queue import ROOT
from ganger.model.shape import Shape
from ganger.model.terms import Layout
from ganger.model.views.overview import LargestGang

MAX_PENDING: Final = 4
"""Pending gangs, the first ones in the order of the queue, that room is looked for."""


def find_consolidation(cycle: Cycle, level: str, budget_ms: int | None) -> Consolidation | None:
    """Return moves that make room for a pending gang, or else for the largest gang in one domain of a level."""
    finder = _Finder(cycle, budget_ms)
    for gang in _pending(cycle):
        if (found := finder.find(gang)) is not None:
            return found
    return next(filter(None, (finder.largest(row) for row in _scattered(cycle, level))), None)


def move_on_request(cycle: Cycle) -> None:
    """Move gangs as a user has just asked for, if that is still possible."""
    state, requested = cycle.state, cycle.state.reservations.requested_moves
    if requested is None or requested[0] != cycle.now_ms:
        return
    request = requested[1]
    if fold_moves.refusal(state, request) is None:
        _move(cycle, [(state.gangs[move.gang], move.shares) for move in request.moves], state.gangs.get(request.gang))


def move_by_schedule(cycle: Cycle) -> list[Defragmented]:
    """Move gangs if that is due by the policy document; return that it was looked for."""
    rules, state, now_ms = cycle.state.document.defrag, cycle.state, cycle.now_ms
    if rules.every_ms is None:
        return []
    due_ms = state.reservations.defragmented_ms + rules.every_ms
    cycle.wakes_ms.append(due_ms if due_ms > now_ms else now_ms + rules.every_ms)
    if due_ms > now_ms:
        return []
    levels = state.nodes.topology.levels
    found = find_consolidation(cycle, rules.level or (levels[-1] if levels else ""), rules.budget_ms)
    if found is None or not _move(cycle, found.moves, state.gangs.get(found.goal.id)):
        return [Defragmented()]
    return [Defragmented(gangs=tuple(gang.id for gang, _ in found.moves))]


def _move(cycle: Cycle, moves: Sequence[tuple[Gang, Shares]], goal: Gang | None) -> bool:
    """Stop the gangs so that they go on elsewhere, and reserve the room for a pending gang; False if that fails.

    What they get is theirs from now on; what they leave is the pending gang's.
    """
    state, mark = cycle.state, cycle.state.undo.mark()
    if any(gang.id in cycle.ending for gang, _ in moves):
        return False
    for gang, shares in moves:
        until_ms = cycle.now_ms + gang.notice_ms
        moving = replace(gang, attempt=replace(gang.attempt, target=shares, notice_until_ms=until_ms))
        state.release(gang)
        state.take(moving, moving.attempt.held)
    gangs = [state.gangs[gang.id] for gang, _ in moves]
    if not _reserve(cycle, gangs, goal):
        state.undo.roll_back(mark)
        return False
    cycle.ending |= {gang.id: gang.notice_ms for gang in gangs}
    cycle.stops += (_moving_stop(cycle, gang) for gang in gangs)
    return True


def _reserve(cycle: Cycle, gangs: list[Gang], goal: Gang | None) -> bool:
    """Put the moves into the forecast, and reserve what the gangs leave for a pending one.

    Return False, with all reservations as they were, if one would be late, or the pending gang would wait for longer.
    """
    reservations, table = cycle.reservations, cycle.reservations.table
    own = table.by_gang.get(goal.id) if goal else None
    reservations.table = moved = table.reduced([own] if own else [])
    is_in_time = moved.are_all_feasible() or all(map(moved.is_feasible, moved.in_start_order()))
    if is_in_time and (goal is None or _reserve_cleared(cycle, gangs, goal)):
        return True
    reservations.table = table
    return False


def _reserve_cleared(cycle: Cycle, gangs: list[Gang], goal: Gang) -> bool:
    """Reserve a start of a pending gang on the nodes where it fits when gangs have moved, not on others."""
    state = cycle.state
    with state.trial():
        for gang in gangs:
            shrink_to(state, Shrink(gang, gang.attempt.target))
        placed = cycle.reservations.find_start(goal, start_request(goal)).shares
    return cycle.reservations.reserve_beside(goal, [], gangs, {share.node: None for share in placed or ()})


def _moving_stop(cycle: Cycle, gang: Gang) -> Stop:
    return Stop(
        gang=gang.id,
        generation=gang.attempt.generation,
        cause=Cause.MOVED,
        notice_ms=gang.notice_ms,
        unsaved_ms=unsaved_ms(gang, cycle.now_ms),
        shares=gang.attempt.target,
    )


def _pending(cycle: Cycle) -> list[Gang]:
    """Return the first pending gangs that wait for nodes alone, and not for gangs that were stopped for them."""
    state = cycle.state
    heads = (lane.entries[0].gang for lane in state.pending.lanes(cycle.policy).by_key.values())
    waiting = (gang for gang in heads if cycle.waits(gang) and gang.is_forecastable and not gang.retries.unadmitted)
    waiting = (gang for gang in waiting if not cycle.reservations.is_awaited(gang))
    first = nsmallest(MAX_PENDING, waiting, key=cycle.precedence.order_key)
    requests = ((gang, start_request(gang)) for gang in first)
    return [
        gang for gang, request in requests if not exceeded_limit(state, request) and could_ever_start(state, request)
    ]


def _scattered(cycle: Cycle, level: str) -> Iterator[LargestGang]:
    """Yield gangs of whole nodes that would be larger if free GPUs were together, those that could gain most first."""
    whole: dict[str, LargestGang] = {}
    for row in largest_gangs(cycle.state.nodes):
        if row.level == level:
            whole.setdefault(row.gpu_type, row)
    gains = {name: row.gpus * (row.nodes_defragmented - row.nodes) for name, row in whole.items()}
    for name in sorted(gains, key=lambda name: -gains[name]):
        if gains[name]:
            yield whole[name]


class _Finder:
    """The search for consolidations in one cycle."""

    def __init__(self, cycle: Cycle, budget_ms: int | None) -> None:
        self._cycle, self._budget_ms = cycle, budget_ms
        movable = (gang for gang, _ in cycle.state.allocated() if _may_move(cycle, gang))
        self._costs = {gang.id: cost(gang, cycle.now_ms) for gang in movable}

    def find(self, goal: Gang) -> Consolidation | None:
        """Return moves that make room for a gang."""
        own = self._cycle.reservations.by_gang.get(goal.id)

        weaker = [own] if own else []
        ways = [partial(place, self._cycle, weaker) for place in (_place_anew, _place_rest)]
        search = MoveSearch(self._cycle.state, goal, self._costs, ways)
        return search.find(self._cycle.now_ms, self._budget_ms) if self._costs else None

    def largest(self, row: LargestGang) -> Consolidation | None:
        """Return moves that make room for the largest gang of a form and level, by bisection over its nodes."""
        forms = gpu_forms(self._cycle.state.nodes)
        form = next(form for form in forms if (form.gpu_type or "", form.gpus) == (row.gpu_type, row.gpus))
        layout = Layout(row.level, required=True) if row.level else Layout()
        low, high, largest = row.nodes, row.nodes_defragmented, None
        while low < high:
            middle = (low + high + 1) // 2
            found = self.find(_hypothetical(self._cycle, replace(form, nodes=middle, layout=layout)))
            low, high, largest = (middle, high, found) if found is not None else (low, middle - 1, largest)
        return largest


def _hypothetical(cycle: Cycle, shape: Shape) -> Gang:
    """Return a gang of that shape that only the limits of the whole cluster apply to."""
    job = Job(id="", user="", spec=JobSpec(queue=ROOT), origin=Origin(directory="/"))
    return replace(new_gang(job, cycle.state.seq + 1, cycle.now_ms), shape=shape)


def _may_move(cycle: Cycle, gang: Gang) -> bool:
    """Return whether a gang may be moved: its job says so, it runs, and other nodes would do as well."""
    is_running = gang.state is GangState.RUNNING and gang.id not in cycle.ending
    is_running = is_running and not (gang.attempt.target or gang.attempt.lent)
    is_plain = gang.is_forecastable and not gang.shape.more and not gang.job.spec.spares
    return is_running and gang.job.spec.movable and is_plain


def _place_anew(cycle: Cycle, weaker: list[Reservation], gang: Gang, avoided: tuple[str, ...]) -> Shares | None:
    """Return where a running gang may go on, beside reservations but the weaker ones, and not where it is.

    On nodes that it keeps it keeps its devices.
    """
    before = {share.node: share for share in cycle.state.allocations[gang.id]}
    with cycle.state.trial():
        cycle.state.release(gang)
        shares = _find_start(cycle, gang, avoided, weaker)
    if shares is None or all(share.node in before for share in shares):
        return None
    return tuple(
        replace(share, devices=before[share.node].devices) if share.node in before else share for share in shares
    )


def _place_rest(cycle: Cycle, weaker: list[Reservation], gang: Gang, avoided: tuple[str, ...]) -> Shares | None:
    """Return the same with every node kept that is not avoided; None where the network requires all nodes together."""
    before, layout = cycle.state.allocations[gang.id], gang.shape.layout
    missing = [share for share in before if share.node in avoided]
    if layout.required or gang.shape.slices.level or not missing:
        return None
    rest = replace(gang, shape=replace(gang.shape, nodes=len(missing)))
    others = tuple(share.node for share in before if share.node not in avoided)
    shares = _find_start(cycle, rest, (*avoided, *others), weaker)
    if shares is None:
        return None
    new = {old.node: share for old, share in zip(missing, shares, strict=True)}
    kept = (new.get(share.node, share) for share in before)
    return tuple(replace(share, ranks=old.ranks) for share, old in zip(kept, before, strict=True))


def _find_start(cycle: Cycle, gang: Gang, avoided: tuple[str, ...], weaker: list[Reservation]) -> Shares | None:
    limit_ms = gang.limit_ms(cycle.now_ms)
    for_ms = None if limit_ms is None else max(1, limit_ms - cycle.now_ms)
    with cycle.state.nodes.excluding(avoided):
        return cycle.reservations.find_start(gang, start_request(gang), weaker, for_ms=for_ms).shares
