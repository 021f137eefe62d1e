"""Detection of ranks that make no progress, based on the learned durations of their steps and pauses.

Pure: observations and their times are passed in, in seconds of attention (`Attention`). docs/how-to/failures.md,
"Hang", explains what is detected after which time."""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ganger.launcher.health.proc_stats import ProcStat

MAX_POLL_GAP_S = 2.0
"""A poll that comes later tells nothing of the time before it: the machine, or this process, was asleep."""
LOST_AFTER_S = 5.0
MAX_PAUSE_S = 10_000_000
"""Longer saved pauses are invalid."""
STEPS = 20
"""Number of newest steps that determine a rank's step time."""
SILENT_S = 27.0
PAUSE_FACTOR = 1.4
"""With the time to take stacks, ranks that wait for an idle one end within 30 s or 1.5 times the longest pause."""
CONFIRM_S = 5.0
"""Silence is reported so much earlier, for the server to sample the stacks twice before it judges. One scan
(`monitor.SCAN_S`): what has worked at the first sample and is idle since then is seen at work."""
FIRST_PHASE_S = 600.0
MAX_PAUSES = 64
MAX_PHASE_CHARACTERS = 200
"""Only so many of the longest pauses, of phases with names of this length, are kept: a script chooses the names."""
SLOW_DISK_S = 20.0
DISK_WAITS = (
    "folio_wait",
    "wait_on_page",
    "writeback",
    "io_schedule",
    "blk_",
    "jbd2",
    "balance_dirty",
    "xfs_",
    "btrfs_",
)
"""Parts of names of kernel functions in which a process waits for a disk, which answers eventually."""
PULSE_RESOLUTION_S = 3.0  # a pulse may have been this much earlier than it was observed
STEADY_S = 60.0
STEADY_GAP_S = 10.0
UNDECLARED = ""
GAPS, MIN_GAPS = 64, 10
QUIET_S = 300.0
QUIET_FACTOR = 10
"""Ranks are quiet after so long without output, and so many times their usual time between outputs."""
QUIET_STOP_S = 5.0
"""A rank of a job that reports no steps may be stopped so long. Somebody who looks at it with Ctrl-Z, `kill -STOP` or
a snapshot needs seconds, and without steps nothing says that its peers lose more by them than by a restart."""
UNWRITTEN_S = 20.0
"""Silence of the log after which the server starts to compare the stacks of the ranks."""


class Attention:
    """A clock that runs only while the ranks are polled: time without observations proves nothing."""

    def __init__(self, now: float) -> None:
        self._polled_at = now
        self._attended_s = 0.0

    def advance(self, now: float) -> float:
        """Return the seconds of attention at a poll at `now` (monotonic seconds)."""
        passed_s = now - self._polled_at
        self._polled_at = now
        if 0 < passed_s <= MAX_POLL_GAP_S:
            self._attended_s += passed_s
        return self._attended_s


