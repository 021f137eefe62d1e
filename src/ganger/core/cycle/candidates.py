"""Whose turn it is in a round: the next pending gang, in the policy's order, that is worth a try.

Called by `core.cycle.plan`. The lines are in order already, so only their heads are compared, and of these only such as
may be the first: a look at columns (`core.state.pending_index`) tells of all lines at once who in them may be worth a
try, and how early its key may be at most. A gang is passed over, without a word, where its kind has no place (a column
of `core.nodes.capacity_index` says so in one comparison), or where its class was refused in this round, or its kind in
its queue: within a round nodes and quota only become fewer. For the same reason a key that was computed earlier is at
most too early, and is looked at again when its turn comes."""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.cycle.cycle import Cycle
from ganger.core.nodes.topology import Ints
from ganger.core.queue_order.policy_interface import Heads, Key, joined
from ganger.core.queues.quota import UNLIMITED
from ganger.core.state.pending_index import (
    AGAIN,
    KIND,
    LINE,
    NUMBER,
    OWNER,
    PRIORITY,
    QUEUE,
    SINCE,
    STAYS,
    SUBMITTED,
    Entry,
    Group,
    Kind,
    Lane,
)
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.model.pending_reason import ReasonCode

NO_PLACE: Final = (ReasonCode.NO_CAPACITY, ReasonCode.NO_NODE, ReasonCode.EXCLUDED)
OF_HEADS: Final = (OWNER, NUMBER, SUBMITTED, PRIORITY, STAYS)
"""Columns that `Heads` has, in its order."""
MOST_PASSED: Final = 128
"""Gangs passed over one by one before all are looked at anew."""
FEW: Final = 4
"""Groups whose gangs are asked for their keys without a look at how early these may be: that takes longer."""
Turn = tuple[Key, int, Entry]
"""(key, number of the gang, the gang): no two keys are equal"""


