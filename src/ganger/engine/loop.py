"""The loop: events -> state -> plan -> log -> backend. The same in every world; the only caller of `core.cycle.cycle`.

Backends post events; `engine.service` asks for changes. `run` lives on the core's own thread; the simulator calls
`run_cycle` itself. What happened and what was decided about it are in the log, in one transaction, before the backend
acts or a caller has an answer: a crash at any point is finished by `open` at the next start, and the log only ever
holds whole cycles.
"""

import gc
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol

from ganger import registry
from ganger.core.cycle.cycle import REPORTS, plan
from ganger.core.fold.fold import fold, refusal
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.gang import Gang
from ganger.core.state.job_arrays import ArrayJob
from ganger.core.state.state import State
from ganger.engine.eventlog.disk_reserve import DiskReserve
from ganger.engine.eventlog.projection import Projection, project, project_array
from ganger.engine.metrics import CycleMetrics
from ganger.engine.query.state_replica import StateReplica, copy_of
from ganger.engine.takeover import carry_out, live_generations, repair_calls
from ganger.errors import RequestError
from ganger.model.decision import Decision, Start, Stop
from ganger.model.event import REQUESTS, Decided, Deleted, Event, NodePreempted, Request, ServerStarted, Stamped
from ganger.model.node_health.health_decision import ActOnNode
from ganger.model.units import format_duration
from ganger.ports import Backend, Clock

RETRY_MS = 1_000
"""Pause after a write that failed: until then facts are only collected."""

MAX_SLEEP_MS = 30_000
"""Upper bound of a wait, so that a passed limit is noticed after a suspend, or after the clock was set."""

CLOCK_OFF_MS = 60_000
"""From this difference on a wall clock behind or ahead of the log is reported; less is an ordinary correction."""

FREEING = ("stop_requested", "suspend_requested", "deleted")
"""Requests that free something. They are accepted on a full disk too, from the disk reserve."""

_log = logging.getLogger(__name__)

LoopRequest = tuple[Event, Future[int]]


class Log(Protocol):
    """The log to which the loop writes events: `eventlog.event_log.EventLog` or `eventlog.stream_log.StreamLog`.

    PUBLISHES_REASONS: whether pending reasons are read from it.
    reserve: disk space for requests that free something.
    unreadable: rows that were set aside on reading, by number, and why.
    """

    PUBLISHES_REASONS: bool
    reserve: DiskReserve
    unreadable: dict[int, str]

    def restore(self) -> State:
        """Return the state after all that is written."""
        ...

    def encode(self, event: Event) -> bytes:
        """Return an event as it is written. Raise ValueError if it cannot be."""
        ...

    def append(
        self,
        batch: Sequence[Stamped],
        projections: Iterable[Projection],
        shows: Callable[[], None] = lambda: None,
        encoded: Mapping[int, bytes] = {},
    ) -> None:
        """Write a batch, all or none. Raise RequestError when it cannot be written.

        shows: called just before readers see it.
        encoded: events that `encode` has encoded already, by the number of their row.
        """
        ...

    def snapshot(self, state: State) -> None:
        """Keep a snapshot of the state from time to time, so that the next `restore` is short."""
        ...


@dataclass(slots=True)
class _CycleResult:
    """Everything that one cycle has gathered.

    rows: rows for the log.
    encoded: their events as they are written, by number.
    touched, arrays: the gangs and arrays that they changed.
    deleted: ids of deleted jobs.
    decisions: what was decided.
    answers: the callers to answer, with their answers.
    """

    rows: list[Stamped] = field(default_factory=list)
    encoded: dict[int, bytes] = field(default_factory=dict)
    touched: dict[str, Gang] = field(default_factory=dict)
    arrays: dict[str, ArrayJob] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    decisions: tuple[Decision, ...] = ()
    answers: list[tuple[Future[int], int | RequestError]] = field(default_factory=list)

    def add_row(self, row: Stamped, touched: Iterable[Gang | ArrayJob]) -> None:
        """Add a row and what it changed.

        A job that ended and was deleted in one cycle leaves no row of its own.
        """
        self.rows.append(row)
        for changed in touched:
            if isinstance(changed, ArrayJob):
                self.arrays[changed.id] = changed
            else:
                self.touched[changed.id] = changed
        if isinstance(row.event, Deleted):
            self.deleted.append(row.event.gang)
            self.arrays.pop(row.event.gang, None)
            deleted = [gang.id for gang in self.touched.values() if row.event.gang in (gang.id, gang.array)]
            self.touched = {name: gang for name, gang in self.touched.items() if name not in deleted}

    def projections(self, now_ms: int) -> Iterator[Projection]:
        """Yield what the log is to show: one row for an array, and one for each element that has a gang."""
        yield from (project_array(array, now_ms) for array in self.arrays.values())
        yield from (project(gang, now_ms) for gang in self.touched.values() if not gang.is_head)

    def resolve(self) -> None:
        """Answer every waiting caller."""
        for done, answer in self.answers:
            if isinstance(answer, RequestError):
                done.set_exception(answer)
            else:
                done.set_result(answer)


