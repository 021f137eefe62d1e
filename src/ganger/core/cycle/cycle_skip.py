"""Whether a round may be left out: nothing has happened since the last one but that jobs came which cannot start.

Owned by `engine.loop` where nobody reads why jobs wait; told by it of every event, and asked by `core.cycle.plan`.
Within a round nodes and quota only become fewer, so whoever was refused then is refused until something ends, changes
or is due. A job that came since can start only where its kind has a place and, beside what is promised, for as long as
it must be able to stay. What a round would do besides, move promises to an earlier moment, waits for the next."""

from typing import Final

from ganger.core.cycle.cycle import Cycle
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.gang import Gang
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.job import GangState

HARMLESS: Final = (e.Started, e.Progressed, e.Checkpointed)
"""They free nothing and take nothing."""


class CycleSkip:
    """What the last round left."""

    def __init__(self) -> None:
        """There was none."""
        self._round: Cycle | None = None
        self._came: list[str] = []

    def leave(self, now: Cycle | None) -> None:
        """A round is over; its starts and promises are folded next. None: it stopped gangs, or another is due."""
        self._round, self._came = now, []

    def hear(self, event: e.Event) -> None:
        """It has happened since."""
        if isinstance(event, e.Submitted):
            self._came.append(event.job.id)
        elif not isinstance(event, HARMLESS):
            self._round = None

    def holds(self, state: State, now_ms: int, policy: Policy) -> bool:
        """Whether a round held now would start and stop nobody, nor promise anybody a start."""
        now = self._round
        if now is None or now.state is not state or now.policy is not policy or _is_due(now, now_ms):
            return False
        came, self._came = [state.gangs.get(name) for name in self._came], []
        if all(gang is not None and _changes_nothing(now, gang, now_ms) for gang in came) and not _is_late(now, now_ms):
            return True
        self._round = None
        return False


def _is_due(now: Cycle, now_ms: int) -> bool:
    """Whether time alone has done something since."""
    state = now.state
    moments = (state.due.next_ms(now.now_ms), state.windows.next_ms(now.now_ms), *state.leaving.values())
    return any(moment is not None and moment <= now_ms for moment in moments)


def _is_late(now: Cycle, now_ms: int) -> bool:
    """Whether a promised moment has passed since without its start: that is to be told."""
    promised = (promise.start_ms for promise in now.state.promises.values())
    return any(start_ms is not None and now.now_ms < start_ms <= now_ms for start_ms in promised)


def _changes_nothing(now: Cycle, gang: Gang, now_ms: int) -> bool:
    """Whether one that came after a round neither starts now nor is promised a start."""
    if gang.is_head or gang.state is not GangState.PENDING or now.state.windows:
        return False
    if gang.awaits:
        return True
    if now.may_promise(gang.queue, large=now.is_large(gang)):
        return False
    if not now.state.nodes.columns.hold(gang.shape.parts):
        return True
    if not now.promises.standing:
        return False
    longest_ms = now.promises.laid.longest_ms(gang.shape.parts)
    return longest_ms < NEVER_MS and gang.least_ms > longest_ms - (now_ms - now.now_ms)
