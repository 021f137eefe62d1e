"""Pending gangs in lanes, each in order of submission, and by what they demand of the nodes.

A lane holds the gangs of one user in one queue and one FIFO class of the policy. Within it the older gang always goes
first, whatever is used and whatever the time, so that a scheduling cycle compares only the heads of the lanes. The
state keeps the lanes up to date for the policy in force. Beside them is noted how long gangs have been passed over.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Final, Protocol

import numpy as np

from ganger.core.nodes.topology import Ints
from ganger.core.state.gang import ClassKey, Gang
from ganger.core.state.pending_index import Lane, LaneEntry, LaneKey, NodeDemand, PendingIndex, QueueLanes
from ganger.core.undo import Undo
from ganger.model.shape import Shape

MAX_STEPS: Final = 1_024
"""Steps that are kept: a gang older than all of them has been passed over by at least as many."""


class NumberPool:
    """Row and column numbers, the lowest free one first, which keeps them below the maximum number in use at a time.

    limit: greater than every number ever given.
    """

    def __init__(self) -> None:
        """Start with no number in use."""
        self.limit = 0
        self._free: list[int] = []

    def take(self) -> int:
        """Return a number that is not in use."""
        if self._free:
            return heappop(self._free)
        self.limit += 1
        return self.limit - 1

    def give_back(self, number: int) -> None:
        """Make a number available again."""
        heappush(self._free, number)


class FifoClassifier(Protocol):
    """The part of a policy that assigns pending gangs to lanes. See `core.queue_order.policy_interface`."""

    NAME: str

    def fifo_class(self, gang: Gang) -> Hashable:
        """Return the FIFO class of a gang: of one user's gangs in one queue and class the older always goes first."""
        ...


class PendingLanes:
    """The lanes, demands and queues of all pending gangs, each of them numbered.

    policy: the name of the policy whose FIFO classes the lanes have.
    by_key: the lanes.
    demands: what pending gangs demand of the nodes.
    queues: the lanes of each queue.
    index: the job classes as columns.
    owners: every (queue, user) that ever had a lane, with its number.
    """

    def __init__(
        self, policy: str, fifo_class: Callable[[Gang], Hashable], pending: Mapping[ClassKey, list[Gang]]
    ) -> None:
        """Build the lanes of `pending`, the gangs that may be started, by class."""
        self.policy = policy
        self.by_key: dict[LaneKey, Lane] = {}
        self.demands: dict[tuple[Shape, tuple[str, ...]], NodeDemand] = {}
        self.queues: dict[str, QueueLanes] = {}
        self.owners: dict[tuple[str, str], int] = {}
        self.index = PendingIndex()
        self.lane_numbers, self.demand_numbers, self.queue_numbers = NumberPool(), NumberPool(), NumberPool()
        self._fifo_class = fifo_class
        cells: list[int] = []
        for class_key, members in pending.items():
            new = len(self.index.rows)
            for entry in self._admit(class_key, members):
                entry.lane.entries.append(entry)
            # No JobClass holds gangs of two class keys, so those of this key are complete now.
            for job_class in self.index.rows[new:]:
                cells += job_class.cells
        self.index.refresh_all(cells)
        for lane in self.by_key.values():
            lane.entries.sort(key=_number)

    def entry(self, gang: Gang) -> LaneEntry | None:
        """Return the entry of a gang, or None if it is not pending."""
        lane = self.by_key.get((gang.queue, gang.job.user, self._fifo_class(gang)))
        if lane is None:
            return None
        position = bisect_left(lane.entries, gang.number, key=_number)
        return (
            lane.entries[position]
            if position < len(lane.entries) and lane.entries[position].gang.id == gang.id
            else None
        )

    def add(self, class_key: ClassKey, gang: Gang) -> None:
        """Add a gang that is pending from now on."""
        for entry in self._admit(class_key, (gang,)):
            self.index.refresh(entry.job_class)
            insort(entry.lane.entries, entry, key=_number)

    def remove(self, gang: Gang) -> None:
        """Remove a gang that is no longer pending."""
        entry = self.entry(gang)
        if entry is None:
            raise KeyError(gang.id)
        lane, demand, stays_ms = entry.lane, entry.demand, entry.job_class.stays_ms
        del lane.entries[bisect_left(lane.entries, gang.number, key=_number)]
        self.index.remove(entry)
        if not lane.entries:
            self._remove_lane(lane)
        demand.waiting -= 1
        demand.stays[stays_ms] -= 1
        if not demand.stays[stays_ms]:
            del demand.stays[stays_ms]
        lane.queue_lanes.unforecastable -= not gang.is_forecastable
        if not demand.waiting:
            del self.demands[demand.shape, demand.avoids]
            self.demand_numbers.give_back(demand.slot)

    def retime(self, gangs: Iterable[Gang]) -> None:
        """Move gangs whose estimated run time changed to their new job class; gangs without an entry are skipped."""
        for gang in gangs:
            entry = self.entry(gang)
            if entry is not None and entry.job_class.stays_ms != gang.min_run_ms:
                self.remove(gang)
                self.add(gang.class_key, gang)

    def validate(self, pending: Mapping[ClassKey, list[Gang]]) -> None:
        """Raise AssertionError naming the difference from lanes that were rebuilt from the pending gangs."""
        rebuilt = PendingLanes(self.policy, self._fifo_class, pending)
        assert _content(self) == _content(rebuilt), "lanes of pending gangs differ"
        for lanes in (self, rebuilt):
            for row, job_class in enumerate(lanes.index.rows):
                assert job_class.row == row, f"row {job_class.row} of a job class is at {row}"
                assert lanes.index.cells[:, row].tolist() == [*job_class.cells], f"columns of {job_class.key} differ"
                assert job_class.number == job_class.entries[0].gang.number, (
                    f"the oldest gang of {job_class.key} differs"
                )
                assert all(entry.gang.since_ms >= job_class.since_ms for entry in job_class.entries), (
                    "a gang has waited for longer"
                )

    def _admit(self, class_key: ClassKey, gangs: Sequence[Gang]) -> list[LaneEntry]:
        """Return new entries for gangs of one class, oldest first, before the lanes list them."""
        queue, user, priority, shape, times, array, avoids = class_key
        demand = self.demands.get((shape, avoids)) or self._new_demand(shape, avoids)
        demand.waiting += len(gangs)
        stays, is_forecastable, entries = demand.stays, gangs[0].is_forecastable, list[LaneEntry]()
        for gang in gangs:
            key = queue, user, self._fifo_class(gang)
            lane, stays_ms = self.by_key.get(key) or self._new_lane(key), gang.min_run_ms
            stays[stays_ms] = stays.get(stays_ms, 0) + 1
            lane.queue_lanes.unforecastable += not is_forecastable
            lane.since_ms = min(lane.since_ms, gang.since_ms)
            is_unadmitted = gang.retries.unadmitted > 0
            index_key = demand.slot, priority, times, array, stays_ms, gang.passes_reservations, is_unadmitted
            job_class = lane.job_classes.get(index_key) or self.index.create(lane, demand, index_key)
            entries.append(job_class.admit(gang))
        return entries

    def _new_demand(self, shape: Shape, avoids: tuple[str, ...]) -> NodeDemand:
        demand = self.demands[shape, avoids] = NodeDemand(self.demand_numbers.take(), shape, shape.parts, avoids)
        return demand

    def _new_lane(self, key: LaneKey) -> Lane:
        queue_lanes = self.queues.get(key[0])
        if queue_lanes is None:
            queue_lanes = self.queues[key[0]] = QueueLanes(self.queue_numbers.take())
        owner_at = self.owners.setdefault(key[:2], len(self.owners))
        lane = self.by_key[key] = Lane(self.lane_numbers.take(), key, key[0], key[:2], owner_at, queue_lanes)
        queue_lanes.lanes[lane] = None
        return lane

    def _remove_lane(self, lane: Lane) -> None:
        """Remove an empty lane."""
        del self.by_key[lane.key], lane.queue_lanes.lanes[lane]
        self.lane_numbers.give_back(lane.slot)
        if not lane.queue_lanes.lanes:
            del self.queues[lane.queue]
            self.queue_numbers.give_back(lane.queue_lanes.slot)


