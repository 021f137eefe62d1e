"""Rules for idle jobs on recorded samples: what they would have ended, held against the raw samples."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.core.queues.idle_jobs import MAX_GAP_MS, warning_times_ms
from ganger.core.queues.idle_replay import IdleEnd, RecordedAttempt, replay_idle
from ganger.model.idle.idle_rules import IdleRules
from ganger.model.node_health.node_figures import NOT_MEASURED, GpuSamples
from ganger.model.units import DAY_MS, MINUTE_MS, SECOND_MS

START_MS = 1_000_000_000
STEP_MS = 10 * SECOND_MS
WINDOW = IdleRules(window_ms=10 * MINUTE_MS)
Samples = tuple[tuple[int, int | None], ...]


def recorded(samples: Samples) -> GpuSamples:
    """Return pairs as they are recorded."""
    busy_permille = [NOT_MEASURED if busy is None else busy for _, busy in samples]
    return GpuSamples(times_ms=[at_ms for at_ms, _ in samples], busy_permille=busy_permille)


def minutes(*parts: tuple[float, int | None]) -> Samples:
    """Return samples of some minutes each, with that work of the GPU."""
    samples: list[tuple[int, int | None]] = []
    for count, busy in parts:
        for _ in range(round(count * MINUTE_MS / STEP_MS)):
            samples.append((START_MS + len(samples) * STEP_MS, busy))
    return tuple(samples)


def ends(*gpus: Samples, rules: IdleRules = WINDOW, **fields: object) -> list[tuple[float, float, bool]]:
    """Return the ends, in minutes since the start."""
    bounds = {"from_ms": START_MS, "until_ms": START_MS + DAY_MS} | fields
    attempt = RecordedAttempt(generation=1, gpus=tuple(map(recorded, gpus)), **bounds)  # type: ignore[arg-type]
    return [
        (round((end.at_ms - START_MS) / MINUTE_MS, 1), round((end.idle_until_ms - START_MS) / MINUTE_MS, 1), end[2])
        for end in replay_idle(attempt, rules)
    ]


def test_an_idle_attempt_ends_after_the_window_and_its_gpus_are_idle_until_its_end() -> None:
    assert ends(minutes((60, 0))) == [(10, 59.8, False)]
    assert ends(minutes((60, 0)), until_ms=START_MS + 30 * MINUTE_MS) == [(10, 30, False)], "it is over then"
    assert ends(minutes((60, 0)), from_ms=START_MS + 30 * MINUTE_MS) == [(40, 59.8, False)], "others held them before"


def test_work_after_the_end_is_said_and_another_end_may_follow_it() -> None:
    assert ends(minutes((20, 19), (1, 20), (9, 0), (1, 900), (15, 0))) == [(10, 19.8, True), (41, 45.8, False)]


def test_a_save_is_activity() -> None:
    saves_ms = (START_MS + 8 * MINUTE_MS, START_MS + 25 * MINUTE_MS)
    assert ends(minutes((30, 0)), saves_ms=saves_ms) == [(18, 24.8, True)]


@pytest.mark.parametrize("other", [minutes((30, 500)), minutes((30, None)), (), minutes((5, 0), (1, None), (9, 0))])
def test_one_gpu_with_work_or_without_samples_is_enough(other: Samples) -> None:
    assert ends(minutes((30, 0)), other) == []
    assert ends(other, minutes((30, 0))) == []


def test_a_window_that_is_not_measured_without_a_gap_ends_nothing() -> None:
    samples = minutes((15, 0))
    assert ends(samples[:30] + samples[34:]) == []
    assert ends(samples[:30] + samples[32:]) != [], "one that is late is no gap"
    assert ends() == []


def test_an_exemption_does_not_hide_what_will_come_after_it() -> None:
    exempt = IdleRules(window_ms=10 * MINUTE_MS, exempt_until_ms=START_MS + DAY_MS)
    assert ends(minutes((60, 0)), rules=exempt) == ends(minutes((60, 0)))


def oracle(attempt: RecordedAttempt, gpus: list[Samples], window_ms: int) -> list[IdleEnd]:
    """Return the ends from the raw samples: each longest run of measurements in which all GPUs are idle."""
    times = [at_ms for at_ms, _ in gpus[0] if attempt.from_ms <= at_ms <= attempt.until_ms]
    kinds: dict[int, str] = {}
    for now_ms in times:
        newest = [max((item for item in gpu if item[0] <= now_ms), default=(0, None)) for gpu in gpus]
        values = [busy if now_ms - at_ms <= MAX_GAP_MS else None for at_ms, busy in newest]
        is_active = any(value is not None and value >= 20 for value in values)
        kinds[now_ms] = "active" if is_active else "unknown" if None in values else "idle"
    runs: list[list[int]] = []
    goes_on = {
        after for before, after in pairwise(times) if after - before <= MAX_GAP_MS and not saved(attempt, before, after)
    }
    for before_ms, now_ms in zip([None, *times], times, strict=False):
        if kinds[now_ms] == "idle":
            if before_ms is None or kinds[before_ms] != "idle" or now_ms not in goes_on:
                runs.append([])
            runs[-1].append(now_ms)
    found = []
    first_ms, last_ms = warning_times_ms(window_ms)
    for run in runs:
        warned_ms = next((at_ms for at_ms in run[1:] if at_ms >= run[0] + window_ms - first_ms), run[-1])
        due_ms = max(run[0] + window_ms, warned_ms + last_ms)
        end_ms = next((at_ms for at_ms in run if at_ms > warned_ms and at_ms >= due_ms), None)
        if end_ms is not None:
            after_ms = next((at_ms for at_ms in times if at_ms > run[-1]), None)
            again = after_ms is not None and (kinds[after_ms] == "active" or saved(attempt, run[-1], after_ms))
            found.append(IdleEnd(end_ms, run[-1], again))
    return found


def saved(attempt: RecordedAttempt, after_ms: int, until_ms: int) -> bool:
    return any(after_ms < at_ms <= until_ms for at_ms in attempt.saves_ms)


SPANS = st.lists(st.tuples(st.sampled_from([0, 0, 0, 19, 20, None, 700]), st.integers(1, 90)), max_size=8)
"""Work of a GPU, and for how many samples."""


@st.composite
def gpu_samples(draw: st.DrawFn) -> Samples:
    """Draw samples with gaps, not all at the same time as those of other GPUs."""
    at_ms, samples = START_MS + draw(st.integers(0, 3)) * SECOND_MS, list[tuple[int, int | None]]()
    for busy, count in draw(SPANS):
        for _ in range(count):
            samples.append((at_ms, busy))
            at_ms += STEP_MS
        at_ms += draw(st.sampled_from([0, 0, STEP_MS, 2 * STEP_MS, 3 * STEP_MS, MINUTE_MS]))
    return tuple(samples)


@given(
    st.lists(gpu_samples(), min_size=1, max_size=3),
    st.lists(st.integers(0, 3_000), max_size=3),
    st.sampled_from([MINUTE_MS, 3 * MINUTE_MS, 8 * MINUTE_MS]),
    st.integers(0, 600),
)
def test_what_is_ended_follows_from_the_raw_samples(
    gpus: list[Samples], saves_s: list[int], window_ms: int, from_s: int
) -> None:
    attempt = RecordedAttempt(
        generation=3,
        from_ms=START_MS + from_s * SECOND_MS,
        until_ms=START_MS + 2_500 * SECOND_MS,
        gpus=tuple(map(recorded, gpus)),
        saves_ms=tuple(sorted(START_MS + second * SECOND_MS for second in saves_s)),
    )
    assert list(replay_idle(attempt, IdleRules(window_ms=window_ms))) == oracle(attempt, gpus, window_ms)
