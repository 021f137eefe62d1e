"""Whose turn it is in a round: the next pending gang, in the policy's order, that is worth a try.

Called by `core.plan`. The lines are in order already, so only their heads are compared. A gang is passed over, without
a word, where its kind has no place (each column of `core.columns` says so in one comparison), or where its class was
refused in this round, or its kind in its queue: within a round nodes and quota only become fewer. For the same reason a
key that was computed earlier is at most too early, and is looked at again when its turn comes.
"""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain, islice
from typing import Final

from ganger.core.gang import ClassKey
from ganger.core.lines import Crowd, Entry, Kind, Line
from ganger.core.policy import Key, joined
from ganger.core.round import Round
from ganger.core.runtime import NEVER_MS
from ganger.model.reason import Why

NO_PLACE: Final = (Why.NO_CAPACITY, Why.NO_NODE, Why.EXCLUDED)
Turn = tuple[Key, int, Line]
"""(key, place in the line, the line): no two keys are equal"""


class Turns:
    """The order of one round. A gang that is promised a start may have it though others of its class may not. `urgent`:
    since when a gang of a queue must have waited to get its turn even where it has no place; None: none does."""

    def __init__(self, now: Round, urgent: Callable[[str], int | None]) -> None:
        """Nobody has had a turn."""
        self._state, self._now_ms, self._policy, self._urgent = now.state, now.now_ms, now.policy, urgent
        self._out, self._promises, self._promised = now.ending, now.promises, now.promises.standing
        self._claims = now.claims
        self._longest: dict[Kind, int] = {}
        self._shapes = {promise.gang.shape: None for promise in self._promised.values()}
        self._lines = now.state.lines(now.policy)
        promised = [entry for name in self._promised if (entry := self._lines.entry(name))]
        self._with_promise = {(entry.line, entry.kind): None for entry in promised}
        self._kinds = {kind: None for kind in self._lines.kinds.values() if self._has_place(kind)}
        self._open: dict[str, dict[Kind, None]] = {}
        self._since: dict[str, int | None] = {}
        self._refused: dict[ClassKey, None] = {}
        self._tried: dict[str, None] = {}
        self._turns: list[Turn] = []
        self._oldest_ms: int | None = None
        self._accounts: dict[tuple[str, str], Key] = {}
        for queue, crowd in self._lines.queues.items():
            self._open[queue] = self._within_quota(queue, crowd.of_kind)
            for line in self._worth_a_look(queue, crowd):
                turn = self._turn(0, line)
                if turn is not None:
                    self._turns.append(turn)
        heapify(self._turns)

    def next(self) -> Entry | None:
        """The first in the order; None when nobody is left. It stays where it is until it is told on."""
        while self._turns:
            key, at, line = self._turns[0]
            entry = line.entries[at]
            if entry.kind in self._kinds and not self._has_place(entry.kind):
                self._close(entry.kind)
                if self._is_over():
                    return None
                continue
            if self._is_out(entry) or not self._is_open(line.queue, entry):
                heappop(self._turns)
                self._offer(at, line)
                continue
            late = self._key(entry)
            if late == key:
                return entry
            heapreplace(self._turns, (late, at, line))
        return None

    def go_on(self) -> None:
        """The gang whose turn it was has started."""
        _, at, line = heappop(self._turns)
        self._offer(at + 1, line)

    def refuse(self, entry: Entry, why: Why) -> None:
        """It does not start in this round, nor do others of its class; nor, where it lacks quota, others of its kind in
        its queue; nor, where no place was found though there is room, others of its kind."""
        if entry.gang.id not in self._promises.decided:  # else others of its class may be promised one too
            self._refused[entry.gang.class_key] = None
        self._tried[entry.gang.id] = None
        self._since = {}  # room may be kept for it, and for one less of the others
        if why is Why.OVER_QUOTA:
            self._open[entry.gang.queue].pop(entry.kind, None)
        is_longer = why is Why.HELD or (why is Why.MAINTENANCE and not self._state.tree.types)
        if is_longer and not entry.again:
            others_ms = self._promises.others_ms if why is Why.HELD else entry.stays_ms - 1
            # Found anew: since it was asked last, others have begun.
            longest_ms = self._promises.longest_ms(entry.kind.parts) if self._promised else self._longest_ms(entry.kind)
            self._longest[entry.kind] = min(longest_ms, max(0, others_ms))
        if why in NO_PLACE and not self._state.tree.types:
            entry.kind.failed_at = self._growth(entry.kind)

    def _worth_a_look(self, queue: str, crowd: Crowd) -> dict[Line, None]:
        """Lines of a queue with a gang of an open kind, and those in which somebody may have become urgent."""
        able = dict.fromkeys(chain.from_iterable(crowd.of_kind[kind] for kind in self._open[queue]))
        since_ms = self._since_ms(queue)
        if since_ms is None:
            return able
        return able | {line: None for line in crowd.lines if line.since_ms <= since_ms}

    def _has_place(self, kind: Kind) -> bool:
        """Whether each part of a kind has room by itself, and it has not failed since room was made."""
        if self._claims and kind.shape in self._shapes:
            return True  # it had, when the round began: room that is kept since then is not kept from a promised gang
        columns = self._state.nodes.columns
        for part in kind.parts:
            if not any(columns.holds(choice, part.nodes) for choice in part.choices):
                return False
        if kind.failed_at is not None and kind.failed_at == self._growth(kind):
            return False
        if not self._promised or kind.again or kind.shape in self._shapes:
            return True
        return min(kind.stays) <= self._longest_ms(kind)

    def _longest_ms(self, kind: Kind) -> int:
        """How long one of a kind may stay that starts now, so as to be in the way of no promise."""
        if kind not in self._longest:
            self._longest[kind] = self._promises.longest_ms(kind.parts) if self._promised else NEVER_MS
        return self._longest[kind]

    def _may_have(self, line: Line, open_: dict[Kind, None]) -> bool:
        """Whether a line may have a gang of an open kind that does not stay for too long."""
        if not (self._promised or self._longest):
            return not open_.keys().isdisjoint(line.kinds)
        for kind, least_ms in line.least_ms.items():
            if kind in open_ and (kind.again or least_ms <= self._longest_ms(kind)):
                return True
        return any(kind in open_ for promised, kind in self._with_promise if promised is line)

    def _stays_too_long(self, entry: Entry) -> bool:
        """Whether it would be in the way of a promise or in maintenance, wherever it started."""
        if entry.again or not (self._promised or self._longest):
            return False
        longest_ms = self._longest.get(entry.kind)
        too_long = entry.stays_ms > (self._longest_ms(entry.kind) if longest_ms is None else longest_ms)
        return too_long and not self._is_promised(entry)

    def _is_promised(self, entry: Entry) -> bool:
        return (entry.line, entry.kind) in self._with_promise and entry.gang.id in self._promised

    def _growth(self, kind: Kind) -> tuple[int, ...]:
        columns = self._state.nodes.columns
        return tuple(columns.of(choice).growth for part in kind.parts for choice in part.choices)

    def _key(self, entry: Entry) -> Key:
        return self._policy.key(entry.gang, self._state, self._now_ms)

    def _early_key(self, entry: Entry) -> Key:
        """The same, or a smaller one: with what usage said of its account when the round first asked."""
        owner = entry.line.owner
        account = self._accounts.get(owner)
        if account is None:
            account = self._accounts[owner] = self._policy.account_key(self._state, *owner, self._now_ms)
        return joined(account, self._policy.gang_key(entry.gang, self._state, self._now_ms))

    def _since_ms(self, queue: str) -> int | None:
        """Since when one of this queue must have waited to be urgent."""
        if queue not in self._since:
            self._since[queue] = self._urgent(queue)
        return self._since[queue]

    def _close(self, kind: Kind) -> None:
        """There is no place for it any more in this round."""
        del self._kinds[kind]
        for open_ in self._open.values():
            open_.pop(kind, None)
        if not self._kinds:
            self._turns = [turn for _, at, line in self._turns if (turn := self._turn(at, line))]
            heapify(self._turns)

    def _is_over(self) -> bool:
        """Whether there is room for nobody, and nobody gets a turn without."""
        if self._kinds:
            return False
        urgent = [since_ms for queue in self._open if (since_ms := self._since_ms(queue)) is not None]
        if not urgent:
            return True
        if self._oldest_ms is None:
            self._oldest_ms = min((line.since_ms for line in self._lines.of.values()), default=NEVER_MS)
        return self._oldest_ms > max(urgent)

    def _is_out(self, entry: Entry) -> bool:
        gang = entry.gang
        if gang.not_before_ms > self._now_ms or (self._out and gang.id in self._out):
            return True
        if gang.id in self._tried:
            return True
        return gang.class_key in self._refused and not self._is_promised(entry)

    def _is_open(self, queue: str, entry: Entry) -> bool:
        if entry.kind in self._open[queue] and not self._stays_too_long(entry):
            return True
        since_ms = self._since_ms(queue)
        return since_ms is not None and entry.gang.since_ms <= since_ms

    def _offer(self, at: int, line: Line) -> None:
        """The first gang of a line, from a place in it on, that is worth a try has its turn."""
        turn = self._turn(at, line)
        if turn is not None:
            heappush(self._turns, turn)

    def _turn(self, at: int, line: Line) -> Turn | None:
        open_, since_ms = self._open[line.owner[0]], self._since_ms(line.owner[0])
        if since_ms is not None and line.since_ms > since_ms:
            since_ms = None
        if since_ms is None and not self._may_have(line, open_):
            return None
        bounded, out = bool(self._promised or self._longest), bool(self._tried or self._out)
        for place, entry in enumerate(islice(line.entries, at, None) if at else line.entries, at):
            is_open = entry.kind in open_ and not (bounded and self._stays_too_long(entry))
            if not is_open and (since_ms is None or entry.gang.since_ms > since_ms):
                continue
            if entry.gang.not_before_ms > self._now_ms or (out and self._is_out(entry)):
                continue
            return self._early_key(entry), place, line
        return None

    def _within_quota(self, queue: str, kinds: Iterable[Kind]) -> dict[Kind, None]:
        """Those of these kinds that have a place, and that the queue has the quota for."""
        tree, placed = self._state.tree, self._kinds
        able = (kind for kind in kinds if kind in placed)
        return {kind: None for kind in able if tree.short_of(queue, tree.wanted(kind.shape)) is None}
