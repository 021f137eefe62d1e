"""Pending gangs by lane and job class, as columns: a scheduling cycle tests all job classes at once for candidates.

The gangs of one job class demand the same of the nodes for the same time, and the older goes first. So while the first
of them is no candidate none is, except behind one that pauses, or one that has waited for so long that it is tried
whatever is free.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ganger.core.nodes.topology import Ints
from ganger.core.state.gang import Gang, Times
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.model.shape import Shape

LANE, DEMAND, QUEUE, STAYS, PASSES, SINCE, OWNER, NUMBER, SUBMITTED, PRIORITY, COLUMNS = range(11)
"""Columns of a job class.

Numbers of lane, demand and queue; minimum run time; whether its gangs pass reservations; the earliest time since when
one waits; number of the owner; number, submission time and priority of the oldest gang.
"""
_BEGIN: Final = 64
"""Initial number of rows."""

LaneKey = tuple[str, str, Hashable]
"""(queue, user, FIFO class)"""
JobClassKey = tuple[int, int, Times, str, int, bool, bool]
"""(demand number, priority, time limits, array if it has a limit, minimum run time, passes reservations, unadmitted)"""


@dataclass(slots=True, eq=False)
class NodeDemand:
    """A demand on the nodes, and the number of gangs that have it.

    slot: its number.
    parts: those of its shape.
    avoids: nodes that are excluded.
    waiting: the number of pending gangs.
    stays: the number of gangs by minimum run time.
    failed_at: the growth of its capacity columns when no placement was found although each part had room.
    """

    slot: int
    shape: Shape
    parts: tuple[Shape, ...]
    avoids: tuple[str, ...]
    waiting: int = 0
    stays: dict[int, int] = field(default_factory=dict)
    failed_at: tuple[int, ...] | None = None


@dataclass(slots=True, eq=False)
class QueueLanes:
    """The lanes of one queue.

    slot: its number.
    unforecastable: the number of gangs for which no start time can be forecast.
    """

    slot: int = 0
    unforecastable: int = 0
    lanes: dict["Lane", None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Lane:
    """Gangs of one user in one queue and one FIFO class, oldest first.

    slot: its number.
    owner, owner_at: (queue, user) and their number.
    since_ms: no gang has waited longer.
    """

    slot: int
    key: LaneKey
    queue: str
    owner: tuple[str, str]
    owner_at: int
    queue_lanes: QueueLanes
    entries: list["LaneEntry"] = field(default_factory=list)
    job_classes: dict[JobClassKey, "JobClass"] = field(default_factory=dict)
    since_ms: int = NEVER_MS


@dataclass(slots=True, eq=False)
class LaneEntry:
    """One gang in its lane."""

    gang: Gang
    job_class: "JobClass"

    @property
    def lane(self) -> Lane:
        """The lane of its job class."""
        return self.job_class.lane

    @property
    def demand(self) -> NodeDemand:
        """Its demand on the nodes."""
        return self.job_class.demand


@dataclass(slots=True, eq=False)
class JobClass:
    """The equal gangs of one lane, oldest first.

    stays_ms: the minimum run time of each.
    passes_reservations: reservations do not delay them.
    unadmitted: they start only in free room.
    row: its row in the columns.
    number: the number of the oldest gang.
    since_ms: no gang has waited longer.
    """

    lane: Lane
    key: JobClassKey
    demand: NodeDemand
    stays_ms: int
    passes_reservations: bool
    unadmitted: bool
    row: int
    number: int = -1
    since_ms: int = NEVER_MS
    entries: list[LaneEntry] = field(default_factory=list)

    def admit(self, gang: Gang) -> LaneEntry:
        """Add a gang and return its entry; the caller refreshes the columns."""
        entry, entries = LaneEntry(gang, self), self.entries
        self.since_ms = min(self.since_ms, gang.since_ms)
        if entries and entries[-1].gang.number > gang.number:
            insort(entries, entry, key=_number)
        else:
            entries.append(entry)
        self.number = entries[0].gang.number
        return entry

    @property
    def class_id(self) -> tuple[object, ...]:
        """A key that is equal for job classes that a cycle refuses together."""
        return (self.lane.owner, *self.key[:4], self.unadmitted)

    @property
    def cells(self) -> tuple[int, ...]:
        """Its row of columns."""
        lane, oldest = self.lane, self.entries[0].gang
        oldest_cells = oldest.number, oldest.submitted_ms, self.key[1]
        slots = lane.slot, self.demand.slot, lane.queue_lanes.slot
        return (*slots, self.stays_ms, self.passes_reservations, self.since_ms, lane.owner_at, *oldest_cells)


class PendingIndex:
    """All job classes by row, and their columns (COLUMNS, rows)."""

    def __init__(self) -> None:
        """Create an empty index."""
        self.rows: list[JobClass] = []
        self._cells: Ints = np.zeros((COLUMNS, _BEGIN), dtype=np.int64)

    @property
    def cells(self) -> Ints:
        """(COLUMNS, job classes) int64."""
        return self._cells[:, : len(self.rows)]

    def create(self, lane: Lane, demand: NodeDemand, key: JobClassKey) -> JobClass:
        """Create an empty job class; the caller refreshes its columns when a gang is in it."""
        job_class = lane.job_classes[key] = JobClass(lane, key, demand, *key[4:], len(self.rows))
        self.rows.append(job_class)
        return job_class

    def remove(self, entry: LaneEntry) -> None:
        """Remove a gang from its job class, and the class when it is empty."""
        job_class = entry.job_class
        position = bisect_left(job_class.entries, entry.gang.number, key=_number)
        del job_class.entries[position]
        if not job_class.entries:
            del job_class.lane.job_classes[job_class.key]
            self._free_row(job_class)
        elif position == 0:
            # A lower bound: no gang waits for longer than since its submission.
            oldest = job_class.entries[0].gang
            job_class.number, job_class.since_ms = oldest.number, max(job_class.since_ms, oldest.submitted_ms)
            self.refresh(job_class)

    def refresh(self, job_class: JobClass) -> None:
        """Write the columns of one job class."""
        if job_class.row >= self._cells.shape[1]:
            self._cells = np.concatenate((self._cells, np.zeros_like(self._cells)), axis=1)
        self._cells[:, job_class.row] = job_class.cells

    def refresh_all(self, cells: list[int]) -> None:
        """Replace all columns by `cells`, one job class after the other."""
        if cells:
            self._cells = np.array(cells, dtype=np.int64).reshape(-1, COLUMNS).T.copy()

    def _free_row(self, job_class: JobClass) -> None:
        """Move the last job class into the row of this one."""
        last = self.rows.pop()
        if last is not job_class:
            self._cells[:, job_class.row] = self._cells[:, last.row]
            self.rows[job_class.row], last.row = last, job_class.row


def _number(entry: LaneEntry) -> int:
    return entry.gang.number
