"""One generation of a gang on this node, from its set-up line to the moment nothing of it is left. Driven by `runtime`.

Order on disk and wire: every exit record before it is reported, last progress before `done`, `exited`, `finished` and
`cleared`, and `cleared` only after the last process is gone.
"""

from __future__ import annotations

import signal
import time

from ganger.launcher.health import leftovers
from ganger.launcher.health.out_of_memory import OutOfMemory
from ganger.launcher.logs.log_file import LogFile
from ganger.launcher.logs.log_records import note
from ganger.launcher.logs.redaction import Redaction, load_secrets
from ganger.launcher.ranks.checkpoint_counts import CheckpointCounts
from ganger.launcher.ranks.exit_records import Records
from ganger.launcher.ranks.process import NOT_EXECUTABLE, OF_ITS_OWN, Process, StartError, ending
from ganger.launcher.ranks.process_environment import environment_of, placed
from ganger.launcher.ranks.rank_reports import Reports
from ganger.launcher.ranks.resume import Resumption
from ganger.launcher.ranks.stop_signals import StopSignals
from ganger.launcher.remote_exec.agent import Agent
from ganger.launcher.task_directory import now_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    import selectors
    from typing import Any

    from ganger.launcher.health.monitor import Monitor
    from ganger.launcher.logs.stdout_mirror import StdoutMirror
    from ganger.launcher.protocol.link import Speaker
    from ganger.launcher.task_directory import TaskDirectory
    from ganger.launcher.task_plan import Plan, RankPlan

LAUNCHER_STOPPED = "launcher_stopped"
"""The cause of a stop that no server has asked for."""
TAILS_CHARACTERS = 128 * 1024
DETAIL_CHARACTERS = 10_000  # as the server takes one line of an exit record
FAREWELL_S = 0.05  # between looks whether the groups of ended ranks are gone, while they are stopped
SHELL = ["/bin/sh", "-c"]
NEVER = float("inf")


