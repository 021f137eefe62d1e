"""Detection of cycles that would change nothing: only unschedulable submissions arrived since the last one.

Used where pending reasons are not published (`core.cycle.plan`). Nodes and quota only become fewer within a cycle, so a
gang that it refused stays refused until a gang ends, a fact changes or a timer is due. A gang submitted since then can
start only if the nodes have room for its kind and it stays short enough to delay no reservation. A skipped cycle could
also have moved reservations to an earlier start; that waits for the next one.
"""

from typing import Final

from ganger.core.cycle.cycle import Cycle
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.gang import Gang
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.job import GangState

HARMLESS: Final = (e.Started, e.Progressed, e.Checkpointed)
"""Events that neither free nor take capacity."""


class CycleSkip:
    """The last cycle, and the gangs submitted since."""

    def __init__(self) -> None:
        """Begin without a last cycle."""
        self._last_cycle: Cycle | None = None
        self._submitted: list[str] = []

    def record(self, cycle: Cycle | None) -> None:
        """Record a finished cycle, or None if it stopped gangs or another is due; its decisions are folded next."""
        self._last_cycle, self._submitted = cycle, []

    def observe(self, event: e.Event) -> None:
        """Take note of an event after the cycle."""
        if isinstance(event, e.Submitted):
            self._submitted.append(event.job.id)
        elif not isinstance(event, HARMLESS):
            self._last_cycle = None

    def may_skip(self, state: State, now_ms: int, policy: Policy) -> bool:
        """Return whether a cycle now would start and stop no gang and make no reservation."""
        cycle = self._last_cycle
        if cycle is None or cycle.state is not state or cycle.policy is not policy or _is_timer_due(cycle, now_ms):
            return False
        submitted, self._submitted = [state.gangs.get(name) for name in self._submitted], []
        if all(
            gang is not None and _changes_nothing(cycle, gang, now_ms) for gang in submitted
        ) and not _is_reservation_overdue(cycle, now_ms):
            return True
        self._last_cycle = None
        return False


def _is_timer_due(cycle: Cycle, now_ms: int) -> bool:
    """Return whether a timer has become due since the cycle."""
    state = cycle.state
    times_ms = (state.timers.next_ms(cycle.now_ms), state.maintenance.next_ms(cycle.now_ms), *state.leaving.values())
    return any(time_ms is not None and time_ms <= now_ms for time_ms in times_ms)


def _is_reservation_overdue(cycle: Cycle, now_ms: int) -> bool:
    """Return whether a reserved start has passed since the cycle, which has to be published."""
    reserved_ms = (reservation.start_ms for reservation in cycle.state.reservations.values())
    return any(start_ms is not None and cycle.now_ms < start_ms <= now_ms for start_ms in reserved_ms)


def _changes_nothing(cycle: Cycle, gang: Gang, now_ms: int) -> bool:
    """Return whether a gang submitted after the cycle neither starts now nor gets a reservation."""
    if gang.is_head or gang.state is not GangState.PENDING or cycle.state.maintenance:
        return False
    if gang.awaits:
        return True
    if cycle.may_reserve(gang.queue, large=cycle.is_large(gang)) or cycle.reservations.movable_by(gang):
        return False
    if not cycle.state.nodes.capacity_index.have_room(gang.shape.parts):
        return True
    if not cycle.reservations.by_gang:
        return False
    max_stay_ms = cycle.reservations.table.max_stay_ms(gang.shape.parts)
    return max_stay_ms < NEVER_MS and gang.min_run_ms > max_stay_ms - (now_ms - cycle.now_ms)