class Candidates:
    """The order of one round. A gang that is promised a start may have it though others of its class may not. `urgent`:
    since when a gang of a queue, large or not, must have waited to get its turn even where it has no place; None: none
    does."""

    def __init__(self, now: Cycle, urgent: Callable[[str, bool], int | None]) -> None:
        """Nobody has had a turn."""
        self._now, self._urgent = now, urgent
        self._state, self._now_ms, self._policy = now.state, now.now_ms, now.policy
        self._out, self._promises, self._promised = now.ending, now.promises, now.promises.standing
        self._claims = now.claims
        self._longest: dict[Kind, int] = {}
        self._by_nodes: dict[Kind, int] = {}
        """How long one of a kind may stay for all that is promised of the nodes, to others and to itself."""
        self._shapes = {promise.gang.shape: None for promise in self._promised.values()}
        self._lines = now.state.lines(now.policy)
        promised = [entry for each in self._promised.values() if (entry := self._lines.entry(each.gang))]
        self._with_promise: dict[Group, list[Entry]] = {}
        for entry in sorted(promised, key=_number):
            self._with_promise.setdefault(entry.group, []).append(entry)
        self._with_room = {name: None for name in self._promised if self._promises.laid.has_room(name)}
        self._kinds = {kind: None for kind in self._lines.kinds.values() if self._has_place(kind)}
        self._queues = [crowd.at for crowd in self._lines.queues.values()]
        self._open = self._within_quota()
        self._since: dict[tuple[str, bool], int | None] = {}
        self._as_of = now.bounds
        large = now.state.rules.reservations.large
        many = large.nodes if large.per_queue != 0 else NEVER_MS
        self._large = {kind: None for kind in self._lines.kinds.values() if kind.shape.all_nodes >= many}
        self._refused: dict[tuple[object, ...], None] = {}
        self._had: dict[str, None] = {}
        self._oldest_ms: int | None = None
        self._accounts: dict[tuple[str, str], Key] = {}
        self._turns: list[Turn] = []
        self._ahead: list[tuple[float, int]] = []
        """Lines whose first that may be worth a try was not asked for its key yet, the last in the order first: by how
        early it may be, and its row."""
        self._bounds = np.full(self._lines.line_numbers.most, -np.inf)
        self._bound_of = np.full(self._lines.line_numbers.most, NEVER_MS, dtype=np.int64)
        """How early one of each line may be, and the number of the gang that this was asked for."""
        self._passed = 0
        self._worth: NDArray[np.bool_] = np.zeros(0, dtype=bool)
        self._comes: dict[int, list[tuple[int, int]]] = {}
        """By row of a group, whether one of it may be worth a try; by line such groups, as heaps."""
        self._look()

    def next(self) -> Entry | None:
        """The first in the order; None when nobody is left. It stays where it is until it is told on."""
        entry = self._next()
        while entry is None and self._now.rotate():
            self._since.clear()
            self._look_again()
            entry = self._next()
        return entry

    def _next(self) -> Entry | None:
        while self._bring_up():
            key, number, entry = self._turns[0]
            if entry.kind in self._kinds and not self._has_place(entry.kind):
                self._close(entry.kind)
                if self._is_over():
                    return None
                continue
            if self._is_out(entry) or not self._is_open(entry):
                self._pass_over()
                continue
            late = self._key(entry)
            if late == key:
                return entry
            heapreplace(self._turns, (late, number, entry))
        return None

    def go_on(self) -> None:
        """The gang whose turn it was has started."""
        entry = heappop(self._turns)[2]
        self._had[entry.gang.id] = None
        if self._policy.ORDERS_RUNNING or entry.group in self._with_promise or (self._promised and entry.group.again):
            # What was kept for it, or was moved back for it, others may have that are promised a start; and one less
            # is promised one: the next of its queue may be, before others take the room. Where running gangs have an
            # order too, some of its owner's may give way now.
            self._by_nodes.clear()
            self._forget_urgent(entry, others=entry.group.again)
            self._look_again()
        self._offer(entry.line)

    def refuse(self, entry: Entry, why: ReasonCode) -> None:
        """It does not start in this round, nor do others of its class; nor, where it lacks quota, others of its kind in
        its queue; nor, where no place was found though there is room, others of its kind."""
        decided, is_urgent = self._promises.decided, self._urgent_since_ms(entry.group) is not None
        if entry.gang.id not in decided and not (is_urgent and entry.gang.id in self._promised):
            # Else others of its class may be promised one too.
            self._refused[entry.group.of_class] = None
        self._had[entry.gang.id] = None
        if self._forget_urgent(entry):  # room may be kept for it, and for one less of the others
            self._look_again()
        if why is ReasonCode.OVER_QUOTA:
            self._open[entry.line.crowd.at, entry.kind.at] = False
        is_longer = why is ReasonCode.HELD or (why is ReasonCode.MAINTENANCE and not self._state.tree.types)
        if is_longer and not entry.group.again and entry.gang.expected is None:
            others_ms = self._promises.others_ms if why is ReasonCode.HELD else entry.group.stays_ms - 1
            # Found anew: since it was asked last, others have begun.
            longest_ms = self._by_nodes_ms(entry.kind) if self._promised else self._longest_ms(entry.kind)
            self._longest[entry.kind] = min(longest_ms, max(0, others_ms))
        if why in NO_PLACE and not self._state.tree.types:
            entry.kind.failed_at = self._growth(entry.kind)

    # -- who comes to the front ------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Of each line the first that may be worth a try, as far as columns tell."""
        self._turns, self._ahead, self._passed, self._comes = [], [], 0, {}
        self._worth = self._worth_a_try(slice(None))
        self._line_up(np.flatnonzero(self._worth))

    def _look_again(self) -> None:
        """Others may be worth a try since the last look: their lines have their turn once more, for them. Those that
        are not any more are passed over."""
        groups, others = self._lines.groups, np.flatnonzero(~self._worth)
        rows = others[self._worth_a_try(others)]
        self._worth[rows] = True
        for row in rows.tolist():
            comes = self._comes.get(groups.of[row].line.at)
            if comes is not None:
                heappush(comes, (groups.of[row].number, row))
        self._line_up(rows)

    def _line_up(self, rows: NDArray[np.intp]) -> None:
        """Lines have their turn for the first of these groups in each, by how early it may be."""
        if len(rows) <= FEW:
            self._ahead += ((-np.inf, row) for row in rows.tolist())
            return
        cells = self._lines.groups.cells
        lines, numbers = cells[LINE, rows], cells[NUMBER, rows]
        first = np.full(self._lines.line_numbers.most, NEVER_MS, dtype=np.int64)
        np.minimum.at(first, lines, numbers)
        rows = rows[numbers == first[lines]]
        lines, numbers = cells[LINE, rows], cells[NUMBER, rows]
        fresh = np.flatnonzero(numbers < self._bound_of[lines])  # those that come later in a line are no earlier
        if fresh.size:
            heads = Heads(list(self._lines.owners), *cells[:, rows[fresh]][list(OF_HEADS)])
            self._bounds[lines[fresh]] = self._policy.early(heads, self._state, self._now_ms)
            self._bound_of[lines[fresh]] = numbers[fresh]
        bounds = self._bounds[lines]
        self._ahead += zip(bounds.tolist(), rows.tolist(), strict=True)
        self._ahead.sort(key=_bound, reverse=True)

    def _worth_a_try(self, rows: NDArray[np.intp] | slice) -> NDArray[np.bool_]:
        """(rows,) whether one of each of these groups may be: its kind is open and it does not stay for too long, or it
        is urgent."""
        groups = self._lines.groups
        kind, queue, stays, again, since = (groups.cells[column, rows] for column in (KIND, QUEUE, STAYS, AGAIN, SINCE))
        found: NDArray[np.bool_] = np.zeros(len(kind), dtype=bool)
        has_others = np.ones(len(groups.of), dtype=bool)
        with_promise = [group.row for group in self._with_promise]
        has_others[with_promise] = self._has_others()
        if self._kinds:
            open_ = self._open[self._queues]
            anywhere = np.logical_or.reduce(open_)
            found = anywhere[kind]
            if not (open_ == anywhere).all():
                found &= self._open[queue, kind]
            if self._promised or self._longest:
                promised_may = np.zeros(len(groups.of), dtype=bool)
                promised_may[with_promise] = self._promised_may()
                longest = np.full(self._open.shape[1], NEVER_MS, dtype=np.int64)
                for each in self._kinds:
                    longest[each.at] = self._longest_ms(each)
                short = stays <= longest[kind]
                if any(each.again for each in self._kinds):
                    short |= again > 0
                found &= promised_may[rows] | (short & has_others[rows])
        urgent = self._are_urgent(queue, kind, since)
        if urgent is None:
            return found
        if self._promised and not self._may_do_more:
            urgent &= has_others[rows]
        return found | urgent

    def _are_urgent(self, queue: Ints, kind: Ints, since: Ints) -> NDArray[np.bool_] | None:
        """(N,) whether one of a kind, in a queue, is urgent that has waited since then; None: nobody is."""
        queues, kinds = self._open.shape
        latest = np.full((2, queues), -1, dtype=np.int64)
        for name, crowd in self._lines.queues.items():
            for large in (False, True) if self._large else (False,):
                since_ms = self._since_ms(name, large=large)
                latest[int(large), crowd.at] = -1 if since_ms is None else since_ms
        if not (latest >= 0).any():
            return None
        sizes = np.zeros(kinds, dtype=np.int64)
        sizes[[each.at for each in self._large]] = 1
        urgent: NDArray[np.bool_] = since <= latest[sizes[kind], queue]
        return urgent

    def _promised_may(self) -> NDArray[np.bool_]:
        """Of each group with promised gangs, whether one of these may start beside the promises of others."""
        groups = self._with_promise.values()
        return np.array([not all(map(self._is_kept_out, entries)) for entries in groups], dtype=bool)

    def _has_others(self) -> NDArray[np.bool_]:
        """Of each group with promised gangs, whether it has others."""
        groups = self._with_promise.items()
        return np.array([len(group.entries) > len(entries) for group, entries in groups], dtype=bool)

    @property
    def _may_do_more(self) -> bool:
        """Whether a turn may do more for a promised gang than to start it where it has a place: others are stopped for
        it, or it has room that is kept from others."""
        return self._policy.ORDERS_RUNNING or bool(self._claims)

    def _bring_up(self) -> bool:
        """Whoever may be the first has its turn; False where nobody is left."""
        while self._ahead and not (self._turns and self._ahead[-1][0] > self._turns[0][0][0]):
            _, row = self._ahead.pop()
            self._offer(self._lines.groups.of[row].line)
        return bool(self._turns)

    def _pass_over(self) -> None:
        """The first is not worth a try any more: the next of its line is."""
        self._passed += 1
        if self._passed > MOST_PASSED:
            self._look()
            return
        entry = heappop(self._turns)[2]
        if entry.gang.id not in self._had:
            self._worth[entry.group.row] = False
        self._offer(entry.line)

    def _offer(self, line: Lane) -> None:
        """The next gang of a line that is worth a try has its turn. Of a group of which one is passed over none is, for
        now: so the next look sees whether one is again."""
        groups, comes = self._lines.groups.of, self._coming(line)
        while comes:
            number, row = comes[0]
            group = groups[row]
            entry = None if self._is_closed(group) else self._first(group, number - 1)
            if entry is None:
                self._worth[row] = False
                heappop(comes)
            elif entry.gang.number > number:
                self._worth[row] = False
                heapreplace(comes, (entry.gang.number, row))
            else:
                after = bisect_right(group.entries, number, key=_number)
                if after < len(group.entries):
                    heapreplace(comes, (group.entries[after].gang.number, row))
                else:
                    heappop(comes)
                self._put(entry)
                return

    def _coming(self, line: Lane) -> list[tuple[int, int]]:
        """Groups of a line of which one may be worth a try, as a heap: the number that the next of each has at least,
        and its row."""
        comes = self._comes.get(line.at)
        if comes is None:
            worth = self._worth
            comes = [(group.number, group.row) for group in line.groups.values() if worth[group.row]]
            self._comes[line.at] = comes
            heapify(comes)
        return comes

    def _first(self, group: Group, after: int) -> Entry | None:
        """The first gang of a group, after that number, that is worth a try."""
        able = (entry for entry in self._able(group, after) if not self._is_out(entry))
        return next((entry for entry in able if self._is_open(entry)), None)

    def _able(self, group: Group, after: int) -> Iterable[Entry]:
        """Those of a group, after that number, of whom one may be worth a try: all, if one of them is; else those that
        are urgent, or are promised a start."""
        since_ms = self._urgent_since_ms(group)
        is_open = self._is_within_quota(group) and not self._stays_too_long(group)
        is_urgent = since_ms is not None and group.since_ms <= since_ms
        if not (is_open or is_urgent) or (self._refused and group.of_class in self._refused):
            promised = self._with_promise.get(group, ())
            return (entry for entry in promised if entry.gang.number > after)
        begin = bisect_right(group.entries, after, key=_number) if after >= 0 else 0
        # Nobody has waited for longer than since he was submitted.
        end = None if is_open or since_ms is None else bisect_right(group.entries, since_ms, key=_submitted_ms)
        return islice(group.entries, begin, end)

    def _put(self, entry: Entry) -> None:
        heappush(self._turns, (self._early_key(entry), entry.gang.number, entry))

    # -- who is worth a try ------------------------------------------------------------------------------------------

    def _is_closed(self, group: Group) -> bool:
        """Whether none of it can be worth a try: its kind has no place, and none is urgent or promised a start."""
        if self._is_within_quota(group) or group in self._with_promise:
            return False
        since_ms = self._urgent_since_ms(group)
        return since_ms is None or group.since_ms > since_ms

    def _has_place(self, kind: Kind) -> bool:
        """Whether each part of a kind has room by itself, and it has not failed since room was made."""
        if self._claims and kind.shape in self._shapes:
            return True  # it had, when the round began: room that is kept since then is not kept from a promised gang
        if not self._state.nodes.columns.hold(kind.parts):
            return False
        if kind.failed_at is not None and kind.failed_at == self._growth(kind):
            return False
        if not self._promised or kind.again or kind.shape in self._shapes:
            return True
        return min(kind.stays) <= self._longest_ms(kind)

    def _longest_ms(self, kind: Kind) -> int:
        """How long one of a kind may stay that starts now, so as to be in the way of no promise."""
        if kind not in self._longest:
            self._longest[kind] = self._by_nodes_ms(kind) if self._promised else NEVER_MS
        return self._longest[kind]

    def _by_nodes_ms(self, kind: Kind) -> int:
        found = self._by_nodes[kind] = self._promises.laid.longest_ms(kind.parts)
        return found

    def _stays_too_long(self, group: Group) -> bool:
        """Whether one of it would be in the way of a promise or in maintenance, wherever it started."""
        if group.again or not (self._promised or self._longest):
            return False
        longest_ms = self._longest.get(group.kind)
        return group.stays_ms > (self._longest_ms(group.kind) if longest_ms is None else longest_ms)

    def _is_promised(self, entry: Entry) -> bool:
        return entry.group in self._with_promise and entry.gang.id in self._promised

    def _is_kept_out(self, entry: Entry) -> bool:
        """Whether one that is promised a start would be in the way of another promise, wherever it started: its own
        makes no difference where that has no room yet."""
        if entry.group.again or entry.gang.id in self._with_room:
            return False
        kind = entry.kind
        longest_ms = self._by_nodes.get(kind)
        return entry.group.stays_ms > (self._by_nodes_ms(kind) if longest_ms is None else longest_ms)

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

    def _urgent_since_ms(self, group: Group) -> int | None:
        if group.unadmitted:
            return None  # it starts only in free room
        return self._since_ms(group.line.queue, large=group.kind in self._large)

    def _since_ms(self, queue: str, *, large: bool) -> int | None:
        """Since when one of this queue must have waited to be urgent; `large`: one of a large kind."""
        which = queue, large
        if which not in self._since:
            self._since[which] = self._urgent(*which)
        return self._since[which]

    def _forget_urgent(self, entry: Entry, *, others: bool = False) -> bool:
        """A turn has changed how many of its queue are promised a start or have room kept; `others`: of others, too.
        Return whether another queue's turn has come, whose gangs may be urgent now."""
        before, self._as_of = self._as_of, self._now.bounds
        if others or before != self._as_of:
            self._since.clear()
        for large in (False, True):
            self._since.pop((entry.gang.queue, large), None)
        return before[-1] != self._as_of[-1]

    def _close(self, kind: Kind) -> None:
        """There is no place for it any more in this round."""
        del self._kinds[kind]
        self._open[:, kind.at] = False
        if not self._kinds:
            self._look()

    def _is_over(self) -> bool:
        """Whether there is room for nobody, and nobody gets a turn without."""
        if self._kinds:
            return False
        sizes = (False, True) if self._large else (False,)
        since = (self._since_ms(queue, large=large) for queue in self._lines.queues for large in sizes)
        urgent = [since_ms for since_ms in since if since_ms is not None]
        if not urgent:
            return True
        if self._oldest_ms is None:
            self._oldest_ms = min((line.since_ms for line in self._lines.of.values()), default=NEVER_MS)
        return self._oldest_ms > max(urgent)

    def _is_out(self, entry: Entry) -> bool:
        gang = entry.gang
        if gang.not_before_ms > self._now_ms or (self._out and gang.id in self._out):
            return True
        if gang.id in self._had:
            return True
        return bool(self._refused) and entry.group.of_class in self._refused and not self._is_promised(entry)

    def _is_open(self, entry: Entry) -> bool:
        group = entry.group
        is_open, is_promised = self._is_within_quota(group), self._is_promised(entry)
        if is_open and not (self._is_kept_out(entry) if is_promised else self._stays_too_long(group)):
            return True
        if is_promised and not self._may_do_more:
            return False
        since_ms = self._urgent_since_ms(group)
        return since_ms is not None and entry.gang.since_ms <= since_ms

    def _is_within_quota(self, group: Group) -> bool:
        """Whether its kind has a place, as far as is known, and its queue the quota for one of it."""
        return bool(self._open[group.line.crowd.at, group.kind.at])

    def _within_quota(self) -> NDArray[np.bool_]:
        """(queues, kinds) whether a kind has a place, and the queue the quota for one of it."""
        tree, kinds = self._state.tree, list(self._kinds)
        wanted = np.array([tree.wanted(kind.shape) for kind in kinds], dtype=np.int64).reshape(-1, len(tree.resources))
        columns, free = [kind.at for kind in kinds], wanted == 0
        shape = self._lines.queue_numbers.most, self._lines.kind_numbers.most
        found: NDArray[np.bool_] = np.zeros(shape, dtype=bool)
        for queue, crowd in self._lines.queues.items():
            at = tree.index[queue]
            left = [min(UNLIMITED, tree.available(at, r)) for r in range(len(tree.resources))]
            found[crowd.at, columns] = (free | (wanted <= np.array(left))).all(axis=1)
        return found


def _bound(ahead: tuple[float, int]) -> float:
    return ahead[0]


def _number(entry: Entry) -> int:
    return entry.gang.number


def _submitted_ms(entry: Entry) -> int:
    return entry.gang.submitted_ms
