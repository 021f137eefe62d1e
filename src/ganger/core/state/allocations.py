"""What every gang holds, by gang, by node and by the time it ends.

Owned by `core.state.state`, changed through its `Undo`; read by `core.placement.start_check`,
`core.reservations.earliest_start`, `core.cycle.preemption` and `core.explain.explain`, none of which has to look at all
gangs to find those that end first or that are on one node."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final

import numpy as np

from ganger.core.nodes.topology import Ints
from ganger.core.state.column_table import Ledger
from ganger.core.state.gang import Gang
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.model.decision import NodeShare
from ganger.model.shape import Shape
from ganger.model.terms import SHARED

Shares = tuple[NodeShare, ...]
End = tuple[int, int, str]
"""(when by its limit, or without one as is expected; number, id)"""
Rows = tuple[tuple[Shape, Shares, Ints], ...]
"""(part, its shares, their nodes by index)"""
AT, TAKEN, COLUMNS = 1, 2, 7
"""Columns after the end, by the gang's limit: the node by index, and what of it is taken: GPUs as a whole, which a
share of one is not, CPUs, memory, one guest, and whether that is alone."""

_OTHERS: Final = ""
"""Whose rows are what others have, whom ganger does not place: no gang's."""


def overtaken(gangs: Iterable[Gang]) -> dict[str, dict[str, None]]:
    """By gang, nodes that it has left as far as can be told though it does not say so: another has begun there since,
    on the same devices. Records that are written one by one say such things when their writer ends between two."""
    holders: dict[tuple[str, int], Gang] = {}
    found: dict[str, dict[str, None]] = {}
    for gang in gangs:
        if gang.start is None or any(part.has_share for part in gang.shape.parts):
            continue
        left = dict.fromkeys(gang.left)
        for share in gang.start.shares:
            for device in share.devices if share.node in left else ():
                other = holders.setdefault((share.node, device), gang)
                if other is not gang:
                    first, last = sorted((other, gang), key=_began)
                    holders[share.node, device] = last
                    found.setdefault(first.id, {})[share.node] = None
    return found


def _began(gang: Gang) -> tuple[int, int]:
    return gang.began_ms, gang.number


