"""What a round tells those who still wait: the reason of each class, where it has changed.

Called by `core.cycle.plan` when everything is placed, inside the round's trial. A round that looked at everybody would
cost what waits: it looks at the newest gangs, and at a few others in turn. Which ones depends on the state alone, not
on what the round found out. Whoever asks `core.explain.explain` gets the answer of now. What is the same for many
classes, what binds in a queue and why the nodes have no place for a kind of gang, is found out once."""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final

from ganger.core.cycle.cycle import CURABLE, Cycle
from ganger.core.placement.start_check import StartRequest, ask, over_limits, room, within_quota, without_room
from ganger.core.state.gang import ClassKey, Gang, class_text
from ganger.core.state.state import Shares
from ganger.model.decision import Wait
from ganger.model.job import GangState
from ganger.model.pending_reason import PendingReason, ReasonCode
from ganger.model.queue import UserLimits

MOST_TOLD: Final = 16
"""Answers that one round looks at."""
NEWEST: Final = 8
"""How many of them are about the newest gangs at most: the others have their turn too."""
STRIDE: Final = 7_919
"""How far the turn goes on in a line with each event. A prime: every gang has its turn, however many there are."""
MOST_LOOKED_AT: Final = 8 * MOST_TOLD
"""Gangs among which it finds them: many may be of few classes."""


def told(now: Cycle, known: dict[ClassKey, PendingReason]) -> list[Wait]:
    """In the order in which they wait. `known`: the answers that were found on the way."""
    answers = of_classes(now, _looked_at(now, known), known)
    texts = ((class_text(key), reason) for key, reason in answers.items())
    return [Wait(gang_class=text, reason=reason) for text, reason in texts if now.state.waits.get(text) != reason]


def of_classes(
    now: Cycle, keys: Iterable[ClassKey], known: dict[ClassKey, PendingReason]
) -> dict[ClassKey, PendingReason]:
    """The answers of those of these classes that still wait, as the round stands when it is over; in the order in which
    they wait."""
    waiting = [(key, gang) for key in keys if (gang := _first(now, key))]
    waiting.sort(key=lambda of: now.policy.key(of[1], now.state, now.now_ms))
    found = _answered(now, waiting, known)
    return {key: found[key] for key, _ in waiting}


def of_all(now: Cycle, known: dict[ClassKey, PendingReason]) -> dict[ClassKey, PendingReason]:
    """The same of every class, in no order that means anything."""
    classes = now.state.classes.items()
    return _answered(now, [(key, gang) for key, members in classes if (gang := _first_of(now, members))], known)


Waiting = list[tuple[ClassKey, Gang]]


def _answered(now: Cycle, waiting: Waiting, known: dict[ClassKey, PendingReason]) -> dict[ClassKey, PendingReason]:
    fits, groups = _Fits(now), dict[Alike, Waiting]()
    for key, gang in waiting:
        groups.setdefault(fits.alike(key, gang), []).append((key, gang))
    found: dict[ClassKey, PendingReason] = {}
    for members in groups.values():
        first = members[0][1]
        reason = fits.reason(first)
        bars = fits.bars(first) if now.claims and reason.why in CURABLE else ()
        for key, gang in members:
            found[key] = (now.behind(gang, bars) if bars else None) or reason
    return found | {key: reason for key, reason in known.items() if key in found}


Alike = tuple[Any, ...]
"""What decides a reason: gangs that are equal in it have the same, but for who goes before them."""


