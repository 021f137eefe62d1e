"""What a round tells those who still wait: the reason of each class, where it has changed.

Called by `core.plan` when everything is placed, inside the round's trial. A round that looked at everybody would cost
what waits: it looks at the newest gangs, and at a few others in turn. Which ones depends on the state alone, not on
what the round found out. Whoever asks `core.explain` gets the answer of now.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final

from ganger.core.fit import ask, over_limits, room
from ganger.core.gang import ClassKey, Gang, class_text
from ganger.core.round import CURABLE, Round
from ganger.core.shortage import no_room
from ganger.core.state import Shares
from ganger.model.decision import Wait
from ganger.model.job import GangState
from ganger.model.reason import Reason, Why
from ganger.model.shape import Shape

Rooms = dict[tuple[Shape, tuple[str, ...]], Shares | Reason]
"""By kind what the nodes have for it."""
MOST_TOLD: Final = 128
"""Answers that one round looks at."""


def told(now: Round, known: dict[ClassKey, Reason]) -> list[Wait]:
    """In the order in which they wait. `known`: the answers that were found on the way."""
    answers = of_classes(now, _looked_at(now, known), known)
    texts = ((class_text(key), reason) for key, reason in answers.items())
    return [Wait(gang_class=text, reason=reason) for text, reason in texts if now.state.waits.get(text) != reason]


def of_classes(now: Round, keys: Iterable[ClassKey], known: dict[ClassKey, Reason]) -> dict[ClassKey, Reason]:
    """The answers of those of these classes that still wait, as the round stands when it is over; in the order in which
    they wait."""
    waiting = [(key, gang) for key in keys if (gang := _first(now, key))]
    waiting.sort(key=lambda of: now.policy.key(of[1], now.state, now.now_ms))
    kept_out = now.kept_out(gang for key, gang in waiting if key not in known)
    rooms: Rooms = {}
    return {key: known.get(key) or _answer(now, gang, rooms, is_kept_out=gang.id in kept_out) for key, gang in waiting}


def _answer(now: Round, gang: Gang, rooms: Rooms, *, is_kept_out: bool) -> Reason:
    """Why it waits, as the round stands when it is over."""
    if now.state.is_full(gang):
        return Reason(why=Why.ARRAY_LIMIT, need=gang.array_limit or 0)
    found = _found(now, gang, rooms)
    if not isinstance(found, Reason):
        return no_room(now.state, gang.shape, now.now_ms)
    return (now.behind(gang) if is_kept_out and found.why in CURABLE else None) or found


def _found(now: Round, gang: Gang, rooms: Rooms) -> Shares | Reason:
    """Where it may start, or what binds. What the nodes have to say of a kind is found once."""
    if gang.id in now.claims or now.state.tree.types:
        return now.fit(gang)
    wanted, kind = ask(gang), (gang.shape, gang.avoids)
    limit = over_limits(now.state, wanted)
    if limit is None and kind not in rooms:
        rooms[kind] = room(now.state, wanted, now.now_ms)
    return limit or rooms[kind]


def _looked_at(now: Round, known: dict[ClassKey, Reason]) -> Iterator[ClassKey]:
    """Classes, each once: those that are known, those of the newest gangs, then others, going round with the log."""
    gangs = now.state.gangs
    first = now.state.seq * MOST_TOLD % max(1, len(gangs))
    newest = islice(reversed(gangs.values()), MOST_TOLD)
    others = chain(islice(gangs.values(), first, None), islice(gangs.values(), first))
    pending = (gang.class_key for gang in chain(newest, others) if gang.state is GangState.PENDING and not gang.awaits)
    seen: dict[ClassKey, None] = {}
    for key in chain(known, pending):
        if len(seen) == MOST_TOLD:
            return
        if key not in seen:
            seen[key] = None
            yield key


def _first(now: Round, key: ClassKey) -> Gang | None:
    """The first of a class that still waits in this round and pauses no more."""
    for gang in now.state.classes[key]:
        if gang.id in now.ending or gang.id in now.begun or gang.not_before_ms > now.now_ms:
            continue
        if not gang.is_head or now.elements.get(gang.id, 0) < len(now.state.arrays[gang.id].rest):
            return gang
    return None
