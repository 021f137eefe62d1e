"""The launcher's one loop: ranks, their output, the server and the clock, in one thread. Called by `main`.

It runs one generation at a time. The server may be away for as long as it likes: what runs goes on.
"""

from __future__ import annotations

import os
import selectors
import signal
import time

from ganger.launcher.generation import LAUNCHER_STOPPED, Generation
from ganger.launcher.health.procfs import start_ticks
from ganger.launcher.logs.log_records import note
from ganger.launcher.protocol.link import Link, Speaker
from ganger.launcher.protocol.messages import LARGEST
from ganger.launcher.task_plan import BadPlanError, load_plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ganger.launcher.logs.stdout_mirror import StdoutMirror
    from ganger.launcher.protocol.server_address import Server
    from ganger.launcher.task_directory import TaskDirectory

ALONE_S = 60.0  # with no rank and no server, before it leaves
REMOTE_ALONE_S = 600.0  # where nobody would start it again
DESERTED_S = 2.0  # without a server and without its directory, before it ends its ranks
FAREWELL_S = 2.0  # for the server to acknowledge the last facts, before it leaves
TERM_GRACE_S = 5.0
NO_PLAN = 66  # sysexits.h: what a launcher exits with whose first plan cannot be read
NO_SERVER = 69  # that never had a server to tell it what to run


