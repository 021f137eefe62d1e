"""The server's part in the agreement on the steps at which the ranks of a gang save. Pure: the time is given, messages
are returned.

It asks every launcher for the counts of its ranks (`count`), proposes from which count on another schedule is to hold
(`propose`), and has it hold (`agree`) when every launcher has put the proposal up and then still read smaller counts;
else the proposal is withdrawn and a larger count is tried. A launcher that does not answer in time ends the try, never
the training. Nothing is lost with the server: launchers say what they hold after each connection, and a proposal that
one of them holds as agreed is agreed for all. Called by `agreement`.
"""

import math
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from ganger.model.decision import Stop

UNITS: Final = ("step", "call")
TRY_S: Final = 3.0
"""How long launchers have to answer."""
AGAIN_S: Final = 1.0
LATECOMERS_S: Final = 5.0
"""After the first rank that calls, for the others: until then nobody knows whether it is the only one that does."""
LOOKS_PER_PERIOD: Final = 10
LOOK_MIN_S: Final = 0.25
LOOK_MAX_S: Final = 10.0
TOLERANCE: Final = 0.25
"""Of a period: how far the next save may be from where it should be."""
MOST_SEGMENTS: Final = 64
"""Older ones are forgotten: no rank is so far behind the others."""
MOST_DOUBLINGS: Final = 10

Order = tuple[str, str, dict[str, Any]]
"""A message to the launcher of a node: node, type, fields."""


