"""When and where a waiting gang could start at the latest, by the limits of what holds its nodes.

Called by `core.cycle.cycle` to keep room for a gang that starves and can be promised no moment, and by
`core.explain.explain` for "until when". Promised starts, which count on each other, are in
`core.reservations.reservations`."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from ganger.core.placement.start_check import Ask, where
from ganger.core.state.gang import Gang
from ganger.core.state.state import Shares, State
from ganger.model.decision import NodeShare


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Where it could start, when (None: somebody in the way has no time limit), and who is in the way there."""

    shares: tuple[NodeShare, ...]
    at_ms: int | None
    after: tuple[str, ...]


def earliest(state: State, wanted: Ask, now_ms: int) -> Opening | None:
    """The first opening when gangs leave in the order of their limits, those without one last; None if there is none.

    Nothing else is assumed to start meanwhile: who leaves makes room and takes none, so that the first opening is found
    by halving. O(log gangs) placements.
    """
    with state.trial(), state.windows.later():
        exodus = _Exodus(state, (gang for gang, _ in state.by_end(now_ms)), now_ms)
        too_few, enough, step = -1, 0, 1
        while not (found := exodus.place(enough, wanted)):
            too_few, enough, step = enough, exodus.most(enough + step), 2 * step
            if enough == too_few:
                return None
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            if here := exodus.place(middle, wanted):
                enough, found = middle, here
            else:
                too_few = middle
    gone, there = exodus.gangs[:enough], {share.node: None for share in found}
    after = tuple(gang.id for gang in gone if any(share.node in there for share in state.shares[gang.id]))
    return Opening(shares=found, at_ms=gone[-1].ends_ms(now_ms) if gone else now_ms, after=after)


class _Exodus:
    """Gangs that leave one after the other, inside a trial; any number of them may be let go and called back. gangs:
    those that were looked at so far."""

    def __init__(self, state: State, leaving: Iterator[Gang], now_ms: int) -> None:
        self.gangs: list[Gang] = []
        self._leaving, self._now_ms = leaving, now_ms
        self._state, self._marks = state, [state.undo.mark()]

    def most(self, many: int) -> int:
        """So many, or all there are."""
        self.gangs += islice(self._leaving, max(0, many - len(self.gangs)))
        return min(many, len(self.gangs))

    def place(self, gone: int, wanted: Ask) -> Shares | None:
        """Where a gang may start once so many have left."""
        if gone < len(self._marks):
            self._state.undo.back_to(self._marks[gone])
            del self._marks[gone + 1 :]
        for gang in self.gangs[len(self._marks) - 1 : gone]:
            self._state.release(gang)
            self._marks.append(self._state.undo.mark())
        if self._state.windows and gone:
            end_ms = self.gangs[gone - 1].ends_ms(self._now_ms)
            self._state.windows.now_ms = self._now_ms if end_ms is None else end_ms
        return where(self._state, wanted.at_least)