class Launcher:
    """`about` is the gang, the node and the generation it was started for; gang and node never change. `stdout` is
    where the lines of ranks go besides their logs, if anywhere."""

    def __init__(self, task: TaskDirectory, server: Server, about: tuple[str, str, int], stdout: int | None) -> None:
        self._task = task
        self._gang, self._node, self._first = about
        self._selector = selectors.DefaultSelector()
        self._link = Link(server, self._selector, self._hello, self._receive)
        self._echo = _echo(stdout, self._selector)
        self._alone_s = REMOTE_ALONE_S if server.is_remote else ALONE_S
        self._exit_code = NO_SERVER if server.is_remote else 0
        self._current: Generation | None = None
        self._next: int | None = None  # waits until the current one is cleared away
        self._over: set[int] = set()  # besides those that the disk knows
        self._leaving = False
        self._was_terminated = False
        self._quiet_since = time.monotonic()  # nothing runs, and the server is away or has told us to leave
        self._deserted_since = float("inf")
        self._has_no_token = False
        self._signals = self._listen_to_signals()

    def run(self) -> int:
        """Begin the first generation, if its plan is here, then serve until there is nothing left to do. Gives the exit
        code of the newest generation that was here."""
        if not self._link.is_remote or os.path.exists(self._task.plan(self._first)):
            self._run(self._first, None)
        while not self._is_done():
            due = self._due()
            ready = self._selector.select(None if due == float("inf") else max(0.0, due - time.monotonic()))
            if self._current is not None or (self._link.is_up and not self._leaving):
                self._quiet_since = time.monotonic()
            for key, _ in ready:
                key.data()
            self._turn()
        self._link.close()
        if self._echo is not None:
            self._echo.close()
        return self._exit_code

    def _turn(self) -> None:
        if self._was_terminated:
            self._was_terminated = False
            self._leave()
            if self._current is not None:
                self._current.stop(LAUNCHER_STOPPED, 0, TERM_GRACE_S)
        self._collect()
        if self._current is not None:
            self._current.tick(time.monotonic())
            self._settle()
        self._link.tick(time.monotonic())
        self._see_whether_deserted(time.monotonic())

    def _see_whether_deserted(self, now: float) -> None:
        """Nobody can find, stop or ever let in a launcher whose directory was deleted, once it has lost the server."""
        if self._link.is_up or os.path.exists(self._task.path):
            self._deserted_since = float("inf")
            return
        self._deserted_since = min(self._deserted_since, now)
        if now >= self._deserted_since + DESERTED_S and not self._leaving:
            self._was_terminated = True

    def _due(self) -> float:
        if self._current is not None:
            return min(self._link.due, self._current.due)
        return min(self._link.due, self._quiet_since + (FAREWELL_S if self._leaving else self._alone_s))

    def _is_done(self) -> bool:
        if self._current is not None:
            return False
        quiet_s = time.monotonic() - self._quiet_since
        if self._leaving:
            deserted = self._deserted_since != float("inf")
            return not self._link.has_unacknowledged or quiet_s >= FAREWELL_S or deserted
        return quiet_s >= self._alone_s

    # -- processes ---------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Wait for every child that has ended, ranks and what they left behind."""
        statuses: dict[int, int] = {}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            statuses[pid] = status
        if statuses and self._current is not None:
            self._current.ended(statuses)

    def _settle(self) -> None:
        """Go on to the next generation once the current one is over."""
        while self._current is not None and self._current.is_over:
            self._over.add(self._current.number)
            self._exit_code = self._current.exit_code
            following, self._current, self._next = self._next, None, None
            if following is not None:
                self._begin(following)

    def _listen_to_signals(self) -> tuple[int, int]:
        wake, woken = os.pipe()
        for fd in (wake, woken):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._terminated)
        self._selector.register(wake, selectors.EVENT_READ, self._woken)
        return wake, woken

    def _woken(self) -> None:
        try:
            while os.read(self._signals[0], 4096):
                pass
        except BlockingIOError:
            pass

    def _terminated(self, number: int, frame: object) -> None:
        self._was_terminated = True  # the loop does the rest: this may come in the middle of anything

    # -- the server --------------------------------------------------------------------------------------------------

    def _hello(self) -> dict[str, Any]:
        try:
            with open(os.environ.get("GANGER_TOKEN_FILE") or self._task.file("token"), encoding="utf-8") as file:
                token = file.read().strip()
        except OSError as error:
            if not self._has_no_token:  # it is asked for each second
                note(f"there is no token to show the server: {error}")
            token = ""
        self._has_no_token = not token
        here = [self._current.number] if self._current is not None else []
        return {
            "token": token,
            "gang": self._gang,
            "node": self._node,
            "pid": os.getpid(),
            "start_ticks": start_ticks(os.getpid()),
            "generations": here + ([self._next] if self._next is not None else []),
            "generation": self._first,
            "address": os.environ.get("GANGER_POD_IP") if self._link.is_remote else None,
        }

    def _receive(self, message: dict[str, Any]) -> None:
        try:
            if message["type"] == "welcome":
                if self._current is not None:
                    self._current.announce()
            elif message["type"] == "leave":
                self._leave()
            elif message["type"] == "stacks":
                self._take_stacks(_whole(message["generation"]), message["py_spy"])
            elif message["type"] in ("count", "propose", "agree", "withdraw"):
                if self._current is not None and self._current.number == message["generation"]:
                    self._current.schedule_checkpoints(message)
            elif message["type"] == "proceed":
                self._proceed(_whole(message["generation"]), _whole(message["stage"]), dict(message["agents"]))
            elif message["type"] == "run":
                self._run(_whole(message["generation"]), message.get("plan"))
            elif message["type"] == "read":
                self._read(_whole(message["generation"]), message["id"], str(message["name"]), int(message["start"]))
            elif message["type"] == "stop":
                notice_s, kill_after_s = (_whole(message[name]) / 1000 for name in ("notice_ms", "kill_after_ms"))
                self._stop(_whole(message["generation"]), str(message["cause"]), notice_s, kill_after_s)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            note(f"ignored {message['type']}: {error!r}")

    def _run(self, generation: int, plan: object) -> None:
        """`plan` comes from a server that cannot write it to the disk."""
        current = self._current
        if current is not None and generation in (current.number, self._next):
            return
        if (
            self._leaving
            or self._is_over(generation)
            or (current is not None and generation < current.number)
            or (plan is not None and not self._take_plan(generation, plan))
        ):
            self._never_run(generation)
        elif current is None:
            self._begin(generation)
        else:
            if self._next is not None:
                self._never_run(self._next)
            self._next = generation
            current.stop("replaced", 0, 0)

    def _take_plan(self, generation: int, plan: object) -> bool:
        try:
            self._task.write_plan(generation, plan)
        except OSError as error:
            detail = f"the plan cannot be written to {self._task.path}: {error.strerror}"
            self._fact(generation, "start_failed", detail=detail, exit_code=NO_PLAN, tail=[])
            self._exit_code = NO_PLAN
            return False
        return True

    def _read(self, generation: int, number: object, name: str, start: int) -> None:
        from ganger.launcher.logs.read_piece import content  # only asked for by a server that shares no disk

        found = content(self._task.generation(generation), name, start)
        self._link.state("content", **self._about(generation), id=number, **found)

    def _proceed(self, generation: int, stage: int, agents: dict[str, Any]) -> None:
        if self._current is not None and self._current.number == generation:
            self._current.proceed(stage, agents)
            self._settle()

    def _take_stacks(self, generation: int, py_spy: object) -> None:
        if self._current is not None and self._current.number == generation:
            self._current.take_stacks(py_spy if isinstance(py_spy, str) else None)

    def _stop(self, generation: int, cause: str, notice_s: float, kill_after_s: float) -> None:
        if self._current is not None and self._current.number == generation:
            self._current.stop(cause, notice_s, kill_after_s)
            return
        if generation == self._next:
            self._next = None
        self._never_run(generation)

    def _leave(self) -> None:
        self._leaving = True
        if self._exit_code == NO_SERVER:
            self._exit_code = 0
        self._quiet_since = time.monotonic()
        if self._next is not None:
            self._never_run(self._next)
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
            self._never_run(generation)
            return
        tell = Speaker(self._link, self._about(generation))
        self._current = Generation(self._task, plan, self._selector, tell, self._echo)
        self._current.begin()
        self._settle()

    def _never_run(self, generation: int) -> None:
        """Nothing of it is here; remember that, so that it is not begun by a message that comes late."""
        if not self._is_over(generation):
            self._over.add(generation)
            try:
                self._task.mark_cleared(generation)
            except OSError as error:
                note(f"generation {generation} is cleared, which cannot be written down: {error.strerror}")
        self._fact(generation, "cleared")

    def _is_over(self, generation: int) -> bool:
        return generation in self._over or self._task.is_cleared(generation)

    def _fact(self, generation: int, kind: str, **fields: Any) -> None:
        self._link.fact(kind, **self._about(generation), **fields)

    def _about(self, generation: int) -> dict[str, Any]:
        return {"gang": self._gang, "node": self._node, "generation": generation}


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST:
        raise ValueError(f"{str(value)[:100]!r} is not a whole number from 0 to {LARGEST}")
    return value


def _echo(stdout: int | None, selector: selectors.BaseSelector) -> StdoutMirror | None:
    if stdout is None:
        return None
    from ganger.launcher.logs.stdout_mirror import StdoutMirror

    return StdoutMirror(stdout, selector)
