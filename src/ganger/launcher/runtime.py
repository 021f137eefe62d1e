"""The launcher's event loop: ranks, their output, the server and timers, in one thread.

It runs one generation at a time. Ranks continue however long the server is away.
"""

from __future__ import annotations

import os
import selectors
import signal
import time

from ganger.launcher.generation import LAUNCHER_STOPPED, Generation
from ganger.launcher.health.leftovers import record_cleared
from ganger.launcher.health.procfs import start_ticks
from ganger.launcher.logs.log_records import note
from ganger.launcher.protocol.link import Link, MessageSender
from ganger.launcher.protocol.messages import LARGEST
from ganger.launcher.ranks.process import SharedParts, Starter, StartError
from ganger.launcher.ranks.stop_signals import Eviction
from ganger.launcher.task_plan import BadPlanError, load_plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ganger.launcher.logs.stdout_mirror import StdoutMirror
    from ganger.launcher.protocol.server_address import Server
    from ganger.launcher.ranks.warm_ranks import WarmRanks
    from ganger.launcher.task_directory import TaskDirectory
    from ganger.launcher.task_plan import Plan

IDLE_S = 60.0  # without ranks and server, before it exits
REMOTE_IDLE_S = 600.0  # the same in a container, where it would not be started again
ZYGOTE_IDLE_S = 60.0  # without ranks, before the zygote ends: the nodes may belong to another gang by now
ORPHANED_S = 2.0  # without server and directory, before it ends its ranks
LAST_ACK_S = 2.0  # for the server to acknowledge the last facts, before it exits
TERM_GRACE_S = 5.0
NO_PLAN = 66  # sysexits.h: exit code if the first plan cannot be read
NO_SERVER = 69  # exit code if no server ever said what to run


