"""Stall detection: pauses, late polls, debuggers, exits.

Times are seconds of attention; every picture is a list of observations.
"""

from typing import Any

import pytest

from ganger.launcher.health.hang_detection import (
    CONFIRM_S,
    FIRST_PHASE_S,
    QUIET_S,
    QUIET_STOP_S,
    SILENT_S,
    Activity,
    Attention,
    LostRanks,
    OutputHabit,
    Pauses,
    QuietRank,
    RankWatch,
    silent_since,
)
from ganger.launcher.health.proc_stats import ProcStat, rank_in

PID = 7


def proc_stat(state: str = "S", ticks: int = 0, switches: int = 0, pid: int = PID, waits: str = "") -> ProcStat:
    fields = [state, "1", "1", "1"] + ["0"] * 7 + [str(ticks), "0"] + ["0"] * 6 + ["55", "0", "0"]
    stat = ProcStat(pid, f"{pid} (py (3) thon) {' '.join(fields)}".encode())
    stat.switches, stat.waits = switches, waits
    return stat


class Picture:
    """One rank that has reported steps of `step_s` each, up to second `now`."""

    def __init__(self, step_s: float = 0.2, steps: int = 30, known: dict[str, Any] | None = None) -> None:
        self.pauses = Pauses(known or {})
        self.rank = RankWatch(self.pauses)
        self.now_s = 0.0
        self.report(pid=PID, phase=None)
        for step in range(steps):
            self.now_s += step_s
            self.report(step=step)

    def report(self, **record: Any) -> None:
        self.rank.report_received({"t": int(1_000_000 + self.now_s * 1000), **record}, self.now_s)

    def stop_kind(self, state: str, for_s: float, rest: object = None, **fields: Any) -> str | None:
        """Return the kind of stop found after `for_s` seconds in that state, polled each quarter of a second."""
        kind, until_s = None, self.now_s + for_s
        while self.now_s < until_s:
            self.now_s += 0.25
            states = {PID: proc_stat(state, **fields)} if state else {}
            stop = self.rank.find_stop(states, rest, self.now_s)
            kind = stop[0] if stop else None
        return kind

    def is_silent(self, after_s: float) -> bool:
        """Return whether silence is known in time for the server to judge it after so many seconds."""
        return silent_since([self.rank], self.pauses, self.now_s + after_s - CONFIRM_S + 0.001) is not None


@pytest.mark.parametrize(
    ("state", "rest", "kind"),
    [("T", None, "stopped"), ("D", None, "blocked"), ("Z", [], "dead"), ("", [(8, 1)], "dead")],
)
def test_stopped_rank_is_found_within_three_steps_and_two_seconds(state: str, rest: object, kind: str) -> None:
    for step_s in (0.05, 0.2, 1.0, 10.0):
        picture = Picture(step_s)
        assert picture.stop_kind(state, 0.5, rest) is None
        assert picture.stop_kind(state, 3 * step_s + 0.75, rest) == kind


@pytest.mark.parametrize("state", ["R", "S", "t", "I"])
def test_running_sleeping_or_debugged_rank_is_not_found(state: str) -> None:
    assert Picture().stop_kind(state, 60) is None


@pytest.mark.parametrize("state", ["D", "T"])
def test_blocked_or_throttled_rank_that_makes_progress_is_not_found(state: str) -> None:
    picture, quiet = Picture(), QuietRank()
    for switches in range(40):
        assert picture.stop_kind(state, 0.25, switches=switches) is None
        assert quiet.find_stop([proc_stat(state, switches=switches)], 0, switches / 4) is None


def test_slow_disk_is_tolerated() -> None:
    assert Picture().stop_kind("D", 19, waits="folio_wait_bit_common") is None
    assert Picture().stop_kind("D", 22, waits="folio_wait_bit_common") == "blocked"
    picture = Picture()
    picture.stop_kind("D", 9, waits="jbd2_log_wait_commit")
    picture.stop_kind("S", 1)
    picture.report(step=99)
    assert picture.stop_kind("D", 10.5) is None, "it was blocked as long before"


def test_only_a_stop_is_found_before_two_steps() -> None:
    assert Picture(steps=1).stop_kind("D", 60) is None
    assert Picture(steps=1).stop_kind("T", 2) == "stopped", "nothing starts in a stopped process"
    assert not Picture(steps=1).is_silent(3600)