class _StepTimes:
    """The durations of the steps of one cycle."""

    def __init__(self) -> None:
        self._began_s: list[tuple[str, float]] = [("begin", time.perf_counter())]

    def begin(self, step: str) -> None:
        """Note that a step begins."""
        self._began_s.append((step, time.perf_counter()))

    def end(self) -> float:
        """Note that the last step has ended; return the duration of the cycle in s."""
        self.begin("end")
        return self._began_s[-1][1] - self._began_s[0][1]

    def __str__(self) -> str:
        steps = pairwise(self._began_s[1:])
        return ", ".join(f"{step} {1_000 * (after_s - s):.2f}" for (step, s), (_, after_s) in steps)


class Loop:
    """One writer over one log. `run_cycle` takes a batch of events through a whole scheduling cycle."""

    def __init__(self, log: Log, backend: Backend, order: Callable[[str], Policy], clock: Clock, version: str) -> None:
        """Fold the log; nothing is planned before `open`.

        order: returns the queue order of a name of the policy document; raises RequestError when it is no longer
        installed.
        """
        self._log, self._backend, self._order, self._clock, self._version = log, backend, order, clock, version
        self._state = log.restore()
        self._inbox: queue.SimpleQueue[LoopRequest | None] = queue.SimpleQueue()
        self._unwritten: list[LoopRequest] = []
        self._write_error: RequestError | None = None
        self._retry_ms = 0
        self._inbox_lock = threading.Lock()
        self._closing = self._closed = False
        self._lock = threading.Lock()
        self._seq_grown = threading.Condition()
        self._replica = StateReplica(self._copy_of)
        self._is_visible = False
        self._seq = self._state.seq
        self.next_wake_ms: int | None = None
        self.cycle_metrics = CycleMetrics()

    # -- for backends and clients, from any thread ---------------------------------------------------------------------

    def post(self, event: Event, *beside: Event) -> "Future[int]":
        """Post an event and `beside`, events that are accepted in the same cycle after it.

        The future has its seq once it is in the log, 0 if it was stale and dropped, and RequestError if it was refused.
        """
        return self.post_all([event, *beside])[0]

    def post_all(self, events: Iterable[Event]) -> list["Future[int]"]:
        """Post several events that are accepted in one cycle: nothing happens and nothing is decided between them."""
        requests: list[LoopRequest] = [(event, Future()) for event in events]
        with self._inbox_lock:
            for event, done in requests:
                if self._closed:
                    done.set_exception(_stopping())
                else:
                    self._inbox.put((event, done))
        return [done for _, done in requests]

    def ask(self, event: Request | NodePreempted) -> int:
        """Post a request and return its seq, once it is in the log. Raise RequestError when it is refused.

        NodePreempted is a fact that a user may report: it is never refused, and 0 is returned when it was stale.
        """
        return self.post(event).result()

    def wait(self, after_seq: int, timeout_s: float) -> int:
        """Return the newest seq, as soon as it is beyond `after_seq`, or after `timeout_s`."""
        with self._seq_grown:
            self._seq_grown.wait_for(lambda: self._seq > after_seq, timeout_s)
            return self._seq

    @contextmanager
    def view(self) -> Iterator[State]:
        """Hold the state after the last whole cycle, read-only: never older than what the log shows.

        No reader waits until the cycle under way is planned. One reader at a time: inside it no request may be made of
        the loop, and what is kept beyond it is a copy.
        """
        if self._is_visible:
            with self._lock:
                pass  # the cycle whose rows the log shows already is over
        with self._replica.state() as state:
            yield state

    def copy(self) -> State:
        """Return a private copy of the state, to try changes on."""
        with self.view() as state:
            return copy_of(state)

    def _copy_of(self) -> State:
        with self._lock:
            self._replica.begin()
            return copy_of(self._state)

    def health(self) -> str:
        """Return "ok", or a sentence about what is wrong."""
        if self._write_error is not None:
            return self._write_error.detail
        if not self._log.reserve.is_held:
            return self._log.reserve.error().detail
        if self._log.unreadable:
            count, first = len(self._log.unreadable), min(self._log.unreadable, key=abs)
            return f"{count} events of the log were set aside, from event {abs(first)} on: see `ganger doctor`"
        behind_ms = self._clock.behind_ms()
        if abs(behind_ms) < CLOCK_OFF_MS:
            return "ok"
        difference = format_duration(abs(behind_ms) // 1000 * 1000)
        if behind_ms > 0:
            return (
                f"this machine's clock is {difference} behind the newest event; time continues from there: check `date`"
            )
        return f"this machine's clock was set {difference} forward; time follows when no job is left: check `date`"

    @property
    def policy(self) -> Policy:
        """The queue order in force."""
        return self._order(self._state.document.order)

    def order(self, name: str) -> Policy:
        """Return the queue order of that name."""
        return self._order(name)

    def now_ms(self) -> int:
        """Return the loop's time, for answers that depend on it."""
        return max(self._clock.now_ms(), self._state.at_ms)

    # -- the life of the loop ------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take over: log it, then let the backend find out what runs."""
        registry.score(self._state.document.gpu_shares.score)  # before anything starts: it may not be installed
        self.run_cycle([(ServerStarted(version=self._version), Future())])
        self._backend.open(self.post, tuple(live_generations(self._state, self.now_ms())))
        for call in repair_calls(self._state, self.now_ms()):
            self._backend.repair_node(call)

    def run(self) -> None:
        """Run cycles until `close`. Blocks; the core's thread. However it ends, every waiting caller gets an answer."""
        try:
            while (batch := self._next_batch()) is not None:
                self.run_cycle(batch)
        finally:
            with self._inbox_lock:
                self._closed = True
            for _, done in [*self._unwritten, *self.drain()]:
                done.set_exception(_stopping())

    def close(self) -> None:
        """End `run` after the batch in hand."""
        self._closing = True
        self._inbox.put(None)

    def drain(self) -> list[LoopRequest]:
        """Return what has been posted and not yet handled; for a world that runs the cycles itself."""
        batch: list[LoopRequest] = []
        while True:
            try:
                request = self._inbox.get_nowait()
            except queue.Empty:
                return batch
            if request is not None:
                batch.append(request)

    def run_cycle(self, batch: list[LoopRequest]) -> None:
        """Run one scheduling cycle: fold and plan, write the log, then carry out what was decided."""
        if not self._state.gangs:
            self._clock.catch_up()
        now_ms = self.now_ms()
        requests, self._unwritten = [*self._unwritten, *batch], []
        self._log.reserve.hold()
        result = self._fold_and_write(requests, now_ms) if now_ms >= self._retry_ms else None
        if result is None and self._may_use_reserve(requests):
            result = self._fold_and_write(requests, now_ms)
        if result is None:
            self._postpone(requests)
            return
        with self._seq_grown:
            self._seq = self._state.seq
            self._is_visible = False
            self._seq_grown.notify_all()
        result.resolve()
        self._carry_out(result)
        self._remove_nodes(now_ms)
        if self._log.reserve.is_held:
            self._log.snapshot(self._state)

    # -- parts of a cycle ----------------------------------------------------------------------------------------------

    def _next_batch(self) -> list[LoopRequest] | None:
        """Return all posted events, waiting for one or for a timer; None when the loop was closed."""
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
        with self._inbox_lock:  # what was posted together is handled together
            rest = self.drain()
        return rest if first is None else [first, *rest]

    def _fold_and_write(self, requests: list[LoopRequest], now_ms: int) -> _CycleResult | None:
        """Fold, plan, write. Return None if it could not be written; then the state is as it was."""
        with self._lock:
            result = self._fold_batch(requests, now_ms)
            if self._is_plan_due(result, now_ms):
                self._decide(result, now_ms)
            try:
                if result.rows:
                    self._log.append(result.rows, result.projections(now_ms), self._mark_visible, result.encoded)
                    self._write_error = None
            except RequestError as error:
                self._write_error, self._retry_ms = error, now_ms + RETRY_MS
                self._state, self._is_visible = self._log.restore(), False
                return None
            self._replica.follow(result.rows)
            return result

    def _may_use_reserve(self, requests: list[LoopRequest]) -> bool:
        """Return whether a full disk holds up requests that free something, and the reserve has just been released."""
        frees = any(event.kind in FREEING for event, _ in requests)
        disk_full = self._write_error is not None and self._write_error.code == "disk_full"
        return frees and disk_full and self._log.reserve.release()

    def _mark_visible(self) -> None:
        """Note that the log shows rows that the replica does not have yet."""
        self._is_visible = True

    def _fold_batch(self, requests: list[LoopRequest], now_ms: int) -> _CycleResult:
        """Fold every event that is not refused.

        An event that the state cannot fold is dropped from `requests`, and the others are folded again from the log,
        since the state may be half changed.
        """
        while True:
            result = _CycleResult()
            for index, (event, done) in enumerate(requests):
                try:
                    self._fold_event(result, event, done, now_ms)
                except Exception as error:  # noqa: BLE001 - no poster of an event may be able to end the core
                    _log.exception("an event (%s) was dropped: it cannot be folded in", event.kind)
                    del requests[index]
                    self._state = self._log.restore()
                    done.set_exception(_not_foldable(event, error))
                    break
            else:
                return result

    def _fold_event(self, result: _CycleResult, event: Event, done: "Future[int]", now_ms: int) -> None:
        """Fold an event, unless it is refused.

        An event that cannot be written is found before it changes the state: in the middle of the transaction it would
        hold up all others.
        """
        try:
            encoded = self._log.encode(event)
        except ValueError as error:
            unwritable = RequestError("bad_text", f"{event.kind} cannot be written: {error}", "use valid UTF-8")
            result.answers.append((done, unwritable))
            return
        reason = refusal(self._state, event)
        if event.kind in REQUESTS and event.kind not in FREEING and not self._log.reserve.is_held:
            result.answers.append((done, self._log.reserve.error()))
        elif reason is None:
            row = Stamped(self._state.seq + 1, now_ms, event, closes=False)
            result.add_row(row, fold(self._state, row))
            subject = getattr(event, "gang", None) or getattr(getattr(event, "job", None), "id", "")
            _log.debug("seq %d: %s %s", row.seq, event.kind, subject)
            result.encoded[row.seq] = encoded
            result.answers.append((done, row.seq))
        elif event.kind in REQUESTS:
            result.answers.append((done, RequestError("conflict", reason, "see `ganger ls` and `ganger events`", 409)))
        else:
            result.answers.append((done, 0))

    def _is_plan_due(self, result: _CycleResult, now_ms: int) -> bool:
        """Return whether time, or one of the events, may have changed what is to be decided."""
        is_awaited = self.next_wake_ms is not None and now_ms >= self.next_wake_ms
        return is_awaited or not all(isinstance(row.event, REPORTS) for row in result.rows)

    def _decide(self, result: _CycleResult, now_ms: int) -> None:
        """Plan, and fold what was decided."""
        if result.rows:
            result.rows[-1] = replace(result.rows[-1], closes=True)
        policy, steps = self.policy, _StepTimes()
        with collection_paused():
            explains = self._log.PUBLISHES_REASONS
            planned = plan(self._state, now_ms, policy, explains=explains, begin_step=steps.begin)
        self.cycle_metrics.observe(steps.end(), planned.decisions)
        if _log.isEnabledFor(logging.DEBUG):
            counts = Counter(decision.kind for decision in planned.decisions)
            decided = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "nothing"
            _log.debug("cycle after seq %d decides %s, in ms: %s", planned.as_of, decided, steps)
        self.next_wake_ms = planned.next_wake_ms
        if planned.decisions:
            logged_plan = replace(planned, next_wake_ms=None)
            event = Decided(plan=logged_plan, policy=policy.NAME, version=self._version)
            row = Stamped(self._state.seq + 1, now_ms, event, closes=False)
            result.add_row(row, fold(self._state, row))
            result.decisions = planned.decisions

    def _postpone(self, requests: list[LoopRequest]) -> None:
        """Refuse requests while nothing can be written, and keep facts for the next attempt."""
        self.next_wake_ms = self._retry_ms
        for event, done in requests:
            if event.kind in REQUESTS and self._write_error is not None:
                error = self._write_error
                done.set_exception(RequestError(error.code, error.detail, error.next, error.status))
            else:
                self._unwritten.append((event, done))

    def _carry_out(self, result: _CycleResult) -> None:
        """Pass on to the backend the decisions, the gangs that ended for good, and the jobs whose files may go."""
        for decision in result.decisions:
            if isinstance(decision, ActOnNode):
                carry_out(self._state, self._backend, decision)
            gang = self._state.gangs.get(decision.gang) if isinstance(decision, Start | Stop) else None
            if gang is None:
                continue  # a pending reason, or the end of a gang that only waited
            _log.debug("passes on to the backend: %s %s", decision.kind, gang.id)
            if isinstance(decision, Start):
                self._backend.start(decision, gang.job)
            elif isinstance(decision, Stop):
                self._backend.stop(decision, gang.job)
        for gang in result.touched.values():
            if gang.ended and not gang.is_head:
                self._backend.forget(gang.id)
        for name in result.deleted:
            self._backend.delete(name)

    def _remove_nodes(self, now_ms: int) -> None:
        """Remove nodes whose notice is over, also one that ended while no server ran, until they are lost."""
        if self._state.ready:
            for node in [node for node, leaves_ms in self._state.health.leaving.items() if leaves_ms <= now_ms]:
                self._backend.remove_node(node)


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the garbage collector for a plan, which makes many objects at once and leaves no reference cycles.

    Each of its collections would visit all of them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _not_foldable(event: Event, error: Exception) -> RequestError:
    return RequestError("bad_event", f"{event.kind} cannot be applied: {error!r}", "see the server's log", 500)


def _stopping() -> RequestError:
    return RequestError(
        "server_stopping", "the server is stopping", "try again in a moment: `ganger server start`", 503
    )
