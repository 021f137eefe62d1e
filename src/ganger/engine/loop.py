"""The loop: events -> log -> state -> plan -> log -> backend. The same in every world; the only caller of `core.plan`.

Built by `wiring` (and by the simulator's tests), fed by backends (`post`) and by `engine.service` (`ask`). `run` lives on
the core's own thread; the simulator calls `turn` itself. A plan is in the log before the world changes, so a crash at
any point is finished by `open` at the next start.
"""

import copy
import queue
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace

from ganger.core.gang import Gang
from ganger.core.plan import plan
from ganger.core.policy import Policy
from ganger.core.state import State
from ganger.engine.log import EventLog
from ganger.engine.ports import Backend, Clock, Live
from ganger.engine.projection import project
from ganger.engine.refusal import Refused
from ganger.model.decision import Decision, Plan, Start, Stop
from ganger.model.event import Decided, Deleted, Event, ServerStarted, Stamped
from ganger.model.job import GangState

RETRY_MS = 1_000
"""Pause before facts that could not be written are tried again."""

MAX_SLEEP_MS = 30_000
"""A machine that was suspended, or whose clock was set, notices a limit that passed after at most this long."""

Wish = tuple[Event, Future[int]]


class Loop:
    """One writer over one log. `turn` takes a batch of events through the whole cycle."""

    def __init__(self, log: EventLog, backend: Backend, policy: Policy, clock: Clock, version: str) -> None:
        """Fold the log; nothing is planned before `open`."""
        self._log, self._backend, self._policy, self._clock, self._version = log, backend, policy, clock, version
        self._state = log.restore()
        self._inbox: queue.SimpleQueue[Wish | None] = queue.SimpleQueue()
        self._unwritten: list[Wish] = []
        self._lock = threading.Lock()
        self._grown = threading.Condition()
        self._view = State()
        self._seq = self._state.seq
        self._health = "ok"
        self.next_wake_ms: int | None = None

    # -- for backends and faces, from any thread ---------------------------------------------------------------------

    def post(self, event: Event) -> "Future[int]":
        """Something happened. The future has its seq once it is in the log; 0 if it was stale and dropped."""
        done: Future[int] = Future()
        self._inbox.put((event, done))
        return done

    def ask(self, event: Event) -> int:
        """Somebody wants something: its seq, once it is in the log. Refused says why not."""
        return self.post(event).result()

    def wait(self, after_seq: int, timeout_s: float) -> int:
        """The newest seq, as soon as it is beyond `after_seq`, or when the time is over."""
        with self._grown:
            self._grown.wait_for(lambda: self._seq > after_seq, timeout_s)
            return self._seq

    def view(self) -> State:
        """A copy of the state to read and to try things in; callers share it, so a trial must be closed by its thread."""
        with self._lock:
            if self._view.seq != self._state.seq:
                self._view = copy_of(self._state)
            return self._view

    def health(self) -> str:
        """ok, or what is wrong."""
        return self._health

    @property
    def policy(self) -> Policy:
        """The queue order in force."""
        return self._policy

    def now_ms(self) -> int:
        """The loop's time, for answers that depend on it."""
        return max(self._clock.now_ms(), self._state.at_ms)

    # -- the life of the loop ------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take over: say so in the log, then let the backend find out what runs."""
        self.turn([(ServerStarted(version=self._version), Future())])
        self._backend.open(self.post, tuple(self._live()))

    def run(self) -> None:
        """Turn until `close`. Blocks; the core's thread."""
        while True:
            batch = self._next_batch()
            if batch is None:
                return
            self.turn(batch)

    def close(self) -> None:
        """End `run` after the batch in hand."""
        self._inbox.put(None)

    def drain(self) -> list[Wish]:
        """What has been posted and not yet turned; for a world that turns the loop itself."""
        batch: list[Wish] = []
        while True:
            try:
                wish = self._inbox.get_nowait()
            except queue.Empty:
                return batch
            if wish is not None:
                batch.append(wish)

    def turn(self, batch: list[Wish]) -> None:
        """One cycle: what happened, what follows from it, and the world is told."""
        with self._lock:
            now_ms = max(self._clock.now_ms(), self._state.at_ms)
            ended = self._accept(batch, now_ms)
            decided = self._decide(now_ms)
            ended += [decision.gang for decision in decided if decision.kind == "stop" and self._gone(decision.gang)]
        with self._grown:
            self._seq = self._state.seq
            self._grown.notify_all()
        self._carry_out(decided)
        for gang in ended:
            self._backend.forget(gang)
        self._log.snapshot(self._state)

    # -- parts of a turn -----------------------------------------------------------------------------------------------

    def _next_batch(self) -> list[Wish] | None:
        """Everything that waits; blocks until there is something, or time itself is due. None: the loop was closed."""
        timeout_s = None
        if self.next_wake_ms is not None:
            timeout_s = min(MAX_SLEEP_MS, max(0, self.next_wake_ms - self._clock.now_ms())) / 1000
        if self._unwritten:
            timeout_s = RETRY_MS / 1000
        try:
            first = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return []
        return None if first is None else [first, *self.drain()]

    def _accept(self, batch: list[Wish], now_ms: int) -> list[str]:
        """Log and fold what is not refused; gives the gangs that ended."""
        wishes, self._unwritten = [*self._unwritten, *batch], []
        stamped: list[Stamped] = []
        touched: dict[str, Gang] = {}
        taken: list[tuple[Future[int], int]] = []
        for event, done in wishes:
            why = self._state.refusal(event)
            if why is None:
                stamped.append(Stamped(self._state.seq + 1, now_ms, event, closes=False))
                touched |= {gang.id: gang for gang in self._state.apply(stamped[-1])}
                taken.append((done, stamped[-1].seq))
            elif _is_request(event):
                done.set_exception(Refused("conflict", why, "see `ganger ls` and `ganger events`", 409))
            else:
                done.set_result(0)
        if stamped:
            stamped[-1] = replace(stamped[-1], closes=True)
            if not self._write(stamped, touched.values(), now_ms):
                self._put_off(wishes)
                return []
        for done, seq in taken:
            done.set_result(seq)
        for row in stamped:
            if isinstance(row.event, Deleted):
                self._backend.delete(row.event.gang)
        return [gang.id for gang in touched.values() if gang.ended]

    def _decide(self, now_ms: int) -> tuple[Decision, ...]:
        """Plan, and log what was decided before anything is done about it."""
        planned = plan(self._state, now_ms, self._policy)
        self.next_wake_ms = planned.next_wake_ms
        if not planned.decisions:
            return ()
        event = Decided(
            plan=Plan(as_of=planned.as_of, decisions=planned.decisions), policy=self._policy.NAME, version=self._version
        )
        stamped = Stamped(self._state.seq + 1, now_ms, event, closes=False)
        touched = self._state.apply(stamped)
        return planned.decisions if self._write([stamped], touched, now_ms) else ()

    def _write(self, stamped: list[Stamped], touched: Iterable[Gang], now_ms: int) -> bool:
        """Append; on failure the state is folded anew from the log, which has not changed."""
        try:
            self._log.append(stamped, [project(gang, now_ms) for gang in touched])
        except Refused as refused:
            self._health = refused.detail
            self._state = self._log.restore()
            self.next_wake_ms = now_ms + RETRY_MS
            return False
        self._health = "ok"
        return True

    def _put_off(self, wishes: list[Wish]) -> None:
        """Requests are refused for want of room; facts are kept and tried again: what happened has happened."""
        for event, done in wishes:
            if done.done():
                continue
            if _is_request(event):
                done.set_exception(Refused("no_room", self._health, "free some space, then try again", 507))
            else:
                self._unwritten.append((event, done))

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            gang = self._state.gangs.get(getattr(decision, "gang", ""))
            if gang is None:
                continue
            if isinstance(decision, Start):
                self._backend.start(decision, gang.job)
            elif isinstance(decision, Stop) and decision.generation:
                self._backend.stop(decision, gang.job)

    def _gone(self, gang: str) -> bool:
        return gang not in self._state.gangs

    def _live(self) -> list[Live]:
        """Generations that hold nodes by the log."""
        lives = []
        for gang, _ in self._state.holding():
            stopping = None
            if gang.stop_sent and gang.state in (GangState.REQUEUEING, GangState.FAILING, GangState.STOPPING):
                stopping = Stop(gang=gang.id, generation=gang.generation, cause=gang.stop_sent)
            assert gang.start is not None, "a gang that holds nodes has a start"
            lives.append(Live(job=gang.job, start=gang.start, stopping=stopping))
        return lives


def copy_of(state: State) -> State:
    """A state that can be read while the other goes on: nothing that changes is shared."""
    image = state.image()
    image.gangs = [_copy_of(gang) for gang in image.gangs]
    return State(image)


def _copy_of(gang: Gang) -> Gang:
    return replace(
        gang,
        account=copy.copy(gang.account),
        left=list(gang.left),
        started=list(gang.started),
        finished=list(gang.finished),
    )


def _is_request(event: Event) -> bool:
    """Whether somebody asked for it and waits for an answer; everything else is a fact."""
    return event.kind in (
        "submitted",
        "stop_requested",
        "deleted",
        "queue_set",
        "queue_deleted",
        "node_cordoned",
        "node_uncordoned",
    )
