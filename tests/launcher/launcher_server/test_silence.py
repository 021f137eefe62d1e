"""Silent gangs that report nothing: a hang where the stacks prove it, else reported or left alone."""

from collections.abc import Callable, Collection
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from ganger.launcher.health.hang_detection import CONFIRM_S, SILENT_S
from ganger.launcher_server.generation_state import Generation, new_generation
from ganger.launcher_server.health import fail_hanging_gang
from ganger.launcher_server.health.fail_hanging_gang import HangDetector
from ganger.model.decision import NodeShare, Start
from ganger.model.event import Failed, Quiet
from ganger.model.job import Job, JobSpec, Origin
from ganger.model.job_sections.retry_spec import Limits

REDUCES = ("all_reduce (/lib/torch/distributed/distributed_c10d.py:3157)", "<module> (train.py:9)")
SERVES = ("select (/lib/python3.13/selectors.py:452)", "<module> (serve.py:2)")
MINUTE_MS = 60_000
PATIENCE_S = SILENT_S - CONFIRM_S
"""Launchers report the silence of ranks that report steps after so long."""

LOADS = ("load (/home/me/data.py:10)", "<module> (/home/me/train.py:2)")
SPINS = ("<module> (/home/me/train.py:31)",)


class Watch:
    """A detector of one gang with a rank on each node, and what it has asked for and reported.

    It stands for the event loop, for the records and for the launchers: `timers` are (delay in s, callback, arguments),
    `frames` the stack of each rank, `idle_minutes` for how long each has done nothing.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *frames: tuple[str, ...], hang_time_ms: int | None = None):
        self.frames = dict(enumerate(frames))
        self.idle_minutes: dict[int, float] = {}
        self.now_s = 1_000_000_000.0
        monkeypatch.setattr(fail_hanging_gang, "time", SimpleNamespace(time=lambda: self.now_s))
        self.timers: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []
        self.failures: list[Failed] = []
        self.quiet: list[Quiet] = []
        self.stacks = 0
        self.has_reports = False
        loop: Any = self
        self.detector = HangDetector(loop, loop, self._take_stacks, self._fail, self.quiet.append)
        spec = JobSpec(run="x", nodes=len(frames), limits=Limits(hang_time_ms=hang_time_ms))
        job = Job(id="job", user="me", spec=spec, origin=Origin(directory="/", environment={}))
        self.nodes = [f"n{rank}" for rank in self.frames]
        shares = tuple(NodeShare(node, (rank,)) for rank, node in enumerate(self.nodes))
        self.generation = new_generation(Start(gang="job", generation=1, shares=shares, host="h", port=1), job)

    def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> "Watch":
        self.timers.append((self.now_s + delay_s, callback, arguments))
        return self

    def cancel(self) -> None:
        """Ignore it: only the timers of samples fire here, once each."""

    def main_frames(self, gang: str, generation: int) -> dict[int, tuple[str, ...]]:
        return {rank: frames for rank, frames in self.frames.items() if frames}

    def last_lines(self, *_: object) -> tuple[str, ...]:
        return ()

    def reports(self, node: str, *stopped_ranks: int, **minutes_ago: float | None) -> None:
        """Report from a node, with ranks that a SIGSTOP stopped a minute ago; each time is so many minutes ago."""
        fields = ("silent_since_ms", "quiet_since_ms", "unwritten_since_ms", "ranks_lost_since_ms")
        times = {name: minutes_ago.get(name.removesuffix("_since_ms")) for name in fields}
        now_ms = int(self.now_s * 1000)
        message = {name: None if ago is None else now_ms - int(ago * MINUTE_MS) for name, ago in times.items()}
        usual = minutes_ago.get("usual")
        message |= {"usual_gap_ms": None if usual is None else int(usual * MINUTE_MS)}
        pauses = {"longest_s": {}, "suspected_s": 0.0, "stuck_step": -1}
        self.has_reports |= minutes_ago.get("silent") is not None
        stopped = [[rank, "stopped", now_ms - MINUTE_MS, False] for rank in stopped_ranks]
        fields_of_ranks = {"has_run": True, "has_reports": self.has_reports, "stopped_ranks": stopped, "pauses": pauses}
        self.detector.stall_reported(self.generation, node, message | fields_of_ranks)

    def silence(self, minutes: float, *, idle: Collection[int] = (), known: str = "unwritten") -> None:
        """Pass so many minutes in which nothing is written, or no step made (`known`), and these ranks do nothing."""
        if self.generation.stack_samples is None:
            self.idle_minutes = {rank: 0.37 if rank in idle else 0 for rank in self.frames}
            for node in self.nodes:
                self.reports(node, **{known: 0.5 if known == "unwritten" else PATIENCE_S / 60})
        end_s = self.now_s + 60 * minutes
        started_s = self.now_s
        while self.timers and min(self.timers)[0] <= end_s and not self.failures:
            entry = min(self.timers, key=lambda timer: timer[0])
            self.timers.remove(entry)
            self.now_s = max(self.now_s, entry[0])
            for rank in self.frames:
                passed = (self.now_s - started_s) / 60 + (PATIENCE_S / 60 if known == "silent" else 0)
                self.idle_minutes[rank] = passed if rank in idle else 0
            if entry[1].__name__ == "_take_sample":
                entry[1](*entry[2])
        self.now_s = end_s if not self.failures else self.now_s

    def _fail(self, generation: Generation, failed: Failed) -> None:
        generation.failed.append(failed.node)
        self.failures.append(failed)

    def _take_stacks(self, gang: str, node: str, fields: dict[str, Any]) -> None:
        self.stacks += 1
        if self.generation.stack_request is not None:
            rank = int(node[1:])
            idle_ms = int(self.idle_minutes.get(rank, 0) * MINUTE_MS)
            detail = {"step": None, "state": "S", "busy_permille": 0 if idle_ms else 1000, "idle_ms": idle_ms}
            self.detector.stacks_received(self.generation, node, {"ranks": {str(rank): detail}})


Begin = Callable[..., Watch]


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Begin:
    return partial(Watch, monkeypatch)


def test_idle_ranks_that_all_wait_for_each_other_hang_after_the_time_of_the_job(begin: Begin) -> None:
    watch = begin(REDUCES, REDUCES)
    watch.silence(9, idle=(0, 1))
    assert not watch.failures, "they may wait for work"
    watch = begin(REDUCES, REDUCES)
    watch.silence(12, idle=(0, 1))
    (failed,) = watch.failures
    assert failed.detail.startswith("all 2 ranks wait in all_reduce at train.py:9 since 10m")
    assert "limits.hang_time" in failed.detail


@pytest.mark.parametrize("hang_time_ms", [0, 3_600_000])
def test_a_rank_that_somebody_stopped_ends_no_job_that_never_hangs(begin: Begin, hang_time_ms: int) -> None:
    watch = begin(REDUCES, REDUCES, hang_time_ms=hang_time_ms)
    watch.reports("n0")
    watch.reports("n1", 1)
    assert [failed.rank for failed in watch.failures] == [1] * bool(hang_time_ms)


@pytest.mark.parametrize("hang_time_ms", [0, 3_600_000])
def test_a_job_sets_the_time_or_turns_it_off(begin: Begin, hang_time_ms: int) -> None:
    watch = begin(REDUCES, LOADS, hang_time_ms=hang_time_ms)
    watch.silence(59, idle=(0, 1))
    assert not watch.failures
    watch.silence(600, idle=(0, 1))
    assert bool(watch.failures) == bool(hang_time_ms)


def test_a_rank_that_does_nothing_while_the_others_spin_in_a_collective_operation_hangs(begin: Begin) -> None:
    watch = begin(REDUCES, REDUCES, LOADS, REDUCES)
    watch.silence(12, idle=(2,))
    (failed,) = watch.failures
    assert (failed.rank, failed.node) == (2, "n2")
    assert failed.detail.startswith("3 of 4 ranks wait in all_reduce at train.py:9 since 10m")


# -- ranks that report steps -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frames", [(LOADS, LOADS), (SERVES, SPINS), ((), ())])
def test_ranks_that_wait_for_anything_but_each_other_have_ten_minutes_without_a_step(
    begin: Begin, frames: tuple[tuple[str, ...], ...]
) -> None:
    """An evaluation of nine minutes, in which the ranks of this machine wait for another one."""
    watch = begin(*frames)
    watch.silence(9, idle=(0, 1), known="silent")
    assert not watch.failures
    watch = begin(*frames)
    watch.silence(11, idle=(0, 1), known="silent")
    (failed,) = watch.failures
    assert failed.detail.startswith("no rank has made a step for 10m 00s, and none has used a processor or written")
    assert 'ganger.train.phase("eval")' in failed.detail
    assert "limits: {hang_time:" in failed.detail


@pytest.mark.parametrize("frames", [(LOADS, LOADS), (LOADS, REDUCES), (REDUCES, LOADS, REDUCES, REDUCES)])
def test_ranks_live_without_a_step_while_one_works_or_writes(begin: Begin, frames: tuple[tuple[str, ...], ...]) -> None:
    """The others may wait for it in a collective operation: it evaluates, saves or compiles."""
    watch = begin(*frames)
    working = frames.index(LOADS)
    watch.silence(300, idle=set(range(len(frames))) - {working}, known="silent")
    assert not watch.failures


@pytest.mark.parametrize(
    ("frames", "idle", "rank"),
    [((REDUCES, REDUCES, LOADS, REDUCES), (2,), 2), ((REDUCES, LOADS), (0, 1), 1), ((REDUCES, REDUCES), (0, 1), None)],
)
def test_ranks_that_wait_in_a_collective_operation_for_idle_ones_hang_within_thirty_seconds(
    begin: Begin, frames: tuple[tuple[str, ...], ...], idle: tuple[int, ...], rank: int | None
) -> None:
    watch = begin(*frames)
    began_s = watch.now_s - PATIENCE_S
    watch.silence(1, idle=idle, known="silent")
    (failed,) = watch.failures
    assert watch.now_s - began_s < SILENT_S + 1
    assert failed.rank == rank
    assert " in all_reduce at train.py:9, and no rank does anything else" in failed.detail


def test_a_time_of_the_user_counts_by_itself(begin: Begin) -> None:
    """It ends a dead loop, which works, and nothing before it does."""
    watch = begin(REDUCES, LOADS, hang_time_ms=5 * MINUTE_MS)
    watch.silence(4.5, idle=(0,), known="silent")
    assert not watch.failures
    watch.silence(0.2, idle=(0,), known="silent")
    (failed,) = watch.failures
    assert failed.detail.startswith("no rank has made a step for 5m 00s (limits.hang_time)")
    watch = begin(REDUCES, LOADS, hang_time_ms=0)
    watch.silence(600, idle=(0, 1), known="silent")
    assert not watch.failures


def test_a_step_ends_the_samples(begin: Begin) -> None:
    watch = begin(REDUCES, LOADS)
    watch.silence(0.05, idle=(0, 1), known="silent")
    watch.reports("n0")
    assert watch.generation.stack_samples is None


def test_the_last_rank_that_has_not_ended_is_named(begin: Begin) -> None:
    watch = begin(SPINS, LOADS)
    watch.generation.clear("n0")
    del watch.frames[0]
    watch.nodes.remove("n0")
    watch.frames = {1: LOADS}
    watch.silence(11, idle=(1,), known="silent")
    (failed,) = watch.failures
    assert (failed.rank, failed.node) == (1, "n1")
    assert "rank 1 on n1 has not ended, all others have: load (/home/me/data.py:10)" in failed.detail


# -- ranks that report nothing -----------------------------------------------------------------------------------------

WORKING = {
    "the rank that the others wait for": ((REDUCES, REDUCES, LOADS, REDUCES), (0, 1, 3)),
    "ranks that spin in one collective operation": ((REDUCES, REDUCES, REDUCES, REDUCES), ()),
    "ranks that spin at one place": ((SPINS, SPINS, LOADS, SPINS), ()),
    "a server whose other ranks wait for what it is asked": ((SERVES, REDUCES, REDUCES), (0, 1, 2)),
    "ranks that wait for no rank": ((SERVES, SERVES), (0, 1)),
    "ranks without stacks": (((), ()), (0, 1)),
}


@pytest.mark.parametrize(("frames", "idle"), WORKING.values(), ids=WORKING)
def test_what_may_work_is_never_ended(begin: Begin, frames: tuple[tuple[str, ...], ...], idle: tuple[int, ...]) -> None:
    watch = begin(*frames)
    watch.silence(300, idle=idle)
    assert not watch.failures


PLACES = {
    "in a collective operation": (
        (REDUCES, REDUCES, LOADS, REDUCES),
        "3 of 4 ranks are in all_reduce at train.py:9, rank 2 on n2 is in load at data.py:10, in each of 5 stack",
    ),
    "at one place of a library without frames": (
        (SPINS, SPINS, LOADS, SPINS),
        "3 of 4 ranks are at train.py:31, rank 2 on n2 is in load at data.py:10, in each of 5 stack samples of 4m 00s",
    ),
    "of two": ((REDUCES, LOADS), "rank 0 on n0 is in all_reduce at train.py:9, rank 1 on n1 is in load at data.py:10"),
    "all": ((REDUCES, REDUCES), "all 2 ranks are in all_reduce at train.py:9, in each of"),
    "nothing alike": ((SPINS, LOADS), ""),
    "two elsewhere": ((SPINS, SPINS, LOADS, LOADS), ""),
}


@pytest.mark.parametrize(("frames", "expected"), PLACES.values(), ids=PLACES)
def test_the_rank_that_the_others_spin_for_is_reported_once(
    begin: Begin, frames: tuple[tuple[str, ...], ...], expected: str
) -> None:
    watch = begin(*frames)
    watch.silence(4)
    assert not watch.quiet
    watch.silence(60)
    assert [quiet.places[: len(expected)] for quiet in watch.quiet] == ([expected] if expected else [])
    assert all(quiet.usual_ms is None and quiet.quiet_ms >= 300_000 for quiet in watch.quiet)


def test_ranks_that_move_are_sampled_less_often_and_named_nowhere(begin: Begin) -> None:
    watch = begin(REDUCES, LOADS)
    for minute in range(60):
        watch.frames = {rank: (f"step (train.py:{minute + rank})",) for rank in watch.frames}
        watch.silence(1)
    assert not watch.quiet
    assert watch.stacks / 2 < 12


def test_output_ends_the_samples(begin: Begin) -> None:
    watch = begin(REDUCES, LOADS)
    watch.silence(4, idle=(0, 1))
    watch.reports("n0")
    assert watch.generation.stack_samples is None
    stacks = watch.stacks
    watch.timers.clear()
    watch.now_s += 3600
    assert watch.stacks == stacks
    assert not watch.failures


NODES = {
    "both against their habit": ({"quiet": 12, "usual": 0.6}, {"quiet": 13, "usual": 0.7}, (12, 0.7)),
    "one that never writes proves nothing": ({"quiet": 12, "usual": 0.6}, {}, (12, 0.6)),
    "one that writes as usual": ({"quiet": 12, "usual": 0.6}, {"usual": 0.1}, None),
    "idle without a habit": ({"quiet": 11}, {"quiet": 12}, (11, None)),
    "one that is not idle": ({"quiet": 11}, {}, None),
    "none": ({"usual": 0.1}, {}, None),
}


@pytest.mark.parametrize(("first", "second", "expected"), NODES.values(), ids=NODES)
def test_a_quiet_gang_is_reported_once(
    begin: Begin,
    first: dict[str, float],
    second: dict[str, float],
    expected: tuple[float, float | None] | None,
) -> None:
    watch = begin(SERVES, SERVES)
    for node, minutes in (("n0", first), ("n1", second), ("n0", first)):
        watch.reports(node, **minutes)
    quiet = [(event.quiet_ms, event.usual_ms) for event in watch.quiet]
    usual_ms = None if expected is None or expected[1] is None else expected[1] * MINUTE_MS
    assert quiet == ([] if expected is None else [(expected[0] * MINUTE_MS, usual_ms)])
    assert watch.stacks == (0 if expected is None else 2)
    assert not watch.failures