class Launcher:
    """The launcher of one task.

    `identity` is the gang, the node and the first generation; gang and node never change. `stdout` is the descriptor to
    which the output of ranks is mirrored, if any.
    """

    def __init__(self, task: TaskDirectory, server: Server, identity: tuple[str, str, int], stdout: int | None) -> None:
        self._task = task
        self._gang, self._node, self._first = identity
        self._selector = selectors.DefaultSelector()
        self._link = Link(server, self._selector, self._hello, self._receive)
        self._shared = SharedParts(self._selector, _open_mirror(stdout, self._selector))
        self._max_idle_s = REMOTE_IDLE_S if server.is_remote else IDLE_S
        self._exit_code = NO_SERVER if server.is_remote else 0
        self._current: Generation | None = None
        self._next: int | None = None  # waits until the current one is cleared
        self._finished_generations: set[int] = set()  # besides those recorded on disk
        self._is_leaving = False
        self._was_terminated = False
        self._eviction = Eviction(os.environ.get("GANGER_GRACE_PERIOD_S", ""), TERM_GRACE_S)
        self._idle_since = time.monotonic()  # nothing runs, and the server is away or has said to leave
        self._ran_at = time.monotonic()  # when ranks ran last
        self._warmed: int | None = None  # the generation whose modules are imported, and which has not begun
        self._orphaned_since = float("inf")
        self._lacks_token = False
        self._wake_fds = self._listen_to_signals()

    def run(self) -> int:
        """Start the first generation, if its plan exists, then serve until there is nothing left to do.

        Returns the exit code of the newest generation that ran here.
        """
        if not self._link.is_remote or os.path.exists(self._task.plan(self._first)):
            self._run(self._first, None)
        while not self._is_done():
            due = self._due()
            ready = self._selector.select(None if due == float("inf") else max(0.0, due - time.monotonic()))
            if self._current is not None or (self._link.is_up and not self._is_leaving):
                self._idle_since = time.monotonic()
            for key, _ in ready:
                key.data()
            self._run_once()
        self._link.close()
        if self._shared.mirror is not None:
            self._shared.mirror.close()
        return self._exit_code

    def _run_once(self) -> None:
        if self._was_terminated:
            self._was_terminated = False
            self._terminate(time.monotonic())
        notice_s = self._eviction.step(time.monotonic())
        if notice_s is not None:
            self._stop_all(notice_s)
        self._reap()
        if self._current is not None:
            self._ran_at = time.monotonic()
            self._current.tick(time.monotonic())
            self._start_next()
        elif self._shared.warm is not None and time.monotonic() >= self._ran_at + ZYGOTE_IDLE_S:
            self._shared.warm.close()
            self._shared.warm = None
        self._link.tick(time.monotonic())
        self._check_orphaned(time.monotonic())

    def _terminate(self, now: float) -> None:
        """End everything; the first time in a container that is evicted, by notice, and with the whole gang.

        The server stops the gang, so that all ranks save the same step. If it is away, or does not reply, the ranks
        here get their notice without it.
        """
        if self._current is not None and self._eviction.begin(now, has_server=self._link.is_up):
            note(f"told to end by another program: generation {self._current.number} has {self._eviction.notice_s:g} s")
            self._task.mark_evicted(self._current.number)
            self._fact(self._current.number, "evicted", notice_ms=round(1000 * self._eviction.notice_s))
        elif not self._eviction.awaits_server:
            self._stop_all(0)

    def _stop_all(self, notice_s: float) -> None:
        self._leave()
        if self._current is not None:
            self._current.stop(LAUNCHER_STOPPED, notice_s, TERM_GRACE_S)

    def _check_orphaned(self, now: float) -> None:
        """End the launcher, which can no longer be stopped, if its directory was deleted and the server is away."""
        if self._link.is_up or not _is_deleted(self._task.path):
            self._orphaned_since = float("inf")
            return
        self._orphaned_since = min(self._orphaned_since, now)
        if now >= self._orphaned_since + ORPHANED_S and not self._is_leaving:
            self._stop_all(0)

    def _due(self) -> float:
        due = min(self._link.due, self._eviction.due)
        if self._current is not None:
            return min(due, self._current.due)
        due = min(due, self._idle_since + (LAST_ACK_S if self._is_leaving else self._max_idle_s))
        return due if self._shared.warm is None else min(due, self._ran_at + ZYGOTE_IDLE_S)

    def _is_done(self) -> bool:
        if self._current is not None:
            return False
        idle_s = time.monotonic() - self._idle_since
        if self._is_leaving:
            is_orphaned = self._orphaned_since != float("inf")
            return not self._link.has_unacknowledged or idle_s >= LAST_ACK_S or is_orphaned
        return idle_s >= self._max_idle_s

    # -- processes ---------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        """Wait for every child that has ended: ranks and what they left behind."""
        statuses: dict[int, int] = {}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            statuses[pid] = status
        if statuses and self._shared.warm is not None:
            self._shared.warm.ended(statuses)
        if statuses and self._current is not None:
            self._current.ended(statuses)

    def _start_next(self) -> None:
        """Start the next generation once the current one is over."""
        while self._current is not None and self._current.is_over:
            self._finished_generations.add(self._current.number)
            self._exit_code = self._current.exit_code
            next_generation, self._current, self._next = self._next, None, None
            if next_generation is not None:
                self._begin(next_generation)

    def _listen_to_signals(self) -> tuple[int, int]:
        wake_reader, wake_writer = os.pipe()
        for fd in (wake_reader, wake_writer):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_terminate)
        self._selector.register(wake_reader, selectors.EVENT_READ, self._drain_wakeups)
        return wake_reader, wake_writer

    def _drain_wakeups(self) -> None:
        try:
            while os.read(self._wake_fds[0], 4096):
                pass
        except BlockingIOError:
            pass

    def _on_terminate(self, number: int, frame: object) -> None:
        self._was_terminated = True  # the loop does the rest: a signal may arrive at any point

    # -- the server --------------------------------------------------------------------------------------------------

    def _hello(self) -> dict[str, Any]:
        try:
            with open(os.environ.get("GANGER_TOKEN_FILE") or self._task.file("token"), encoding="utf-8") as file:
                token = file.read().strip()
        except OSError as error:
            if not self._lacks_token:  # logged once, though it is read with each attempt
                note(f"cannot read the token for the server: {error}")
            token = ""
        self._lacks_token = not token
        generations = [self._current.number] if self._current is not None else []
        return {
            "token": token,
            "gang": self._gang,
            "node": self._node,
            "pid": os.getpid(),
            "start_ticks": start_ticks(os.getpid()),
            "generations": generations + ([self._next] if self._next is not None else []),
            "generation": self._first,
            "address": os.environ.get("GANGER_POD_IP") if self._link.is_remote else None,
        }

    def _receive(self, message: dict[str, Any]) -> None:
        try:
            if message["type"] == "welcome":
                self._announce()
            elif message["type"] == "leave":
                self._leave()
            elif message["type"] == "take_stacks":
                self._take_stacks(_check_count(message["generation"]), message["py_spy"])
            elif message["type"] in ("get_counts", "propose", "agree", "withdraw"):
                if self._current is not None and self._current.number == message["generation"]:
                    self._current.schedule_checkpoints(message)
            elif message["type"] == "proceed":
                self._proceed(
                    _check_count(message["generation"]), _check_count(message["stage"]), dict(message["agents"])
                )
            elif message["type"] == "run":
                self._run(_check_count(message["generation"]), message.get("plan"))
            elif message["type"] == "read_file":
                self._read(
                    _check_count(message["generation"]), message["id"], str(message["name"]), int(message["start"])
                )
            elif message["type"] == "stop":
                notice_s, kill_after_s = (_check_count(message[name]) / 1000 for name in ("notice_ms", "kill_after_ms"))
                saved_step = message.get("saved_step")
                if saved_step is not None and (type(saved_step) is not int or abs(saved_step) > LARGEST):
                    raise ValueError(f"{saved_step!r} is not a step")
                generation = _check_count(message["generation"])
                self._stop(generation, str(message["cause"]), notice_s, kill_after_s, saved_step)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            note(f"ignored {message['type']}: {error!r}")

    def _announce(self) -> None:
        """Repeat to a newly connected server what it may have missed."""
        if self._current is not None:
            self._current.announce()
        elif self._warmed is not None:
            self._tell_warmed(self._warmed)

    def _run(self, generation: int, plan: object) -> None:
        """Start a generation, or the next one after the current; `plan` comes from a server on another machine."""
        current = self._current
        if current is not None and generation in (current.number, self._next):
            return
        if (
            self._is_leaving
            or self._is_over(generation)
            or (current is not None and generation < current.number)
            or (plan is not None and not self._take_plan(generation, plan))
        ):
            self._mark_never_run(generation)
        elif current is None:
            self._begin(generation)
        else:
            if self._next is not None:
                self._mark_never_run(self._next)
            self._next = generation
            current.stop("replaced", 0, 0)

    def _take_plan(self, generation: int, plan: object) -> bool:
        try:
            self._task.write_plan(generation, plan)
        except OSError as error:
            detail = f"cannot write the plan to {self._task.path}: {error.strerror}"
            self._fact(generation, "start_failed", detail=detail, exit_code=NO_PLAN, tail=[])
            self._exit_code = NO_PLAN
            return False
        return True

    def _read(self, generation: int, number: object, name: str, start: int) -> None:
        from ganger.launcher.logs.read_piece import content  # only needed for a server that shares no disk

        piece = content(self._task.generation(generation), name, start)
        self._link.send_state("file_content", **self._message_fields(generation), id=number, **piece)

    def _proceed(self, generation: int, stage: int, agents: dict[str, Any]) -> None:
        if self._current is not None and self._current.number == generation:
            self._current.proceed(stage, agents)
            self._start_next()

    def _take_stacks(self, generation: int, py_spy: object) -> None:
        if self._current is not None and self._current.number == generation:
            self._current.take_stacks(py_spy if isinstance(py_spy, str) else None)

    def _stop(self, generation: int, cause: str, notice_s: float, kill_after_s: float, saved_step: int | None) -> None:
        if self._current is not None and self._current.number == generation:
            self._current.stop(cause, notice_s, kill_after_s, saved_step)
            return
        if generation == self._next:
            self._next = None
        self._mark_never_run(generation)

    def _leave(self) -> None:
        self._is_leaving = True
        if self._exit_code == NO_SERVER:
            self._exit_code = 0
        self._idle_since = time.monotonic()
        if self._next is not None:
            self._mark_never_run(self._next)
            self._next = None

    # -- generations -------------------------------------------------------------------------------------------------

    def _begin(self, generation: int) -> None:
        try:
            plan = load_plan(self._task.plan(generation), generation)
            if (plan.gang, plan.node) != (self._gang, self._node):
                raise BadPlanError(f"the plan is of {plan.gang} on {plan.node}, not of {self._gang} on {self._node}")
        except BadPlanError as error:
            self._fact(generation, "start_failed", detail=str(error), exit_code=NO_PLAN, tail=[])
            self._exit_code = NO_PLAN
            self._mark_never_run(generation)
            return
        sender = MessageSender(self._link, self._message_fields(generation))
        if plan.warm_words and self._shared.warm is None:
            from ganger.launcher.ranks.warm_ranks import WarmRanks  # rarely needed

            self._shared.warm = WarmRanks(self._task.file("zygote"), self._selector)
        if plan.warm_only and self._shared.warm is not None:
            self._warm_up(plan, self._shared.warm)
            return
        self._warmed = None
        self._current = Generation(self._task, plan, sender, self._shared)
        self._current.begin()
        self._start_next()

    def _warm_up(self, plan: Plan, warm: WarmRanks) -> None:
        """Import the modules of a generation that begins later; tell the server when that is over."""
        self._ran_at = time.monotonic()
        starter = Starter(plan, self._task.generation(plan.generation), self._shared, None)
        try:
            starter.load_secrets()
        except StartError:
            self._tell_warmed(plan.generation)  # the generation will report it
            return
        environments = [starter.environment(rank.environment) for rank in plan.ranks]
        warm.prepare(plan, environments, lambda: self._tell_warmed(plan.generation))

    def _tell_warmed(self, generation: int) -> None:
        self._warmed = generation
        self._link.send_state("warmed", **self._message_fields(generation))

    def _mark_never_run(self, generation: int) -> None:
        """Report that nothing of the generation is here, and record it, so that a late message does not start it."""
        if not self._is_over(generation):
            self._finished_generations.add(generation)
            record_cleared(self._task, generation)
        self._fact(generation, "cleared")

    def _is_over(self, generation: int) -> bool:
        return generation in self._finished_generations or self._task.is_cleared(generation)

    def _fact(self, generation: int, kind: str, **fields: Any) -> None:
        self._link.send_fact(kind, **self._message_fields(generation), **fields)

    def _message_fields(self, generation: int) -> dict[str, Any]:
        return {"gang": self._gang, "node": self._node, "generation": generation}


def _is_deleted(path: str) -> bool:
    """Return whether a directory is gone. One that is closed to this process for a while is not."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _check_count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST:
        raise ValueError(f"{str(value)[:100]!r} is not a whole number from 0 to {LARGEST}")
    return value


def _open_mirror(stdout: int | None, selector: selectors.BaseSelector) -> StdoutMirror | None:
    if stdout is None:
        return None
    from ganger.launcher.logs.stdout_mirror import StdoutMirror

    return StdoutMirror(stdout, selector)