class Allocations(dict[str, Shares]):
    """Shares by gang. residents: gangs by node; sharers: gangs that have shares of devices; ledger: a row for each
    share; now_ms: of the round, from which what it places itself runs."""

    def __init__(self, gangs: dict[str, Gang], index: dict[str, int]) -> None:
        """Nobody holds anything. `gangs`: the live ones by id, as the state has them; `index`: of every node."""
        super().__init__()
        self.now_ms = 0
        self.sharers: dict[str, None] = {}
        self.ledger = Ledger(COLUMNS)
        self._index = index
        self.residents: dict[str, dict[str, None]] = {}
        self._oldest: dict[tuple[str, str], list[tuple[int, str]]] = {}
        self._gangs = gangs
        self._ends: list[End] = []
        self._end_of: dict[str, End] = {}
        self._endless: list[tuple[int, str]] = []
        self._in_order: tuple[tuple[End, ...], tuple[str, ...]] | None = None
        """What `by_end` goes through, until somebody comes or goes."""
        self._rows: dict[str, Rows] = {}

    def __setitem__(self, name: str, shares: Shares) -> None:
        self._rows.pop(name, None)
        if name in self:
            self._vacate(name)
        else:
            self._enter(self._gangs[name])
        super().__setitem__(name, shares)
        for share in shares:
            self.residents.setdefault(share.node, {})[name] = None
        self._note(self._gangs[name], shares)

    def __delitem__(self, name: str) -> None:
        self._rows.pop(name, None)
        self._vacate(name)
        super().__delitem__(name)
        self.ledger.drop(name)
        self._in_order = None
        self.sharers.pop(name, None)
        gang = self._gangs[name]
        for group in _groups(gang):
            members = self._oldest[group]
            del members[bisect_left(members, (gang.number, name))]
        end = self._end_of.pop(name, None)
        if end is not None:
            del self._ends[bisect_left(self._ends, end)]
        else:
            del self._endless[bisect_left(self._endless, (gang.number, name))]

    def set_aside(self, foreign: Ints) -> None:
        """(N,) so many devices of each node are used by others, and nothing tells until when."""
        at = np.flatnonzero(foreign).tolist()
        self.ledger.put(_OTHERS, [(NEVER_MS, node, int(foreign[node]), 0, 0, 0, 0) for node in at])

    def rows(self, name: str) -> Rows:
        """A gang's shares part by part: which nodes by index, looked up once."""
        found = self._rows.get(name)
        if found is None:
            found = self._rows[name] = rows(self._gangs[name].shape, self[name], self._index)
        return found

    def oldest(self, *, queue: str = "", user: str = "") -> Iterator[Gang]:
        """Gangs of a queue, of a user, or all, oldest first."""
        return (self._gangs[name] for _, name in self._oldest.get((queue, user), ()))

    def end_ms(self, name: str) -> int:
        """When a gang ends by its limit; without one never."""
        end = self._end_of.get(name)
        return NEVER_MS if end is None else end[0]

    def by_end(self, leaving: Iterable[Gang], now_ms: int) -> Iterator[tuple[Gang, Shares]]:
        """Those that are `leaving` and those past their limit, then the first to end by its limit first, those without
        one last; ties by number. Of those that were there at the first; each may be released once it was given."""
        past = bisect_left(self._ends, (now_ms + 1, 0, ""))
        gone = {gang.id: gang for gang in leaving if gang.id in self}
        gone |= {name: self._gangs[name] for _, _, name in self._ends[:past]}
        if self._in_order is None:
            self._in_order = tuple(self._ends), tuple(name for _, name in self._endless)
        ends, endless = self._in_order
        for gang in sorted(gone.values(), key=lambda gang: gang.number):
            yield gang, self[gang.id]
        for name in chain((name for _, _, name in islice(ends, past, None)), endless):
            if name not in gone:
                yield self._gangs[name], self[name]

    def validate(self, anew: "Allocations") -> None:
        """Compare with one that everything was put into anew. AssertionError names what differs."""
        assert self == anew, "shares differ"
        mine, other = ((each._ends, each._endless, each._filled()) for each in (self, anew))  # noqa: SLF001 - its own kind
        assert mine == other, "who holds what, by end, node and owner, differs"
        assert self.ledger.rows() == anew.ledger.rows(), "who holds what, as columns, differs"
        assert self.sharers.keys() == anew.sharers.keys(), "who has shares of devices differs"

    def _filled(self) -> tuple[dict[str, list[str]], dict[tuple[str, str], list[tuple[int, str]]]]:
        """Gangs by node and by owner, where there are any."""
        return (
            {node: sorted(there) for node, there in self.residents.items() if there},
            {group: members for group, members in self._oldest.items() if members},
        )

    def _enter(self, gang: Gang) -> None:
        self._in_order = None
        for group in _groups(gang):
            insort(self._oldest.setdefault(group, []), (gang.number, gang.id))
        end_ms = gang.expected_end_ms(self.now_ms)
        if end_ms is None:
            insort(self._endless, (gang.number, gang.id))
        else:
            self._end_of[gang.id] = end_ms, gang.number, gang.id
            insort(self._ends, self._end_of[gang.id])

    def _note(self, gang: Gang, shares: Shares) -> None:
        """What it holds is in the columns."""
        end_ms, index = self.end_ms(gang.id), self._index
        parts = [_taken(part) for part in gang.shape.parts]
        self.ledger.put(gang.id, [(end_ms, index[share.node], *parts[share.part]) for share in shares])
        if any(part.has_share for part in gang.shape.parts):
            self.sharers[gang.id] = None

    def _vacate(self, name: str) -> None:
        for share in self[name]:
            self.residents[share.node].pop(name, None)


def _taken(part: Shape) -> tuple[int, ...]:
    """What one of its nodes is in the columns."""
    return part.gpus, part.cpu_milli, part.memory_bytes, 1, int(part.selector.sharing != SHARED)


def rows(shape: Shape, shares: Shares, index: dict[str, int]) -> Rows:
    """Shares part by part: (part, its shares, their nodes by `index`); parts without any are left out."""
    parts = shape.parts
    by_part = [shares] if len(parts) == 1 else [tuple(s for s in shares if s.part == n) for n in range(len(parts))]
    return tuple(
        (part, mine, np.array([index[share.node] for share in mine], dtype=np.int64))
        for part, mine in zip(parts, by_part, strict=True)
        if mine
    )


def _groups(gang: Gang) -> tuple[tuple[str, str], ...]:
    return ("", ""), (gang.queue, ""), ("", gang.job.user)
