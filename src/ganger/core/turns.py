"""Whose turn it is in a round: the next pending gang, in the policy's order, that is worth a try.

Called by `core.plan`. The lines are in order already, so only their heads are compared. A gang is passed over, without
a word, where its kind has no place (each column of `core.columns` says so in one comparison), or where its class was
refused in this round, or its kind in its queue: within a round nodes and quota only become fewer. For the same reason a
key that was computed earlier is at most too early, and is looked at again when its turn comes.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final

from ganger.core.gang import ClassKey
from ganger.core.lines import NEVER_MS, Entry, Kind, Line
from ganger.core.policy import Policy
from ganger.core.state import State
from ganger.model.reason import Why

NO_PLACE: Final = (Why.NO_CAPACITY, Why.NO_NODE, Why.EXCLUDED)
Turn = tuple[tuple[Any, ...], int, int, Line]
"""(key, number of the line, place in it, the line)"""


class Turns:
    """The order of one round. `urgent`: since when a gang of a queue must have waited to get its turn even where it has
    no place; None: none does."""

    def __init__(
        self, state: State, now_ms: int, policy: Policy, out: dict[str, None], urgent: Callable[[str], int | None]
    ) -> None:
        """`out`: gangs that are not to start in this round."""
        self._state, self._now_ms, self._policy, self._out, self._urgent = state, now_ms, policy, out, urgent
        lines = state.lines(policy)
        self._kinds = {kind: None for kind in lines.kinds.values() if self._has_place(kind)}
        self._open: dict[str, dict[Kind, None]] = {}
        self._refused: dict[ClassKey, None] = {}
        self._turns: list[Turn] = []
        self._since_ms = min((line.since_ms for line in lines.of.values()), default=NEVER_MS)
        for number, line in enumerate(lines.of.values()):
            self._offer(number, 0, line)

    def next(self) -> Entry | None:
        """The first in the order; None when nobody is left. It stays where it is until it is told on."""
        while self._turns:
            key, number, at, line = self._turns[0]
            entry = line.entries[at]
            if entry.kind in self._kinds and not self._has_place(entry.kind):
                self._close(entry.kind)
                if self._is_over():
                    return None
            if self._is_out(entry) or not self._is_open(line.queue, entry) or self._key(entry) > key:
                heappop(self._turns)
                self._offer(number, at, line)
                continue
            return entry
        return None

    def go_on(self) -> None:
        """The gang whose turn it was has started."""
        _, number, at, line = heappop(self._turns)
        self._offer(number, at + 1, line)

    def refuse(self, entry: Entry, why: Why) -> None:
        """It does not start in this round, nor do others of its class; nor, where it lacks quota, others of its kind in
        its queue; nor, where no place was found though there is room, others of its kind."""
        self._refused[entry.class_key] = None
        if why is Why.OVER_QUOTA:
            self._open[entry.gang.queue].pop(entry.kind, None)
        if why in NO_PLACE and not self._state.tree.types:
            entry.kind.failed_at = self._growth(entry.kind)

    def _has_place(self, kind: Kind) -> bool:
        """Whether each part of a kind has room by itself, and it has not failed since room was made."""
        columns = self._state.nodes.columns
        for part in kind.parts:
            if all(columns.of(choice).total < part.nodes for choice in part.choices):
                return False
        return kind.failed_at is None or kind.failed_at != self._growth(kind)

    def _growth(self, kind: Kind) -> tuple[int, ...]:
        columns = self._state.nodes.columns
        return tuple(columns.of(choice).growth for part in kind.parts for choice in part.choices)

    def _key(self, entry: Entry) -> tuple[Any, ...]:
        return self._policy.key(entry.gang, self._state, self._now_ms)

    def _close(self, kind: Kind) -> None:
        """There is no place for it any more in this round."""
        del self._kinds[kind]
        for open_ in self._open.values():
            open_.pop(kind, None)

    def _is_over(self) -> bool:
        """Whether there is room for nobody, and nobody gets a turn without."""
        urgent = [since_ms for queue in self._open if (since_ms := self._urgent(queue)) is not None]
        return not self._kinds and self._since_ms > max(urgent, default=-1)

    def _is_out(self, entry: Entry) -> bool:
        gang = entry.gang
        return gang.not_before_ms > self._now_ms or entry.class_key in self._refused or gang.id in self._out

    def _is_open(self, queue: str, entry: Entry) -> bool:
        if entry.kind in self._open[queue]:
            return True
        since_ms = self._urgent(queue)
        return since_ms is not None and entry.gang.since_ms <= since_ms

    def _offer(self, number: int, at: int, line: Line) -> None:
        """The first gang of a line, from a place in it on, that is worth a try."""
        if line.queue not in self._open:
            self._open[line.queue] = self._within_quota(line.queue)
        open_, since_ms = self._open[line.queue], self._urgent(line.queue)
        if since_ms is not None and line.since_ms > since_ms:
            since_ms = None
        if since_ms is None and open_.keys().isdisjoint(line.kinds):
            return
        entries = line.entries
        for place in range(at, len(entries)):
            entry = entries[place]
            if entry.kind not in open_ and (since_ms is None or entry.gang.since_ms > since_ms):
                continue
            if not self._is_out(entry):
                heappush(self._turns, (self._key(entry), number, place, line))
                return

    def _within_quota(self, queue: str) -> dict[Kind, None]:
        """Kinds that have a place, and that the queue has the quota for."""
        tree = self._state.tree
        return {kind: None for kind in self._kinds if tree.short_of(queue, tree.wanted(kind.shape)) is None}