def test_rank_that_exited_or_left_working_processes_is_not_dead() -> None:
    picture = Picture()
    for ticks in range(20):
        assert picture.stop_kind("", 0.5, [(8, ticks)]) is None, "its other processes work"
    assert picture.stop_kind("", 10, None) is None, "the launcher reports its exit"
    picture.report(end=PID)
    assert picture.stop_kind("", 10, []) is None


def test_ended_child_that_had_reported_is_ignored() -> None:
    picture = Picture()
    picture.report(pid=99, step=100)
    assert picture.stop_kind("S", 30, []) is None


def test_silence_is_found_within_thirty_seconds() -> None:
    picture = Picture()
    assert not picture.is_silent(SILENT_S - 1)
    assert picture.is_silent(SILENT_S)


def test_patience_grows_with_the_longest_pause_and_lasts_into_the_next_generation() -> None:
    picture = Picture()
    picture.now_s += 100
    picture.report(step=99)
    assert not picture.is_silent(139)
    assert picture.is_silent(141)
    again = Picture(known=picture.pauses.to_json())
    assert not again.is_silent(139)


def test_patience_is_doubled_until_the_ranks_are_past_the_silent_step() -> None:
    picture = Picture()
    picture.pauses.double_patience(picture.rank.step, SILENT_S)
    again = Picture(steps=20, known=picture.pauses.to_json())
    assert not again.is_silent(2 * SILENT_S - 1)
    assert again.is_silent(2 * SILENT_S)
    again.pauses.double_patience(again.rank.step, 2 * SILENT_S)
    assert not Picture(steps=20, known=again.pauses.to_json()).is_silent(4 * SILENT_S - 1)
    assert Picture(steps=30, known=picture.pauses.to_json()).is_silent(2 * SILENT_S)
    assert Picture(steps=31, known=picture.pauses.to_json()).is_silent(SILENT_S)


def test_rank_that_transfers_much_is_not_silent() -> None:
    picture = Picture()
    picture.now_s += 20
    picture.rank.transfer_observed(picture.now_s)
    assert not picture.is_silent(SILENT_S - 1)


def test_rank_that_keeps_waiting_for_a_disk_is_not_silent() -> None:
    picture = Picture()
    for switches in range(200):
        assert picture.stop_kind("D", 0.25, switches=switches, waits="folio_wait_bit_common") is None
    assert not picture.is_silent(SILENT_S - 1)
    assert picture.stop_kind("D", 21, waits="folio_wait_bit_common") == "blocked"


def test_declared_phase_has_ten_minutes_at_first_and_then_its_longest_duration() -> None:
    picture = Picture()
    picture.report(phase="eval")
    assert not picture.is_silent(FIRST_PHASE_S - 1)
    assert picture.is_silent(FIRST_PHASE_S)
    picture.now_s += 60
    picture.report(phase=None)
    assert picture.is_silent(SILENT_S), "the pause of a phase is none without it"
    picture.now_s += 1
    picture.report(step=99)
    picture.report(phase="eval")
    assert not picture.is_silent(83)
    assert picture.is_silent(85)


def test_phase_with_steps_is_no_pause() -> None:
    picture = Picture(steps=0)
    picture.report(phase="train")
    for step in range(10):
        picture.now_s += 0.2
        picture.report(step=step)
    assert picture.is_silent(SILENT_S)


def test_rank_in_a_phase_covers_the_ranks_that_wait() -> None:
    saves, waits = Picture(), Picture()
    saves.report(phase="checkpoint")
    assert silent_since([saves.rank, waits.rank], saves.pauses, saves.now_s + 60) is None


def test_step_is_timed_by_the_ranks_clock_unless_it_was_set() -> None:
    picture = Picture(step_s=0.1)
    assert picture.rank.step_s() == pytest.approx(0.1, abs=0.002)
    for back_ms in (-3_600_000, 3_600_000):
        for step in range(20):
            picture.now_s += 0.1
            picture.rank.report_received({"t": 5_000_000 + step * back_ms, "step": step}, picture.now_s)
        assert picture.rank.step_s() == pytest.approx(0.1, abs=0.002)


def test_step_time_is_reported_once_twenty_steps_are_timed() -> None:
    assert Picture(step_s=0.2, steps=20).rank.pace_ms() is None
    assert Picture(step_s=0.2, steps=21).rank.pace_ms() == pytest.approx(200, abs=2)


