"""Pending gangs in lines, each in order of submission, and by kind: what they need of the nodes.

Made by `core.state.state` for the policy that rounds are planned with, and kept up to date by it; read by
`core.cycle.candidates`. A line is of one user in one queue, and of one of the policy's bands: within these the older
always goes first, whatever is used and whatever time it is, so that a round compares the heads of the lines only."""

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Protocol

from ganger.core.state.gang import ClassKey, Gang
from ganger.core.state.pending_index import Crowd, Entry, Kind, Lane, LineKey, PendingIndex
from ganger.model.shape import Shape


class Numbers:
    """Numbers for what has rows or columns, the least that is free: so they are fewer than twice as many as are used at
    a time, at the most of all times. most: greater than all that were ever given."""

    def __init__(self) -> None:
        """None is given."""
        self.most = 0
        self._free: list[int] = []

    def take(self) -> int:
        """One that nobody has."""
        if self._free:
            return heappop(self._free)
        self.most += 1
        return self.most - 1

    def give_back(self, number: int) -> None:
        """It may be given again."""
        heappush(self._free, number)


class FifoClassifier(Protocol):
    """What says in which line a pending gang waits: a policy. See `core.queue_order.policy_interface`."""

    NAME: str

    def fifo_class(self, gang: Gang) -> Hashable:
        """Return the band of a gang: of one user's gangs in one queue and one band the older always goes first."""
        ...


