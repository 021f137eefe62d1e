"""Pending gangs in lines, each in order of submission, and by kind: what they need of the nodes.

Made by `core.state` for the policy that rounds are planned with, and kept up to date by it; read by `core.turns`. A
line is of one user in one queue, and of one of the policy's bands: within these the older always goes first, whatever
is used and whatever time it is, so that a round compares the heads of the lines only.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final

from ganger.core.gang import ClassKey, Gang
from ganger.model.shape import Shape

NEVER_MS: Final = 1 << 62
LineKey = tuple[str, str, Hashable]
"""(queue, user, band)"""


@dataclass(slots=True, eq=False)
class Kind:
    """Gangs that the nodes treat alike. parts: of their shape; avoids: nodes that it must not have; waiting: how many
    there are; failed_at: the growth of its columns when it had last no place, though each part had room."""

    shape: Shape
    parts: tuple[Shape, ...]
    avoids: tuple[str, ...]
    waiting: int = 0
    failed_at: tuple[int, ...] | None = None


@dataclass(slots=True, eq=False)
class Entry:
    """One gang in its line."""

    gang: Gang
    kind: Kind
    class_key: ClassKey
    line: LineKey


@dataclass(slots=True, eq=False)
class Line:
    """Gangs of one user in one queue and one band, the oldest first. kinds: how many there are of each; since_ms: none
    has waited for longer."""

    queue: str
    entries: list[Entry] = field(default_factory=list)
    kinds: dict[Kind, int] = field(default_factory=dict)
    since_ms: int = NEVER_MS

    def admit(self, entry: Entry) -> None:
        """One more is in it."""
        self.kinds[entry.kind] = self.kinds.get(entry.kind, 0) + 1
        self.since_ms = min(self.since_ms, entry.gang.since_ms)

    def dismiss(self, entry: Entry) -> None:
        """One less is."""
        self.kinds[entry.kind] -= 1
        if not self.kinds[entry.kind]:
            del self.kinds[entry.kind]


class Lines:
    """of: every line there is; kinds: of all that wait; policy: the name of the one whose bands they are."""

    def __init__(self, policy: str, band: Callable[[Gang], Hashable], pending: Iterable[Gang]) -> None:
        """`pending`: gangs that may be started."""
        self.policy = policy
        self.of: dict[LineKey, Line] = {}
        self.kinds: dict[tuple[Shape, tuple[str, ...]], Kind] = {}
        self._band = band
        self._entries: dict[str, Entry] = {}
        for gang in pending:
            entry = self._entry(gang)
            line = self._line(entry)
            line.entries.append(entry)
            line.admit(entry)
        for line in self.of.values():
            line.entries.sort(key=_number)

    def add(self, gang: Gang) -> None:
        """A gang waits from now on."""
        entry = self._entry(gang)
        line = self._line(entry)
        insort(line.entries, entry, key=_number)
        line.admit(entry)

    def remove(self, gang: Gang) -> None:
        """A gang does not wait any more."""
        entry = self._entries.pop(gang.id)
        line = self.of[entry.line]
        del line.entries[bisect_left(line.entries, gang.number, key=_number)]
        line.dismiss(entry)
        if not line.entries:
            del self.of[entry.line]
        entry.kind.waiting -= 1
        if not entry.kind.waiting:
            del self.kinds[entry.kind.shape, entry.kind.avoids]

    def validate(self, pending: Iterable[Gang]) -> None:
        """Compare with lines made anew. AssertionError names what differs."""
        anew = Lines(self.policy, self._band, pending)
        mine, other = (
            (
                {key: [entry.gang.id for entry in line.entries] for key, line in each.of.items()},
                {what: kind.waiting for what, kind in each.kinds.items()},
            )
            for each in (self, anew)
        )
        assert mine == other, "lines of pending gangs differ"

    def _line(self, entry: Entry) -> Line:
        if entry.line not in self.of:
            self.of[entry.line] = Line(entry.gang.queue)
        return self.of[entry.line]

    def _entry(self, gang: Gang) -> Entry:
        what = gang.shape, gang.avoids
        kind = self.kinds.get(what)
        if kind is None:
            kind = self.kinds[what] = Kind(gang.shape, gang.shape.parts, gang.avoids)
        kind.waiting += 1
        line = gang.queue, gang.job.user, self._band(gang)
        entry = self._entries[gang.id] = Entry(gang, kind, gang.class_key, line)
        return entry


def _number(entry: Entry) -> int:
    return entry.gang.number