class Pauses:
    """The longest observed pauses of a job's ranks by phase, and the patience that follows from them."""

    def __init__(self, known: dict[str, Any]) -> None:
        """Read `known`, the `record` of an earlier generation, ignoring invalid parts."""
        saved_pauses = known.get("longest_s")
        pairs = saved_pauses.items() if isinstance(saved_pauses, dict) else ()
        self.longest_s = {
            str(name): float(value)
            for name, value in pairs
            if isinstance(value, (int, float)) and 0 <= value <= MAX_PAUSE_S
        }
        suspected_s, stuck_step = known.get("suspected_s"), known.get("stuck_step")
        self._stuck_step = stuck_step if isinstance(stuck_step, int) else -1
        is_valid = isinstance(suspected_s, (int, float)) and 0 <= suspected_s <= MAX_PAUSE_S
        self._suspected_s = float(suspected_s) if isinstance(suspected_s, (int, float)) and is_valid else 0.0

    def learn(self, phase: str, lasted_s: float) -> None:
        """Record a pause that ended by itself."""
        self.longest_s[phase] = max(lasted_s, self.longest_s.get(phase, 0.0))

    def step_made(self, step: int) -> None:
        """Reset the doubled patience once a rank is past the step at which the ranks fell silent."""
        if step > self._stuck_step:
            self._suspected_s = 0.0

    def double_patience(self, step: int | None, lasted_s: float) -> None:
        """Accept twice this silence, for which the ranks were ended, in the next generation until past that step.

        The ranks, which fell silent after it, may have been busy with something that takes so long.
        """
        self._suspected_s = min(MAX_PAUSE_S, 2 * lasted_s)
        self._stuck_step = -1 if step is None else step

    def patience_s(self, phase: str | None) -> float:
        """Return how long silence is accepted in that phase, or outside any."""
        usual_s = max(SILENT_S, PAUSE_FACTOR * self.longest_s.get(UNDECLARED, 0.0), self._suspected_s)
        if phase is None:
            return usual_s
        known_s = self.longest_s.get(phase)
        return max(usual_s, FIRST_PHASE_S if known_s is None else PAUSE_FACTOR * known_s)

    def to_json(self) -> dict[str, Any]:
        """Return what the job's next generation is to know."""
        named = {
            name: value
            for name, value in self.longest_s.items()
            if len(name) <= MAX_PHASE_CHARACTERS and name.isprintable()
        }
        longest_s = sorted(named.items(), key=lambda pause: -pause[1])[:MAX_PAUSES]
        return {"longest_s": dict(longest_s), "suspected_s": self._suspected_s, "stuck_step": self._stuck_step}


