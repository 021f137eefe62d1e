"""Random days with a server that is killed at random points: the result is always sound."""

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ganger.model.job import ENDED, GangState
from ganger.model.units import HOUR_MS
from tests.crash.mortal import Life, MortalWorld, check_sound, survive
from tests.crash.test_killed import LONG
from tests.engine.days import Day, days
from tests.engine.scenes import listed_states

UNTIL_MS = 48 * HOUR_MS


@given(
    day=days(max_jobs=8),
    kills=st.lists(st.integers(1, 250), min_size=1, max_size=6, unique=True).map(tuple),
    down_ms=st.sampled_from((0, 0, 7, 1_500, 60_000)),
)
@settings(
    max_examples=1_000 if LONG else 8,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_any_day_is_survived(day: Day, kills: tuple[int, ...], down_ms: int, folder: Path) -> None:
    path = folder / "g.db"
    result = survive(day.world_of(MortalWorld), Life(path, day.policy, UNTIL_MS, kills, down_ms))
    check_sound(result)
    assert {*listed_states(result.log).values()} <= {*ENDED, GangState.PENDING}, "every job that can end has ended"
    result.log.close()
    for part in folder.iterdir():
        part.unlink()
