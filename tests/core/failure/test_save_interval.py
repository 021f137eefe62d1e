"""The save interval that costs least, against a search over all intervals; and a save that outlasts its notice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.core.failure.save_interval import PRIOR_NODE_MS, estimate_saves
from ganger.model.decision import FIRST_SAVE_MS, Cause, SaveEstimate, Start
from ganger.model.event import Failed, NodeLost
from ganger.model.evidence import PythonError, RankEnd
from ganger.model.units import DAY_MS, HOUR_MS, format_failure_rate
from tests.laws.policies import POLICIES
from tests.pictures.film import Film

saves = st.integers(1, 3_600_000)
gaps = st.integers(60_000, 1 << 45)


def lost(save_ms: int, failure_ms: int, interval_ms: int) -> float:
    """Return the expected loss of a long run: one save in each interval, half an interval with each failure."""
    run_ms = 1000.0 * failure_ms
    return run_ms / interval_ms * save_ms / run_ms + run_ms / failure_ms * (interval_ms / 2) / run_ms


@given(saves, gaps, st.floats(0.01, 100))
def test_no_other_interval_costs_less(save_ms: int, failure_ms: int, factor: float) -> None:
    estimate = SaveEstimate(save_ms=save_ms, longest_ms=save_ms, failure_ms=failure_ms)
    best_ms = estimate.best_interval_ms
    other_ms = max(2 * save_ms, round(best_ms * factor))
    assert lost(save_ms, failure_ms, best_ms) <= lost(save_ms, failure_ms, other_ms) * 1.001
    assert estimate.cost(other_ms) == pytest.approx(lost(save_ms, failure_ms, other_ms))


def test_published_figures() -> None:
    """Llama 3: 16,384 GPUs on 2,048 nodes; a save of 30 s; the prior's failures come every 1.8 h (Meta RSC)."""
    estimate = SaveEstimate(save_ms=30_000, longest_ms=30_000, failure_ms=PRIOR_NODE_MS // 2048)
    assert 1.79 < estimate.failure_ms / HOUR_MS < 1.81
    assert 10.3 < estimate.best_interval_ms / 60_000 < 10.5
    assert pytest.approx(1000 * DAY_MS / 6.5, abs=1) == PRIOR_NODE_MS


def test_until_a_save_was_measured_the_first_comes_early() -> None:
    unknown = SaveEstimate(save_ms=None, longest_ms=None, failure_ms=PRIOR_NODE_MS)
    known = SaveEstimate(save_ms=20_000, longest_ms=25_000, failure_ms=PRIOR_NODE_MS)
    start = {"gang": "a", "generation": 1, "shares": (), "host": "h", "port": 1}
    assert Start(**start, saves=unknown).save_interval_ms(0) == FIRST_SAVE_MS
    assert Start(**start, saves=known).save_interval_ms(0) == known.best_interval_ms
    assert Start(**start).save_interval_ms(60_000) == 60_000
    assert Start(**start).save_interval_ms(None) is None


def test_a_job_expects_the_failures_of_its_cluster_until_its_own_history_is_long() -> None:
    film = Film(POLICIES["priority"], "n1:.. n2:..", "")
    film.play("A:1x2 B:1x2 -> AA BB\nup A; up B -> AA BB")
    film.state.history.failures.failures, film.state.history.failures.node_ms = 99, 200 * DAY_MS
    young = estimate_saves(film.state, film.state.gangs["A"], 2, film.now_ms)
    prior_days = 1000 / 6.5
    assert young.node_failure_ms / DAY_MS == pytest.approx((prior_days + 200) / 100, rel=1e-3)
    assert young.failure_ms / DAY_MS == pytest.approx((prior_days + 200) / 100 / 2, rel=1e-3)
    assert f"one failure every {(prior_days + 200) / 100:.3g} node-days" == format_failure_rate(young.node_failure_ms)
    film.state.gangs["A"].ran_node_ms += 2 * 400 * DAY_MS  # and never failed
    old = estimate_saves(film.state, film.state.gangs["A"], 2, film.now_ms)
    assert old.failure_ms / DAY_MS == pytest.approx(400, rel=0.01)


def test_the_rate_of_the_cluster_is_explained() -> None:
    film = Film(POLICIES["priority"], "n1:.. n2:..", "")
    film.play("A:1x2,save -> AA ..\nup A -> AA ..")
    (line,) = film.explanation("A").domains
    assert line.startswith("one failure every 154 node-days in this cluster, so one in 153d 20h of A: a save every ")


def test_an_error_of_the_program_is_no_failure_of_the_cluster() -> None:
    film = Film(POLICIES["priority"], "n1:.. n2:..", "")
    film.play("A:1x2 B:1x2 -> AA BB\nup A; up B; step A; step B -> AA BB")
    error = PythonError(type="NameError", message="x", file="/work/train.py", line=3)
    end = RankEnd(node="n1", rank=0, at_ms=film.now_ms, exit_code=1, step=5, error=error)
    program = {"cause": Cause.RANK_FAILED, "rank": 0, "exit_code": 1, "ends": (end,)}
    film.apply(Failed(gang="A", generation=1, node="n1", **program))
    assert film.state.history.failures.failures == 0
    film.apply(NodeLost(node="n2"))
    assert film.state.history.failures.failures == 1
