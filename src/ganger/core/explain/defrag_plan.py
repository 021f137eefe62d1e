"""The plan of a consolidation as it is shown before it is applied: what moves where, what it wastes and wins."""

from collections.abc import Iterator

from ganger.core.cycle.cycle import simulated_cycle
from ganger.core.cycle.defrag import find_consolidation
from ganger.core.nodes.largest_gangs import largest_gangs
from ganger.core.preemption.consolidation import Consolidation, Move
from ganger.core.preemption.victim_order import cost, unsaved_ms
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.state import State
from ganger.model.views.overview import DefragPlan, LargestGang, MoveRow


def defrag_plan(
    state: State, level: str, budget_ms: int | None, now_ms: int, policy: Policy
) -> tuple[DefragPlan, Consolidation | None]:
    """Return the moves that are possible beside what the next cycle does, as shown and as found."""
    with simulated_cycle(state, now_ms, policy) as (cycle, _):
        found = find_consolidation(cycle, level, budget_ms)
        before = tuple(_whole_nodes(state, level))
        moves = found.moves if found else ()
        for gang, _ in moves:
            state.release(gang)
        for gang, shares in moves:
            state.take(gang, shares)
        after = tuple(row.nodes for row in _whole_nodes(state, level))
    plan = DefragPlan(
        at_ms=now_ms,
        level=level,
        job=found.goal.id if found else "",
        largest=before,
        nodes_after=after,
        moves=tuple(_row(move, now_ms) for move in moves),
        gpu_ms=found.cost_ms if found else 0,
        is_cheapest=found is not None and found.is_cheapest,
    )
    return plan, found


def _whole_nodes(state: State, level: str) -> Iterator[LargestGang]:
    """Yield the largest gang of whole nodes of each GPU type."""
    types: dict[str, None] = {}
    for row in largest_gangs(state.nodes):
        if row.level == level and row.gpu_type not in types:
            types[row.gpu_type] = None
            yield row


def _row(move: Move, now_ms: int) -> MoveRow:
    gang, after = move.gang, tuple(share.node for share in move.shares)
    return MoveRow(
        job=gang.id,
        leaves=tuple(node for node in gang.nodes if node not in after),
        gets=tuple(node for node in after if node not in gang.nodes),
        unsaved_ms=unsaved_ms(gang, now_ms),
        notice_ms=gang.notice_ms,
        gpu_ms=cost(gang, now_ms),
    )