def _content(lanes: PendingLanes) -> tuple[object, ...]:
    return (
        {key: _names(lane.entries) for key, lane in lanes.by_key.items()},
        {demand_key: (demand.waiting, demand.stays) for demand_key, demand in lanes.demands.items()},
        sorted(
            (
                str((job_class.lane.key, job_class.demand.shape, job_class.demand.avoids, *job_class.key[1:])),
                _names(job_class.entries),
            )
            for job_class in lanes.index.rows
        ),
        {
            queue: (queue_lanes.unforecastable, sorted(map(str, (lane.key for lane in queue_lanes.lanes))))
            for queue, queue_lanes in lanes.queues.items()
        },
    )


def _names(entries: Iterable[LaneEntry]) -> list[str]:
    return [entry.gang.id for entry in entries]


def _number(entry: LaneEntry) -> int:
    return entry.gang.number


class FirstStarts:
    """By number of a gang, the time of the latest first start of an older one, since which it has been passed over.

    It is passed over while gangs start that were submitted after it, and none that was submitted before it. So a long
    queue that is served in some order passes no gang over, however long it is, and each gang waits for finitely many
    older ones: what grows with this time starves no gang, and keeps any order otherwise.
    """

    def __init__(self, starts: Iterable[tuple[int, int]], undo: Undo) -> None:
        """Restore the (number, time) of `image`."""
        self._steps: list[Ints] = [np.array([*starts], dtype=np.int64).reshape(-1, 2).T]
        """(2, steps) numbers of gangs and times of their first start, both rising; replaced as a whole."""
        self._undo = undo

    @classmethod
    def restore(cls, known: Iterable[tuple[int, int]], gangs: Iterable[Gang], undo: Undo) -> "FirstStarts":
        """Restore the (number, time) of `image`, or what follows from running gangs, all that a controller knows."""
        starts = cls(known, undo)
        if not starts.image():
            for began_ms, number in sorted(
                (gang.attempt.began_ms, gang.number) for gang in gangs if gang.attempt.start is not None
            ):
                starts.record(number, began_ms)
        return starts

    def image(self) -> list[tuple[int, int]]:
        """Return what a snapshot keeps."""
        return [(number, at_ms) for number, at_ms in self._steps[0].T.tolist()]

    def record(self, number: int, at_ms: int) -> None:
        """Record a first start now; undone with a trial."""
        steps = self._steps[0]
        # For gangs younger than this one, starts of still younger ones until now no longer matter.
        kept = int(steps[0].searchsorted(number))
        kept_steps = steps[:, max(0, kept - MAX_STEPS + 1) : kept]
        self._undo.put(self._steps, 0, np.concatenate((kept_steps, ((number,), (at_ms,))), axis=1))

    def since_ms(self, number: int) -> int:
        """Return the time of the latest first start of a gang older than that number; 0 where none is known."""
        numbers, times_ms = self._steps[0]
        older = int(numbers.searchsorted(number))
        return int(times_ms[older - 1]) if older else 0

    def all_since_ms(self, numbers: Ints) -> Ints:
        """Return (L,) the same for each of these numbers."""
        known, times_ms = self._steps[0]
        older = known.searchsorted(numbers)
        since_ms: Ints = np.concatenate(((0,), times_ms))[older]
        return since_ms
