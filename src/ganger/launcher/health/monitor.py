"""Monitoring of a generation's ranks on this node: tells the server which of them make no progress.

`proc_stats` observes, `stall` judges, `stacks` shows where the ranks are; the server combines the nodes of a gang.
"""

from __future__ import annotations

import os

from ganger.launcher.health.busy import BusySamples
from ganger.launcher.health.hang_detection import (
    FIRST_PHASE_S,
    Activity,
    Attention,
    LostRanks,
    OutputHabit,
    Pauses,
    QuietRank,
    RankWatch,
    silent_since,
)
from ganger.launcher.health.proc_stats import ProcStats, run_times_ns
from ganger.launcher.task_directory import now_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ganger.launcher.health.proc_stats import ProcStat
    from ganger.launcher.health.stacks import Stacks
    from ganger.launcher.health.usage_report import UsageReport
    from ganger.launcher.protocol.link import MessageSender

POLL_S = 0.25
SCAN_S = 5.0
SCAN_QUIET_S = 2.5  # without reports there is no other evidence
IDLE_PERMILLE = 10
BUSY_BYTES = 256 << 10
"""Bytes read or written between two scans beyond what a waiting or printing rank transfers."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
LAUNCH_PROGRAMS = (
    *("mpirun", "mpiexec", "prterun", "prted", "orterun", "orted"),
    *("mpiexec.hydra", "hydra_pmi_proxy", "hydra_bstrap_pro"),
)
"""Programs that only start ranks and wait for them, by their names in /proc."""
WRAPPERS = (
    *("sh", "bash", "dash", "ash", "zsh", "ksh", "busybox", "timeout", "time", "env", "stdbuf", "nsys", "uv", "conda"),
    *("mamba", "micromamba", "pixi", "poetry", "accelerate", "torchrun", "deepspeed"),
)
"""Programs that start the program of a rank and wait for it, by their names in /proc."""


class Monitor:
    """Monitor of the generation in this directory; `harmless` are ranks whose failure, so also a hang, is ignored."""

    def __init__(
        self, directory: str, sender: MessageSender, harmless: frozenset[int], pauses: dict[str, Any], now: float
    ) -> None:
        self._poll_at = now + POLL_S
        self._scan_at = now
        self._directory = directory
        self._sender = sender
        self._harmless = harmless
        self._started: dict[int, int] = {}  # rank -> pid, of ranks that the launcher started and that have not ended
        self._over: set[int] = set()
        self._processes = ProcStats(directory)
        self._usage = _usage_report(sender)
        self._attention = Attention(now)
        self._pauses = Pauses(pauses)
        self._ranks: dict[int, RankWatch] = {}
        self._busy: dict[int, BusySamples] = {}
        self._quiet: dict[int, QuietRank] = {}
        self._activity = Activity(self._pauses)
        self._habit = OutputHabit()
        self._lost_ranks = LostRanks()
        self._samples: list[tuple[float, dict[int, int]]] = []  # time, processor time by rank, at the last scans
        self._bytes: dict[int, int] = {}  # read and written by each rank, at the last scan
        self._active_s: dict[int, float] = {}  # last scan at which each rank had done anything
        self._log_bytes: dict[str, int] = {}  # size of the logs of each rank and of the set-up line, at the last scan
        self._has_written = True  # between the last two scans, and before the first: a silence begins with an output
        self._has_transferred = False
        self._polled_s = 0.0  # time of the last poll
        self._silent_s: float | None = None
        self._quiet_s: float | None = None
        self._stall_report: dict[str, Any] = {}
        self._stacks: Stacks | None = None
        self._tails: dict[int, list[str]] | None = None

    @property
    def due(self) -> float:
        """Time of the next `tick`, in monotonic seconds."""
        return self._poll_at if self._stacks is None else min(self._poll_at, self._stacks.due)

    def started(self, pids: dict[int, int]) -> None:
        """Set the ranks that the launcher itself has started (rank -> pid)."""
        self._started = dict(pids)

    def ended(self, rank: int) -> None:
        """Stop monitoring a rank that has ended; what it leaves behind is not monitored."""
        self._started.pop(rank, None)
        self._over.add(rank)

    def report_received(self, rank: int, record: dict[str, Any], now: float) -> None:
        """Handle a record that a rank reported."""
        if rank not in self._ranks:
            self._ranks[rank] = RankWatch(self._pauses)
        self._ranks[rank].report_received(record, self._attention.advance(now))

    def step_times(self) -> dict[int, int]:
        """Return the step time in ms of each rank that has made enough steps."""
        paces = {rank: watch.pace_ms() for rank, watch in self._ranks.items()}
        return {rank: pace for rank, pace in paces.items() if pace is not None}

    def busy_shares(self, now: float) -> dict[int, list[int]]:
        """Return `BusySamples.shares` of each rank for which they are known."""
        at_s = self._attention.advance(now)
        shares = {rank: samples.shares(at_s) for rank, samples in self._busy.items()}
        return {rank: share for rank, share in shares.items() if share is not None}

    def tick(self, now: float) -> None:
        """Poll when it is due, and tell the server what has changed."""
        if self._stacks is not None and self._stacks.is_done(now):
            self._sender.send_state("stacks_taken", ranks=self._details(self._stacks, self._attention.advance(now)))
            self._stacks = None
        if now >= self._poll_at:
            self._poll_at = now + POLL_S
            self._poll(now, self._attention.advance(now))

    def announce(self) -> None:
        """Repeat the state of the ranks to a newly connected server."""
        if self._stall_report:
            self._sender.send_state("stall_report", **self._stall_report)

    def take_stacks(self, py_spy: str | None, now: float, tails: dict[int, list[str]] | None) -> None:
        """Write the stacks of every rank, then tell the server; `py_spy` is the program of that name.

        With `tails`, the last lines of each rank, the message has these too, and the frames of each rank's first
        thread: that server cannot read the files.
        """
        from ganger.launcher.health.stacks import Stacks  # rarely needed

        if self._stacks is None:
            self._processes.scan()
            pids = {rank: self._main_processes(rank) for rank in self._processes.of_ranks if rank not in self._over}
            self._stacks = Stacks(self._directory, pids, py_spy, now)
            self._tails = tails

    def stopped(self, cause: str) -> None:
        """Tell the server what was learned for the next generation: this one is being stopped."""
        if cause == "hung" and self._silent_s is not None:
            steps = [watch.step for _, watch in self._watched() if watch.step is not None]
            self._pauses.double_patience(max(steps, default=None), self._polled_s - self._silent_s)
        if self._stall_report:
            self._stall_report["pauses"] = self._pauses.to_json()
            self.announce()

    def _poll(self, now: float, at_s: float) -> None:
        self._polled_s = at_s
        is_scan_due = now >= self._scan_at or (
            bool(self._processes.processes_without_rank) and not self._processes.any_rank_lives()
        )
        if is_scan_due:
            self._scan(now, at_s)
        stopped: list[tuple[int, str, float]] = []
        for rank, watch in self._watched():
            stopped += self._find_stopped(rank, watch, at_s)
        stopped += self._find_stopped_quiet(at_s)
        if self._reports():
            watches = [watch for _, watch in self._watched() if not watch.is_over]
            self._silent_s, self._quiet_s = silent_since(watches, self._pauses, at_s), None
        elif is_scan_due:
            self._observe_activity(at_s)
        has_launch_program = any(process.name in LAUNCH_PROGRAMS for process in self._processes.processes_without_rank)
        lost_since_s = self._lost_ranks.observe(
            at_s, has_ranks=bool(self._processes.of_ranks), has_launch_program=has_launch_program
        )
        self._tell_changes(stopped, lost_since_s, at_s)

    def _observe_activity(self, at_s: float) -> None:
        """Judge ranks that report nothing by what they write and use."""
        idle_since_s = self._activity.observe(at_s, is_active=self._has_written or self._is_busy())
        self._silent_s, self._quiet_s = None, self._habit.observe(at_s, has_written=self._has_written)
        if self._quiet_s is None and idle_since_s is not None and at_s - idle_since_s >= FIRST_PHASE_S:
            self._quiet_s = idle_since_s

    def _tell_changes(self, stopped: list[tuple[int, str, float]], lost_since_s: float | None, at_s: float) -> None:
        def unix_ms(since_s: float) -> int:
            return now_ms() - int((at_s - since_s) * 1000)

        usual_s, unwritten_s = self._habit.usual_s(), None if self._reports() else self._habit.unwritten_since_s(at_s)
        stall_report = {
            "has_run": self._lost_ranks.has_run,
            "has_reports": self._reports(),
            "stopped_ranks": [[rank, kind, unix_ms(since_s), self._is_learned()] for rank, kind, since_s in stopped],
            "silent_since_ms": None if self._silent_s is None else unix_ms(self._silent_s),
            "quiet_since_ms": None if self._quiet_s is None else unix_ms(self._quiet_s),
            "unwritten_since_ms": None if unwritten_s is None else unix_ms(unwritten_s),
            "usual_gap_ms": None if usual_s is None or self._reports() else int(usual_s * 1000),
            "ranks_lost_since_ms": None if lost_since_s is None else unix_ms(lost_since_s),
            "pauses": self._pauses.to_json(),
        }
        has_changed = _significant(stall_report) != _significant(self._stall_report)
        self._stall_report = stall_report
        if has_changed:
            self.announce()

    def _watched(self) -> list[tuple[int, RankWatch]]:
        return [
            (rank, watch)
            for rank, watch in self._ranks.items()
            if rank not in self._over and rank not in self._harmless
        ]

    def _reports(self) -> bool:
        return any(watch.steps for _, watch in self._watched())

    def _find_stopped(self, rank: int, watch: RankWatch, at_s: float) -> list[tuple[int, str, float]]:
        states = self._processes.read(watch.pids)
        watch.is_over = bool(watch.pids) and not any(process.lives for process in states.values())
        rest = None
        if watch.is_over and not watch.has_ended and rank in self._started:
            self._processes.scan()  # rare: tells whether the remaining processes of the rank do anything
            rest = [(process.pid, process.ticks) for process in self._processes.of_ranks.get(rank, ())]
        self._sample_busy(self._busy.setdefault(rank, BusySamples()), watch, at_s)
        stopped = watch.find_stop(states, rest, at_s)
        return [] if stopped is None else [(rank, *stopped)]

    def _sample_busy(self, samples: BusySamples, watch: RankWatch, at_s: float) -> None:
        if not watch.is_in_step:
            samples.discard_interval()
        elif watch.pids and samples.is_due(watch.steps):
            pid = watch.pids[-1]
            samples.add((pid, watch.interruptions), watch.steps, run_times_ns(pid), at_s)

    def _find_stopped_quiet(self, at_s: float) -> list[tuple[int, str, float]]:
        """Return the stopped ranks among those that report nothing."""
        steps = [watch.step_s() for _, watch in self._watched() if watch.is_learned]
        stopped_ranks = []
        for rank, processes in list(self._processes.of_ranks.items()):
            if rank in self._harmless or rank in self._over or (rank in self._ranks and self._ranks[rank].steps):
                continue
            states = list(self._processes.read([_main_process(processes).pid]).values())
            stopped = self._quiet.setdefault(rank, QuietRank()).find_stop(states, max(steps, default=0), at_s)
            stopped_ranks += [] if stopped is None else [(rank, *stopped)]
        return stopped_ranks

    def _is_learned(self) -> bool:
        """Return True if the ranks here are known to have come so far that they should not stall."""
        return self._activity.is_steady or any(watch.is_learned for _, watch in self._watched())

    def _scan(self, now: float, at_s: float) -> None:
        self._scan_at = now + (SCAN_S if self._reports() else SCAN_QUIET_S)
        self._processes.scan()
        if self._usage is not None:
            self._usage.scanned(self._processes.of_ranks, at_s)
        ticks = {
            rank: sum(process.ticks for process in processes) for rank, processes in self._processes.of_ranks.items()
        }
        self._samples = [*self._samples[-2:], (at_s, ticks)]
        sizes_before, self._log_bytes = self._log_bytes, _log_bytes(self._directory)
        written = {name for name, size in self._log_bytes.items() if size != sizes_before.get(name, 0)}
        self._has_written = bool(written) or len(self._samples) == 1
        self._has_transferred = False
        for rank in self._processes.of_ranks:
            # A rank that mpirun or torchrun has started writes into the log of that program.
            log = f"rank-{rank}"
            if log in written or (written and log not in self._log_bytes):
                self._active_s[rank] = at_s
            before, self._bytes[rank] = self._bytes.get(rank, 0), self._processes.transferred_bytes(rank)
            if self._bytes[rank] - before >= BUSY_BYTES:
                self._has_transferred = True
                self._active_s[rank] = at_s
                if rank in self._ranks:
                    self._ranks[rank].transfer_observed(at_s)
            if rank not in self._active_s or self._has_worked(rank):
                self._active_s[rank] = at_s

    def _is_busy(self) -> bool:
        """Return True if a rank has used a processor, or read or written much, since the last scan."""
        if self._has_transferred or len(self._samples) < 2 or not self._processes.of_ranks:
            return True  # possibly: nothing can be observed
        return self._has_worked(*self._samples[-1][1], *self._samples[-2][1])

    def _has_worked(self, *ranks: int) -> bool:
        """Return True if these ranks have used a processor since the scan before the last one."""
        if len(self._samples) < 2:
            return True
        (before_s, ticks_before), (at_s, ticks) = self._samples[-2:]
        used = sum(abs(ticks.get(rank, 0) - ticks_before.get(rank, 0)) for rank in {*ranks})
        return used * 1000 >= IDLE_PERMILLE * (at_s - before_s) * TICKS_PER_S

    def _busy_permille(self) -> dict[int, int]:
        """Return how much of a processor each rank has used lately."""
        if len(self._samples) < 2:
            return {}
        (before_s, ticks_before), (at_s, ticks) = self._samples[0], self._samples[-1]
        available = max(1.0, (at_s - before_s) * TICKS_PER_S)
        return {
            rank: int(1000 * max(0, used - ticks_before.get(rank, used)) / available) for rank, used in ticks.items()
        }

    def _main_processes(self, rank: int) -> list[int]:
        """Return the processes that represent a rank: those that report, else its main process."""
        processes = self._processes.of_ranks[rank]
        watch = self._ranks.get(rank)
        reporting = [process.pid for process in processes if watch is not None and process.pid in watch.pids]
        return reporting or [_main_process(processes).pid]

    def _details(self, stacks: Stacks, at_s: float) -> dict[int, dict[str, Any]]:
        busy = self._busy_permille()
        details: dict[int, dict[str, Any]] = {
            rank: {
                "step": self._ranks[rank].step if rank in self._ranks else None,
                "state": state,
                "busy_permille": busy.get(rank, 0),
                "idle_ms": int((at_s - self._active_s.get(rank, at_s)) * 1000),
            }
            for rank, state in stacks.states.items()
        }
        if self._tails is not None:
            for rank, detail in details.items():
                detail.update(frames=stacks.main_frames.get(rank, []), tail=self._tails.get(rank, []))
        return details


def _usage_report(sender: MessageSender) -> UsageReport | None:
    """Return the report of what ranks use; None on the server's own machine, which it measures itself."""
    if not sender.is_remote:
        return None
    from ganger.launcher.health.usage_report import UsageReport

    return UsageReport(sender)


