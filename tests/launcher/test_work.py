"""How much of its steps a rank is at work: pictures of the times of its thread, a look each quarter of a second."""

import subprocess
import sys

import pytest

from ganger.launcher.health.busy import FRESH_S, SAMPLES, BusySamples
from ganger.launcher.health.proc_stats import run_times_ns
from tests.launcher.harness import eventually

LOOK_S = 0.25
SPINS = "while True: pass"
SLEEPS = "import time; time.sleep(1000)"


class Picture:
    """A rank that makes a step between any two looks; `ran` and `queued` are shares of that time."""

    def __init__(self) -> None:
        self.work = BusySamples()
        self.now_s, self.steps, self.of = 100.0, 0, 1
        self.times_ns = (0, 0)
        self.look(0, 0)

    def look(self, ran: float, queued: float = 0.0, passed_s: float = LOOK_S, steps: int = 1) -> None:
        self.now_s += passed_s
        self.steps += steps
        ran_ns, queued_ns = self.times_ns
        self.times_ns = (ran_ns + int(ran * passed_s * 1e9), queued_ns + int(queued * passed_s * 1e9))
        if self.work.is_due(self.steps):
            self.work.seen(self.of, self.steps, self.times_ns, self.now_s)

    def looks(self, count: int, ran: float, queued: float = 0.0) -> None:
        for _ in range(count):
            self.look(ran, queued)

    @property
    def shares(self) -> list[int] | None:
        return self.work.shares(self.now_s)


def picture(ran: float, queued: float = 0.0) -> Picture:
    found = Picture()
    found.looks(SAMPLES, ran, queued)
    return found


def test_shares_are_told_once_there_are_enough_samples() -> None:
    found = Picture()
    found.looks(SAMPLES - 1, 0.5, 0.25)
    assert found.shares is None
    found.look(0.5, 0.25)
    assert found.shares == pytest.approx([500, 750, 750], abs=1)


def test_step_of_many_looks_is_one_sample() -> None:
    found = Picture()
    for _ in range(SAMPLES):
        found.look(0.0, steps=0)
        found.look(1.0)
    assert found.shares == pytest.approx([500, 500, 500], abs=1)


def test_a_few_pauses_change_nothing_and_many_do() -> None:
    found = picture(1.0)
    for _ in range(3):
        found.look(0.0, passed_s=20)
    assert found.shares == [1000, 1000, 1000]
    found.look(0.0, passed_s=20)
    assert found.shares == [1000, 1000, 0]


def test_whose_turn_it_is_by_chance_is_not_at_work_in_nearly_all_steps() -> None:
    found = Picture()
    for number in range(SAMPLES):
        found.look(0.3 if number % 4 == 0 else 1.0)
    assert found.shares == pytest.approx([1000, 1000, 300], abs=1)


def test_what_is_done_beside_steps_does_not_count() -> None:
    found = picture(0.2)
    for _ in range(SAMPLES):
        found.work.interrupted()  # it declares a phase
        found.now_s += 20
        found.times_ns = (found.times_ns[0] + 20 * 10**9, 0)
        found.look(1.0)
        found.of += 1  # and again, between two looks
        found.look(1.0)
    assert found.work.shares(found.now_s - 1e6) == pytest.approx([200, 200, 200], abs=1)


def test_old_samples_say_nothing() -> None:
    found = picture(1.0)
    found.now_s += FRESH_S + 1
    assert found.shares is None
    found.look(1.0)
    assert found.shares is not None


def test_more_than_there_was_time_for_is_all_of_it() -> None:
    """This program was stopped and the rank was not, or a clock is coarse."""
    assert picture(3.0, 1.0).shares == [1000, 1000, 1000]


def test_kernel_that_does_not_tell_is_no_rank_that_rests() -> None:
    work = BusySamples()
    for step in range(2 * SAMPLES):
        work.seen(1, step, None, step * LOOK_S)
    assert work.shares(2 * SAMPLES * LOOK_S) is None


def test_processor_time_is_that_of_the_first_thread() -> None:
    spins, sleeps = (subprocess.Popen([sys.executable, "-c", code]) for code in (SPINS, SLEEPS))
    try:
        wanted = [0, 0]

        def wants() -> list[int]:
            wanted[:] = [sum(run_times_ns(process.pid) or ()) for process in (spins, sleeps)]
            return wanted

        eventually(lambda: wants()[0] > 10**9 + 2 * wanted[1], "one spins, the other sleeps")
    finally:
        for process in (spins, sleeps):
            process.kill()
            process.wait()
    assert run_times_ns(spins.pid) is None
