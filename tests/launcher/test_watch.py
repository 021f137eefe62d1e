"""What is found of ranks that stand still, and what is not: pauses, late looks, debuggers, ends. Times are seconds of
attention; every picture is a list of what was seen when.
"""

from typing import Any

import pytest

from ganger.launcher.health.proc_stats import ProcStat, rank_in
from ganger.launcher.health.stall import (
    FIRST_PHASE_S,
    SILENT_S,
    Activity,
    Attention,
    Pauses,
    QuietRank,
    RankWatch,
    ServerSilence,
    silent_since,
)

PID = 7


def vital(state: str = "S", ticks: int = 0, switches: int = 0, pid: int = PID, waits: str = "") -> ProcStat:
    fields = [state, "1", "1", "1"] + ["0"] * 7 + [str(ticks), "0"] + ["0"] * 6 + ["55", "0"]
    found = ProcStat(pid, f"{pid} (py (3) thon) {' '.join(fields)}".encode())
    found.switches, found.waits = switches, waits
    return found


class Picture:
    """One rank that has reported steps of `step_s` each, up to second `now`."""

    def __init__(self, step_s: float = 0.2, steps: int = 30, known: dict[str, Any] | None = None) -> None:
        self.pauses = Pauses(known or {})
        self.rank = RankWatch(self.pauses)
        self.now = 0.0
        self.say(pid=PID, phase=None)
        for step in range(steps):
            self.now += step_s
            self.say(step=step)

    def say(self, **record: Any) -> None:
        self.rank.heard({"t": int(1_000_000 + self.now * 1000), **record}, self.now)

    def found(self, state: str, for_s: float, rest: object = None, **seen: Any) -> str | None:
        """The kind of what is found when its process is seen so for that long, each quarter of a second."""
        kind, until = None, self.now + for_s
        while self.now < until:
            self.now += 0.25
            there = {PID: vital(state, **seen)} if state else {}
            found = self.rank.stands(there, rest, self.now)
            kind = found[0] if found else None
        return kind

    def is_silent(self, after_s: float) -> bool:
        return silent_since([self.rank], self.pauses, self.now + after_s + 0.001) is not None


@pytest.mark.parametrize(
    ("state", "rest", "kind"),
    [("T", None, "stopped"), ("D", None, "blocked"), ("Z", [], "dead"), ("", [(8, 1)], "dead")],
)
def test_what_stands_still_is_found_within_three_steps_and_two_seconds(state: str, rest: object, kind: str) -> None:
    for step_s in (0.05, 0.2, 1.0, 10.0):
        picture = Picture(step_s)
        assert picture.found(state, 0.5, rest) is None
        assert picture.found(state, 3 * step_s + 0.75, rest) == kind


@pytest.mark.parametrize("state", ["R", "S", "t", "I"])
def test_what_runs_sleeps_or_is_debugged_is_not_found(state: str) -> None:
    assert Picture().found(state, 60) is None


def test_what_is_blocked_but_gets_on_is_not_found() -> None:
    picture = Picture()
    for switches in range(40):
        assert picture.found("D", 0.25, switches=switches) is None


def test_slow_disk_has_its_time() -> None:
    assert Picture().found("D", 19, waits="folio_wait_bit_common") is None
    assert Picture().found("D", 22, waits="folio_wait_bit_common") == "blocked"
    picture = Picture()
    picture.found("D", 9, waits="jbd2_log_wait_commit")
    picture.found("S", 1)
    picture.say(step=99)
    assert picture.found("D", 10.5) is None, "it was blocked as long before"


def test_two_steps_come_before_any_finding() -> None:
    for state in "TD":
        assert Picture(steps=1).found(state, 60) is None
    assert not Picture(steps=1).is_silent(3600)


def test_dead_rank_is_none_that_said_its_last_word_or_left_something_at_work() -> None:
    picture = Picture()
    for ticks in range(20):
        assert picture.found("", 0.5, [(8, ticks)]) is None, "what it was started with goes on"
    assert picture.found("", 10, None) is None, "the launcher tells of its end"
    picture.say(end=PID)
    assert picture.found("", 10, []) is None


def test_child_that_reported_and_ended_is_not_missed() -> None:
    picture = Picture()
    picture.say(pid=99, step=100)
    assert picture.found("S", 30, []) is None


def test_silence_is_found_within_thirty_seconds() -> None:
    picture = Picture()
    assert not picture.is_silent(SILENT_S - 1)
    assert picture.is_silent(SILENT_S)


def test_patience_grows_with_the_longest_pause_and_lasts_into_the_next_generation() -> None:
    picture = Picture()
    picture.now += 100
    picture.say(step=99)
    assert not picture.is_silent(139)
    assert picture.is_silent(141)
    again = Picture(known=picture.pauses.record())
    assert not again.is_silent(139)


def test_doubt_doubles_the_patience_until_the_ranks_are_past_it() -> None:
    picture = Picture()
    picture.pauses.doubted(picture.rank.step)
    again = Picture(steps=20, known=picture.pauses.record())
    assert not again.is_silent(2 * SILENT_S - 1)
    assert again.is_silent(2 * SILENT_S)
    again.pauses.doubted(again.rank.step)
    assert not Picture(steps=20, known=again.pauses.record()).is_silent(4 * SILENT_S - 1)
    assert Picture(steps=30, known=picture.pauses.record()).is_silent(2 * SILENT_S)
    assert Picture(steps=31, known=picture.pauses.record()).is_silent(SILENT_S)