class Segment(NamedTuple):
    """A rule that holds from the count `begin` on: save at `first`, then each `every` counts (0: never again)."""

    unit: str
    begin: int
    first: int
    every: int

    def next_after(self, count: int) -> int | None:
        """The first count after this one at which to save."""
        if count < self.first:
            return self.first
        return self.first + ((count - self.first) // self.every + 1) * self.every if self.every else None

    def newest_until(self, count: int) -> int | None:
        """The last count up to this one at which to save."""
        if count < self.first:
            return None
        return count - (count - self.first) % self.every if self.every else self.first


@dataclass(frozen=True, slots=True)
class Schedule:
    """The segments that ranks follow, oldest first. A schedule with a larger id is newer; 0: there is none yet."""

    id: int = 0
    segments: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """A message `counted`, of the ranks of one node.

    answers: the id of the question; 0 when nobody asked
    callers: ranks that have called `should_checkpoint()` and have not ended
    stepping: those of them that report rising steps
    step, call: the largest counts of any of them
    pending: id of the open proposal; 0 when there is none
    """

    answers: int
    callers: int
    stepping: int
    step: int | None
    call: int
    pending: int
    schedule: Schedule

    @classmethod
    def of(cls, message: dict[str, Any]) -> Self:
        """Read the message, which `message_schema` has checked."""
        names = ("answers", "callers", "stepping", "step", "call", "pending")
        segments = tuple(Segment(*found) for found in message["schedule"]["segments"])
        return cls(schedule=Schedule(message["schedule"]["id"], segments), **{name: message[name] for name in names})

    def count(self, unit: str) -> int:
        """The largest count of a rank here; -1 when there is none."""
        return self.call if unit == "call" else -1 if self.step is None else self.step

    def fits(self, proposal: Segment) -> bool:
        """Return True if no rank here has come to where the proposal begins, and all will."""
        return self.count(proposal.unit) < proposal.begin and (proposal.unit == "call" or self.stepping == self.callers)


@dataclass(slots=True)
class _Try:
    """A question (without a proposal) or a proposal under way. owed: nodes that have not answered."""

    id: int
    owed: set[str]
    began_s: float
    proposal: Segment | None = None


class _Sample(NamedTuple):
    at_s: float
    counts: dict[str, int]


@dataclass(slots=True)
class Coordinator:
    """Of one generation.

    left: the nodes on which it runs, kept up to date by the owner
    ranks: how many it has
    period_s: `checkpoint.every`; None: only notices are a reason to save
    stop: by which it is told to end, as far as the coordinator knows
    due_s: when `tick` has something to do
    """

    left: Collection[str]
    ranks: int
    period_s: float | None
    stop: Stop | None = None
    due_s: float = math.inf
    _told: dict[str, Counts] = field(default_factory=dict)
    _schedule: Schedule = field(default_factory=Schedule)
    _id: int = 0
    _try: _Try | None = None
    _failures: int = 0
    _round_trip_s: float = 0.0
    _samples: deque[_Sample] = field(default_factory=lambda: deque(maxlen=LOOKS_PER_PERIOD + 2))
    _called_s: float | None = None
    _saved_s: float | None = None
    _saved_at: int | None = None
    _owes_notice: bool = False

    def heard(self, node: str, counts: Counts, now_s: float) -> list[Order]:
        """A launcher has said how far its ranks are."""
        was_complete = self._is_complete()
        self._told[node] = counts
        self._id = max(self._id, counts.pending, counts.schedule.id)
        if counts.schedule.id > self._schedule.id:
            self._schedule = counts.schedule
        if not self._is_complete():
            return []
        segments = self._schedule.segments
        if not was_complete and segments and not segments[-1].every:
            self._owes_notice = False  # an earlier server has seen to it
        orders = [order for each in ([node] if was_complete else self.left) for order in self._settle(each)]
        if self._try is None:
            if counts.answers == 0 and self._has_reason():
                self.due_s = now_s
        elif counts.answers == self._try.id and node in self._try.owed:
            orders += self._answered(self._try, node, now_s)
        return orders

    def stopped(self, stop: Stop) -> list[Order]:
        """The generation is told to end; with a notice the ranks save once more, as soon as they can."""
        self.stop, self._owes_notice, self._failures = stop, stop.notice_ms > 0, 0
        self.due_s = 0.0 if self._owes_notice else math.inf
        return self._give_up()

    def saved(self, now_s: float) -> None:
        """A rank has saved a checkpoint, asked or not: the next one is due a period later."""
        self._saved_s = now_s

    def tick(self, now_s: float) -> list[Order]:
        """Do what is due by the clock: end a try that takes too long, or begin one."""
        if now_s < self.due_s:
            return []
        self.due_s = math.inf
        if self._try is not None:
            self.due_s = now_s + AGAIN_S
            return self._give_up()
        if not self._is_complete() or not self._has_reason():
            return []  # until a launcher says something
        return self._begin(_Try(self._next_id(), set(self.left), now_s), "count", {})

    # -- what launchers hold -----------------------------------------------------------------------------------------

    def _is_complete(self) -> bool:
        """Return True if every launcher has spoken: before, one that has not may hold as agreed what is only a proposal
        to another."""
        return all(node in self._told for node in self.left)

    def _settle(self, node: str) -> Iterator[Order]:
        """Bring a launcher to what holds, which it may have missed."""
        counts = self._told[node]
        if counts.schedule.id < self._schedule.id:
            yield node, "agree", self._agreed()
        elif counts.pending > self._schedule.id and (self._try is None or counts.pending != self._try.id):
            yield node, "withdraw", {"id": counts.pending}

    def _agreed(self) -> dict[str, Any]:
        return {"id": self._schedule.id, "segments": [list(segment) for segment in self._schedule.segments]}

    # -- a try -------------------------------------------------------------------------------------------------------

    def _has_reason(self) -> bool:
        if self.stop is not None:
            return self._owes_notice
        return self.period_s is not None and any(counts.callers for counts in self._told.values())

    def _next_id(self) -> int:
        self._id += 1
        return self._id

    def _begin(self, trial: _Try, kind: str, fields: dict[str, Any]) -> list[Order]:
        self._try = trial
        self.due_s = trial.began_s + TRY_S
        return [(node, kind, {"id": trial.id, **fields}) for node in self.left]

    def _give_up(self) -> list[Order]:
        trial, self._try = self._try, None
        if trial is None or trial.proposal is None:
            return []
        return [(node, "withdraw", {"id": trial.id}) for node in self.left]

    def _answered(self, trial: _Try, node: str, now_s: float) -> list[Order]:
        trial.owed.discard(node)
        if trial.proposal is not None and self._told[node].pending != trial.id:
            self.due_s = now_s + AGAIN_S  # its disk takes nothing
            return self._give_up()
        if trial.proposal is not None and not self._told[node].fits(trial.proposal):
            self._failures += 1
            self.due_s = now_s if self._owes_notice else now_s + self._look_s()
            return self._give_up()
        if trial.owed & set(self.left):
            return []
        self._try = None
        if trial.proposal is not None:
            return self._agree(trial.id, trial.proposal, now_s)
        self._round_trip_s = now_s - trial.began_s
        proposal = self._choose(now_s)
        if proposal is None:
            self.due_s = now_s + self._look_s() if self._has_reason() and self._callers() else math.inf
            return []
        fields = {"unit": proposal.unit, "begin": proposal.begin}
        return self._begin(_Try(self._next_id(), set(self.left), now_s, proposal), "propose", fields)

    def _agree(self, number: int, proposal: Segment, now_s: float) -> list[Order]:
        self._schedule = Schedule(number, (*self._schedule.segments, proposal)[-MOST_SEGMENTS:])
        self._failures = 0
        self._owes_notice = False
        self.due_s = math.inf if self.stop is not None else now_s + self._look_s()
        return [(node, "agree", self._agreed()) for node in self.left]

    # -- which schedule ----------------------------------------------------------------------------------------------

    def _choose(self, now_s: float) -> Segment | None:
        """The schedule to propose; None when the one that holds is right."""
        callers = self._callers()
        if not callers:
            return None
        sample = _Sample(now_s, {unit: self._count(unit) for unit in UNITS})
        if self._samples and sample.counts["call"] < self._samples[-1].counts["call"]:
            self._samples.clear()  # other programs run as these ranks: again nobody knows how many of them call
            self._called_s = None
        self._called_s = now_s if self._called_s is None else self._called_s
        self._samples.append(sample)
        is_settled = callers >= self.ranks or now_s >= self._called_s + LATECOMERS_S
        unit = self._unit(callers, is_settled=is_settled)
        rate = self._rate(unit)
        margin = (1 + math.ceil(rate * 2 * self._round_trip_s)) << min(self._failures, MOST_DOUBLINGS)
        begin = self._count(unit) + margin
        if self.stop is not None:
            return Segment(unit, begin, begin, 0)
        return self._periodic(unit, begin, rate, now_s) if is_settled else None

    def _periodic(self, unit: str, begin: int, rate: float, now_s: float) -> Segment | None:
        if self.period_s is None or rate <= 0:
            return None
        count, every = self._count(unit), max(1, round(self.period_s * rate))
        newest = self._schedule.segments[-1:]
        held = newest[0] if newest and newest[0].unit == unit else None
        following = held.next_after(count) if held is not None else None
        self._see_saves(held, count, rate, now_s)
        saved_s = self._saved_s if self._saved_s is not None else now_s
        wanted = max(count + (saved_s + self.period_s - now_s) * rate, count + 1)
        if following is not None and abs(following - wanted) <= max(1, every * TOLERANCE, begin - count):
            return None
        return Segment(unit, begin, max(begin, round(wanted)), every)

    def _see_saves(self, held: Segment | None, count: int, rate: float, now_s: float) -> None:
        """Note the time of the last save by the schedule; at the beginning, the time of the first call."""
        newest = held.newest_until(count) if held is not None else None
        if self._saved_s is None and held is not None:  # agreed by an earlier server: it is right
            following = held.next_after(count)
            ahead_s = 0.0 if following is None else (following - count) / rate - (self.period_s or 0)
            self._saved_s = now_s + min(0.0, ahead_s)  # it is far ahead of ranks that have begun anew
        elif self._saved_s is None:
            self._saved_s = self._called_s
        elif newest is not None and newest != self._saved_at:
            self._saved_s = max(self._saved_s, now_s - (count - newest) / rate)
        self._saved_at = newest

    def _callers(self) -> int:
        return sum(self._told[node].callers for node in self.left)

    def _unit(self, callers: int, *, is_settled: bool) -> str:
        """Steps, if all that call report them. A single rank may ask as often as it likes: its calls are counted."""
        stepping = sum(self._told[node].stepping for node in self.left)
        return "call" if stepping < callers or (callers == 1 and is_settled) else "step"

    def _count(self, unit: str) -> int:
        return max((self._told[node].count(unit) for node in self.left), default=-1)

    def _rate(self, unit: str) -> float:
        """Counts per second, of the rank that is furthest, in the latest period."""
        known = [sample for sample in self._samples if sample.counts[unit] >= 0]
        if len(known) < 2:
            return 0.0
        seconds = known[-1].at_s - known[0].at_s
        return max(0.0, (known[-1].counts[unit] - known[0].counts[unit]) / seconds) if seconds > 0 else 0.0

    def _look_s(self) -> float:
        if self._owes_notice:
            return LOOK_MIN_S
        return min(LOOK_MAX_S, max(LOOK_MIN_S, (self.period_s or math.inf) / LOOKS_PER_PERIOD))
