"""Spare nodes of running gangs: replaced when they are gone, and lent for as long as their holders do not need them.

A gang that has lost a spare, or has taken it over, takes a free node that no pending gang can use.

After all starts of a cycle, pending gangs in policy order start on spares, each wholly on spares, of one gang or of
several. The holder gets them back at once: a borrower is preemptible, and asks for no longer notice than the holder
gives its own ranks, so that no start waits for longer than it would for the holder itself.

A lent node stays charged to its holder. A borrower must have quota all the same, as if it were charged in the holder's
place, with all that is lent already; and it counts among the jobs of its user then.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from heapq import nsmallest
from typing import Final

import numpy as np

from ganger.core.cycle import resizing
from ganger.core.cycle.attempt import next_start, next_to_start
from ganger.core.cycle.cycle_state import Cycle
from ganger.core.nodes.devices import FREE
from ganger.core.placement.start_check import exceeded_limit, find_placement, start_request
from ganger.core.queues.quota import Vector
from ganger.core.state import spares
from ganger.core.state.gang import ACTIVE, Gang
from ganger.core.state.pending_index import DEMAND, NUMBER, PRIORITY
from ganger.core.state.state import Shares, State
from ganger.model.decision import NodeShare, SpareNodes, Start
from ganger.model.shape import Shape

MAX_CLASSES: Final = 64
"""Job classes, those of the highest priorities and the oldest gangs, that candidates for spares are among, and as many
others in rotation."""
MAX_BORROWERS: Final = 16
"""Pending gangs, the first ones in policy order, that are tried on spares in a cycle."""
_REST: Final = 0
"""Owner of what is free beside the spares while a placement on spares is tried; no gang has this number."""


def replace_spares(cycle: Cycle) -> list[SpareNodes]:
    """Return the spares that gangs hold from now on, where they have lost some or there are nodes for new ones."""
    changes, state = list[SpareNodes](), cycle.state
    for gang in [*state.timers.lenders.values()]:
        start, count = gang.attempt.start, spares.missing(gang)
        if start is None or gang.state not in ACTIVE or gang.id in cycle.ending or gang.attempt.vacates:
            continue
        count = min(count, max(map(state.nodes.room, gang.shape.choices)))
        places = (_place_spares(cycle, gang, nodes) for nodes in range(count, 0, -1))
        added = next(filter(None, places), ())
        if added or gang.attempt.lost_spares:
            held, lost = (*start.spares, *added), gang.attempt.lost_spares
            changes.append(SpareNodes(gang=gang.id, generation=start.generation, shares=held, lost=lost))
    return changes


def _place_spares(cycle: Cycle, gang: Gang, count: int) -> Shares:
    """Return where a gang may have so many more spares, and allocate them for the rest of the cycle; empty if not."""
    state, own = cycle.state, cycle.state.allocations[gang.id]
    more = replace(resizing.same_kind(state, gang.shape, own), nodes=count)
    with state.trial():
        state.release(gang)
        request = replace(start_request(gang), shape=gang.sized(gang.shape.nodes + count))
        if exceeded_limit(state, request) is not None:
            return ()
    placed = resizing.place_near(cycle, gang, more, own)
    if placed is None or gang.attempt.start is None:
        return ()
    added = tuple(replace(share, ranks=()) for share in placed)
    start = replace(gang.attempt.start, spares=(*gang.attempt.start.spares, *added))
    larger = replace(gang, shape=gang.sized(gang.shape.nodes + count), attempt=replace(gang.attempt, start=start))
    state.release(gang)
    state.take(larger, larger.attempt.held)
    cycle.reservations.table.add_running(replace(gang, shape=more), added)
    return added


def lend(cycle: Cycle, last_start: Start | None) -> list[Start]:
    """Return starts of pending gangs on spares of running ones, after the latest start of the cycle."""
    state, starts = cycle.state, list[Start]()
    lent = dict(_spares(cycle))
    if not lent or cycle.policy.STRICT_ORDER or len(state.gangs) == len(state.allocations):
        return starts
    with _on_spares_alone(state, lent):
        for candidate in _candidates(cycle, lent):
            is_last = False
            while not is_last and (shares := _place(state, candidate, lent)):
                (gang,), is_last = next_to_start(cycle, candidate)
                start = next_start(cycle, gang, (shares, ()), None, starts[-1] if starts else last_start)
                start = replace(start, lenders=tuple(lent[share.node][0].id for share in shares))
                _borrow(state, gang, shares)
                starts.append(start)
                cycle.started_gangs[gang.id] = replace(gang, attempt=replace(gang.attempt, start=start))
    for start in starts:
        _record(cycle, cycle.started_gangs[start.gang])
    return starts


def _spares(cycle: Cycle) -> Iterator[tuple[str, tuple[Gang, NodeShare]]]:
    """Yield the nodes that are spares, each with the gang that holds it."""
    for name, gang in cycle.state.timers.lenders.items():
        if gang.state in ACTIVE and name not in cycle.ending:
            yield from ((share.node, (gang, share)) for share in gang.attempt.spares)


@contextmanager
def _on_spares_alone(state: State, lent: dict[str, tuple[Gang, NodeShare]]) -> Iterator[None]:
    """Have only what the spares hold free within the context, without what is lent of them, and charge borrowers."""
    nodes = state.nodes
    others = np.ones(len(nodes.nodes), dtype=bool)
    others[[nodes.index[node] for node in lent]] = False
    with state.trial():
        for node, (gang, share) in lent.items():
            _take_rest(state, node)
            nodes.release(gang.shape, [share])
            _charge(state, gang, (share,), -1)
        holders = {node: gang.id for node, (gang, _) in lent.items()}
        for borrower in state.timers.borrowers.values():
            lender_of, held = spares.lenders(borrower), state.allocations[borrower.id]
            on_spares = tuple(share for share in held if holders.get(share.node) == lender_of[share.node])
            if on_spares:
                _borrow(state, borrower, on_spares)
        with nodes.excluding_at(np.flatnonzero(others)):
            yield


def _take_rest(state: State, node: str) -> None:
    """Take all that is free on a node."""
    nodes, index = state.nodes, state.nodes.index[node]
    owners = nodes.devices.owner[nodes.devices.first[index] : nodes.devices.first[index + 1]]
    devices = tuple(np.flatnonzero(owners == FREE).tolist())
    cpu_milli, memory_bytes = int(nodes.free.cpu_milli[index]), int(nodes.free.memory_bytes[index])
    if devices or cpu_milli or memory_bytes:
        rest = Shape(nodes=1, gpus=len(devices), cpu_milli=cpu_milli, memory_bytes=memory_bytes)
        nodes.take(_REST, rest, [NodeShare(node, (), devices)])


def _borrow(state: State, gang: Gang, shares: Shares) -> None:
    """Take these spares, and charge the borrower for them."""
    state.nodes.take(gang.number, gang.shape, shares)
    _charge(state, gang, shares, +1)


def _charge(state: State, gang: Gang, shares: Shares, sign: int) -> None:
    """Charge a gang for these shares, or no more."""
    tree, part = state.tree, replace(gang.shape, nodes=len(shares))
    amounts: Vector = tuple(sign * amount for amount in tree.taken(part, shares, state.type_of))
    node_ms = sign * len(shares) * (gang.job.spec.limits.time_ms or 0)
    tree.charge(gang.queue, amounts)
    tree.charge_user(gang.queue, gang.job.user, amounts[0], node_ms, int(sign > 0))
    tree.charge_period(gang.queue, gang.job.user, sign * len(shares), gang.requested_stay_ms)


def _candidates(cycle: Cycle, lent: dict[str, tuple[Gang, NodeShare]]) -> list[Gang]:
    """Return the first gangs, in policy order, that spares may do for."""
    lanes, longest_ms = cycle.state.pending.lanes(cycle.policy), max(gang.grace_ms for gang, _ in lent.values())
    slots = [kind.slot for kind in lanes.demands.values() if _has_room(cycle.state, kind.shape)]
    demands, numbers, priorities = lanes.index.cells[[DEMAND, NUMBER, PRIORITY]]
    rows = np.flatnonzero(np.isin(demands, slots))
    order = rows[np.lexsort((numbers[rows], -priorities[rows]))].tolist()
    first, others = order[:MAX_CLASSES], order[MAX_CLASSES:]
    begin = cycle.state.seq * MAX_CLASSES % max(1, len(others))
    entries = (
        entry
        for row in (*first, *others[begin : begin + MAX_CLASSES])
        for entry in lanes.index.rows[row].entries[:MAX_BORROWERS]
    )
    gangs = (entry.gang for entry in entries if _may_borrow(cycle, entry.gang, longest_ms))
    return nsmallest(MAX_BORROWERS, gangs, key=cycle.precedence.order_key)


def _has_room(state: State, shape: Shape) -> bool:
    """Return whether a gang has one part of whole devices, and the spares have room for it."""
    is_plain = not (shape.more or shape.stacked or shape.has_share)
    return is_plain and any(state.nodes.room(choice) >= shape.nodes for choice in shape.choices)


def _may_borrow(cycle: Cycle, gang: Gang, longest_ms: int) -> bool:
    """Return whether a gang gives way within so long, keeps its size, and has had no other stopped for it."""
    spec, reservation = gang.job.spec, cycle.reservations.by_gang.get(gang.id)
    gives_way = spec.preemptible and gang.grace_ms <= longest_ms and not gang.retries.unadmitted
    is_rigid = not (gang.is_elastic or spec.spares or spec.replica_groups) and gang.is_forecastable
    is_awaiting = gang.id in cycle.holds.by_gang or (reservation is not None and reservation.owned)
    return gives_way and is_rigid and cycle.waits(gang) and not is_awaiting


def _place(state: State, gang: Gang, lent: dict[str, tuple[Gang, NodeShare]]) -> Shares | None:
    """Return where a gang may start on spares of gangs with at least its notice."""
    request = start_request(gang)
    hasty = tuple(node for node, (holder, _) in lent.items() if holder.grace_ms < gang.grace_ms)
    return find_placement(state, replace(request, avoids=(*request.avoids, *hasty)))


def _record(cycle: Cycle, gang: Gang) -> None:
    """Record a start; a reservation that the gang has ends, and others may start earlier."""
    own = cycle.reservations.by_gang.get(gang.array or gang.id)
    cycle.state.record_start(gang, cycle.now_ms)
    if own is not None:
        cycle.reservations.table.remove(own)
        cycle.reservations.changes.pop(own.gang.id, None)
        cycle.is_unfinished = True