class PendingLanes:
    """of: every line there is; kinds: of all that wait; queues: who waits in each; groups: those that are alike;
    owners: all of these that there ever were, by number; policy: the name of the one whose bands they are. Lines, kinds
    and queues are numbered."""

    def __init__(
        self, policy: str, fifo_class: Callable[[Gang], Hashable], pending: Mapping[ClassKey, list[Gang]]
    ) -> None:
        """`pending`: gangs that may be started, by class."""
        self.policy = policy
        self.of: dict[LineKey, Lane] = {}
        self.kinds: dict[tuple[Shape, tuple[str, ...]], Kind] = {}
        self.queues: dict[str, Crowd] = {}
        self.owners: dict[tuple[str, str], int] = {}
        self.groups = PendingIndex()
        self.line_numbers, self.kind_numbers, self.queue_numbers = Numbers(), Numbers(), Numbers()
        self._fifo_class = fifo_class
        cells: list[int] = []
        for of_class, members in pending.items():
            new = len(self.groups.of)
            for entry in self._admit(of_class, members):
                entry.group.line.entries.append(entry)
            # Told now: no group has gangs of two classes, and later each of them would have to be looked up again.
            for group in self.groups.of[new:]:
                cells += group.cells
        self.groups.tell_all(cells)
        for line in self.of.values():
            line.entries.sort(key=_number)

    def entry(self, gang: Gang) -> Entry | None:
        """That of a gang, if it waits."""
        line = self.of.get((gang.queue, gang.job.user, self._fifo_class(gang)))
        if line is None:
            return None
        at = bisect_left(line.entries, gang.number, key=_number)
        return line.entries[at] if at < len(line.entries) and line.entries[at].gang.id == gang.id else None

    def add(self, of_class: ClassKey, gang: Gang) -> None:
        """A gang waits from now on."""
        for entry in self._admit(of_class, (gang,)):
            self.groups.tell(entry.group)
            insort(entry.line.entries, entry, key=_number)

    def remove(self, gang: Gang) -> None:
        """A gang does not wait any more."""
        entry = self.entry(gang)
        if entry is None:
            raise KeyError(gang.id)
        line, kind, stays_ms = entry.line, entry.kind, entry.group.stays_ms
        del line.entries[bisect_left(line.entries, gang.number, key=_number)]
        self.groups.dismiss(entry)
        if not line.entries:
            self._close(line)
        kind.waiting -= 1
        kind.stays[stays_ms] -= 1
        if not kind.stays[stays_ms]:
            del kind.stays[stays_ms]
        kind.again -= entry.group.again
        line.crowd.untold -= not gang.has_moment
        if not kind.waiting:
            del self.kinds[kind.shape, kind.avoids]
            self.kind_numbers.give_back(kind.at)

    def retime(self, gangs: Iterable[Gang]) -> None:
        """Another time may be expected of these gangs; nothing happens to those that are in no line yet."""
        for gang in gangs:
            entry = self.entry(gang)
            if entry is not None and entry.group.stays_ms != gang.least_ms:
                self.remove(gang)
                self.add(gang.class_key, gang)

    def validate(self, pending: Mapping[ClassKey, list[Gang]]) -> None:
        """Compare with lines made anew. AssertionError names what differs."""
        anew = PendingLanes(self.policy, self._fifo_class, pending)
        assert _content(self) == _content(anew), "lines of pending gangs differ"
        for lines in (self, anew):
            for at, group in enumerate(lines.groups.of):
                assert group.row == at, f"row {group.row} of a group is at {at}"
                assert lines.groups.cells[:, at].tolist() == [*group.cells], f"columns of {group.alike} differ"
                assert group.number == group.entries[0].gang.number, f"{group.alike} has another that is the oldest"
                assert all(entry.gang.since_ms >= group.since_ms for entry in group.entries), (
                    "one has waited for longer"
                )

    def _admit(self, of_class: ClassKey, gangs: Iterable[Gang]) -> Iterator[Entry]:
        """Entries of gangs of one class, the oldest first, which their lines count but do not have yet."""
        queue, user, priority, shape, times, array, avoids = of_class
        kind = self.kinds.get((shape, avoids)) or self._kind(shape, avoids)
        for gang in gangs:
            key = queue, user, self._fifo_class(gang)
            line = self.of.get(key) or self._line(key)
            stays_ms, again = gang.least_ms, gang.passes_reservations
            kind.waiting += 1
            kind.stays[stays_ms] = kind.stays.get(stays_ms, 0) + 1
            kind.again += again
            line.crowd.untold += not gang.has_moment
            line.since_ms = min(line.since_ms, gang.since_ms)
            alike = kind.at, priority, times, array, stays_ms, again, gang.unadmitted > 0
            group = line.groups.get(alike) or self.groups.begin(line, kind, alike)
            entry = Entry(gang, group)
            group.admit(entry)
            yield entry

    def _kind(self, shape: Shape, avoids: tuple[str, ...]) -> Kind:
        """A new one."""
        kind = self.kinds[shape, avoids] = Kind(self.kind_numbers.take(), shape, shape.parts, avoids)
        return kind

    def _line(self, key: LineKey) -> Lane:
        """A new one."""
        crowd = self.queues.get(key[0])
        if crowd is None:
            crowd = self.queues[key[0]] = Crowd(self.queue_numbers.take())
        owner_at = self.owners.setdefault(key[:2], len(self.owners))
        line = self.of[key] = Lane(self.line_numbers.take(), key, key[0], key[:2], owner_at, crowd)
        crowd.lines[line] = None
        return line

    def _close(self, line: Lane) -> None:
        """Nobody is in it any more."""
        del self.of[line.key], line.crowd.lines[line]
        self.line_numbers.give_back(line.at)
        if not line.crowd.lines:
            del self.queues[line.queue]
            self.queue_numbers.give_back(line.crowd.at)


def _content(lines: PendingLanes) -> tuple[object, ...]:
    return (
        {key: _names(line.entries) for key, line in lines.of.items()},
        {what: (kind.waiting, kind.stays, kind.again) for what, kind in lines.kinds.items()},
        sorted(
            (str((group.line.key, group.kind.shape, group.kind.avoids, *group.alike[1:])), _names(group.entries))
            for group in lines.groups.of
        ),
        {
            queue: (crowd.untold, sorted(map(str, (line.key for line in crowd.lines))))
            for queue, crowd in lines.queues.items()
        },
    )


def _names(entries: Iterable[Entry]) -> list[str]:
    return [entry.gang.id for entry in entries]


def _number(entry: Entry) -> int:
    return entry.gang.number
