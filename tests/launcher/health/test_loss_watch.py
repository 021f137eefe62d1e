"""Laws of the loss watch: it finds what it is to find, once, and nothing in an ordinary run."""

import math
import random
from collections.abc import Iterable, Iterator
from itertools import chain
from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from ganger.launcher_server.health.loss_watch import (
    KNOWN,
    NEW_LEVEL,
    SLOW_MS,
    STALL_BLOCKS,
    WINDOW,
    LossWatch,
    UsualValues,
)
from ganger.model.watch.watch_event import Anomaly
from ganger.model.watch.watch_rules import Finding

STEP_MS = 1_000
SEEDS = st.integers(0, 1_000_000)


def found(losses: Iterable[float | None], step_ms: Iterable[int] = ()) -> list[Anomaly]:
    """Return what is found in losses of consecutive steps, which take these times, then one second each."""
    watch, at_ms = LossWatch("g", 1), 0
    durations = chain(step_ms, iter(lambda: STEP_MS, None))
    findings: list[Anomaly] = []
    for step, (loss, duration_ms) in enumerate(zip(losses, durations, strict=False)):
        at_ms += duration_ms
        findings += watch.observe(step, at_ms, loss)
    return findings


def falling(seed: int, count: int, noise: float = 0.03) -> Iterator[float]:
    """Yield the losses of an ordinary run: a power law with noise in proportion."""
    chance = random.Random(seed)
    return (10 * (1 + step / 50) ** -0.3 * (1 + chance.gauss(0, noise)) for step in range(count))


@given(SEEDS, st.floats(0, 0.1))
def test_an_ordinary_run_has_no_finding(seed: int, noise: float) -> None:
    assert [anomaly for anomaly in found(falling(seed, 400, noise)) if anomaly.finding is not Finding.STALL] == []


@given(SEEDS, st.integers(0, 200), st.sampled_from([None, math.nan, math.inf, -math.inf]))
def test_a_loss_that_is_not_finite_is_found_at_its_step_and_once(seed: int, at: int, bad: float | None) -> None:
    losses = [*falling(seed, at), *[bad] * 50]
    (anomaly,) = found(losses)
    assert (anomaly.finding, anomaly.step, anomaly.value) == (Finding.NAN, at, None)
    assert (anomaly.usual is None) == (at < KNOWN)


@given(SEEDS, st.integers(WINDOW, 300), st.floats(2, 1e6))
def test_a_spike_is_found_with_its_first_step(seed: int, at: int, factor: float) -> None:
    losses = list(falling(seed, 400))
    losses[at : at + 10] = [factor * loss for loss in losses[at : at + 10]]
    (anomaly,) = found(losses)
    assert (anomaly.finding, anomaly.step) == (Finding.SPIKE, at)
    assert anomaly.usual is not None
    assert math.isclose(anomaly.usual, median(losses[at - WINDOW : at]), rel_tol=0.05)


@given(SEEDS, st.integers(WINDOW, 300), st.floats(2, 1e6))
def test_one_or_two_hard_batches_are_no_spike(seed: int, at: int, factor: float) -> None:
    losses = list(falling(seed, 400))
    losses[at : at + 2] = [factor * loss for loss in losses[at : at + 2]]
    assert found(losses) == []


def test_a_new_level_becomes_the_usual_one() -> None:
    losses = [*falling(1, 200), *[50.0] * (NEW_LEVEL + 300), *[500.0] * 5]
    first, second = (anomaly for anomaly in found(losses) if anomaly.finding is Finding.SPIKE)
    assert (first.step, second.step) == (200, 200 + NEW_LEVEL + 300)
    assert second.usual == 50.0


def test_a_constant_loss_that_moves_a_little_is_no_spike() -> None:
    assert found([*[2.0] * 200, *[2.09] * 50]) == []
    assert [anomaly.finding for anomaly in found([*[2.0] * 200, *[2.2] * 50])] == [Finding.SPIKE]
    assert found([*[-2.0] * 200, *[-3.0] * 50]) == [], "it falls"


def test_a_loss_that_does_not_fall_any_more_is_found_once() -> None:
    (anomaly,) = found([*falling(1, 5 * WINDOW), *[3.0] * (3 * STALL_BLOCKS * WINDOW)])
    assert (anomaly.finding, anomaly.lasted) == (Finding.STALL, STALL_BLOCKS * WINDOW)


def test_steps_that_stay_slow_are_found_and_long_single_ones_are_not() -> None:
    with_saves = [STEP_MS if step % 5 else 30 * STEP_MS for step in range(300)]
    assert found([2.0] * 300, with_saves) == []
    slow = [*[STEP_MS] * 200, *[2 * STEP_MS] * 100]
    (anomaly,) = found([2.0] * 300, slow)
    assert (anomaly.finding, anomaly.value, anomaly.usual) == (Finding.SLOW, 2 * STEP_MS, STEP_MS)
    assert 200 <= anomaly.step < 210
    short = [*[STEP_MS] * 200, *[2 * STEP_MS] * (SLOW_MS // STEP_MS // 2), *[STEP_MS] * 100]
    assert found([2.0] * 300, short) == []


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5_000, 5_000), st.none() | st.floats())))
def test_any_order_of_reports_is_accepted(reports: list[tuple[int, int, float | None]]) -> None:
    watch = LossWatch("g", 1)
    for report in reports:
        watch.observe(*report)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3 * WINDOW))
def test_the_window_has_the_newest_values(values: list[float]) -> None:
    usual = UsualValues()
    for value in values:
        usual.add(value)
    window = sorted(values[-WINDOW:])
    assert usual.median == window[len(window) // 2]
    deviations = median(abs(value - usual.median) for value in window)
    assert math.isclose(usual.deviation, 1.4826 * deviations)
