"""The server's time under a wall clock that is set. The wall clock is the injected fault."""

import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.engine.wall_clock import CORRECTION_MS, WallClock

MS = 1_000_000
NOON_MS = 1_767_268_800_000
HOUR_MS = 3_600_000


class Clocks:
    """Both clocks of a machine: the wall clock can be set, the boot clock only counts on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.wall_ms, self.boot_ns = NOON_MS, 12_345_678_901
        patch.setattr(time, "time_ns", lambda: self.wall_ms * MS)
        patch.setattr(time, "clock_gettime_ns", lambda clock: {time.CLOCK_BOOTTIME: self.boot_ns}[clock])

    def pass_ns(self, ns: int) -> None:
        """Let time pass on both clocks."""
        self.boot_ns += ns
        self.wall_ms += ns // MS


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


def test_it_follows_the_wall_clock(clocks: Clocks) -> None:
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


def test_set_back_it_continues_until_the_wall_clock_has_caught_up(clocks: Clocks) -> None:
    clock = WallClock()
    clocks.wall_ms -= 3_600_000
    for second in range(1, 11):
        clocks.pass_ns(1_000 * MS)
        assert clock.now_ms() == NOON_MS + second * 1_000
    assert clock.behind_ms() == 3_600_000
    clocks.wall_ms += 3_600_500
    assert clock.now_ms() == NOON_MS + 10_500
    assert clock.behind_ms() == 0


def test_a_correction_is_followed_and_kept(clocks: Clocks) -> None:
    clock = WallClock()
    clocks.wall_ms += CORRECTION_MS
    assert clock.now_ms() == NOON_MS + CORRECTION_MS
    clocks.wall_ms -= CORRECTION_MS
    clocks.pass_ns(20 * MS)
    assert clock.now_ms() == NOON_MS + CORRECTION_MS + 20


def test_set_forward_it_runs_slightly_faster_and_follows_when_nothing_is_measured(clocks: Clocks) -> None:
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


def test_many_short_readings_lose_no_time(clocks: Clocks) -> None:
    """A thousand readings, 0.4 ms apart, on a clock that was set back: 400 ms have passed, not none."""
    clock = WallClock()
    clocks.wall_ms -= 3_600_000
    for _ in range(1_000):
        clocks.pass_ns(400_000)
        clock.now_ms()
    assert clock.now_ms() == NOON_MS + 400


@given(st.lists(st.tuples(st.integers(-10_000_000, 10_000_000), st.integers(0, 5_000 * MS)), max_size=30))
def test_time_grows_by_the_elapsed_time_whatever_the_wall_clock_does(jumps: list[tuple[int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clocks = Clocks(patch)
        clock = WallClock()
        last_ms, last_boot_ns = clock.now_ms(), clocks.boot_ns
        for jump_ms, ns in jumps:
            clocks.wall_ms += jump_ms
            clocks.pass_ns(ns)
            now_ms = clock.now_ms()
            elapsed_ms = (clocks.boot_ns - last_boot_ns) // MS
            assert now_ms - last_ms >= elapsed_ms, "it stood still"
            assert now_ms - last_ms <= elapsed_ms + elapsed_ms // 100 + 2 or now_ms == clocks.wall_ms, "it ran away"
            assert now_ms - last_ms <= elapsed_ms + CORRECTION_MS + 1
            last_ms, last_boot_ns = now_ms, clocks.boot_ns


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["now", "catch up", "behind"]),
        st.one_of(st.just(0), st.integers(-10_000_000, 10_000_000)),  # ms by which the wall is set
        st.integers(0, 40_000_000 * MS),  # ns that pass: up to eleven hours
    ),
    max_size=30,
)


@given(STEPS)
def test_its_lead_over_the_wall_clock_is_at_most_what_that_was_set_back(steps: list[tuple[str, int, int]]) -> None:
    """The reference is its offset from the boot clock, which follows the wall clock's up and never decreases."""
    with pytest.MonkeyPatch.context() as patch:
        clocks = Clocks(patch)
        clock = WallClock()
        offset_ns = highest_ns = NOON_MS * MS - clocks.boot_ns
        for action, jump_ms, ns in steps:
            clocks.wall_ms += jump_ms
            clocks.pass_ns(ns)
            wall_offset_ns = clocks.wall_ms * MS - clocks.boot_ns
            behind_ns = wall_offset_ns - offset_ns
            if action == "catch up":
                clock.catch_up()
                offset_ns = max(offset_ns, wall_offset_ns)
            elif behind_ns > CORRECTION_MS * MS:
                offset_ns += min(ns // 100, behind_ns)
            else:
                offset_ns = max(offset_ns, wall_offset_ns)
            expected_ms = (clocks.boot_ns + offset_ns) // MS
            highest_ns = max(highest_ns, wall_offset_ns)
            if action == "now":
                assert clock.now_ms() == expected_ms
                assert expected_ms <= (clocks.boot_ns + highest_ns) // MS
            elif action == "behind":
                assert clock.behind_ms() == expected_ms - clocks.wall_ms


def test_a_jump_of_the_wall_clock_is_not_overshot_while_catching_up(clocks: Clocks) -> None:
    clock = WallClock()
    clocks.wall_ms += CORRECTION_MS + 1_000
    clocks.pass_ns(8 * HOUR_MS * MS)
    assert clock.now_ms() == clocks.wall_ms


@pytest.mark.parametrize("reading", [WallClock.now_ms, WallClock.catch_up])
def test_a_process_stopped_between_two_readings_does_not_run_ahead(
    monkeypatch: pytest.MonkeyPatch, reading: Callable[[WallClock], object]
) -> None:
    """The process is stopped for three seconds after each reading of a clock, and then no longer."""
    clocks, stopped_ns = Clocks(monkeypatch), [3_000 * MS]
    for name in ("time_ns", "clock_gettime_ns"):
        read = getattr(time, name)
        monkeypatch.setattr(time, name, lambda *which, read=read: (read(*which), clocks.pass_ns(stopped_ns[0]))[0])
    clock = WallClock()
    reading(clock)
    stopped_ns[0] = 0
    clocks.pass_ns(1_000 * MS)
    assert clock.now_ms() == clocks.wall_ms


@pytest.fixture
def fast_switching() -> Iterator[None]:
    """Switch threads as often as possible."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before_s)


@pytest.mark.usefixtures("fast_switching")
def test_many_threads_neither_speed_it_up_nor_set_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    began_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    clock = WallClock(NOON_MS)
    backwards = []

    def read_clock() -> None:
        last_ms = 0
        for _ in range(20_000):
            now_ms = clock.now_ms()
            if now_ms < last_ms:
                backwards.append((last_ms, now_ms))
            last_ms = now_ms

    threads = [threading.Thread(target=read_clock) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert backwards == []
    assert clock.now_ms() - NOON_MS <= (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - began_ns) // MS
