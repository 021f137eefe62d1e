"""Allocations of all gangs, indexed by gang, by node and by expected end.

The indexes let the scheduler find the gangs that end first, or those on one node, without visiting all gangs.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice, repeat
from typing import Final

import numpy as np

from ganger.core.nodes.node_arrays import extended_needs
from ganger.core.nodes.topology import Ints
from ganger.core.state.allocations.column_table import ColumnTable
from ganger.core.state.gang import Gang
from ganger.core.state.gang_attempts import STOP_MS
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.model.decision import NodeShare
from ganger.model.shape import Shape
from ganger.model.terms import SHARED

Shares = tuple[NodeShare, ...]
End = tuple[int, int, str]
"""(end by its limit or estimate, number, id)"""
Rows = tuple[tuple[Shape, Shares, Ints], ...]
"""(part, its shares, the indices of their nodes)"""
NODE, AMOUNTS, COLUMNS = 1, 2, 7
"""Columns after the end: node index, then the amounts held there (whole GPUs, CPU, memory, guests, exclusive guests).

Those of the extended resources of the nodes follow.

A share of a GPU counts no whole GPU.
"""

_FOREIGN: Final = ""
"""The key of the rows for devices that workloads outside ganger use; no gang has this id."""


def reallocated_nodes(gangs: Iterable[Gang]) -> dict[str, dict[str, None]]:
    """Return, by gang, the nodes that it must have left or given up: a later gang holds the same devices there.

    The log can lack the event that says so: such records are written one by one, and the writer may end between two.
    """
    holders: dict[tuple[str, int], Gang] = {}
    reallocated: dict[str, dict[str, None]] = {}
    for gang in gangs:
        if gang.attempt.start is None or any(part.has_share for part in gang.shape.parts):
            continue
        for share in gang.without_lent(gang.attempt.held):
            for device in share.devices:
                holder = holders.setdefault((share.node, device), gang)
                if holder is not gang:
                    first, last = sorted((holder, gang), key=_start_order)
                    holders[share.node, device] = last
                    reallocated.setdefault(first.id, {})[share.node] = None
    return reallocated


def _start_order(gang: Gang) -> tuple[int, int]:
    return gang.attempt.began_ms, gang.number


class Allocations(dict[str, Shares]):
    """The shares of each gang.

    gangs_on_node: the ids of the gangs on each node.
    sizes: the number of gangs by the number of their nodes.
    sharers: ids of gangs that hold shares of devices.
    table: a row of columns for each share that is not on a spare of another gang.
    planned_changes: within a cycle, +1 for gangs that capacity is reserved for and -1 for victims, by id.
    now_ms: the time of the current cycle, from which gangs that it places run.
    """

    def __init__(self, gangs: dict[str, Gang], index: dict[str, int], extended: tuple[str, ...] = ()) -> None:
        """Start without allocations.

        `gangs`: the state's live gangs by id; `index`: the index of every node; `extended`: their extended resources.
        """
        super().__init__()
        self.now_ms = 0
        self.sharers: dict[str, None] = {}
        self.planned_changes: dict[str, int] = {}
        self.table, self._extended = ColumnTable(COLUMNS + len(extended)), extended
        self._index = index
        self.gangs_on_node: dict[str, dict[str, None]] = {}
        self.sizes = Counter[int]()
        self._oldest: dict[tuple[str, str], list[tuple[int, str]]] = {}
        self._gangs = gangs
        self._ends: list[End] = []
        self._end_of: dict[str, End] = {}
        self._endless: list[tuple[int, str]] = []
        self._end_order: tuple[tuple[End, ...], tuple[str, ...]] | None = None
        """The order of `by_end`, cached until a gang is added or removed."""
        self._rows: dict[str, Rows] = {}

    def __setitem__(self, name: str, shares: Shares) -> None:
        self._rows.pop(name, None)
        if name in self:
            self._leave_nodes(name)
        else:
            self._add_to_order(self._gangs[name])
        super().__setitem__(name, shares)
        for share in shares:
            self.gangs_on_node.setdefault(share.node, {})[name] = None
        self._count_size(shares, +1)
        self._put_rows(self._gangs[name], shares)

    def __delitem__(self, name: str) -> None:
        self._rows.pop(name, None)
        self._leave_nodes(name)
        super().__delitem__(name)
        self.table.drop(name)
        self._end_order = None
        self.sharers.pop(name, None)
        gang = self._gangs[name]
        for owner in _owner_keys(gang):
            members = self._oldest[owner]
            del members[bisect_left(members, (gang.number, name))]
        end = self._end_of.pop(name, None)
        if end is not None:
            del self._ends[bisect_left(self._ends, end)]
        else:
            del self._endless[bisect_left(self._endless, (gang.number, name))]

    def set_foreign(self, foreign: Ints) -> None:
        """Record how many devices of each node (N,) are used from outside ganger, with no known end."""
        indices = np.flatnonzero(foreign).tolist()
        rest = (0,) * (4 + len(self._extended))
        self.table.put(_FOREIGN, [(NEVER_MS, node, int(foreign[node]), *rest) for node in indices])

    def by_part(self, name: str) -> Rows:
        """Return the shares that a gang holds itself part by part with their node indices, computed once."""
        parts = self._rows.get(name)
        if parts is None:
            gang = self._gangs[name]
            parts = self._rows[name] = split_by_part(gang.shape, gang.without_lent(self[name]), self._index)
        return parts

    def oldest(self, *, queue: str = "", user: str = "") -> Iterator[Gang]:
        """Return the gangs of a queue, of a user, or all, oldest first."""
        return (self._gangs[name] for _, name in self._oldest.get((queue, user), ()))

    def has_gang_of(self, nodes: int) -> bool:
        """Return whether a gang is on so many nodes or more."""
        return any(size >= nodes for size in self.sizes)

    def end_ms(self, name: str) -> int:
        """Return the expected end of a gang's allocation; NEVER_MS where it has neither limit nor estimate."""
        end = self._end_of.get(name)
        return NEVER_MS if end is None else end[0]

    def by_end(self, leaving: Iterable[Gang], now_ms: int) -> Iterator[tuple[Gang, Shares]]:
        """Iterate over allocations by expected end.

        First come the gangs that are `leaving` or past their end, by number; then the others, the earliest end first;
        gangs without a known end come last. The order is that of the first step: each gang may be released once it has
        been yielded.
        """
        past = bisect_left(self._ends, (now_ms + 1, 0, ""))
        first = {gang.id: gang for gang in leaving if gang.id in self}
        first |= {name: self._gangs[name] for _, _, name in self._ends[:past]}
        if self._end_order is None:
            self._end_order = tuple(self._ends), tuple(name for _, name in self._endless)
        ends, endless = self._end_order
        for gang in sorted(first.values(), key=lambda gang: gang.number):
            yield gang, self[gang.id]
        for name in chain((name for _, _, name in islice(ends, past, None)), endless):
            if name not in first:
                yield self._gangs[name], self[name]

    def validate(self, rebuilt: "Allocations") -> None:
        """Raise AssertionError naming the difference from allocations that were rebuilt from the gangs."""
        assert self == rebuilt, "shares differ"
        assert self._content() == rebuilt._content(), "allocations by end, node and owner differ"  # noqa: SLF001
        assert self.table.rows() == rebuilt.table.rows(), "allocation columns differ"
        assert self.sharers.keys() == rebuilt.sharers.keys(), "holders of device shares differ"

    def _content(self) -> tuple[object, ...]:
        """Return the order by end, and the gangs by node and by owner without empty entries."""
        by_node = {node: sorted(gangs) for node, gangs in self.gangs_on_node.items() if gangs}
        by_owner = {owner: gangs for owner, gangs in self._oldest.items() if gangs}
        return self._ends, self._endless, by_node, by_owner, self.sizes

    def _add_to_order(self, gang: Gang) -> None:
        self._end_order = None
        for owner in _owner_keys(gang):
            insort(self._oldest.setdefault(owner, []), (gang.number, gang.id))
        end_ms = gang.expected_end_ms(self.now_ms)
        if end_ms is None:
            insort(self._endless, (gang.number, gang.id))
        else:
            self._end_of[gang.id] = end_ms, gang.number, gang.id
            insort(self._ends, self._end_of[gang.id])

    def _put_rows(self, gang: Gang, shares: Shares) -> None:
        end_ms, index = self.end_ms(gang.id), self._index
        parts = [(*_amounts(part), *extended_needs(part, self._extended)) for part in gang.shape.parts]
        gone_ms = gang.attempt.notice_until_ms + STOP_MS
        ends_ms = dict.fromkeys(gang.attempt.parting, gone_ms) if gang.attempt.target else {}
        held = gang.without_lent(shares)
        ends = (ends_ms.get(share, end_ms) for share in held) if ends_ms else repeat(end_ms)
        rows = zip(ends, held, strict=False)
        self.table.put(gang.id, [(end, index[share.node], *parts[share.part]) for end, share in rows])
        if any(part.has_share for part in gang.shape.parts):
            self.sharers[gang.id] = None

    def _leave_nodes(self, name: str) -> None:
        for share in self[name]:
            self.gangs_on_node[share.node].pop(name, None)
        self._count_size(self[name], -1)

    def _count_size(self, shares: Shares, change: int) -> None:
        size = len({share.node: None for share in shares})
        self.sizes[size] += change
        if not self.sizes[size]:
            del self.sizes[size]


def added_shares(before: Shares, after: Shares) -> Shares:
    """Return the shares on nodes that a gang does not have yet."""
    nodes = {share.node: None for share in before}
    return tuple(share for share in after if share.node not in nodes)


def _amounts(part: Shape) -> tuple[int, ...]:
    """Return the amounts that one node of the part adds to the columns."""
    return part.gpus, part.cpu_milli, part.memory_bytes, 1, int(part.selector.sharing != SHARED)


def split_by_part(shape: Shape, shares: Shares, index: dict[str, int]) -> Rows:
    """Split shares by part into (part, its shares, their nodes by `index`), leaving out parts without shares."""
    parts = shape.parts
    by_part = [shares] if len(parts) == 1 else [tuple(s for s in shares if s.part == n) for n in range(len(parts))]
    return tuple(
        (part, part_shares, np.array([index[share.node] for share in part_shares], dtype=np.int64))
        for part, part_shares in zip(parts, by_part, strict=True)
        if part_shares
    )


def _owner_keys(gang: Gang) -> tuple[tuple[str, str], ...]:
    return ("", ""), (gang.queue, ""), ("", gang.job.user)
