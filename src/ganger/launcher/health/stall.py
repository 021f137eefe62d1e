"""Judges whether ranks stand still, by what was learned of their steps and pauses. Called by `lookout`.

Pure: what was seen and when comes in, in seconds of attention (`Attention`). What is found after which time, and why:
docs/reference/failures.md, "Hang".
"""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ganger.launcher.health.proc_stats import ProcStat

LATE_S = 2.0
"""A look that comes later than this says nothing of the time before it: the machine slept, or this process did."""
DESERTED_AFTER_S = 5.0
LONGEST_S = 10_000_000
"""What is kept of a longer pause is none that was seen."""
STEPS = 20
"""So many of the newest steps of a rank tell how long one takes."""
SILENT_S = 27.0
PAUSES = 1.4
"""What is found silent is told within 30 s, or 1.5 times the longest pause, with the stacks that are taken first."""
FIRST_PHASE_S = 600.0
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
"""Parts of the names of kernel functions in which a process waits for a disk, which answers at last."""
COARSE_S = 3.0  # the last pulse may have been this much earlier than it was seen
STEADY_S = 60.0
STEADY_GAP_S = 10.0
UNDECLARED = ""


class Attention:
    """A clock that runs only while somebody looks, so that time in which nothing could be seen proves nothing."""

    def __init__(self, now: float) -> None:
        self._seen_at = now
        self._attended_s = 0.0

    def look(self, now: float) -> float:
        """Seconds of attention, at a look at `now` (monotonic seconds)."""
        passed_s = now - self._seen_at
        self._seen_at = now
        if 0 < passed_s <= LATE_S:
            self._attended_s += passed_s
        return self._attended_s


class Pauses:
    """How long the ranks of a job have been seen to pause, by phase, and how much longer to wait than that."""

    def __init__(self, known: dict[str, Any]) -> None:
        """`known` is what `record` gave an earlier generation; what is not of its form is left out."""
        longest = known.get("longest_s")
        pairs = longest.items() if isinstance(longest, dict) else ()
        self.longest_s = {
            str(name): float(value)
            for name, value in pairs
            if isinstance(value, (int, float)) and 0 <= value <= LONGEST_S
        }
        factor, stuck_step = known.get("factor"), known.get("stuck_step")
        self._stuck_step = stuck_step if isinstance(stuck_step, int) else -1
        self._factor = factor if isinstance(factor, int) and 0 < factor <= LONGEST_S else 1

    def learn(self, phase: str, lasted_s: float) -> None:
        """A pause came to its end by itself."""
        self.longest_s[phase] = max(lasted_s, self.longest_s.get(phase, 0.0))

    def passed(self, step: int) -> None:
        """A rank has made that step. Beyond the one after which the ranks were found silent, nothing is left of the
        doubt whether they were."""
        if step > self._stuck_step:
            self._factor = 1

    def doubted(self, step: int | None) -> None:
        """The ranks were found silent after that step: they may have been at work on something that takes so long, and
        so the next generation has twice the patience until it is past it."""
        self._factor *= 2
        self._stuck_step = -1 if step is None else step

    def patience_s(self, phase: str | None) -> float:
        """How long nothing may be heard, in that phase or in none."""
        usual_s = max(SILENT_S, PAUSES * self.longest_s.get(UNDECLARED, 0.0)) * self._factor
        if phase is None:
            return usual_s
        known_s = self.longest_s.get(phase)
        return max(usual_s, FIRST_PHASE_S if known_s is None else PAUSES * known_s)

    def record(self) -> dict[str, Any]:
        """To be kept for the next generation."""
        return {"longest_s": self.longest_s, "factor": self._factor, "stuck_step": self._stuck_step}