def _main_process(processes: list[ProcStat]) -> ProcStat:
    """Return the rank's own process, given all of them, the oldest first; what it has started does not count.

    Below a wrapper it is the process that has worked most.
    """
    main, below = processes[0], processes
    while main.name in WRAPPERS and (below := [process for process in processes if process.parent == main.pid]):
        main = max(below, key=_work_done)
    return main


def _work_done(process: ProcStat) -> tuple[int, int, int]:
    """Sort key of the process that has worked most; at the very beginning, of the one started last."""
    return process.ticks, process.start_ticks, process.pid


def _significant(stall_report: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a stall report whose change is worth a message: of times, only whether they are set.

    Of a pause only that it has doubled, so that what a node has learned is known if the node is lost.
    """
    parts = {name: value is not None if name.endswith("_ms") else value for name, value in stall_report.items()}
    return {
        **parts,
        "pauses": {
            name: int(value).bit_length() for name, value in stall_report.get("pauses", {}).get("longest_s", {}).items()
        },
        "stopped_ranks": [(rank, kind, known) for rank, kind, _, known in stall_report.get("stopped_ranks", ())],
    }


def _log_bytes(directory: str) -> dict[str, int]:
    """Return the size of each log with its continuations, by its name without ending."""
    sizes: dict[str, int] = {}
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                name, ending, _ = entry.name.partition(".log")
                if ending:
                    sizes[name] = sizes.get(name, 0) + entry.stat().st_size
    except OSError:
        pass  # the directory is gone: the launcher ends soon
    return sizes
