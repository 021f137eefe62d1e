"""One generation of a gang on this node, from its set-up line to the moment nothing of it is left. Driven by `runtime`.

Order on disk and wire: every exit record before it is reported, last progress before `exited`, `finished` and
`cleared`, and `cleared` only after the last process is gone.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from ganger.launcher import strays
from ganger.launcher.logs import note
from ganger.launcher.process import Process, StartError, ending, write_exit_record
from ganger.launcher.reports import Reports
from ganger.launcher.stopping import Stop
from ganger.launcher.task import now_ms, write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import selectors
    from collections.abc import Callable
    from typing import Any

    from ganger.launcher.plan import Plan
    from ganger.launcher.task import TaskDirectory

FAREWELL_S = 0.05  # between looks whether the groups of ended ranks are gone, while they are stopped
NEVER = float("inf")
ARCHIVE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The zipapp this runs from: on a rank's PYTHONPATH it holds ganger.train."""


class Generation:
    """`fact` and `say` send a message about this generation. `is_over` once it is cleared, and that is reported."""

    def __init__(
        self,
        task: TaskDirectory,
        plan: Plan,
        selector: selectors.BaseSelector,
        fact: Callable[..., None],
        say: Callable[..., None],
    ) -> None:
        self.number = plan.generation
        self.is_over = False
        self._task = task
        self._plan = plan
        self._selector = selector
        self._fact = fact
        self._say = say
        self._directory = task.generation(plan.generation)
        self._setup: Process | None = None
        self._ranks: dict[int, Process] = {}
        self._reports: Reports | None = None
        self._stop: Stop | None = None
        self._outcome_told = False  # by `exited`, `start_failed` or `finished`, whichever came first
        self._look_at = NEVER
        self._pause_s = strays.FIRST_PAUSE_S

    @property
    def due(self) -> float:
        """When `tick` has something to do, in monotonic seconds."""
        times = [process.due for process in self._processes()]
        times.append(self._look_at)
        if self._reports is not None and self._running():
            times.append(self._reports.due)
        if self._stop is not None and self._running():
            times.append(self._stop.due)
        return min(times)

    def begin(self) -> None:
        try:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            if self._plan.setup is not None:
                self._setup = self._start(["/bin/sh", "-c", self._plan.setup], {}, "setup")
            else:
                self._start_ranks()
        except StartError as error:
            self._cannot_start(error.detail, error.exit_code, [])
        except OSError as error:
            self._cannot_start(f"the directory {self._directory} cannot be made: {error.strerror}", 126, [])

    def stop(self, cause: str, notice_s: float, kill_after_s: float) -> None:
        """Notice, SIGTERM, SIGKILL; only what ranks do is worth a notice."""
        now = time.monotonic()
        if not self._ranks:
            notice_s = 0
        if self._stop is None:
            self._stop = Stop(now, notice_s, kill_after_s)
            if notice_s > 0 and self._running():
                self._give_notice(cause, notice_s)
        elif self._stop.hasten(now, notice_s, kill_after_s) and notice_s > 0:
            self._write_notice(cause, notice_s)
        self.tick(now)

    def ended(self, statuses: dict[int, int]) -> None:
        """Children of the launcher that ended: pid -> status, of which those of this generation count."""
        mine = [process for process in self._processes() if process.pid in statuses]
        for process in mine:
            process.ended(statuses[process.pid])
        if self._setup is not None and self._setup in mine:
            self._setup_ended(self._setup)
        self._ranks_ended({rank: process for rank, process in self._ranks.items() if process in mine})
        if mine:
            self._leave_if_done()

    def tick(self, now: float) -> None:
        for process in self._processes():
            process.tick(now)
        if self._reports is not None and self._running():
            self._reports.tick(now)
        number = self._stop.step(now) if self._stop is not None else None
        if number is not None:
            for process in self._processes():
                process.send(number)
        if now >= self._look_at:
            self._leave_if_done()

    # -- beginning ---------------------------------------------------------------------------------------------------

    def _start(self, argv: list[str], own: dict[str, str], name: str) -> Process:
        environment = {
            **self._plan.environment,
            **own,
            strays.MARK: self._directory,
            "GANGER_TASK": f"{self._plan.gang}.{self.number}",
        }
        path = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{path}:{ARCHIVE}" if path else ARCHIVE
        process = Process(argv, self._plan.directory, environment)
        process.log_to(os.path.join(self._directory, f"{name}.log"), self._selector)
        return process

    def _start_ranks(self) -> None:
        for rank, own in self._plan.ranks:
            try:
                self._ranks[rank] = self._start(self._plan.argv, own, f"rank-{rank}")
            except StartError as error:
                how = {"exit_code": error.exit_code}
                self._record(rank, how, [error.detail])
                raise
        paths = {rank: os.path.join(self._directory, f"rank-{rank}.report") for rank in self._ranks}
        self._reports = Reports(paths, self._fact, self._say, time.monotonic())
        pids = {str(rank): [process.pid, process.start_ticks] for rank, process in self._ranks.items()}
        self._write("started", {"at_ms": now_ms(), "pids": pids})
        self._fact("started", pids=pids)

    def _setup_ended(self, setup: Process) -> None:
        if setup.code == 0 and self._stop is None:
            try:
                self._start_ranks()
            except StartError as error:
                self._cannot_start(error.detail, error.exit_code, [])
        elif self._stop is None:
            code = setup.code or 0
            how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
            self._cannot_start(f"the setup line {how}", 128 - code if code < 0 else code, setup.last_lines())

    def _cannot_start(self, detail: str, exit_code: int, tail: list[str]) -> None:
        self._outcome_told = True
        self._fact("start_failed", detail=f"{detail} (on {self._plan.node})", exit_code=exit_code, tail=tail)
        self.stop("start_failed", 0, 0)
        self._leave_if_done()

    # -- ending ------------------------------------------------------------------------------------------------------

    def _ranks_ended(self, ended: dict[int, Process]) -> None:
        if not ended:
            return
        for rank, process in ended.items():
            self._record(rank, {"pid": process.pid, **ending(process.code or 0)}, process.last_lines())
        failed = {rank: process for rank, process in ended.items() if process.code != 0}
        if failed and not self._outcome_told and self._stop is None:
            self._outcome_told = True
            # Of several that ended together, one that was killed did not fail because of the others.
            rank = min(failed, key=lambda rank: ((failed[rank].code or 0) > 0, rank))
            self._flush_reports()
            self._fact("exited", rank=rank, **ending(failed[rank].code or 0), tail=failed[rank].last_lines())

    def _leave_if_done(self) -> None:
        """When every process has ended: say how, and clear away what they left behind."""
        self._look_at = NEVER
        if self.is_over or self._running():
            return
        if self._lingering():
            self._look_at = time.monotonic() + FAREWELL_S
            return
        self._flush_reports()
        if self._stop is None and not self._outcome_told:
            self._outcome_told = True
            self._fact("finished")
        for process in self._processes():
            process.close()  # also what strays may still print: they have no time left
        found = strays.strays(self._directory, frozenset(process.pid for process in self._processes()))
        if found:
            strays.kill(found)
            self._look_at = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, strays.LONGEST_PAUSE_S)
            return
        self._clear()

    def _clear(self) -> None:
        with suppress(OSError):  # there may be none
            os.unlink(os.path.join(self._directory, "notice"))
        try:
            self._task.mark_cleared(self.number)
        except OSError as error:
            note(f"generation {self.number} is cleared, which cannot be written down: {error.strerror}")
        self.is_over = True
        self._fact("cleared")

    def _running(self) -> bool:
        return any(process.code is None for process in self._processes())

    def _lingering(self) -> bool:
        """Whether ranks that ended left children which still have time to end in their own way."""
        stop = self._stop
        if stop is None or stop.sent != signal.SIGTERM or time.monotonic() >= stop.kill_at:
            return False
        return any(process.lingers() for process in self._processes())

    def _processes(self) -> list[Process]:
        return [*([self._setup] if self._setup is not None else []), *self._ranks.values()]

    # -- words -------------------------------------------------------------------------------------------------------

    def _give_notice(self, cause: str, notice_s: float) -> None:
        self._write_notice(cause, notice_s)
        name = self._plan.signal
        if name is None:
            return
        try:
            number = signal.Signals[name]
        except KeyError:
            note(f"there is no signal {name}: the ranks get the notice file alone")
            return
        # Only where somebody handles it: it would end a shell that merely waits for the rank's program.
        sessions = frozenset(process.pid for process in self._ranks.values() if process.code is None)
        for pid in strays.catchers(sessions, number):
            with suppress(OSError):  # it may have ended meanwhile
                os.kill(pid, number)

    def _write_notice(self, cause: str, notice_s: float) -> None:
        self._write("notice", {"cause": cause, "deadline_ms": now_ms() + int(notice_s * 1000)})

    def _record(self, rank: int, how: dict[str, Any], tail: list[str]) -> None:
        try:
            write_exit_record(os.path.join(self._directory, f"rank-{rank}.exit"), rank, how, tail)
        except OSError as error:
            note(f"the end of rank {rank} ({how}) cannot be written down: {error.strerror}")

    def _write(self, name: str, value: object) -> None:
        try:
            write_json(os.path.join(self._directory, name), value)
        except OSError as error:
            note(f"{name} of generation {self.number} cannot be written: {error.strerror}")

    def _flush_reports(self) -> None:
        if self._reports is not None:
            self._reports.flush(time.monotonic())