class RankWatch:
    """One rank that reports."""

    def __init__(self, pauses: Pauses) -> None:
        self.step: int | None = None
        self.pids: list[int] = []
        self.has_ended = False  # by its last word
        self.is_over = False
        """No process lives that has reported; what else there is of the rank may take its time."""
        self.pulse_s = 0.0
        self.steps = 0
        self.interruptions = 0
        """How often it has said something of phases and checkpoints."""
        self._pauses = pauses
        self._durations: deque[float] = deque(maxlen=STEPS)
        self._stepped: tuple[float, float] | None = None  # in Unix seconds of the rank, in seconds of attention
        self._phase: str | None = None
        self._steps_in_phase = 0
        self._stillness = Stillness()

    @property
    def is_learned(self) -> bool:
        """Whether enough is known to find anything."""
        return self.steps >= 2

    @property
    def pause(self) -> str | None:
        """The phase it is in, unless it makes steps there."""
        return self._phase if self._steps_in_phase < 2 else None

    @property
    def is_in_step(self) -> bool:
        """Whether it does nothing but steps, as far as is known."""
        return self.is_learned and self._phase is None

    def step_s(self) -> float:
        """The median of its newest steps."""
        ordered = sorted(self._durations)
        return ordered[len(ordered) // 2] if ordered else 0.0

    def pace_ms(self) -> int | None:
        """The same, once it is sure."""
        return int(self.step_s() * 1000) if len(self._durations) == STEPS else None

    def heard(self, record: dict[str, Any], at_s: float) -> None:
        """A line of its report, read at that time."""
        pid, step = record.get("pid"), record.get("step")
        if isinstance(pid, int) and pid not in self.pids:
            self.pids.append(pid)
        self.has_ended = "end" in record
        if self.has_ended:
            return
        self.interruptions += "phase" in record or "checkpoint" in record
        if isinstance(step, int):
            self._step(step, record.get("t"), at_s)
        if self.pause is not None and "phase" in record:
            self._pauses.learn(self.pause, at_s - self.pulse_s)
        elif self.is_learned and self.pause is None:
            self._pauses.learn(UNDECLARED, at_s - self.pulse_s)
        if "phase" in record:
            self._phase = None if record["phase"] is None else str(record["phase"])
            self._steps_in_phase = 0
        self.pulse_s = at_s

    def transfers(self, at_s: float) -> None:
        """It reads or writes files, and much: whoever saves or loads is no rank that stands still."""
        self.pulse_s = at_s

    def stands(self, seen: dict[int, ProcStat], rest: object, at_s: float) -> tuple[str, float] | None:
        """How it stands still and since when, once that is long enough. `seen` are those of its processes that report;
        `rest` differs when what it was started with does something, and is None when nothing of that lives."""
        kind, since_s = self._stillness.look([seen[pid] for pid in self.pids if pid in seen], rest, at_s)
        if self._stillness.gets_on:
            self.transfers(at_s)
        if kind == DEAD and self.has_ended:
            return None
        if kind is None or not self.is_learned or at_s - self.pulse_s < still_s(self.step_s()):
            return None
        patience_s = 0.5 + 0.25 * self.step_s()
        if kind == BLOCKED:
            patience_s = max(still_s(self.step_s()), self._stillness.blocked_s())
            if self.pause is not None:
                patience_s = max(patience_s, self._pauses.patience_s(self.pause))
        return (kind, since_s) if at_s - since_s >= patience_s else None

    def _step(self, step: int, unix_ms: object, at_s: float) -> None:
        self.step = step
        self._pauses.passed(step)
        self.steps += 1
        self._steps_in_phase += 1
        unix_s = unix_ms / 1000 if isinstance(unix_ms, (int, float)) else 0.0
        if self._stepped is not None:
            passed_s = unix_s - self._stepped[0]
            watched_s = at_s - self._stepped[1]
            # By its own clock, which is finer, unless that was set or the machine slept.
            self._durations.append(passed_s if 0 <= passed_s <= watched_s + 1.0 else watched_s)
        self._stepped = (unix_s, at_s)


STOPPED, BLOCKED, DEAD = "stopped", "blocked", "dead"


class Stillness:
    """Since when the processes of one rank have stood still, in one and the same way."""

    def __init__(self) -> None:
        self._longest_blocked_s = 0.0  # of those times that came to their end by themselves
        self._waits_for_disk = False
        self.gets_on = False
        """Whether it waits for a disk again and again."""
        self._kind: str | None = None
        self._since_s = 0.0
        self._before: object = None

    def look(self, seen: list[ProcStat], rest: object, at_s: float) -> tuple[str | None, float]:
        """The way, and since when."""
        alive = [vital for vital in seen if vital.lives]
        kind, sign = _kind(alive, rest)
        self._waits_for_disk = any(word in vital.waits for vital in alive for word in DISK_WAITS)
        self.gets_on = self._waits_for_disk and kind == self._kind and sign != self._before
        if kind != self._kind or sign != self._before:
            if self._kind == BLOCKED:
                self._longest_blocked_s = max(self._longest_blocked_s, at_s - self._since_s)
            self._kind, self._before, self._since_s = kind, sign, at_s
        return kind, self._since_s

    def blocked_s(self) -> float:
        """How long it may be blocked at the least: a slow disk is no fault of the rank, and what was once may be
        again."""
        return max(PAUSES * self._longest_blocked_s, SLOW_DISK_S if self._waits_for_disk else 0.0)


def still_s(step_s: float) -> float:
    """How long a rank may stand still: with the time to look and to take stacks, less than 3 steps and 2 s."""
    return 1.5 * step_s + 0.75


def _kind(alive: list[ProcStat], rest: object) -> tuple[str | None, object]:
    """How processes stand still, and what would be different if they had done anything."""
    if not alive:
        return (DEAD, rest) if rest is not None else (None, None)
    if all(vital.state == "T" for vital in alive):
        return STOPPED, None
    if all(vital.state == "D" for vital in alive):
        return BLOCKED, [(vital.pid, vital.ticks, vital.switches) for vital in alive]
    return None, None


class QuietRank:
    """One rank that reports nothing, by the process of it that has worked most."""

    def __init__(self) -> None:
        self._stillness = Stillness()

    def stands(self, seen: list[ProcStat], step_s: float, at_s: float) -> tuple[str, float] | None:
        """How it stands still and since when, once that is long enough. `step_s` is what a step of its peers takes."""
        kind, since_s = self._stillness.look(seen, None, at_s)
        patience_s = still_s(step_s)
        if kind == BLOCKED:  # nobody knows what it does there
            patience_s = max(patience_s, SLOW_DISK_S, self._stillness.blocked_s())
        return None if kind is None or at_s - since_s < patience_s else (kind, since_s)


class Activity:
    """The ranks of a node of which none reports: they live while they write or use processors."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self._pulse_s: float | None = None
        self._run_s = 0.0  # when the pulses began that have come without a long gap
        self.is_steady = False
        """Whether they have been seen to do so for a minute on end."""

    def look(self, at_s: float, *, pulse: bool) -> float | None:
        """Since when nothing was seen, once that is long enough."""
        if pulse:
            gap_s = 0.0 if self._pulse_s is None else at_s - self._pulse_s
            if self._pulse_s is None or gap_s > STEADY_GAP_S:
                self._run_s = at_s
            if self.is_steady:
                self._pauses.learn(UNDECLARED, gap_s)
            self.is_steady = self.is_steady or at_s - self._run_s >= STEADY_S
            self._pulse_s = at_s
        if not self.is_steady or self._pulse_s is None:
            return None
        if at_s - self._pulse_s < self._pauses.patience_s(None) - COARSE_S:
            return None
        return self._pulse_s


def silent_since(ranks: list[RankWatch], pauses: Pauses, at_s: float) -> float | None:
    """Since when none of these ranks, which all report, has been heard of, once that is long enough."""
    learned = [rank for rank in ranks if rank.is_learned]
    if not learned:
        return None
    heard_s = max(rank.pulse_s for rank in learned)
    patience_s = max(pauses.patience_s(rank.pause) for rank in learned)
    return heard_s if at_s - heard_s >= patience_s else None


class ServerSilence:
    """Whether all that mpirun or its like had started here is gone, though it has not noticed."""

    def __init__(self) -> None:
        self.has_run = False
        self._since_s: float | None = None

    def look(self, at_s: float, *, has_ranks: bool, has_starter: bool) -> float | None:
        """Since when, once that is long enough to be told."""
        self.has_run = self.has_run or has_ranks
        if not self.has_run or has_ranks or not has_starter:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = at_s
        if self._since_s is None or at_s - self._since_s < DESERTED_AFTER_S:
            return None
        return self._since_s
