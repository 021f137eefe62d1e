"""Pending gangs in lines, each in order of submission, and by kind: what they need of the nodes.

Made by `core.state` for the policy that rounds are planned with, and kept up to date by it; read by `core.turns`. A
line is of one user in one queue, and of one of the policy's bands: within these the older always goes first, whatever
is used and whatever time it is, so that a round compares the heads of the lines only.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from ganger.core.gang import Gang
from ganger.core.runtime import NEVER_MS, least_ms
from ganger.model.shape import Shape

LineKey = tuple[str, str, Hashable]
"""(queue, user, band)"""


@dataclass(slots=True, eq=False)
class Kind:
    """Gangs that the nodes treat alike. parts: of their shape; avoids: nodes that it must not have; waiting: how many
    there are; stays: how many of them stay for how long, at least; again: how many have run before; failed_at: the
    growth of its columns when it had last no place, though each part had room."""

    shape: Shape
    parts: tuple[Shape, ...]
    avoids: tuple[str, ...]
    waiting: int = 0
    stays: dict[int, int] = field(default_factory=dict)
    again: int = 0
    failed_at: tuple[int, ...] | None = None


@dataclass(slots=True, eq=False)
class Line:
    """Gangs of one user in one queue and one band, the oldest first. owner: (queue, user); kinds: how many there are of
    each; least_ms: the least that one of each must be able to stay; since_ms: none has waited for longer."""

    key: LineKey
    owner: tuple[str, str]
    entries: list["Entry"] = field(default_factory=list)
    kinds: dict[Kind, int] = field(default_factory=dict)
    least_ms: dict[Kind, int] = field(default_factory=dict)
    since_ms: int = NEVER_MS

    @property
    def queue(self) -> str:
        """The queue its gangs wait in."""
        return self.owner[0]


@dataclass(slots=True, eq=False)
class Entry:
    """One gang in its line. stays_ms: how long it must be able to stay; again: it has run before."""

    gang: Gang
    kind: Kind
    line: Line
    stays_ms: int
    again: bool


@dataclass(slots=True, eq=False)
class Crowd:
    """All that wait in one queue: its lines, and by kind those with a gang of it."""

    lines: dict[Line, None] = field(default_factory=dict)
    of_kind: dict[Kind, dict[Line, None]] = field(default_factory=dict)

    def admit(self, line: Line, kind: Kind) -> None:
        """A line has the first gang of a kind."""
        self.lines[line] = None
        self.of_kind.setdefault(kind, {})[line] = None

    def dismiss(self, line: Line, kind: Kind) -> None:
        """A line has no gang of a kind any more."""
        del self.of_kind[kind][line]
        if not self.of_kind[kind]:
            del self.of_kind[kind]
        if not line.kinds:
            del self.lines[line]


class Lines:
    """of: every line there is; kinds: of all that wait; queues: who waits in each; policy: the name of the one whose
    bands they are."""

    def __init__(self, policy: str, band: Callable[[Gang], Hashable], pending: Iterable[Gang]) -> None:
        """`pending`: gangs that may be started."""
        self.policy = policy
        self.of: dict[LineKey, Line] = {}
        self.kinds: dict[tuple[Shape, tuple[str, ...]], Kind] = {}
        self.queues: dict[str, Crowd] = {}
        self._band = band
        self._entries: dict[str, Entry] = {}
        for gang in pending:
            entry = self._admit(gang)
            entry.line.entries.append(entry)
        for line in self.of.values():
            line.entries.sort(key=_number)

    def entry(self, name: str) -> Entry | None:
        """That of a gang, if it waits."""
        return self._entries.get(name)

    def add(self, gang: Gang) -> None:
        """A gang waits from now on."""
        entry = self._admit(gang)
        insort(entry.line.entries, entry, key=_number)

    def remove(self, gang: Gang) -> None:
        """A gang does not wait any more."""
        entry = self._entries.pop(gang.id)
        line, kind = entry.line, entry.kind
        del line.entries[bisect_left(line.entries, gang.number, key=_number)]
        line.kinds[kind] -= 1
        if not line.kinds[kind]:
            del line.kinds[kind], line.least_ms[kind]
            self.queues[line.queue].dismiss(line, kind)
        elif entry.stays_ms == line.least_ms[kind]:
            line.least_ms[kind] = min(other.stays_ms for other in line.entries if other.kind is kind)
        if not line.entries:
            del self.of[line.key]
            if not self.queues[line.queue].lines:
                del self.queues[line.queue]
        kind.waiting -= 1
        kind.stays[entry.stays_ms] -= 1
        if not kind.stays[entry.stays_ms]:
            del kind.stays[entry.stays_ms]
        kind.again -= entry.again
        if not kind.waiting:
            del self.kinds[kind.shape, kind.avoids]

    def validate(self, pending: Iterable[Gang]) -> None:
        """Compare with lines made anew. AssertionError names what differs."""
        anew = Lines(self.policy, self._band, pending)
        assert _content(self) == _content(anew), "lines of pending gangs differ"

    def _admit(self, gang: Gang) -> Entry:
        """It has an entry, which its line counts but does not have yet."""
        what = gang.shape, gang.avoids
        kind = self.kinds.get(what)
        if kind is None:
            kind = self.kinds[what] = Kind(gang.shape, gang.shape.parts, gang.avoids)
        key = gang.queue, gang.job.user, self._band(gang)
        line = self.of.get(key)
        if line is None:
            line = self.of[key] = Line(key, key[:2])
        kind.waiting += 1
        stays_ms, again = least_ms(gang), gang.generation > 0
        kind.stays[stays_ms] = kind.stays.get(stays_ms, 0) + 1
        kind.again += again
        line.since_ms = min(line.since_ms, gang.since_ms)
        if kind in line.kinds:
            line.kinds[kind] += 1
            line.least_ms[kind] = min(line.least_ms[kind], stays_ms)
        else:
            line.kinds[kind], line.least_ms[kind] = 1, stays_ms
            self._crowd(line.queue).admit(line, kind)
        entry = self._entries[gang.id] = Entry(gang, kind, line, stays_ms, again)
        return entry

    def _crowd(self, queue: str) -> Crowd:
        if queue not in self.queues:
            self.queues[queue] = Crowd()
        return self.queues[queue]


def _content(lines: Lines) -> tuple[object, ...]:
    return (
        {key: [entry.gang.id for entry in line.entries] for key, line in lines.of.items()},
        {what: (kind.waiting, kind.stays, kind.again) for what, kind in lines.kinds.items()},
        {
            (key, kind.shape, kind.avoids): (many, line.least_ms[kind])
            for key, line in lines.of.items()
            for kind, many in line.kinds.items()
        },
        {
            (queue, kind.shape, kind.avoids): sorted(map(str, (line.key for line in has)))
            for queue, crowd in lines.queues.items()
            for kind, has in crowd.of_kind.items()
        },
        {queue: sorted(map(str, (line.key for line in crowd.lines))) for queue, crowd in lines.queues.items()},
    )


def _number(entry: Entry) -> int:
    return entry.gang.number
