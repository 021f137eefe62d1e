"""The loop: events -> state -> plan -> log -> backend. The same in every world; the only caller of `core.cycle.plan`.

Built by `wiring` (and by the simulator's tests), fed by backends (`post`) and by `engine.service` (`ask`). `run` lives
on the core's own thread; the simulator calls `turn` itself. What happened and what was decided about it are in the log,
in one transaction, before the world changes or anybody has an answer: a crash at any point is finished by `open` at
the next start, and the log only ever holds whole rounds.
"""

import copy
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from ganger.core.cycle.cycle_skip import CycleSkip
from ganger.core.cycle.plan import plan
from ganger.core.fold.fold import fold, refusal
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.gang import LEAVING, Gang
from ganger.core.state.job_arrays import ArrayJob
from ganger.core.state.state import State
from ganger.engine.eventlog import codec
from ganger.engine.eventlog.disk_reserve import DiskReserve
from ganger.engine.eventlog.projection import Projection, project, project_array
from ganger.engine.metrics import CycleMetrics
from ganger.engine.query.state_replica import StateReplica
from ganger.errors import RequestError
from ganger.model.decision import Decision, Plan, Start, Stop
from ganger.model.event import Decided, Deleted, Event, ServerStarted, Stamped
from ganger.model.units import format_duration
from ganger.ports import Backend, Clock, LiveGeneration

RETRY_MS = 1_000
"""Pause after a write that failed: until then facts are only collected."""

MAX_SLEEP_MS = 30_000
"""A machine that was suspended, or whose clock was set, notices a limit that passed after at most this long."""

ASTRAY_MS = 60_000
"""From here on a wall clock that is behind the log, or ahead of it, is worth a word; less is an ordinary correction."""

REQUESTS = (
    *("submitted", "stop_requested", "suspend_requested", "resume_requested", "priority_changed", "deleted"),
    "described",
    *("queue_set", "queue_deleted", "policy_set", "node_cordoned", "node_uncordoned", "node_drained"),
    *("maintenance_set", "maintenance_cleared"),
)
"""Kinds of events that somebody asked for and waits for an answer to; all others are facts."""

FREEING = ("stop_requested", "suspend_requested", "deleted")
"""Requests that give something back. They are taken on a full disk too, with what the log holds in reserve for them."""

_log = logging.getLogger(__name__)

LoopRequest = tuple[Event, Future[int]]


class Log(Protocol):
    """The log to which the loop writes events: `engine.eventlog.event_log.EventLog`, or
    `engine.eventlog.stream_log.StreamLog`.

    TELLS: whether anybody reads there what those who wait are told; reserve: room for what frees something;
    unreadable: rows that were set aside when they were read, by number, and why.
    """

    TELLS: bool
    reserve: DiskReserve
    unreadable: dict[int, str]

    def restore(self) -> State:
        """The state after all that is written."""
        ...

    def append(
        self,
        batch: Sequence[Stamped],
        projections: Iterable[Projection],
        shows: Callable[[], None] = lambda: None,
        encoded: Mapping[int, bytes] = {},
    ) -> None:
        """Write these, all or none; `shows` is called when readers are about to see it. Refused: it cannot.

        encoded: events that `codec.encode_checked` has checked already, as they are written, by number of their row.
        """
        ...

    def snapshot(self, state: State) -> None:
        """The state after all that is written: kept, now and then, so that the next `restore` is short."""
        ...


@dataclass(slots=True)
class _Turn:
    """What one turn has gathered: rows for the log, events of them as they are written, the gangs and arrays they
    changed, what was decided, and who is told what."""

    rows: list[Stamped] = field(default_factory=list)
    encoded: dict[int, bytes] = field(default_factory=dict)
    touched: dict[str, Gang] = field(default_factory=dict)
    arrays: dict[str, ArrayJob] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    decisions: tuple[Decision, ...] = ()
    answers: list[tuple[Future[int], int | RequestError]] = field(default_factory=list)

    def take(self, row: Stamped, touched: Iterable[Gang | ArrayJob]) -> None:
        """A row and what it changed. A job that ended and was deleted in one turn leaves no row of its own behind."""
        self.rows.append(row)
        for each in touched:
            if isinstance(each, ArrayJob):
                self.arrays[each.id] = each
            else:
                self.touched[each.id] = each
        if isinstance(row.event, Deleted):
            self.deleted.append(row.event.gang)
            self.arrays.pop(row.event.gang, None)
            gone = [gang.id for gang in self.touched.values() if row.event.gang in (gang.id, gang.array)]
            self.touched = {name: gang for name, gang in self.touched.items() if name not in gone}

    def projections(self, now_ms: int) -> Iterator[Projection]:
        """What the log is to show of them; of an array one row, and one of each element that somebody touched."""
        yield from (project_array(array, now_ms) for array in self.arrays.values())
        yield from (project(gang, now_ms) for gang in self.touched.values() if not gang.is_head)

    def answer(self) -> None:
        """Everybody who waits has an answer."""
        for done, answer in self.answers:
            if isinstance(answer, RequestError):
                done.set_exception(answer)
            else:
                done.set_result(answer)


