"""The server's time under a wall clock that people set. The wall is the fault that is injected."""

import sys
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.engine.clock import CORRECTION_MS, WallClock

MS = 1_000_000
NOON_MS = 1_767_268_800_000
HOUR_MS = 3_600_000


class Clocks:
    """Both clocks of a machine: the wall's can be set, the other only goes on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.wall_ms, self.passed_ns = NOON_MS, 12_345_678_901
        patch.setattr(time, "time_ns", lambda: self.wall_ms * MS)
        patch.setattr(time, "clock_gettime_ns", lambda clock: {time.CLOCK_BOOTTIME: self.passed_ns}[clock])

    def pass_ns(self, ns: int) -> None:
        """Time passes on both."""
        self.passed_ns += ns
        self.wall_ms += ns // MS


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


def test_it_is_the_walls(clocks: Clocks) -> None:
    clock = WallClock()
    assert clock.now_ms() == NOON_MS
    clocks.pass_ns(1_500 * MS)
    assert clock.now_ms() == NOON_MS + 1_500
    assert clock.behind_ms() == 0


def test_it_is_never_behind_the_log(clocks: Clocks) -> None:
    clock = WallClock(NOON_MS + 60_000)
    assert clock.now_ms() == NOON_MS + 60_000
    clocks.pass_ns(10 * MS)
    assert clock.now_ms() == NOON_MS + 60_010
    assert clock.behind_ms() == 60_000


def test_put_back_it_goes_on_until_the_wall_has_caught_up(clocks: Clocks) -> None:
    clock = WallClock()
    clocks.wall_ms -= 3_600_000
    for second in range(1, 11):
        clocks.pass_ns(1_000 * MS)
        assert clock.now_ms() == NOON_MS + second * 1_000
    assert clock.behind_ms() == 3_600_000
    clocks.wall_ms += 3_600_500
    assert clock.now_ms() == NOON_MS + 10_500
    assert clock.behind_ms() == 0


def test_a_correction_is_followed_and_stays(clocks: Clocks) -> None:
    clock = WallClock()
    clocks.wall_ms += CORRECTION_MS
    assert clock.now_ms() == NOON_MS + CORRECTION_MS
    clocks.wall_ms -= CORRECTION_MS
    clocks.pass_ns(20 * MS)
    assert clock.now_ms() == NOON_MS + CORRECTION_MS + 20


def test_put_forward_it_goes_on_a_little_faster_and_follows_when_nothing_is_measured(clocks: Clocks) -> None:
    clock = WallClock()
    clocks.wall_ms += HOUR_MS
    assert clock.now_ms() == NOON_MS
    for second in range(1, 11):
        clocks.pass_ns(1_000 * MS)
        assert clock.now_ms() == NOON_MS + second * 1_010
    assert clock.behind_ms() == 100 - HOUR_MS
    clock.catch_up()
    assert clock.now_ms() == NOON_MS + HOUR_MS + 10_000
    clock.catch_up()
    assert clock.now_ms() == NOON_MS + HOUR_MS + 10_000


def test_many_short_looks_lose_no_time(clocks: Clocks) -> None:
    """A thousand looks, 0.4 ms apart, on a clock that was put back: 400 ms have passed, not none."""
    clock = WallClock()
    clocks.wall_ms -= 3_600_000
    for _ in range(1_000):
        clocks.pass_ns(400_000)
        clock.now_ms()
    assert clock.now_ms() == NOON_MS + 400


@given(st.lists(st.tuples(st.integers(-10_000_000, 10_000_000), st.integers(0, 5_000 * MS)), max_size=30))
def test_however_the_wall_jumps_time_grows_as_it_passes(jumps: list[tuple[int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clocks = Clocks(patch)
        clock = WallClock()
        last_ms, seen_ns = clock.now_ms(), clocks.passed_ns
        for jump_ms, ns in jumps:
            clocks.wall_ms += jump_ms
            clocks.pass_ns(ns)
            now_ms = clock.now_ms()
            passed_ms = (clocks.passed_ns - seen_ns) // MS
            assert now_ms - last_ms >= passed_ms, "it stood still"
            assert now_ms - last_ms <= passed_ms + passed_ms // 100 + 2 or now_ms == clocks.wall_ms, "it ran away"
            assert now_ms - last_ms <= passed_ms + CORRECTION_MS + 1
            last_ms, seen_ns = now_ms, clocks.passed_ns


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before_s)


@pytest.mark.usefixtures("restless")
def test_many_threads_make_it_neither_run_nor_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    began_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    clock = WallClock(NOON_MS)
    backwards = []

    def look() -> None:
        last_ms = 0
        for _ in range(20_000):
            now_ms = clock.now_ms()
            if now_ms < last_ms:
                backwards.append((last_ms, now_ms))
            last_ms = now_ms

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert backwards == []
    assert clock.now_ms() - NOON_MS <= (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - began_ns) // MS