class Generation:
    """`tell` sends messages about this generation. `is_over` once it is cleared, and that is reported; `exit_code` is
    that of the first rank that failed here, unless the server had it stopped before, as a shell would give it."""

    def __init__(
        self,
        task: TaskDirectory,
        plan: Plan,
        selector: selectors.BaseSelector,
        tell: Speaker,
        echo: StdoutMirror | None,
    ) -> None:
        self.number = plan.generation
        self.is_over = False
        self.exit_code = 0
        self._task = task
        self._plan = plan
        self._selector = selector
        self._tell = tell
        self._echo = echo
        self._directory = task.generation(plan.generation)
        self._records = Records(self._directory, plan.generation)
        self._resumption = Resumption(plan, tell)
        self._resume_from: dict[str, str] = {}
        self._secrets: dict[str, str] = {}
        self._redaction = Redaction([])
        self._setup: Process | None = None
        self._agent: Agent | None = None
        self._stage = -1
        self._ranks: dict[int, Process] = {}
        self._reports: Reports | None = None
        self._checkpoint_counts: CheckpointCounts | None = None
        self._memory = OutOfMemory(time.monotonic())
        self._lookout: Monitor | None = None
        self._stop: StopSignals | None = None
        self._counts = True  # how ranks end that have not yet
        self._done_told = False
        self._overdue: list[int] = []
        self._outcome_told = False  # by `exited`, `start_failed` or `finished`, whichever came first
        self._look_at = NEVER
        self._pause_s = leftovers.FIRST_PAUSE_S

    @property
    def due(self) -> float:
        """When `tick` has something to do, in monotonic seconds."""
        times = [self._look_at, *(process.due for process in self._processes())]
        times += [part.due for part in (self._agent, self._reports, self._checkpoint_counts) if part is not None]
        if self._stop is not None:
            times.append(self._stop.due)
        elif self._lookout is not None:
            times.append(self._lookout.due)
        return min(times)

    def begin(self) -> None:
        """Run the set-up line, or the first ranks."""
        try:
            self._records.prepare(self._plan)
            self._resume_from = self._resumption.find()
            self._load_secrets()
            if self._plan.setup is not None:
                self._setup = self._start([*SHELL, self._plan.setup], {})
                self._log(self._setup, "setup")
            else:
                self._next_stage()
        except StartError as error:
            self._cannot_start(error.detail, error.exit_code, [])
        except OSError as error:
            self._cannot_start(f"the directory {self._directory} cannot be used: {error.strerror}", NOT_EXECUTABLE, [])

    def proceed(self, stage: int, agents: dict[str, Any]) -> None:
        """Every node is ready with that stage."""
        if stage != self._stage or self._stop is not None or self._stage == self._plan.stages - 1:
            return  # said again
        try:
            if self._plan.agent:
                self._records.agents(agents)
            self._next_stage()
        except StartError as error:
            self._cannot_start(error.detail, error.exit_code, [])
        except OSError as error:
            self._cannot_start(f"agents.json cannot be written: {error.strerror}", NOT_EXECUTABLE, [])

    def take_stacks(self, py_spy: str | None) -> None:
        """Write down where every rank is, and tell the server. `py_spy` is the one it has, if any."""
        from ganger.launcher.health.stacks import program

        if self._lookout is not None:
            spy = program(py_spy, self._plan.environment)
            self._lookout.take_stacks(spy, time.monotonic(), self._last_lines() if self._tell.is_remote else None)

    def schedule_checkpoints(self, message: dict[str, Any]) -> None:
        """Take part in the agreement on when the ranks save. ValueError when the message is not of the protocol."""
        if self._checkpoint_counts is not None:
            self._checkpoint_counts.take(message, time.monotonic())

    def announce(self) -> None:
        """To a server that may not know it: with which stage this node is ready, how the ranks stand."""
        if self._plan.stages > 1 and self._stage >= 0 and self._stop is None:
            port = self._agent.port if self._agent is not None else None
            self._tell.state("ready", stage=min(self._stage, self._plan.stages - 2), agent_port=port)
        if self._lookout is not None and self._stop is None:
            self._lookout.announce()
        if self._checkpoint_counts is not None:
            self._checkpoint_counts.announce()

    def stop(self, cause: str, notice_s: float, kill_after_s: float) -> None:
        """Notice, SIGTERM, SIGKILL; only what ranks do is worth a notice."""
        now = time.monotonic()
        if not self._ranks and not self._plan.agent:
            notice_s = 0
        if self._stop is None:
            self._stop = StopSignals(now, notice_s, kill_after_s)
            self._counts = cause == LAUNCHER_STOPPED
            if self._lookout is not None:
                self._lookout.stopped(cause)
            if notice_s > 0 and (self._running() or self._plan.agent):
                self._give_notice(cause, notice_s)
        elif self._stop.hasten(now, notice_s, kill_after_s) and notice_s > 0:
            self._notify(cause, notice_s)
        if not self._running():
            self._look_at = now
        self.tick(now)

    def ended(self, statuses: dict[int, int]) -> None:
        """Children of the launcher that ended: pid -> status, of which those of this generation count."""
        if self._agent is not None:
            self._agent.ended(statuses)
        mine = [process for process in self._processes() if process.pid in statuses]
        for process in mine:
            process.ended(statuses[process.pid])
        if self._setup is not None and self._setup in mine:
            self._setup_ended(self._setup)
        self._ranks_ended({rank: process for rank, process in self._ranks.items() if process in mine})
        if mine:
            self._leave_if_done()

    def tick(self, now: float) -> None:
        """What is due by the clock."""
        for process in self._processes():
            process.tick(now)
        if self._agent is not None:
            self._agent.tick(now)
        if self._reports is not None:
            self._reports.tick(now)
        if self._checkpoint_counts is not None:
            self._checkpoint_counts.tick(now)
        self._memory.tick(now)
        if self._lookout is not None and self._stop is None:
            self._lookout.tick(now)
        number = self._stop.step(now) if self._stop is not None else None
        if number is not None:
            self._note_overdue(number)
            for process in self._processes():
                process.send(number)
            if self._plan.agent:  # what was started from other nodes
                leftovers.send(leftovers.apart(self._directory, self._sessions()), number)
        if now >= self._look_at:
            self._leave_if_done()

    # -- beginning ---------------------------------------------------------------------------------------------------

    def _load_secrets(self) -> None:
        if self._plan.secrets is None:
            return
        try:
            self._secrets = load_secrets(self._plan.secrets)
        except (OSError, ValueError) as error:
            raise StartError(f"the secrets {self._plan.secrets} cannot be read: {error}") from error
        self._redaction = Redaction(list(self._secrets.values()))

    def _start(self, argv: list[str], own: dict[str, str], *, has_input: bool = False) -> Process:
        environment = environment_of(self._plan, {**self._resume_from, **own}, self._secrets, self._directory)
        words = [placed(word, self._directory) for word in argv]
        return Process(words, self._plan.directory, environment, has_input=has_input)

    def _log(self, process: Process, name: str) -> None:
        log = LogFile(self._records.path(f"{name}.log"), self._plan.log_bytes)
        echoed = log if self._echo is None else self._echo.around(log, name.replace("rank-", ""))
        process.log_to(echoed, self._selector, self._redaction)

    def _next_stage(self) -> None:
        """Begin the next stage. In the last one every rank runs."""
        if self._stage < 0 and self._plan.agent:
            self._agent = self._open_agent()
        self._stage += 1
        for plan in self._plan.ranks:
            if plan.stage == self._stage:
                self._start_rank(plan)
        if self._stage < self._plan.stages - 1:
            self._watch()
            self.announce()
            return
        pids = {str(rank): [process.pid, process.start_ticks] for rank, process in self._ranks.items()}
        self._records.started(pids)
        self._tell.fact("started", pids=pids)
        self._watch()

    def _watch(self) -> None:
        """What the ranks report and whether they stand still."""
        if self._lookout is None:
            from ganger.launcher.health.monitor import Monitor  # not before the ranks run: they would wait for it

            now = time.monotonic()
            harmless = frozenset(plan.rank for plan in self._plan.ranks if plan.is_ignored)
            self._lookout = Monitor(self._directory, self._tell, harmless, now)
            self._reports = Reports(self._directory, self._tell, self._lookout, self._resumption, now)
            polls = "GANGER_CHECKPOINT_EVERY_S" in self._plan.environment
            self._checkpoint_counts = CheckpointCounts(self._directory, self._tell, polls=polls, now=now)
        self._lookout.started({rank: process.pid for rank, process in self._ranks.items() if process.code is None})

    def _start_rank(self, plan: RankPlan) -> None:
        try:
            process = self._ranks[plan.rank] = self._start(plan.argv, plan.environment)
        except StartError as error:
            self._records.exit(plan.rank, {"exit_code": error.exit_code}, [self._said(error.detail)])
            raise
        self._log(process, f"rank-{plan.rank}")

    def _open_agent(self) -> Agent:
        address = self._plan.agent_address
        try:
            return Agent(address, self._plan.agent_token, self._start_for_agent, self._selector)
        except OSError as error:
            raise StartError(f"the remote-start agent cannot listen at {address}: {error.strerror}") from error

    def _start_for_agent(self, command: str) -> Process:
        if self._stop is not None:
            raise StartError("the job is being stopped")
        return self._start([*SHELL, command], {}, has_input=True)

    def _setup_ended(self, setup: Process) -> None:
        if setup.code == 0 and self._stop is None:
            try:
                self._next_stage()
            except StartError as error:
                self._cannot_start(error.detail, error.exit_code, [])
        elif self._stop is None:
            code = setup.code or 0
            how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
            self._cannot_start(f"the setup line {how}", _of_a_shell(code), setup.last_lines())

    def _cannot_start(self, detail: str, exit_code: int, tail: list[str]) -> None:
        self._outcome_told = True
        self.exit_code = exit_code
        detail = f"{self._said(detail)} (on {self._plan.node})"
        self._tell.fact("start_failed", detail=detail, exit_code=exit_code, tail=tail)
        self.stop("start_failed", 0, 0)
        self._leave_if_done()

    def _said(self, detail: str) -> str:
        """Return why something cannot start, as the server takes it: a PATH in it may be long, or no UTF-8."""
        return self._redaction.mask(detail)[:DETAIL_CHARACTERS].encode("utf-8", "replace").decode()

    # -- ending ------------------------------------------------------------------------------------------------------

    def _ranks_ended(self, ended: dict[int, Process]) -> None:
        if not ended:
            return
        hows = {rank: self._how(rank, process) for rank, process in ended.items()}
        for rank, process in ended.items():
            self._records.exit(rank, {"pid": process.pid, **hows[rank]}, process.last_lines())
            if self._tell.is_remote:  # the server cannot read the record
                self._tell.keep("ended", rank=rank, pid=process.pid, **hows[rank])
        harmless = {plan.rank for plan in self._plan.ranks if plan.is_ignored}
        failed = {rank: process for rank, process in ended.items() if process.code != 0 and rank not in harmless}
        # Of several that ended together, one that was killed did not fail because of the others.
        worst = min(failed, key=lambda rank: ((failed[rank].code or 0) > 0, rank), default=None)
        if worst is not None and self._counts and self.exit_code == 0:
            self.exit_code = _of_a_shell(failed[worst].code or 0)
        if self._stop is not None:
            return
        self._tell_if_done()
        if worst is not None and not self._outcome_told:
            self._outcome_told = True
            self._flush_reports()
            self._tell.fact("exited", rank=worst, **hows[worst], tail=failed[worst].last_lines())

    def _how(self, rank: int, process: Process) -> dict[str, Any]:
        """All that is known of how a rank ended, besides its last lines."""
        code = process.code or 0
        step = self._reports.step_of(rank, time.monotonic()) if self._reports is not None else None
        how = {**ending(code), "at_ms": now_ms(), "step": step, "out_of_memory": False, "error": None, "words": ""}
        if code == 0 or self._stop is not None:
            return how
        if code < 0 and -code not in OF_ITS_OWN:
            return {**how, "out_of_memory": self._memory.explains(how, None)}
        from ganger.launcher.logs.python_error import (  # most generations never need it, and all would wait
            ended_by,
            telling,
        )

        error = ended_by(code, self._records.path(f"rank-{rank}.log"), self._plan.directory)
        words = "" if error else telling(process.last_lines())
        return {**how, "out_of_memory": self._memory.explains(how, error), "error": error, "words": words}

    def _tell_if_done(self) -> None:
        """When every rank here whose end counts for the end of the job has ended well."""
        counting = [self._ranks.get(plan.rank) for plan in self._plan.ranks if plan.ends]
        if self._done_told or not counting or any(process is None or process.code != 0 for process in counting):
            return
        self._done_told = True
        self._flush_reports()
        self._tell.fact("done")

    def _leave_if_done(self) -> None:
        """When every process has ended: say how, and clear away what they left behind."""
        self._look_at = NEVER
        if self.is_over or self._running() or self._expects_more():
            return
        if self._lingering():
            self._look_at = time.monotonic() + FAREWELL_S
            return
        self._flush_reports()
        if self._stop is None and not self._outcome_told:
            self._outcome_told = True
            self._tell.fact("finished")
        if self._agent is not None:
            self._agent.close()
        if self._checkpoint_counts is not None:
            self._checkpoint_counts.close()
        for process in self._processes():
            process.close()  # also what strays may still print: they have no time left
        found = leftovers.strays(self._directory, descend=True)
        if found:
            leftovers.send(found, signal.SIGKILL)
            self._look_at = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, leftovers.LONGEST_PAUSE_S)
            return
        self._clear()

    def _clear(self) -> None:
        self._records.end_notice()
        try:
            self._task.mark_cleared(self.number)
        except OSError as error:
            note(f"generation {self.number} is cleared, which cannot be written down: {error.strerror}")
        self.is_over = True
        grace_ms = round(self._stop.grace_s * 1000) if self._stop is not None and self._overdue else 0
        self._tell.fact("cleared", killed=self._overdue, grace_ms=grace_ms)

    def _note_overdue(self, number: int) -> None:
        """Ranks, or what they started in their groups, that had time to end and are killed now."""
        if number == signal.SIGKILL and self._stop is not None and self._stop.gave_time:
            late = [rank for rank, process in self._ranks.items() if process.code is None or process.lingers()]
            self._overdue = sorted(late)

    def _last_lines(self) -> dict[int, list[str]]:
        """What each rank printed last, together so much as fits into a message."""
        share = TAILS_CHARACTERS // max(1, len(self._ranks))
        tails: dict[int, list[str]] = {}
        for rank, process in self._ranks.items():
            tails[rank], left = [], share
            for line in reversed(process.last_lines()):
                left -= len(line) + 1
                if left < 0:
                    break
                tails[rank].insert(0, line)
        return tails

    def _running(self) -> bool:
        return any(process.code is None for process in self._processes())

    def _expects_more(self) -> bool:
        """Whether ranks will be started here, or by other nodes, though none runs now."""
        return self._stop is None and (self._stage < self._plan.stages - 1 or not self._plan.ranks)

    def _lingering(self) -> bool:
        """Whether ranks that ended left children, or the agent processes, which still have time to end in their own
        way."""
        stop = self._stop
        if stop is None or stop.sent == signal.SIGKILL or time.monotonic() >= stop.kill_at:
            return False
        if self._plan.agent:
            return bool(leftovers.strays(self._directory))
        return stop.sent == signal.SIGTERM and any(process.lingers() for process in self._processes())

    def _processes(self) -> list[Process]:
        return [*([self._setup] if self._setup is not None else []), *self._ranks.values()]

    def _sessions(self) -> frozenset[int]:
        return frozenset(process.pid for process in self._processes())

    def _give_notice(self, cause: str, notice_s: float) -> None:
        self._notify(cause, notice_s)
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
        leftovers.send(leftovers.catchers(self._directory, sessions, number), number)

    def _notify(self, cause: str, notice_s: float) -> None:
        self._records.notice(cause, notice_s)
        if self._checkpoint_counts is not None:
            self._checkpoint_counts.notice(time.monotonic())

    def _flush_reports(self) -> None:
        if self._reports is not None:
            self._reports.flush(time.monotonic())


def _of_a_shell(code: int) -> int:
    """The exit code that a shell gives for a process that ended so."""
    return 128 - code if code < 0 else code