class Loop:
    """One writer over one log. `turn` takes a batch of events through the whole cycle."""

    def __init__(self, log: Log, backend: Backend, order: Callable[[str], Policy], clock: Clock, version: str) -> None:
        """Fold the log; nothing is planned before `open`. `order` gives the queue order of a name that the policy
        document has; Refused where it is not there any more."""
        self._log, self._backend, self._order, self._clock, self._version = log, backend, order, clock, version
        self._state = log.restore()
        self._settled = None if log.TELLS else CycleSkip()
        self._inbox: queue.SimpleQueue[LoopRequest | None] = queue.SimpleQueue()
        self._unwritten: list[LoopRequest] = []
        self._trouble: RequestError | None = None
        self._retry_ms = 0
        self._door = threading.Lock()
        self._closing = self._closed = False
        self._lock = threading.Lock()
        self._grown = threading.Condition()
        self._replica = StateReplica(self._copied)
        self._is_shown = False
        self._seq = self._state.seq
        self.next_wake_ms: int | None = None
        self.rounds = CycleMetrics()

    # -- for backends and faces, from any thread ---------------------------------------------------------------------

    def post(self, event: Event, *beside: Event) -> "Future[int]":
        """Something happened, or is asked for, and what is taken in one turn with it. The future has its seq once it is
        in the log, 0 if it was stale and dropped, and Refused if it was not taken."""
        return self.post_all([event, *beside])[0]

    def post_all(self, events: Iterable[Event]) -> list["Future[int]"]:
        """The same for several, which are taken in one turn: nothing happens and nothing is decided between them."""
        wishes: list[LoopRequest] = [(each, Future()) for each in events]
        with self._door:
            for event, done in wishes:
                if self._closed:
                    done.set_exception(_stopping())
                else:
                    self._inbox.put((event, done))
        return [done for _, done in wishes]

    def ask(self, event: Event) -> int:
        """Somebody wants something: its seq, once it is in the log. Refused says why not."""
        return self.post(event).result()

    def wait(self, after_seq: int, timeout_s: float) -> int:
        """The newest seq, as soon as it is beyond `after_seq`, or when the time is over."""
        with self._grown:
            self._grown.wait_for(lambda: self._seq > after_seq, timeout_s)
            return self._seq

    @contextmanager
    def view(self) -> Iterator[State]:
        """The state after the last whole round, to read: never older than what the log shows. Nobody waits for the
        round under way to be planned. One reader at a time: nothing may be asked of the loop inside it, and what is
        kept beyond it is a copy."""
        if self._is_shown:
            with self._lock:
                pass  # the round whose rows the log shows already is over
        with self._replica.state() as state:
            yield state

    def copy(self) -> State:
        """A state of one's own, to try things on."""
        with self.view() as state:
            return copy_of(state)

    def _copied(self) -> State:
        with self._lock:
            self._replica.begin()
            return copy_of(self._state)

    def health(self) -> str:
        """ok, or what is wrong."""
        if self._trouble is not None:
            return self._trouble.detail
        if not self._log.reserve.held:
            return self._log.reserve.missing().detail
        if self._log.unreadable:
            count, first = len(self._log.unreadable), min(self._log.unreadable, key=abs)
            return f"{count} events of the log were set aside, from event {abs(first)} on: see `ganger doctor`"
        behind_ms = self._clock.behind_ms()
        if abs(behind_ms) < ASTRAY_MS:
            return "ok"
        far = format_duration(abs(behind_ms) // 1000 * 1000)
        if behind_ms > 0:
            return f"this machine's clock is {far} behind the newest event; time goes on from there: check `date`"
        return f"this machine's clock was put {far} forward; time follows when no job is left: check `date`"

    @property
    def policy(self) -> Policy:
        """The queue order in force."""
        return self._order(self._state.rules.order)

    def order(self, name: str) -> Policy:
        """The queue order of that name."""
        return self._order(name)

    def now_ms(self) -> int:
        """The loop's time, for answers that depend on it."""
        return max(self._clock.now_ms(), self._state.at_ms)

    # -- the life of the loop ------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take over: say so in the log, then let the backend find out what runs."""
        self.turn([(ServerStarted(version=self._version), Future())])
        self._backend.open(self.post, tuple(self._live()))

    def run(self) -> None:
        """Turn until `close`. Blocks; the core's thread. However it ends, nobody is left waiting for an answer."""
        try:
            while (batch := self._next_batch()) is not None:
                self.turn(batch)
        finally:
            with self._door:
                self._closed = True
            for _, done in [*self._unwritten, *self.drain()]:
                done.set_exception(_stopping())

    def close(self) -> None:
        """End `run` after the batch in hand."""
        self._closing = True
        self._inbox.put(None)

    def drain(self) -> list[LoopRequest]:
        """What has been posted and not yet turned; for a world that turns the loop itself."""
        batch: list[LoopRequest] = []
        while True:
            try:
                wish = self._inbox.get_nowait()
            except queue.Empty:
                return batch
            if wish is not None:
                batch.append(wish)

    def turn(self, batch: list[LoopRequest]) -> None:
        """One cycle: what happened, what follows from it, and the world is told."""
        if not self._state.gangs:
            self._clock.catch_up()
        now_ms = self.now_ms()
        wishes, self._unwritten = [*self._unwritten, *batch], []
        self._log.reserve.hold()
        turn = self._round(wishes, now_ms) if now_ms >= self._retry_ms else None
        if turn is None and self._may_use_reserve(wishes):
            turn = self._round(wishes, now_ms)
        if turn is None:
            self._put_off(wishes)
            return
        with self._grown:
            self._seq = self._state.seq
            self._is_shown = False
            self._grown.notify_all()
        turn.answer()
        self._carry_out(turn)
        self._take_away(now_ms)
        if self._log.reserve.held:
            self._log.snapshot(self._state)

    # -- parts of a turn -----------------------------------------------------------------------------------------------

    def _next_batch(self) -> list[LoopRequest] | None:
        """Everything that waits; blocks until there is something, or time itself is due. None: the loop was closed."""
        timeout_s = None
        if self.next_wake_ms is not None:
            timeout_s = min(MAX_SLEEP_MS, max(0, self.next_wake_ms - self._clock.now_ms())) / 1000
        try:
            first = None if self._closing else self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return []
        if self._closing:
            if first is not None:
                first[1].set_exception(_stopping())
            return None
        with self._door:  # what was posted together is taken together
            rest = self.drain()
        return rest if first is None else [first, *rest]

    def _round(self, wishes: list[LoopRequest], now_ms: int) -> _Turn | None:
        """Fold, plan, write. None: it could not be written, and the state is as it was."""
        with self._lock:
            turn = self._accept(wishes, now_ms)
            self._decide(turn, now_ms)
            try:
                if turn.rows:
                    self._log.append(turn.rows, turn.projections(now_ms), self._show, turn.encoded)
                    self._trouble = None
            except RequestError as refused:
                self._trouble, self._retry_ms = refused, now_ms + RETRY_MS
                self._state, self._is_shown = self._log.restore(), False
                return None
            self._replica.follow(turn.rows)
            return turn

    def _may_use_reserve(self, wishes: list[LoopRequest]) -> bool:
        """Whether it is no room that keeps back what would free something, and there is some now."""
        frees = any(event.kind in FREEING for event, _ in wishes)
        no_room = self._trouble is not None and self._trouble.code == "no_room"
        return frees and no_room and self._log.reserve.give_back()

    def _show(self) -> None:
        """From here on the log shows what readers are not told of yet."""
        self._is_shown = True

    def _accept(self, wishes: list[LoopRequest], now_ms: int) -> _Turn:
        """Fold what is not refused. An event that the state cannot take is dropped from `wishes`, and the others are
        folded again from the log, since the state may be half changed."""
        while True:
            turn = _Turn()
            for at, (event, done) in enumerate(wishes):
                try:
                    self._take(turn, event, done, now_ms)
                except Exception as error:  # noqa: BLE001 - whoever posts an event must not be able to end the core
                    _log.exception("an event (%s) was dropped: it cannot be folded in", event.kind)
                    del wishes[at]
                    self._state = self._log.restore()
                    done.set_exception(_not_foldable(event, error))
                    break
            else:
                if turn.rows:
                    turn.rows[-1] = replace(turn.rows[-1], closes=True)
                return turn

    def _take(self, turn: _Turn, event: Event, done: "Future[int]", now_ms: int) -> None:
        """Fold an event, unless it is refused. One that cannot be written is found before it changes the state: in the
        middle of the transaction it would hold up everybody else."""
        try:
            encoded = codec.encode_checked(event)
        except ValueError as error:
            why_not = RequestError("bad_text", f"{event.kind} cannot be written: {error}", "use valid UTF-8")
            turn.answers.append((done, why_not))
            return
        why = refusal(self._state, event)
        if event.kind in REQUESTS and event.kind not in FREEING and not self._log.reserve.held:
            turn.answers.append((done, self._log.reserve.missing()))
        elif why is None:
            row = Stamped(self._state.seq + 1, now_ms, event, closes=False)
            turn.take(row, fold(self._state, row))
            turn.encoded[row.seq] = encoded
            turn.answers.append((done, row.seq))
            if self._settled is not None:
                self._settled.observe(event)
        elif event.kind in REQUESTS:
            turn.answers.append((done, RequestError("conflict", why, "see `ganger ls` and `ganger events`", 409)))
        else:
            turn.answers.append((done, 0))

    def _decide(self, turn: _Turn, now_ms: int) -> None:
        """Plan, and fold what was decided."""
        policy, began_s = self.policy, time.perf_counter()
        planned = plan(self._state, now_ms, policy, self._settled)
        self.rounds.took(time.perf_counter() - began_s, planned.decisions)
        self.next_wake_ms = planned.next_wake_ms
        if planned.decisions:
            plan_kept = Plan(as_of=planned.as_of, decisions=planned.decisions)
            event = Decided(plan=plan_kept, policy=policy.NAME, version=self._version)
            row = Stamped(self._state.seq + 1, now_ms, event, closes=False)
            turn.take(row, fold(self._state, row))
            turn.decisions = planned.decisions

    def _put_off(self, wishes: list[LoopRequest]) -> None:
        """Requests are refused while nothing can be written; facts are kept: what happened has happened."""
        self.next_wake_ms = self._retry_ms
        for event, done in wishes:
            if event.kind in REQUESTS and self._trouble is not None:
                why = self._trouble
                done.set_exception(RequestError(why.code, why.detail, why.next, why.status))
            else:
                self._unwritten.append((event, done))

    def _carry_out(self, turn: _Turn) -> None:
        """Tell the world what was decided, who has ended for good, and whose files may go."""
        for decision in turn.decisions:
            gang = self._state.gangs.get(decision.gang) if isinstance(decision, Start | Stop) else None
            if gang is None:
                continue  # an answer, or the end of a gang that only waited
            if isinstance(decision, Start):
                self._backend.start(decision, gang.job)
            elif isinstance(decision, Stop):
                self._backend.stop(decision, gang.job)
        for gang in turn.touched.values():
            if gang.ended and not gang.is_head:
                self._backend.forget(gang.id)
        for name in turn.deleted:
            self._backend.delete(name)

    def _take_away(self, now_ms: int) -> None:
        """Nodes whose notice is over, also one that ended while no server was there, until they are lost."""
        if self._state.ready:
            for node in [node for node, leaves_ms in self._state.leaving.items() if leaves_ms <= now_ms]:
                self._backend.take_away(node)

    def _live(self) -> list[LiveGeneration]:
        """Generations that hold nodes by the log; those that were given a notice have what is left of it."""
        lives, now_ms = [], self.now_ms()
        for gang in self._state.gangs.values():
            if gang.start is None:
                continue
            stopping = None
            if gang.stop_sent and gang.state in LEAVING:
                left_ms = max(0, gang.notice_until_ms - now_ms)
                stopping = Stop(gang=gang.id, generation=gang.generation, cause=gang.stop_sent, notice_ms=left_ms)
            held = {share.node for share in self._state.shares[gang.id]}
            lost = tuple(node for node in gang.left if node not in held)
            lives.append(LiveGeneration(job=gang.job, start=gang.start, stopping=stopping, lost=lost))
        return lives


def copy_of(state: State) -> State:
    """A state that can be changed while the other goes on: nothing that changes is shared."""
    gangs = {name: _copy_of(gang) for name, gang in state.gangs.items()}
    return state.copy(gangs, map(_array_copy, state.arrays.values()))


def _array_copy(array: ArrayJob) -> ArrayJob:
    return replace(array, rest=list(array.rest), counts=dict(array.counts))


def _copy_of(gang: Gang) -> Gang:
    return replace(
        gang,
        account=copy.copy(gang.account),
        left=list(gang.left),
        started=list(gang.started),
        finished=list(gang.finished),
    )


def _not_foldable(event: Event, error: Exception) -> RequestError:
    return RequestError("bad_event", f"{event.kind} cannot be folded in: {error!r}", "see the server's log", 500)


def _stopping() -> RequestError:
    return RequestError(
        "server_stopping", "the server is stopping", "try again in a moment: `ganger server start`", 503
    )