def test_rank_that_transfers_much_is_not_silent() -> None:
    picture = Picture()
    picture.now += 20
    picture.rank.transfers(picture.now)
    assert not picture.is_silent(SILENT_S - 1)


def test_rank_that_waits_for_a_disk_again_and_again_is_not_silent() -> None:
    picture = Picture()
    for switches in range(200):
        assert picture.found("D", 0.25, switches=switches, waits="folio_wait_bit_common") is None
    assert not picture.is_silent(SILENT_S - 1)
    assert picture.found("D", 21, waits="folio_wait_bit_common") == "blocked"


def test_declared_phase_has_ten_minutes_at_first_and_then_what_it_has_taken() -> None:
    picture = Picture()
    picture.say(phase="eval")
    assert not picture.is_silent(FIRST_PHASE_S - 1)
    assert picture.is_silent(FIRST_PHASE_S)
    picture.now += 60
    picture.say(phase=None)
    assert picture.is_silent(SILENT_S), "the pause of a phase is none without it"
    picture.now += 1
    picture.say(step=99)
    picture.say(phase="eval")
    assert not picture.is_silent(83)
    assert picture.is_silent(85)


def test_phase_that_makes_steps_is_no_pause() -> None:
    picture = Picture(steps=0)
    picture.say(phase="train")
    for step in range(10):
        picture.now += 0.2
        picture.say(step=step)
    assert picture.is_silent(SILENT_S)


def test_rank_that_is_in_a_phase_speaks_for_those_that_wait() -> None:
    saves, waits = Picture(), Picture()
    saves.say(phase="checkpoint")
    assert silent_since([saves.rank, waits.rank], saves.pauses, saves.now + 60) is None


def test_step_is_timed_by_the_ranks_clock_unless_that_was_set() -> None:
    picture = Picture(step_s=0.1)
    assert picture.rank.step_s() == pytest.approx(0.1, abs=0.002)
    for back_ms in (-3_600_000, 3_600_000):
        for step in range(20):
            picture.now += 0.1
            picture.rank.heard({"t": 5_000_000 + step * back_ms, "step": step}, picture.now)
        assert picture.rank.step_s() == pytest.approx(0.1, abs=0.002)


def test_pace_is_told_once_twenty_steps_are_timed() -> None:
    assert Picture(step_s=0.2, steps=20).rank.pace_ms() is None
    assert Picture(step_s=0.2, steps=21).rank.pace_ms() == pytest.approx(200, abs=2)


def test_time_in_which_nobody_looked_proves_nothing() -> None:
    attention = Attention(100.0)
    assert attention.look(100.5) == pytest.approx(0.5)
    assert attention.look(4_000.0) == pytest.approx(0.5), "the machine slept, or this process was stopped"
    assert attention.look(3_999.0) == pytest.approx(0.5)
    assert attention.look(3_999.5) == pytest.approx(1.0)


def test_rank_that_reports_nothing_is_found_stopped_by_the_process_that_works() -> None:
    quiet = QuietRank()
    assert [quiet.stands([vital("T")], 0.2, at_s) is not None for at_s in (0.25, 0.5, 1.0, 1.5)] == [False] * 3 + [True]
    assert quiet.stands([vital("S")], 0.2, 1.75) is None
    assert quiet.stands([], 0.2, 60.0) is None, "whether it died is the launcher's to tell"


def test_script_without_reports_is_known_after_a_minute_of_work() -> None:
    activity = Activity(Pauses({}))
    assert activity.look(0, pulse=True) is None
    assert activity.look(600, pulse=False) is None, "it may wait for whatever it likes"
    for at_s in range(605, 670, 5):
        assert activity.look(at_s, pulse=True) is None
    assert activity.look(661 + SILENT_S, pulse=False) is None
    assert activity.look(662 + SILENT_S, pulse=False) == 665


def test_deserted_is_what_mpirun_started_once_and_mpirun_has_not_noticed() -> None:
    desertion = ServerSilence()
    assert desertion.look(0, has_ranks=False, has_starter=True) is None, "nothing has run yet"
    assert desertion.look(1, has_ranks=True, has_starter=True) is None
    assert desertion.look(2, has_ranks=False, has_starter=True) is None
    assert desertion.look(6, has_ranks=False, has_starter=True) is None
    assert desertion.look(7, has_ranks=False, has_starter=True) == 2
    assert desertion.look(8, has_ranks=False, has_starter=False) is None, "what follows it in the shell line"


def test_rank_is_the_one_that_ganger_says_before_what_others_say() -> None:
    assert rank_in(b"\0RANK=3\0GANGER_RANK=5\0") == 5
    assert rank_in(b"\0HOME=/\0PMIX_RANK=2\0") == 2
    assert rank_in(b"\0MYRANK=2\0RANK=x\0") is None


@pytest.mark.parametrize("known", [{}, {"longest_s": 3, "factor": "x"}, {"longest_s": {"": "long"}, "factor": -1}])
def test_broken_record_of_pauses_is_none(known: dict[str, Any]) -> None:
    assert Pauses(known).patience_s(None) == SILENT_S
