"""One generation of a gang on this node, from its setup line until none of its processes is left.

Order on disk and on the connection: every exit record before its report, the last progress before `done`,
`rank_failed`, `finished` and `cleared`, and `cleared` only after the last process is gone."""

from __future__ import annotations

import os
import signal
import time

from ganger.launcher.health import leftovers
from ganger.launcher.health.loss_points import LossPoints
from ganger.launcher.health.out_of_memory import OutOfMemory
from ganger.launcher.logs.log_records import note
from ganger.launcher.ranks.checkpoint_counts import CheckpointCounts
from ganger.launcher.ranks.exit_records import Records
from ganger.launcher.ranks.first_steps import SHELL, FirstSteps, SetupError
from ganger.launcher.ranks.metric_curves import MetricCurves
from ganger.launcher.ranks.process import (
    NOT_EXECUTABLE,
    SELF_INFLICTED,
    Process,
    Starter,
    StartError,
    exit_status,
    shell_code,
)
from ganger.launcher.ranks.process import bounded_last_lines as last_lines
from ganger.launcher.ranks.rank_reports import Reports
from ganger.launcher.ranks.resume import Resumption
from ganger.launcher.ranks.stop_signals import StopSignals
from ganger.launcher.remote_exec.agent import Agent, hold_argv
from ganger.launcher.task_directory import now_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ganger.launcher.health.monitor import Monitor
    from ganger.launcher.protocol.link import MessageSender
    from ganger.launcher.ranks.checkpoint_copier import CheckpointCopier
    from ganger.launcher.ranks.process import SharedParts
    from ganger.launcher.ranks.rank_reports import Reader
    from ganger.launcher.task_directory import TaskDirectory
    from ganger.launcher.task_plan import Plan, RankPlan

LAUNCHER_STOPPED = "launcher_stopped"
"""Cause of a stop that the server has not requested."""
DETAIL_CHARACTERS = 10_000  # the server's limit for one line of an exit record
GROUP_POLL_S = 0.05  # interval of checks whether the process groups of ended ranks are gone during a stop
NEVER = float("inf")


