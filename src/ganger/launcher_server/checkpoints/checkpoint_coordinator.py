"""The server's part in the agreement on the steps at which the ranks of a gang save.

It asks every launcher for the counts of its ranks (`get_counts`), proposes from which count on another schedule is to
hold (`propose`), and makes it hold (`agree`) once every launcher has published the proposal and then still read smaller
counts; else it withdraws the proposal and tries a larger count. A launcher that does not answer in time ends the trial,
never the training. Nothing is lost with the server: launchers send their schedules after each connection, and a
proposal that one of them holds as agreed is agreed for all. Pure: the time is passed in, messages are returned."""

import math
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from ganger.model.decision import Stop

UNITS: Final = ("step", "call")
ANSWER_TIMEOUT_S: Final = 3.0
"""Time for launchers to answer."""
RETRY_S: Final = 1.0
SETTLE_S: Final = 5.0
"""Time for other ranks to call after the first one: until then it may be the only rank that calls."""
POLLS_PER_PERIOD: Final = 10
MIN_POLL_S: Final = 0.25
MAX_POLL_S: Final = 10.0
TOLERANCE: Final = 0.25
"""Fraction of a period by which the next save may be off."""
MAX_SEGMENTS: Final = 64
"""Older segments are forgotten: no rank is that far behind the others."""
MAX_DOUBLINGS: Final = 10

Order = tuple[str, str, dict[str, Any]]
"""A message to the launcher of a node: node, type, fields."""


