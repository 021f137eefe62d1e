"""Silent gangs that report nothing: a hang where the stacks prove it, else reported or left alone."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from ganger.launcher_server.generation_state import new_generation
from ganger.launcher_server.health.fail_hanging_gang import MISSING_MS, HangDetector
from ganger.model.decision import NodeShare, Start
from ganger.model.event import Failed, Quiet
from ganger.model.job import Job, JobSpec, Origin

REDUCES = ("all_reduce (/lib/torch/distributed/distributed_c10d.py:3157)", "<module> (train.py:9)")
SLEEPS = ("load (data.py:2)", "<module> (train.py:2)")
SERVES = ("select (/lib/python3.13/selectors.py:452)", "<module> (serve.py:2)")
MINUTE_MS = 60_000


class Watch:
    """A detector of one gang with a rank on each of two nodes, and what it has asked for and reported.

    It stands for the event loop and for the records: `timers` are (delay in s, callback).
    """

    def __init__(self, *frames: tuple[str, ...]) -> None:
        self.frames = dict(enumerate(frames))
        self.timers: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []
        self.failures: list[Failed] = []
        self.stacks = 0
        loop: Any = self
        self.detector = HangDetector(loop, loop, self._take_stacks, lambda _, failed: self.failures.append(failed))
        job = Job(id="job", user="me", spec=JobSpec(run="x", nodes=2), origin=Origin(directory="/", environment={}))
        shares = (NodeShare("n1", (0,)), NodeShare("n2", (1,)))
        self.generation = new_generation(Start(gang="job", generation=1, shares=shares, host="h", port=1), job)

    def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> "Watch":
        self.timers.append((delay_s, callback, arguments))
        return self

    def cancel(self) -> None:
        """Ignore it: a timer that was cancelled is not called here."""

    def main_frames(self, gang: str, generation: int) -> dict[int, tuple[str, ...]]:
        return {rank: frames for rank, frames in self.frames.items() if frames}

    def last_lines(self, *_: object) -> tuple[str, ...]:
        return ()

    def reports(self, node: str, **minutes_ago: float | None) -> Quiet | None:
        """Report from a node; each time is so many minutes ago."""
        now_ms = int(time.time() * 1000)
        fields = ("silent_since_ms", "quiet_since_ms", "ranks_lost_since_ms")
        times = {name: minutes_ago.get(name.removesuffix("_since_ms")) for name in fields}
        message = {name: None if ago is None else now_ms - int(ago * MINUTE_MS) for name, ago in times.items()}
        usual = minutes_ago.get("usual")
        message |= {"usual_gap_ms": None if usual is None else int(usual * MINUTE_MS)}
        fields_of_ranks = {"has_run": True, "has_reports": False, "stopped_ranks": []}
        return self.detector.stall_reported(self.generation, node, message | fields_of_ranks)

    def both_silent(self, minutes: float) -> None:
        for node in ("n1", "n2"):
            assert self.reports(node, silent=minutes) is None

    def _take_stacks(self, gang: str, node: str, fields: dict[str, Any]) -> None:
        self.stacks += 1
        if self.generation.stack_request is not None:
            rank = {"step": None, "state": "S", "busy_permille": 0}
            ranks = {"ranks": {"0" if node == "n1" else "1": rank}}
            self.detector.stacks_received(self.generation, node, ranks)


def test_ranks_that_all_wait_for_each_other_hang() -> None:
    watch = Watch(REDUCES, REDUCES)
    watch.both_silent(0.5)
    (failed,) = watch.failures
    assert failed.detail.startswith("no rank has written anything or used a processor for 30.0s; ganger logs job")


def test_a_rank_that_the_others_wait_for_gets_five_minutes() -> None:
    watch = Watch(REDUCES, SLEEPS)
    watch.both_silent(0.5)
    assert (watch.failures, watch.stacks) == ([], 2)
    watch.both_silent(0.51)
    assert watch.stacks == 2, "it is the same silence"
    delay_s, callback, arguments = watch.timers[-1]
    assert MISSING_MS / 1000 - 31 < delay_s < MISSING_MS / 1000 - 29
    watch.generation.stall_reports.clear()
    watch.both_silent(5.01)
    callback(*arguments)
    (failed,) = watch.failures
    assert failed.rank == 1
    assert "rank 1 on n2 is not in the collective operation in which the others wait: load (data.py:2)" in failed.detail


@pytest.mark.parametrize("frames", [(SERVES, SERVES), (SLEEPS, SERVES), ((), ())])
def test_idle_ranks_that_wait_for_no_rank_are_left_alone(frames: tuple[tuple[str, ...], ...]) -> None:
    watch = Watch(*frames)
    watch.both_silent(60)
    assert (watch.failures, watch.stacks) == ([], 2)
    assert [delay_s for delay_s, *_ in watch.timers if delay_s > 2] == [], "nothing is judged again"


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
    first: dict[str, float], second: dict[str, float], expected: tuple[float, float | None] | None
) -> None:
    watch = Watch(SERVES, SERVES)
    answers = [watch.reports("n1", **first), watch.reports("n2", **second), watch.reports("n1", **first)]
    quiet = [(event.quiet_ms, event.usual_ms) for event in answers if event is not None]
    usual_ms = None if expected is None or expected[1] is None else expected[1] * MINUTE_MS
    assert quiet == ([] if expected is None else [(expected[0] * MINUTE_MS, usual_ms)])
    assert watch.stacks == (0 if expected is None else 2)
    assert not watch.failures