class Generation:
    """One generation on this node; `sender` sends its messages to the server.

    is_over: True once it is cleared and that is reported
    exit_code: of the first rank that failed here, as a shell would give it, unless the server had stopped it before
    """

    def __init__(
        self,
        task: TaskDirectory,
        plan: Plan,
        sender: MessageSender,
        shared: SharedParts,
    ) -> None:
        self.number = plan.generation
        self.is_over = False
        self.exit_code = 0
        self._task = task
        self._plan = plan
        self._sender = sender
        self._shared = shared
        self._warm = shared.warm if plan.warm_words else None
        self._directory = task.generation(plan.generation)
        self._records = Records(self._directory, plan.generation)
        self._resumption = Resumption(plan, sender)
        self._losses = LossPoints(plan.watch, sender)
        self._metrics = MetricCurves(self._directory, sender)
        self._starter = Starter(plan, self._directory, shared, self._losses)
        self._steps = FirstSteps(plan, self._directory, self._starter, sender)
        self._copier: CheckpointCopier | None = None
        self._agent: Agent | None = None
        self._stage = -1
        self._ranks: dict[int, Process] = {}
        self._reports: Reports | None = None
        self._checkpoint_counts: CheckpointCounts | None = None
        self._memory = OutOfMemory(time.monotonic())
        self._monitor: Monitor | None = None
        self._stop: StopSignals | None = None
        self._counts_exits = True  # exit codes of ranks that still run count for `exit_code`
        self._is_done_sent = False
        self._overdue: list[int] = []
        self._saved_step: int | None = None  # of the checkpoint that the notice has brought
        self._is_signalled = False  # a process handled the plan's signal, and so knows of the notice
        self._has_left = False  # a rank ended because it was stopped, not because it had finished
        self._is_finished = False  # every rank here did all that it had to do, and that is reported
        self._is_outcome_sent = False  # by `rank_failed`, `start_failed` or `finished`, whichever came first
        self._check_at = NEVER
        self._pause_s = leftovers.FIRST_PAUSE_S

    @property
    def due(self) -> float:
        """Time of the next `tick`, in monotonic seconds."""
        times = [self._check_at, self._steps.due, *(process.due for process in self._ranks.values())]
        parts = (
            self._agent,
            self._reports,
            self._checkpoint_counts,
            self._warm,
            self._copier,
            self._losses,
            self._metrics,
        )
        times += [part.due for part in parts if part is not None]
        if self._stop is not None:
            times.append(self._stop.due)
        elif self._monitor is not None:
            times.append(self._monitor.due)
        return min(times)

    def begin(self) -> None:
        """Run the setup line, or the first ranks, once checkpoints that all nodes need have been copied."""
        try:
            self._records.prepare(self._plan)
            if "GANGER_CHECKPOINT_LOCAL" in self._plan.environment:
                from ganger.launcher.ranks.checkpoint_copier import CheckpointCopier

                self._copier = CheckpointCopier(self._plan, self._directory, self._sender)
                self._copier.begin(self._begin_work)
            else:
                self._begin_work()
        except OSError as error:
            self._cannot_start(f"the directory {self._directory} cannot be used: {error.strerror}", NOT_EXECUTABLE, [])

    def _begin_work(self) -> None:
        if self._stop is not None:
            return
        try:
            if not self._copies_first:  # else the other nodes may not have copied yet
                self._starter.resume_from = self._resumption.find()
            self._starter.load_secrets()
            self._make_run_directory()
            self._next_step()
        except StartError as error:
            self._cannot_start(error.detail, error.exit_code, [])
        except OSError as error:
            self._cannot_start(f"the directory {self._directory} cannot be used: {error.strerror}", NOT_EXECUTABLE, [])

    def _make_run_directory(self) -> None:
        """Create the directory for what the run writes, which is the same for all attempts."""
        path = self._plan.environment.get("GANGER_RUN_DIR")
        try:
            if path is not None:
                os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise StartError(f"the run directory {path} cannot be created: {error.strerror}") from error

    def proceed(self, stage: int, agents: dict[str, Any]) -> None:
        """Start the next stage: every node is ready with `stage`."""
        if stage != self._stage or self._stop is not None or self._stage == self._plan.stages - 1:
            return  # a repeated message
        try:
            if self._plan.agent or self._plan.peer:
                self._records.agents(agents)
            if self._copier is not None and self._plan.peer and stage == 0:
                self._copier.take_held(self._continue)
                return
            if self._copies_first and stage == int(bool(self._plan.peer)):
                self._starter.resume_from = self._resumption.find()
        except StartError as error:
            self._cannot_start(error.detail, error.exit_code, [])
            return
        except OSError as error:
            self._cannot_start(f"agents.json cannot be written: {error.strerror}", NOT_EXECUTABLE, [])
            return
        self._continue()

    def take_stacks(self, py_spy: str | None) -> None:
        """Write the stacks of every rank and report them; `py_spy` is the server's program of that name, if any."""
        from ganger.launcher.health.stacks import find_py_spy

        if self._monitor is not None:
            program = find_py_spy(py_spy, self._plan.environment)
            tails = last_lines(self._ranks) if self._sender.is_remote else None
            self._monitor.take_stacks(program, time.monotonic(), tails)

    def schedule_checkpoints(self, message: dict[str, Any]) -> None:
        """Handle a message of the checkpoint agreement; raise ValueError if it does not fit the protocol."""
        if self._checkpoint_counts is not None:
            self._checkpoint_counts.handle(message, time.monotonic())

    def announce(self) -> None:
        """Repeat to a newly connected server which stage this node is ready with, and how its ranks are."""
        if self._plan.stages > 1 and self._stage >= 0 and self._stop is None:
            port = self._agent.port if self._agent is not None else None
            self._sender.send_state("ready", stage=min(self._stage, self._plan.stages - 2), agent_port=port)
        if self._monitor is not None and self._stop is None:
            self._monitor.announce()
        if self._checkpoint_counts is not None:
            self._checkpoint_counts.announce()
        if self._reports is not None:
            self._reports.announce()

    def stop(self, cause: str, notice_s: float, kill_after_s: float, saved_step: int | None = None) -> None:
        """Stop the ranks by notice, SIGTERM and SIGKILL; without ranks there is no notice.

        saved_step: the notice has brought a checkpoint of this step, which is complete on all nodes: once the ranks
            here have made the step too, nothing that they do is of use
        """
        now = time.monotonic()
        self._saved_step = self._saved_step if saved_step is None else saved_step
        if not self._ranks and not self._plan.agent:
            notice_s = 0
        if self._stop is None:
            self._stop = StopSignals(now, notice_s, kill_after_s)
            self._counts_exits = cause == LAUNCHER_STOPPED
            if self._copier is not None:
                self._copier.stop()
            if self._monitor is not None:
                self._monitor.stopped(cause)
            if notice_s > 0 and (self._running() or self._plan.agent):
                self._give_notice(cause, notice_s)
        elif self._stop.hasten(now, notice_s, kill_after_s) and notice_s > 0:
            self._notify(cause, notice_s)
        if not self._running():
            self._check_at = now
        self.tick(now)

    def ended(self, statuses: dict[int, int]) -> None:
        """Handle ended children of the launcher (pid -> status), ignoring those of other generations."""
        if self._agent is not None:
            self._agent.ended(statuses)
        mine = [process for process in self._processes() if process.pid in statuses]
        for process in mine:
            process.ended(statuses[process.pid])
        for step in (step for step in self._steps.processes if step in mine):
            self._step_ended(step)
        self._ranks_ended({rank: process for rank, process in self._ranks.items() if process in mine})
        copier_ended = self._copier is not None and self._copier.ended(statuses, time.monotonic())
        if mine or copier_ended:
            self._leave_if_done()

    def tick(self, now: float) -> None:
        """Do what is due."""
        for process in self._processes():
            process.tick(now)
        self._steps.tick(now)
        parts = (
            self._agent,
            self._reports,
            self._checkpoint_counts,
            self._warm,
            self._copier,
            self._losses,
            self._metrics,
        )
        for part in parts:
            if part is not None:
                part.tick(now)
        if self._reports is not None:
            self._resumption.tick(now)
        self._memory.tick(now)
        if self._monitor is not None and self._stop is None:
            self._monitor.tick(now)
        if self._stop is not None and self._saved_step is not None and self._stop.sent is None:
            ended = {rank for rank, process in self._ranks.items() if process.code is not None}
            if self._reports is None or self._reports.has_made(self._saved_step, ended, now):
                self._stop.end_ranks(now)
        number = self._stop.step(now) if self._stop is not None else None
        if number is not None:
            self._note_overdue(number)
            for process in self._processes():
                process.send(number)
            if self._plan.agent:  # processes started from other nodes
                sessions = frozenset(process.pid for process in self._processes())
                leftovers.send(leftovers.outside_sessions(self._directory, sessions), number)
        if now >= self._check_at:
            self._leave_if_done()

    @property
    def _copies_first(self) -> bool:
        """True if ranks may start only when all nodes have copied their checkpoints: they resume from those copies."""
        return self._copier is not None and self._plan.environment["GANGER_NODES"] != "1"

    # -- beginning ---------------------------------------------------------------------------------------------------

    def _next_stage(self) -> None:
        """Start the next stage, the first one once ranks can be forked if they are to be."""
        if self._stage < 0 and (self._plan.agent or self._plan.peer):
            self._agent = self._open_agent()
        if self._stage < 0 and self._warm is not None:
            environments = [self._starter.environment(rank.environment) for rank in self._plan.ranks]
            self._warm.prepare(self._plan, environments, lambda: self._continue(self._start_stage))
        else:
            self._start_stage()

    def _continue(self, then: Callable[[], None] | None = None) -> None:
        """Start the next stage, unless the generation is being stopped."""
        if self._stop is not None:
            return
        try:
            (then or self._next_stage)()
        except StartError as error:
            self._cannot_start(error.detail, error.exit_code, [])

    def _start_stage(self) -> None:
        """Start the ranks of the next stage; in the last one every rank runs."""
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
        self._sender.send_fact("started", pids=pids)
        self._watch()

    def _watch(self) -> None:
        """Follow the reports and the health of the ranks."""
        if self._monitor is None:
            from ganger.launcher.health.monitor import Monitor  # imported once the ranks run, so as not to delay them

            now = time.monotonic()
            ignored = frozenset(plan.rank for plan in self._plan.ranks if plan.is_ignored)
            self._monitor = Monitor(self._directory, self._sender, ignored, self._plan.pauses, now)
            readers: list[Reader] = [
                self._resumption.report_received,
                self._losses.report_received,
                self._metrics.report_received,
            ]
            readers += [] if self._copier is None else [self._copier.report_received]
            self._reports = Reports(self._directory, self._sender, self._monitor, readers, now)
            polls = "GANGER_CHECKPOINT_EVERY_S" in self._plan.environment
            self._checkpoint_counts = CheckpointCounts(self._directory, self._sender, polls=polls, now=now)
        self._monitor.started({rank: process.pid for rank, process in self._ranks.items() if process.code is None})

    def _start_rank(self, plan: RankPlan) -> None:
        launch = None if self._warm is None else self._warm.start
        try:
            process = self._ranks[plan.rank] = self._starter.start(plan.argv, plan.environment, launch)
        except StartError as error:
            self._records.exit(plan.rank, {"exit_code": error.exit_code}, [self._limit_detail(error.detail)])
            raise
        remark = "" if self._warm is None else self._warm.remark()
        self._starter.log(process, f"rank-{plan.rank}", remark)

    def _open_agent(self) -> Agent:
        address = self._plan.agent_address
        try:
            return Agent(address, self._plan.agent_token, self._start_for_agent, self._shared.selector)
        except OSError as error:
            raise StartError(f"the remote-start agent cannot listen at {address}: {error.strerror}") from error

    def _start_for_agent(self, command: str) -> Process:
        if self._stop is not None:
            raise StartError("the job is being stopped")
        argv = hold_argv(command) if self._plan.peer else None
        if argv is None and not self._plan.agent:
            raise StartError("this job runs no commands of other nodes")
        return self._starter.start(argv or [*SHELL, command], {}, has_input=True)

    def _next_step(self) -> None:
        """Begin the next step before the ranks, or the first stage after the last one."""
        if not self._steps.begin():
            self._next_stage()

    def _step_ended(self, step: Process) -> None:
        if self._stop is not None:
            return
        try:
            if self._steps.may_go_on(step):
                self._next_step()
        except SetupError as error:
            self._cannot_start(error.detail, error.exit_code, error.tail)
        except StartError as error:
            self._cannot_start(error.detail, error.exit_code, [])

    def _cannot_start(self, detail: str, exit_code: int, tail: list[str]) -> None:
        self._is_outcome_sent = True
        self.exit_code = exit_code
        detail = f"{self._limit_detail(detail)} (on {self._plan.node})"
        self._sender.send_fact("start_failed", detail=detail, exit_code=exit_code, tail=tail)
        self.stop("start_failed", 0, 0)
        self._leave_if_done()

    def _limit_detail(self, detail: str) -> str:
        """Return why a program cannot start, in the server's limits: a PATH in it may be long, or not UTF-8."""
        return self._starter.redaction.mask(detail)[:DETAIL_CHARACTERS].encode("utf-8", "replace").decode()

    # -- ending ------------------------------------------------------------------------------------------------------

    def _ranks_ended(self, ended: dict[int, Process]) -> None:
        if not ended:
            return
        exits = {rank: self._describe_exit(rank, process) for rank, process in ended.items()}
        left = self._leaves()
        self._has_left = self._has_left or left
        for rank, process in ended.items():
            self._records.exit(rank, {"pid": process.pid, "left": left, **exits[rank]}, process.last_lines())
            if self._sender.is_remote:  # the server cannot read the record
                self._sender.send_repeated("exit_record", rank=rank, pid=process.pid, left=left, **exits[rank])
        if 0 in ended:
            self._steps.send_results()
        ignored = {plan.rank for plan in self._plan.ranks if plan.is_ignored}
        failed = {rank: process for rank, process in ended.items() if process.code != 0 and rank not in ignored}
        # Of several ranks that ended together, one that was killed did not fail because of the others.
        worst = min(failed, key=lambda rank: ((failed[rank].code or 0) > 0, rank), default=None)
        if worst is not None and self._counts_exits and self.exit_code == 0:
            self.exit_code = shell_code(failed[worst].code or 0)
        if self._stop is not None:
            return
        self._tell_if_done()
        if worst is not None and not self._is_outcome_sent:
            self._is_outcome_sent = True
            self._flush_reports()
            self._sender.send_fact("rank_failed", rank=worst, **exits[worst], tail=failed[worst].last_lines())

    def _describe_exit(self, rank: int, process: Process) -> dict[str, Any]:
        """Return the fields of an exit record except the last lines."""
        code = process.code or 0
        step = self._reports.step_of(rank, time.monotonic()) if self._reports is not None else None
        fields = {
            **exit_status(code),
            "at_ms": now_ms(),
            "step": step,
            "out_of_memory": False,
            "error": None,
            "error_line": "",
        }
        if code == 0 or self._stop is not None:
            return fields
        if code < 0 and -code not in SELF_INFLICTED:
            return {**fields, "out_of_memory": self._memory.explains(fields, None)}
        from ganger.launcher.logs.python_error import find_exit_error, most_telling_line  # rarely needed

        error = find_exit_error(code, self._records.path(f"rank-{rank}.log"), self._plan.directory)
        error_line = "" if error else most_telling_line(process.last_lines())
        return {
            **fields,
            "out_of_memory": self._memory.explains(fields, error),
            "error": error,
            "error_line": error_line,
        }

    def _tell_if_done(self) -> None:
        """Report `done` once every rank whose end counts for the end of the job has exited with 0."""
        processes = [self._ranks.get(plan.rank) for plan in self._plan.ranks if plan.ends]
        if self._is_done_sent or not processes or any(process is None or process.code != 0 for process in processes):
            return
        self._is_done_sent = True
        self._flush_reports()
        self._sender.send_fact("done")

    def _leave_if_done(self) -> None:
        """Report the outcome once every process has ended, and kill the processes they left behind."""
        self._check_at = NEVER
        if self.is_over or self._running() or self._expects_more():
            return
        if self._lingering():
            self._check_at = time.monotonic() + GROUP_POLL_S
            return
        self._flush_reports()
        if not self._is_outcome_sent and self._has_finished():
            self._is_outcome_sent = self._is_finished = True
            self._sender.send_fact("finished")
        if self._copier is not None:
            now = time.monotonic()
            if self._copier.awaits_end(now, NEVER if self._stop is None else self._stop.leave_at):
                self._check_at = now + GROUP_POLL_S
                return
            self._copier.close(is_finished=self._is_finished)
        if self._agent is not None:
            self._agent.close()
        if self._checkpoint_counts is not None:
            self._checkpoint_counts.close()
        for process in self._processes():
            process.close()  # also ends the output of left-over processes, which are killed now
        processes = leftovers.find(self._directory, descend=True)
        if processes:
            leftovers.send(processes, signal.SIGKILL)
            self._check_at = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, leftovers.LONGEST_PAUSE_S)
            return
        self._clear()

    def _leaves(self) -> bool:
        """Return True if a rank that ends now does so because of a stop: it was terminated, or knew of the notice.

        A rank that exits with 0 without either has finished its work, although the generation is being stopped. The
        ranks of a node are judged together: those that torchrun or mpirun started end behind one that ganger started.
        """
        if self._stop is None:
            return False
        return self._stop.sent is not None or self._is_signalled or self._records.is_notice_known()

    def _has_finished(self) -> bool:
        """Return True if every rank here ended well by itself, be it during the notice of a stop that none knew of.

        A node on which another one starts processes has no rank of its own to wait for.
        """
        if self._stop is None:
            return True
        if not self._plan.ranks:
            return not self._leaves()
        processes = [self._ranks.get(plan.rank) for plan in self._plan.ranks if not plan.is_ignored]
        return not self._has_left and all(process is not None and process.code == 0 for process in processes)

    def _clear(self) -> None:
        self._records.end_notice()
        leftovers.record_cleared(self._task, self.number)
        self.is_over = True
        grace_ms = round(self._stop.grace_s * 1000) if self._stop is not None and self._overdue else 0
        self._sender.send_fact("cleared", killed=self._overdue, grace_ms=grace_ms)

    def _note_overdue(self, number: int) -> None:
        """Remember the ranks that are killed although they, or what they started in their groups, had time to end."""
        if number == signal.SIGKILL and self._stop is not None and self._stop.gave_time and not self._stop.is_early:
            late = [rank for rank, process in self._ranks.items() if process.code is None or process.group_lingers()]
            self._overdue = sorted(late)

    def _running(self) -> bool:
        return any(process.code is None for process in self._processes())

    def _expects_more(self) -> bool:
        """Return True if ranks will still be started here, or by other nodes, though none runs now."""
        return self._stop is None and (self._stage < self._plan.stages - 1 or not self._plan.ranks)

    def _lingering(self) -> bool:
        """Return True if children of ended ranks, or processes of the agent, still have time to end by themselves."""
        stop = self._stop
        if stop is None or stop.sent == signal.SIGKILL or time.monotonic() >= stop.kill_at:
            return False
        if self._plan.agent:
            return bool(leftovers.find(self._directory))
        return stop.sent == signal.SIGTERM and any(process.group_lingers() for process in self._processes())

    def _processes(self) -> list[Process]:
        return [*self._steps.processes, *self._ranks.values()]

    def _give_notice(self, cause: str, notice_s: float) -> None:
        self._notify(cause, notice_s)
        name = self._plan.signal
        if name is None:
            return
        try:
            number = signal.Signals[name]
        except KeyError:
            note(f"there is no signal {name}: the ranks get only the notice file")
            return
        # Only to processes that handle it: it would kill a shell that merely waits for the rank's program.
        sessions = frozenset(process.pid for process in self._ranks.values() if process.code is None)
        handlers = leftovers.handlers(self._directory, sessions, number)
        self._is_signalled = bool(handlers)
        leftovers.send(handlers, number)

    def _notify(self, cause: str, notice_s: float) -> None:
        self._records.notice(cause, notice_s)
        if self._reports is not None:
            self._reports.notice()
        if self._checkpoint_counts is not None:
            self._checkpoint_counts.notice(time.monotonic())

    def _flush_reports(self) -> None:
        if self._reports is not None:
            self._reports.flush(time.monotonic())
            self._resumption.tick(NEVER)
            self._losses.tick(NEVER)
            self._metrics.tick(NEVER)