class Segment(NamedTuple):
    """Rule that holds from the count `begin` on: save at `first`, then every `every` counts (0: never again)."""

    unit: str
    begin: int
    first: int
    every: int

    def next_after(self, count: int) -> int | None:
        """Return the first count after this one at which to save."""
        if count < self.first:
            return self.first
        return self.first + ((count - self.first) // self.every + 1) * self.every if self.every else None

    def newest_until(self, count: int) -> int | None:
        """Return the last count up to this one at which to save."""
        if count < self.first:
            return None
        return count - (count - self.first) % self.every if self.every else self.first


@dataclass(frozen=True, slots=True)
class Schedule:
    """The segments that ranks follow, oldest first; a larger id is newer, 0 means none yet."""

    id: int = 0
    segments: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """A `checkpoint_counts` message about the ranks of one node.

    reply_to: id of the request that it answers; 0 if unrequested
    calling_ranks: ranks that have called `should_checkpoint()` and have not ended
    stepping_ranks: those of them that report rising steps
    step, call: the largest counts of any rank
    pending: id of the open proposal; 0 if there is none
    """

    reply_to: int
    calling_ranks: int
    stepping_ranks: int
    step: int | None
    call: int
    pending: int
    schedule: Schedule

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> Self:
        """Convert a message that `message_schema` has checked."""
        names = ("reply_to", "calling_ranks", "stepping_ranks", "step", "call", "pending")
        segments = tuple(Segment(*fields) for fields in message["schedule"]["segments"])
        return cls(schedule=Schedule(message["schedule"]["id"], segments), **{name: message[name] for name in names})

    def count(self, unit: str) -> int:
        """Return the largest count of a rank here; -1 if there is none."""
        return self.call if unit == "call" else -1 if self.step is None else self.step

    def fits(self, proposal: Segment) -> bool:
        """Return True if no rank here has reached the start of the proposal, and all will."""
        return self.count(proposal.unit) < proposal.begin and (
            proposal.unit == "call" or self.stepping_ranks == self.calling_ranks
        )


@dataclass(slots=True)
class _Trial:
    """A request for counts (without a proposal) or a proposal under way.

    awaited: nodes that have not answered
    """

    id: int
    awaited: set[str]
    began_s: float
    proposal: Segment | None = None


class _Sample(NamedTuple):
    at_s: float
    counts: dict[str, int]


@dataclass(slots=True)
class Coordinator:
    """Agreement with the launchers of one generation on when its ranks save.

    remaining: nodes on which the generation runs, kept up to date by the owner
    ranks: number of ranks of the generation
    period_s: `checkpoint.every`; None if only notices are a reason to save
    stop: the stop passed to `stopped`, if any
    due_s: time of the next `tick`
    """

    remaining: Collection[str]
    ranks: int
    period_s: float | None
    stop: Stop | None = None
    due_s: float = math.inf
    _counts: dict[str, Counts] = field(default_factory=dict)
    _schedule: Schedule = field(default_factory=Schedule)
    _id: int = 0
    _trial: _Trial | None = None
    _failures: int = 0
    _round_trip_s: float = 0.0
    _samples: deque[_Sample] = field(default_factory=lambda: deque(maxlen=POLLS_PER_PERIOD + 2))
    _first_call_s: float | None = None
    _saved_s: float | None = None
    _saved_count: int | None = None
    _owes_notice: bool = False

    def counts_received(self, node: str, counts: Counts, now_s: float) -> list[Order]:
        """Handle a launcher's counts of its ranks' calls for a checkpoint."""
        was_complete = self._is_complete()
        self._counts[node] = counts
        self._id = max(self._id, counts.pending, counts.schedule.id)
        if counts.schedule.id > self._schedule.id:
            self._schedule = counts.schedule
        if not self._is_complete():
            return []
        segments = self._schedule.segments
        if not was_complete and segments and not segments[-1].every:
            self._owes_notice = False  # an earlier server has arranged the save
        changed_nodes = [node] if was_complete else self.remaining
        orders = [order for changed in changed_nodes for order in self._synchronize(changed)]
        if self._trial is None:
            if counts.reply_to == 0 and self._must_save():
                self.due_s = now_s
        elif counts.reply_to == self._trial.id and node in self._trial.awaited:
            orders += self._answered(self._trial, node, now_s)
        return orders

    def stopped(self, stop: Stop) -> list[Order]:
        """Handle a stop of the generation; with a notice the ranks save once more, as soon as they can."""
        self.stop, self._owes_notice, self._failures = stop, stop.notice_ms > 0, 0
        self.due_s = 0.0 if self._owes_notice else math.inf
        return self._withdraw_trial()

    def checkpoint_saved(self, now_s: float) -> None:
        """Schedule the next save a period later: a rank has saved a checkpoint, on request or not."""
        self._saved_s = now_s

    def tick(self, now_s: float) -> list[Order]:
        """Do what is due: end a trial that takes too long, or start one."""
        if now_s < self.due_s:
            return []
        self.due_s = math.inf
        if self._trial is not None:
            self.due_s = now_s + RETRY_S
            return self._withdraw_trial()
        if not self._is_complete() or not self._must_save():
            return []  # until the next message of a launcher
        return self._start_trial(_Trial(self._next_id(), set(self.remaining), now_s), "get_counts", {})

    # -- state of the launchers --------------------------------------------------------------------------------------

    def _is_complete(self) -> bool:
        """Return True if every launcher has sent its counts.

        Before that, an unheard launcher may hold as agreed what is only a proposal to another.
        """
        return all(node in self._counts for node in self.remaining)

    def _synchronize(self, node: str) -> Iterator[Order]:
        """Bring a launcher up to date, which may have missed a message."""
        counts = self._counts[node]
        if counts.schedule.id < self._schedule.id:
            yield node, "agree", self._agreement()
        elif counts.pending > self._schedule.id and (self._trial is None or counts.pending != self._trial.id):
            yield node, "withdraw", {"id": counts.pending}

    def _agreement(self) -> dict[str, Any]:
        return {"id": self._schedule.id, "segments": [list(segment) for segment in self._schedule.segments]}

    # -- a trial -----------------------------------------------------------------------------------------------------

    def _must_save(self) -> bool:
        if self.stop is not None:
            return self._owes_notice
        return self.period_s is not None and any(counts.calling_ranks for counts in self._counts.values())

    def _next_id(self) -> int:
        self._id += 1
        return self._id

    def _start_trial(self, trial: _Trial, kind: str, fields: dict[str, Any]) -> list[Order]:
        self._trial = trial
        self.due_s = trial.began_s + ANSWER_TIMEOUT_S
        return [(node, kind, {"id": trial.id, **fields}) for node in self.remaining]

    def _withdraw_trial(self) -> list[Order]:
        trial, self._trial = self._trial, None
        if trial is None or trial.proposal is None:
            return []
        return [(node, "withdraw", {"id": trial.id}) for node in self.remaining]

    def _answered(self, trial: _Trial, node: str, now_s: float) -> list[Order]:
        trial.awaited.discard(node)
        if trial.proposal is not None and self._counts[node].pending != trial.id:
            self.due_s = now_s + RETRY_S  # the launcher could not publish it: its disk is full
            return self._withdraw_trial()
        if trial.proposal is not None and not self._counts[node].fits(trial.proposal):
            self._failures += 1
            self.due_s = now_s if self._owes_notice else now_s + self._poll_s()
            return self._withdraw_trial()
        if trial.awaited & set(self.remaining):
            return []
        self._trial = None
        if trial.proposal is not None:
            return self._agree(trial.id, trial.proposal, now_s)
        self._round_trip_s = now_s - trial.began_s
        proposal = self._choose_proposal(now_s)
        if proposal is None:
            self.due_s = now_s + self._poll_s() if self._must_save() and self._calling_ranks() else math.inf
            return []
        fields = {"unit": proposal.unit, "begin": proposal.begin}
        return self._start_trial(_Trial(self._next_id(), set(self.remaining), now_s, proposal), "propose", fields)

    def _agree(self, number: int, proposal: Segment, now_s: float) -> list[Order]:
        self._schedule = Schedule(number, (*self._schedule.segments, proposal)[-MAX_SEGMENTS:])
        self._failures = 0
        self._owes_notice = False
        self.due_s = math.inf if self.stop is not None else now_s + self._poll_s()
        return [(node, "agree", self._agreement()) for node in self.remaining]

    # -- choice of the schedule --------------------------------------------------------------------------------------

    def _choose_proposal(self, now_s: float) -> Segment | None:
        """Return the schedule to propose; None if the current one is right.

        A proposal begins a margin after the largest count, so that every launcher publishes it before a rank gets
        there: what the ranks do in two round trips, doubled with each failure.
        """
        calling_ranks = self._calling_ranks()
        if not calling_ranks:
            return None
        sample = _Sample(now_s, {unit: self._max_count(unit) for unit in UNITS})
        if self._samples and sample.counts["call"] < self._samples[-1].counts["call"]:
            self._samples.clear()  # the ranks run new programs: the number of calling ranks is unknown again
            self._first_call_s = None
        self._first_call_s = now_s if self._first_call_s is None else self._first_call_s
        self._samples.append(sample)
        is_settled = calling_ranks >= self.ranks or now_s >= self._first_call_s + SETTLE_S
        unit = self._unit(calling_ranks, is_settled=is_settled)
        rate = self._rate(unit)
        margin = (1 + math.ceil(rate * 2 * self._round_trip_s)) << min(self._failures, MAX_DOUBLINGS)
        begin = self._max_count(unit) + margin
        if self.stop is not None:
            return Segment(unit, begin, begin, 0)
        return self._periodic(unit, begin, rate, now_s) if is_settled else None

    def _periodic(self, unit: str, begin: int, rate: float, now_s: float) -> Segment | None:
        """Return a periodic schedule, aligned with the last save; None while the current one is within tolerance."""
        if self.period_s is None or rate <= 0:
            return None
        count, every = self._max_count(unit), max(1, round(self.period_s * rate))
        newest = self._schedule.segments[-1:]
        current = newest[0] if newest and newest[0].unit == unit else None
        following = current.next_after(count) if current is not None else None
        self._note_saves(current, count, rate, now_s)
        saved_s = self._saved_s if self._saved_s is not None else now_s
        target = max(count + (saved_s + self.period_s - now_s) * rate, count + 1)
        if following is not None and abs(following - target) <= max(1, every * TOLERANCE, begin - count):
            return None
        return Segment(unit, begin, max(begin, round(target)), every)

    def _note_saves(self, current: Segment | None, count: int, rate: float, now_s: float) -> None:
        """Note the time of the last save by the schedule; at the beginning, the time of the first call."""
        newest = current.newest_until(count) if current is not None else None
        if self._saved_s is None and current is not None:  # agreed with an earlier server, so it is right
            following = current.next_after(count)
            ahead_s = 0.0 if following is None else (following - count) / rate - (self.period_s or 0)
            self._saved_s = now_s + min(0.0, ahead_s)  # it is far ahead of ranks that have restarted
        elif self._saved_s is None:
            self._saved_s = self._first_call_s
        elif newest is not None and newest != self._saved_count:
            self._saved_s = max(self._saved_s, now_s - (count - newest) / rate)
        self._saved_count = newest

    def _calling_ranks(self) -> int:
        return sum(self._counts[node].calling_ranks for node in self.remaining)

    def _unit(self, calling_ranks: int, *, is_settled: bool) -> str:
        """Return `step` if all calling ranks report steps, else `call`.

        A single rank may call as often as it likes: its calls count.
        """
        stepping_ranks = sum(self._counts[node].stepping_ranks for node in self.remaining)
        return "call" if stepping_ranks < calling_ranks or (calling_ranks == 1 and is_settled) else "step"

    def _max_count(self, unit: str) -> int:
        return max((self._counts[node].count(unit) for node in self.remaining), default=-1)

    def _rate(self, unit: str) -> float:
        """Return counts per second of the furthest rank, over the latest period."""
        samples = [sample for sample in self._samples if sample.counts[unit] >= 0]
        if len(samples) < 2:
            return 0.0
        seconds = samples[-1].at_s - samples[0].at_s
        return max(0.0, (samples[-1].counts[unit] - samples[0].counts[unit]) / seconds) if seconds > 0 else 0.0

    def _poll_s(self) -> float:
        if self._owes_notice:
            return MIN_POLL_S
        return min(MAX_POLL_S, max(MIN_POLL_S, (self.period_s or math.inf) / POLLS_PER_PERIOD))
