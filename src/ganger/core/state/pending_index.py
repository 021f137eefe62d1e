"""Waiting gangs by line and class, as columns: so that a round asks all of them at once who is worth a try.

Owned by `core.state.pending`, which keeps it up to date; read by `core.cycle.candidates`. The gangs of one group need
the same of the nodes, for the same time, and the older goes first: while the first of them is not worth a try none is,
but for one that pauses, or that has waited for so long that it gets its turn whatever there is."""

from bisect import bisect_left, insort
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ganger.core.nodes.topology import Ints
from ganger.core.state.gang import Gang, Times
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.model.shape import Shape

LINE, KIND, QUEUE, STAYS, AGAIN, SINCE, OWNER, NUMBER, SUBMITTED, PRIORITY, COLUMNS = range(11)
"""Columns: the line, the kind and the queue, by number; how long each must be able to stay; whether they pass
reservations; since when one of them has waited at the earliest; the owner, by number; of the oldest its number, when it
was submitted, and its priority."""
_BEGIN: Final = 64
"""Rows that there is room for at first."""

LineKey = tuple[str, str, Hashable]
"""(queue, user, band)"""
Alike = tuple[int, int, Times, str, int, bool, bool]
"""(its kind, by number, priority, its limits, its array where that has a limit, how long it must be able to stay,
whether it passes reservations, whether the cluster did not admit its newest start)"""


@dataclass(slots=True, eq=False)
class Kind:
    """Gangs that the nodes treat alike. at: its number; parts: of their shape; avoids: nodes that it must not have;
    waiting: how many there are; stays: how many of them stay for how long, at least; again: how many pass reservations;
    failed_at: the growth of its columns when it had last no place, though each part had room."""

    at: int
    shape: Shape
    parts: tuple[Shape, ...]
    avoids: tuple[str, ...]
    waiting: int = 0
    stays: dict[int, int] = field(default_factory=dict)
    again: int = 0
    failed_at: tuple[int, ...] | None = None


@dataclass(slots=True, eq=False)
class Crowd:
    """All that wait in one queue. at: its number; lines: theirs; untold: how many of them no moment can be told to."""

    at: int = 0
    untold: int = 0
    lines: dict["Lane", None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Lane:
    """Gangs of one user in one queue and one band, the oldest first. at: its number; queue, crowd: its queue; owner,
    owner_at: (queue, user), and their number; groups: those that are alike; since_ms: none has waited for longer."""

    at: int
    key: LineKey
    queue: str
    owner: tuple[str, str]
    owner_at: int
    crowd: Crowd
    entries: list["Entry"] = field(default_factory=list)
    groups: dict[Alike, "Group"] = field(default_factory=dict)
    since_ms: int = NEVER_MS


@dataclass(slots=True, eq=False)
class Entry:
    """One gang in its line. group: those that it is alike to."""

    gang: Gang
    group: "Group"

    @property
    def line(self) -> Lane:
        """The line that it is in."""
        return self.group.line

    @property
    def kind(self) -> Kind:
        """What it needs of the nodes."""
        return self.group.kind


@dataclass(slots=True, eq=False)
class Group:
    """Gangs of one line that are alike, the oldest first. kind: what they need of the nodes; stays_ms: how long each
    must be able to stay; again: they pass reservations; unadmitted: they start only in free room; row: where it is in
    the columns; number: of the oldest; since_ms: none has waited for longer."""

    line: Lane
    alike: Alike
    kind: Kind
    stays_ms: int
    again: bool
    unadmitted: bool
    row: int
    number: int = -1
    since_ms: int = NEVER_MS
    entries: list[Entry] = field(default_factory=list)

    def admit(self, entry: Entry) -> None:
        """One more gang is in it; its columns are to be told."""
        entries, gang = self.entries, entry.gang
        self.since_ms = min(self.since_ms, gang.since_ms)
        if entries and entries[-1].gang.number > gang.number:
            insort(entries, entry, key=_number)
        else:
            entries.append(entry)
        self.number = entries[0].gang.number

    @property
    def of_class(self) -> tuple[object, ...]:
        """Equal for groups of one class."""
        return (self.line.owner, *self.alike[:4], self.unadmitted)

    @property
    def cells(self) -> tuple[int, ...]:
        """Its columns."""
        line, first = self.line, self.entries[0].gang
        of_first = first.number, first.submitted_ms, self.alike[1]
        where = line.at, self.kind.at, line.crowd.at
        return (*where, self.stays_ms, self.again, self.since_ms, line.owner_at, *of_first)


class PendingIndex:
    """of: every group there is, by row; cells: (COLUMNS, rows) its columns."""

    def __init__(self) -> None:
        """None yet."""
        self.of: list[Group] = []
        self._cells: Ints = np.zeros((COLUMNS, _BEGIN), dtype=np.int64)

    @property
    def cells(self) -> Ints:
        """(COLUMNS, groups)"""
        return self._cells[:, : len(self.of)]

    def begin(self, line: Lane, kind: Kind, alike: Alike) -> Group:
        """A new one, of those in a line that are alike in that; its columns are to be told when one is in it."""
        group = line.groups[alike] = Group(line, alike, kind, *alike[4:], len(self.of))
        self.of.append(group)
        return group

    def dismiss(self, entry: Entry) -> None:
        """It is in its group no more."""
        group = entry.group
        at = bisect_left(group.entries, entry.gang.number, key=_number)
        del group.entries[at]
        if not group.entries:
            del group.line.groups[group.alike]
            self._remove(group)
        elif at == 0:
            # Nobody has waited for longer than since he was submitted.
            oldest = group.entries[0].gang
            group.number, group.since_ms = oldest.number, max(group.since_ms, oldest.submitted_ms)
            self.tell(group)

    def tell(self, group: Group) -> None:
        """Its columns are as it is."""
        if group.row >= self._cells.shape[1]:
            self._cells = np.concatenate((self._cells, np.zeros_like(self._cells)), axis=1)
        self._cells[:, group.row] = group.cells

    def tell_all(self, cells: list[int]) -> None:
        """Those of all groups are these, one group after the other."""
        if cells:
            self._cells = np.array(cells, dtype=np.int64).reshape(-1, COLUMNS).T.copy()

    def _remove(self, group: Group) -> None:
        """The last one takes its row."""
        last = self.of.pop()
        if last is not group:
            self._cells[:, group.row] = self._cells[:, last.row]
            self.of[group.row], last.row = last, group.row


def _number(entry: Entry) -> int:
    return entry.gang.number