class RankWatch:
    """Observations of one rank that reports.

    has_ended: its last record is its exit
    is_over: no process that has reported still lives; what else remains of the rank may take its time
    interruptions: number of its reports of phases and checkpoints
    """

    def __init__(self, pauses: Pauses) -> None:
        self.step: int | None = None
        self.pids: list[int] = []
        self.has_ended = False
        self.is_over = False
        self.pulse_s = 0.0
        self.steps = 0
        self.interruptions = 0
        self._pauses = pauses
        self._durations: deque[float] = deque(maxlen=STEPS)
        self._last_step: tuple[float, float] | None = None  # in Unix seconds of the rank, in seconds of attention
        self._phase: str | None = None
        self._steps_in_phase = 0
        self._stillness = Stillness()

    @property
    def is_learned(self) -> bool:
        """True once enough is known to judge the rank."""
        return self.steps >= 2

    @property
    def pause(self) -> str | None:
        """The rank's phase, unless it makes steps there."""
        return self._phase if self._steps_in_phase < 2 else None

    @property
    def is_in_step(self) -> bool:
        """True if the rank does nothing but steps, as far as is known."""
        return self.is_learned and self._phase is None

    def step_s(self) -> float:
        """Return the median of its newest steps."""
        ordered = sorted(self._durations)
        return ordered[len(ordered) // 2] if ordered else 0.0

    def pace_ms(self) -> int | None:
        """Return the step time in ms once enough steps are known."""
        return int(self.step_s() * 1000) if len(self._durations) == STEPS else None

    def report_received(self, record: dict[str, Any], at_s: float) -> None:
        """Handle a record of its report, read at that time."""
        pid, step = record.get("pid"), record.get("step")
        if isinstance(pid, int) and pid not in self.pids:
            self.pids.append(pid)
        self.has_ended = "end" in record
        if self.has_ended:
            return
        self.interruptions += "phase" in record or "checkpoint" in record
        if isinstance(step, int):
            self._add_step(step, record.get("t"), at_s)
        if self.pause is not None and "phase" in record:
            self._pauses.learn(self.pause, at_s - self.pulse_s)
        elif self.is_learned and self.pause is None:
            self._pauses.learn(UNDECLARED, at_s - self.pulse_s)
        if "phase" in record:
            self._phase = None if record["phase"] is None else str(record["phase"])
            self._steps_in_phase = 0
        self.pulse_s = at_s

    def transfer_observed(self, at_s: float) -> None:
        """Treat a large transfer as a sign of life: a rank that saves or loads files is not stalled."""
        self.pulse_s = at_s

    def find_stop(self, states: dict[int, ProcStat], rest: object, at_s: float) -> tuple[str, float] | None:
        """Return how the rank is stopped and since when, once that has lasted long enough.

        `states` are its reporting processes; `rest` changes when its other processes do something, and is None if none
        lives.
        """
        kind, since_s = self._stillness.observe([states[pid] for pid in self.pids if pid in states], rest, at_s)
        if self._stillness.makes_progress:
            self.transfer_observed(at_s)
        if kind == DEAD and self.has_ended:
            return None
        if kind is None or at_s - self.pulse_s < still_s(self.step_s()):
            return None
        if not self.is_learned and kind != STOPPED:
            return None  # it may still be starting, but nothing starts in a stopped process
        patience_s = 0.5 + 0.25 * self.step_s()
        if kind == BLOCKED:
            patience_s = max(still_s(self.step_s()), self._stillness.blocked_s())
            if self.pause is not None:
                patience_s = max(patience_s, self._pauses.patience_s(self.pause))
        return (kind, since_s) if at_s - since_s >= patience_s else None

    def _add_step(self, step: int, unix_ms: object, at_s: float) -> None:
        self.step = step
        self._pauses.step_made(step)
        self.steps += 1
        self._steps_in_phase += 1
        unix_s = unix_ms / 1000 if isinstance(unix_ms, (int, float)) else 0.0
        if self._last_step is not None:
            passed_s = unix_s - self._last_step[0]
            watched_s = at_s - self._last_step[1]
            # By the rank's own clock, which is finer, unless it was set or the machine slept.
            self._durations.append(passed_s if 0 <= passed_s <= watched_s + 1.0 else watched_s)
        self._last_step = (unix_s, at_s)


STOPPED, BLOCKED, DEAD = "stopped", "blocked", "dead"


class Stillness:
    """Time for which the processes of one rank have been stopped in one and the same way."""

    def __init__(self) -> None:
        self._longest_blocked_s = 0.0  # of the blocks that ended by themselves
        self._waits_for_disk = False
        self.makes_progress = False  # the rank waits for a disk again and again
        self._kind: str | None = None
        self._since_s = 0.0
        self._fingerprint: object = None

    def observe(self, states: list[ProcStat], rest: object, at_s: float) -> tuple[str | None, float]:
        """Return the way in which the processes are stopped, and since when."""
        alive = [process for process in states if process.lives]
        kind, fingerprint = _stop_kind(alive, rest)
        self._waits_for_disk = any(word in process.waits for process in alive for word in DISK_WAITS)
        self.makes_progress = self._waits_for_disk and kind == self._kind and fingerprint != self._fingerprint
        if kind != self._kind or fingerprint != self._fingerprint:
            if self._kind == BLOCKED:
                self._longest_blocked_s = max(self._longest_blocked_s, at_s - self._since_s)
            self._kind, self._fingerprint, self._since_s = kind, fingerprint, at_s
        return kind, self._since_s

    def blocked_s(self) -> float:
        """Return how long a block is accepted at least: for a slow disk, or if an earlier block lasted as long."""
        return max(PAUSE_FACTOR * self._longest_blocked_s, SLOW_DISK_S if self._waits_for_disk else 0.0)


def still_s(step_s: float) -> float:
    """Return how long a rank may be still; with polling and taking stacks, less than 3 steps and 2 s."""
    return 1.5 * step_s + 0.75


def _stop_kind(alive: list[ProcStat], rest: object) -> tuple[str | None, object]:
    """Return how processes are stopped, and a fingerprint that would differ if they had done anything."""
    if not alive:
        return (DEAD, rest) if rest is not None else (None, None)
    for state, kind in (("T", STOPPED), ("D", BLOCKED)):
        if all(process.state == state for process in alive):
            return kind, (rest, [(process.pid, process.ticks, process.switches) for process in alive])
    return None, None


class QuietRank:
    """Observations of one rank that reports nothing, by its main process."""

    def __init__(self) -> None:
        self._stillness = Stillness()

    def find_stop(self, states: list[ProcStat], step_s: float, at_s: float) -> tuple[str, float] | None:
        """Return how it is stopped and since when, once that lasts long enough.

        `step_s` is its peers' step time, 0 if they report none.
        """
        kind, since_s = self._stillness.observe(states, None, at_s)
        patience_s = still_s(step_s) if step_s else QUIET_STOP_S
        if kind == BLOCKED:  # what it waits for is unknown
            patience_s = max(patience_s, SLOW_DISK_S, self._stillness.blocked_s())
        return None if kind is None or at_s - since_s < patience_s else (kind, since_s)


class Activity:
    """Observations of a node whose ranks report nothing: they are alive while they write or use processors."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self._pulse_s: float | None = None
        self._steady_since_s = 0.0  # start of the pulses without a long gap
        self.is_steady = False  # True after a whole minute of pulses

    def observe(self, at_s: float, *, is_active: bool) -> float | None:
        """Return since when no pulse was observed, once that has lasted long enough."""
        if is_active:
            gap_s = 0.0 if self._pulse_s is None else at_s - self._pulse_s
            if self._pulse_s is None or gap_s > STEADY_GAP_S:
                self._steady_since_s = at_s
            if self.is_steady:
                self._pauses.learn(UNDECLARED, gap_s)
            self.is_steady = self.is_steady or at_s - self._steady_since_s >= STEADY_S
            self._pulse_s = at_s
        if not self.is_steady or self._pulse_s is None:
            return None
        if at_s - self._pulse_s < self._pauses.patience_s(None) - PULSE_RESOLUTION_S:
            return None
        return self._pulse_s


class OutputHabit:
    """Observations of when a node's ranks write, to recognise an unusual silence."""

    def __init__(self) -> None:
        self._gaps_s: deque[float] = deque(maxlen=GAPS)
        self._longest_s = 0.0
        self._first_s = 0.0
        self._newest_s: float | None = None

    def usual_s(self) -> float | None:
        """Return the median time between outputs, None until they are known to be regular."""
        if self._newest_s is None or len(self._gaps_s) < MIN_GAPS or self._newest_s - self._first_s < QUIET_S:
            return None
        ordered = sorted(self._gaps_s)
        return ordered[len(ordered) // 2]

    def unwritten_since_s(self, at_s: float) -> float | None:
        """Return the time of the newest output, once that is some time ago."""
        is_over = self._newest_s is not None and at_s - self._newest_s >= UNWRITTEN_S
        return self._newest_s if is_over else None

    def observe(self, at_s: float, *, has_written: bool) -> float | None:
        """Return the time of the newest output, once that is unusually long ago."""
        if has_written:
            if self._newest_s is None:
                self._first_s = at_s
            else:
                self._gaps_s.append(at_s - self._newest_s)
                self._longest_s = max(self._longest_s, self._gaps_s[-1])
            self._newest_s = at_s
        usual_s = self.usual_s()
        if usual_s is None or self._newest_s is None:
            return None
        accepted_s = max(QUIET_S, QUIET_FACTOR * usual_s, 2 * self._longest_s)
        return self._newest_s if at_s - self._newest_s >= accepted_s else None


def silent_since(ranks: list[RankWatch], pauses: Pauses, at_s: float) -> float | None:
    """Return since when these reporting ranks have all been silent, shortly before their patience is over.

    Silence alone ends nothing: the server judges what the ranks do meanwhile.
    """
    learned = [rank for rank in ranks if rank.is_learned]
    if not learned:
        return None
    last_pulse_s = max(rank.pulse_s for rank in learned)
    patience_s = max(pauses.patience_s(rank.pause) for rank in learned)
    return last_pulse_s if at_s - last_pulse_s >= patience_s - CONFIRM_S else None


class LostRanks:
    """Detection that everything mpirun or a similar program has started here is gone, though it has not noticed."""

    def __init__(self) -> None:
        self.has_run = False
        self._since_s: float | None = None

    def observe(self, at_s: float, *, has_ranks: bool, has_launch_program: bool) -> float | None:
        """Return since when, once that has lasted long enough to report."""
        self.has_run = self.has_run or has_ranks
        if not self.has_run or has_ranks or not has_launch_program:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = at_s
        if self._since_s is None or at_s - self._since_s < LOST_AFTER_S:
            return None
        return self._since_s
