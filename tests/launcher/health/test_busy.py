"""Shares of a rank's steps in which it works: pictures of the run times of its thread, polled each quarter second."""

import subprocess
import sys

import pytest

from ganger.launcher.health.busy import FRESH_S, SAMPLES, BusySamples
from ganger.launcher.health.proc_stats import run_times_ns
from tests.waiting import wait_until

POLL_S = 0.25
SPINS = "while True: pass"
SLEEPS = "import time; time.sleep(1000)"


class Picture:
    """A rank that makes a step between any two polls; `ran` and `queued` are shares of that time."""

    def __init__(self) -> None:
        self.samples = BusySamples()
        self.now_s, self.steps, self.source = 100.0, 0, 1
        self.times_ns = (0, 0)
        self.poll(0, 0)

    def poll(self, ran: float, queued: float = 0.0, passed_s: float = POLL_S, steps: int = 1) -> None:
        self.now_s += passed_s
        self.steps += steps
        ran_ns, queued_ns = self.times_ns
        self.times_ns = (ran_ns + int(ran * passed_s * 1e9), queued_ns + int(queued * passed_s * 1e9))
        if self.samples.is_due(self.steps):
            self.samples.add(self.source, self.steps, self.times_ns, self.now_s)

    def polls(self, count: int, ran: float, queued: float = 0.0) -> None:
        for _ in range(count):
            self.poll(ran, queued)

    @property
    def shares(self) -> list[int] | None:
        return self.samples.shares(self.now_s)


def sampled_rank(ran: float, queued: float = 0.0) -> Picture:
    rank = Picture()
    rank.polls(SAMPLES, ran, queued)
    return rank


def test_shares_are_known_once_there_are_enough_samples() -> None:
    rank = Picture()
    rank.polls(SAMPLES - 1, 0.5, 0.25)
    assert rank.shares is None
    rank.poll(0.5, 0.25)
    assert rank.shares == pytest.approx([500, 750, 750], abs=1)


def test_step_of_many_polls_is_one_sample() -> None:
    rank = Picture()
    for _ in range(SAMPLES):
        rank.poll(0.0, steps=0)
        rank.poll(1.0)
    assert rank.shares == pytest.approx([500, 500, 500], abs=1)


def test_a_few_pauses_are_ignored_but_many_are_not() -> None:
    rank = sampled_rank(1.0)
    for _ in range(3):
        rank.poll(0.0, passed_s=20)
    assert rank.shares == [1000, 1000, 1000]
    rank.poll(0.0, passed_s=20)
    assert rank.shares == [1000, 1000, 0]


def test_rank_that_is_slowest_by_chance_rests_in_some_steps() -> None:
    rank = Picture()
    for number in range(SAMPLES):
        rank.poll(0.3 if number % 4 == 0 else 1.0)
    assert rank.shares == pytest.approx([1000, 1000, 300], abs=1)


def test_work_outside_of_steps_does_not_count() -> None:
    rank = sampled_rank(0.2)
    for _ in range(SAMPLES):
        rank.samples.discard_interval()  # it declares a phase
        rank.now_s += 20
        rank.times_ns = (rank.times_ns[0] + 20 * 10**9, 0)
        rank.poll(1.0)
        rank.source += 1  # and again, between two looks
        rank.poll(1.0)
    assert rank.samples.shares(rank.now_s - 1e6) == pytest.approx([200, 200, 200], abs=1)


def test_old_samples_are_ignored() -> None:
    rank = sampled_rank(1.0)
    rank.now_s += FRESH_S + 1
    assert rank.shares is None
    rank.poll(1.0)
    assert rank.shares is not None


def test_shares_are_at_most_the_whole_time() -> None:
    """This process was stopped and the rank was not, or a clock is coarse."""
    assert sampled_rank(3.0, 1.0).shares == [1000, 1000, 1000]


def test_shares_are_unknown_if_the_kernel_does_not_tell() -> None:
    samples = BusySamples()
    for step in range(2 * SAMPLES):
        samples.add(1, step, None, step * POLL_S)
    assert samples.shares(2 * SAMPLES * POLL_S) is None


@pytest.mark.serial
def test_processor_time_is_that_of_the_first_thread() -> None:
    spins, sleeps = (subprocess.Popen([sys.executable, "-c", code]) for code in (SPINS, SLEEPS))
    try:
        run_times = [0, 0]

        def read_run_times() -> list[int]:
            run_times[:] = [sum(run_times_ns(process.pid) or ()) for process in (spins, sleeps)]
            return run_times

        wait_until(lambda: read_run_times()[0] > 10**9 + 2 * run_times[1], "one spins, the other sleeps")
    finally:
        for process in (spins, sleeps):
            process.kill()
            process.wait()
    assert run_times_ns(spins.pid) is None