class _Fits:
    """Reasons of one round that is over. What binds is asked once for all that are alike in it."""

    def __init__(self, now: Cycle) -> None:
        """Of a round in which everything is placed."""
        self._now = now
        tree = now.state.tree
        limited = [queue.user_limits != UserLimits() for queue in tree.queues]
        self._limited = {name: any(limited[above] for above in tree.path(at)) for name, at in tree.index.items()}
        self._rooms: dict[Alike, Shares | PendingReason] = {}
        self._bars: dict[Alike, tuple[Gang, ...]] = {}

    def alike(self, key: ClassKey, gang: Gang) -> Alike:
        """What a gang's reason follows from."""
        queue, user, _, shape, times, array, avoids = key
        kept = self._now.claims or self._now.promises.standing or self._now.state.windows
        own = (user, times) if self._limited[queue] else ("", times) if kept else ("", ())
        own = (*own, gang.expected) if kept else own
        return queue, shape, avoids, *own, array, gang.id if self._has_its_own(gang) else ""

    def reason(self, gang: Gang) -> PendingReason:
        """Why it waits, as the round stands when it is over."""
        state = self._now.state
        if state.is_full(gang):
            return PendingReason(why=ReasonCode.ARRAY_LIMIT, need=gang.array_limit or 0)
        wanted = ask(gang)
        if self._now.claims and self._has_its_own(gang):
            found: Shares | PendingReason = self._now.fit(gang)
        else:
            found = over_limits(state, wanted) or within_quota(state, wanted, self._room(wanted))
        if isinstance(found, tuple) and self._now.promises.standing:
            # What is promised to others: it depends on how long it stays.
            found = self._now.held_back(gang, found) or found
        return found if isinstance(found, PendingReason) else without_room(state, wanted, self._now.now_ms)

    def bars(self, gang: Gang) -> tuple[Gang, ...]:
        """For whom room is kept that keeps it from starting."""
        own = gang.class_key if self._limited[gang.queue] or self._now.state.windows else gang.avoids
        key = gang.queue, gang.shape, own, gang.id if gang.id in self._now.claims else ""
        if key not in self._bars:
            self._bars[key] = self._now.bars(gang)
        return self._bars[key]

    def _has_its_own(self, gang: Gang) -> bool:
        """Whether room is kept for it, or a start promised."""
        return gang.id in self._now.claims or gang.id in self._now.promises.standing

    def _room(self, wanted: StartRequest) -> Shares | PendingReason:
        """Where the nodes have room for it, or why they have none."""
        state = self._now.state
        closed = state.tree.closed_types(wanted.queue, wanted.shape)
        stays_ms = wanted.at_least.stays_ms if state.windows else 0
        key = wanted.shape, wanted.avoids, closed, wanted.queue if closed else "", stays_ms
        if key not in self._rooms:
            found = room(state, wanted, self._now.now_ms)
            self._rooms[key] = found
        return self._rooms[key]


def _looked_at(now: Cycle, known: dict[ClassKey, PendingReason]) -> Iterator[ClassKey]:
    """Classes, each once: all, if they are few; else those that are known, those of the newest gangs, then others,
    going round with the log."""
    if len(now.state.classes) <= MOST_TOLD:
        yield from now.state.classes
        return
    newest = (gang for gang in islice(reversed(now.state.gangs.values()), NEWEST) if _waits(gang))
    pending = (gang.class_key for gang in islice(chain(newest, _in_turn(now)), MOST_LOOKED_AT))
    seen: dict[ClassKey, None] = {}
    for key in chain(known, pending):
        if len(seen) == MOST_TOLD:
            return
        if key not in seen:
            seen[key] = None
            yield key


def _in_turn(now: Cycle) -> Iterator[Gang]:
    """All that wait, from another line on in each round, and in each line from another place on."""
    lines, turn = now.state.lines(now.policy).of, now.state.seq
    first = turn % max(1, len(lines))
    for line in chain(islice(lines.values(), first, None), islice(lines.values(), first)):
        begin = turn * STRIDE % len(line.entries)
        for entry in chain(line.entries[begin : begin + MOST_TOLD], line.entries[:begin]):
            yield entry.gang


def _waits(gang: Gang) -> bool:
    return gang.state is GangState.PENDING and not gang.awaits


def _first(now: Cycle, key: ClassKey) -> Gang | None:
    """The first of a class that still waits in this round and pauses no more."""
    return _first_of(now, now.state.classes[key])


def _first_of(now: Cycle, members: Iterable[Gang]) -> Gang | None:
    for gang in members:
        if gang.id in now.ending or gang.id in now.begun or gang.not_before_ms > now.now_ms:
            continue
        if not gang.is_head or now.elements.get(gang.id, 0) < len(now.state.arrays[gang.id].rest):
            return gang
    return None