def test_time_without_polls_proves_nothing() -> None:
    attention = Attention(100.0)
    assert attention.advance(100.5) == pytest.approx(0.5)
    assert attention.advance(4_000.0) == pytest.approx(0.5), "the machine slept, or this process was stopped"
    assert attention.advance(3_999.0) == pytest.approx(0.5)
    assert attention.advance(3_999.5) == pytest.approx(1.0)


def test_rank_that_reports_nothing_is_judged_by_its_busiest_process() -> None:
    quiet = QuietRank()
    assert [quiet.find_stop([proc_stat("T")], 0.2, at_s) is not None for at_s in (0.25, 0.5, 1.0, 1.5)] == [
        False
    ] * 3 + [True]
    assert quiet.find_stop([proc_stat("S")], 0.2, 1.75) is None
    assert quiet.find_stop([], 0.2, 60.0) is None, "the launcher reports whether it died"


def test_rank_of_a_job_without_steps_may_be_stopped_for_seconds() -> None:
    quiet = QuietRank()
    quiet.find_stop([proc_stat("T")], 0, 0)
    assert quiet.find_stop([proc_stat("T")], 0, QUIET_STOP_S - 0.25) is None
    assert quiet.find_stop([proc_stat("T")], 0, QUIET_STOP_S) == ("stopped", 0)


def test_script_without_reports_is_judged_after_a_minute_of_work() -> None:
    activity = Activity(Pauses({}))
    assert activity.observe(0, is_active=True) is None
    assert activity.observe(600, is_active=False) is None, "it may wait for anything"
    for at_s in range(605, 670, 5):
        assert activity.observe(at_s, is_active=True) is None
    assert activity.observe(661 + SILENT_S, is_active=False) is None
    assert activity.observe(662 + SILENT_S, is_active=False) == 665


@pytest.mark.parametrize(
    ("gaps_s", "usual_s", "reported_after_s"),
    [
        ([40] * 18, 40, 10 * 40),
        ([5] * 100, 5, QUIET_S),
        ([40] * 17 + [600], 40, 2 * 600),
        ([5] * 30, None, None),  # a start that writes much, and then computes
        ([600] * 9, None, None),
        ([], None, None),
    ],
)
def test_a_silence_against_the_ranks_own_habit_is_reported(
    gaps_s: list[float], usual_s: float | None, reported_after_s: float | None
) -> None:
    habit, at_s = OutputHabit(), 100.0
    assert habit.observe(at_s, has_written=True) is None
    for gap_s in gaps_s:
        at_s += gap_s
        assert habit.observe(at_s, has_written=True) is None
    assert habit.usual_s() == usual_s
    if reported_after_s is None:
        assert habit.observe(at_s + 1e6, has_written=False) is None
    else:
        assert habit.observe(at_s + reported_after_s - 1, has_written=False) is None
        assert habit.observe(at_s + reported_after_s, has_written=False) == at_s
        assert habit.observe(at_s + reported_after_s + 5, has_written=True) is None


def test_lost_ranks_are_found_while_mpirun_still_runs() -> None:
    lost_ranks = LostRanks()
    assert lost_ranks.observe(0, has_ranks=False, has_launch_program=True) is None, "nothing has run yet"
    assert lost_ranks.observe(1, has_ranks=True, has_launch_program=True) is None
    assert lost_ranks.observe(2, has_ranks=False, has_launch_program=True) is None
    assert lost_ranks.observe(6, has_ranks=False, has_launch_program=True) is None
    assert lost_ranks.observe(7, has_ranks=False, has_launch_program=True) == 2
    assert lost_ranks.observe(8, has_ranks=False, has_launch_program=False) is None, (
        "the next command of the shell line runs"
    )


def test_rank_of_ganger_takes_precedence() -> None:
    assert rank_in(b"\0RANK=3\0GANGER_RANK=5\0") == 5
    assert rank_in(b"\0HOME=/\0PMIX_RANK=2\0") == 2
    assert rank_in(b"\0MYRANK=2\0RANK=x\0") is None


@pytest.mark.parametrize(
    "known", [{}, {"longest_s": 3, "suspected_s": "x"}, {"longest_s": {"": "long"}, "suspected_s": -1}]
)
def test_invalid_saved_pauses_are_ignored(known: dict[str, Any]) -> None:
    assert Pauses(known).patience_s(None) == SILENT_S
