"""The forecast start of pending jobs: behind those before them, and what it is based on."""

from dataclasses import dataclass

import pytest

from ganger.core.explain.explain import with_forecast
from ganger.core.forecast.start_forecast import StartForecasts
from ganger.model.units import MINUTE_MS
from ganger.model.views.service_views import StartRange
from tests.laws.policies import POLICIES
from tests.pictures.film import Film

BUSY = "n1:AA n2:AA A,time=1h"
UNPREDICTABLE = (
    "a job that runs or is ahead of it has no time limit, and too few jobs of that job's user have ended to predict it"
)


@dataclass(frozen=True)
class Case:
    """A cluster, actions, and what is forecast of the job C: minutes from now, the basis, and what it depends on."""

    cluster: str
    actions: str
    minutes: int | None
    basis: str
    depends_on: tuple[str, ...]
    queues: str = ""
    policy: str = "dynamic"


CASES = {
    "when the running job ends": Case(BUSY, "C:2x2,time=1h", 60, "limits", ("A has to end first",)),
    "after the job ahead, not when capacity is free": Case(
        BUSY,
        "B:2x2,time=2h C:2x2,time=1h",
        180,
        "limits",
        ("B is ahead of it with a reserved start and has to start and end first",),
    ),
    "behind three jobs ahead": Case(
        BUSY,
        "B:2x2,time=2h D:2x2,time=1h E:2x2,time=30m C:1x1,time=5h",
        270,
        "limits",
        ("E is ahead of it and has to start and end first",),
    ),
    "before a reserved start": Case(
        "n1:AA n2:BB A,time=1h B,time=3h", "D:2x2,time=1h C:1x2,time=2h", 60, "limits", ("A has to end first",)
    ),
    "not before a reserved start if too long for it": Case(
        "n1:AA n2:BB A,time=1h B,time=3h",
        "D:2x2,time=1h C:1x2,time=3h",
        240,
        "limits",
        ("D is ahead of it with a reserved start and has to start and end first",),
    ),
    "a running job without a limit": Case("n1:AA n2:AA", "C:1x2,time=1h", None, "unknown", (UNPREDICTABLE,)),
    "a job ahead without a limit": Case(BUSY, "B:2x2 C:1x2,time=1h", None, "unknown", (UNPREDICTABLE,)),
    "a job without a limit itself": Case(BUSY, "C:2x2", 60, "limits", ("A has to end first",)),
    "a job ahead whose run time is predicted": Case(
        "n1:.. n2:..",
        "took 2x2 30m 30m 30m 30m 30m; A:2x2,time=1h; B:2x2 C:2x2,time=1h",
        90,
        "history",
        ("B is ahead of it with a reserved start and has to start and end first",),
    ),
    "after maintenance": Case("n1:AA n2:.. A,time=9h", "maintain n2 0h 2h; C:1x2,time=1h", 120, "limits", ()),
    "after a second window that is too near": Case(
        "n1:AA n2:.. A,time=9h", "maintain n2 0h 2h; maintain n2 3h 1h; C:1x2,time=2h", 240, "limits", ()
    ),
    "after maintenance, before which a prediction alone lets nothing start": Case(
        "n1:.. n2:..", "took 2x2 30m 30m 30m 30m 30m; maintain n1 4h 1h; C:2x2", 300, "limits", ()
    ),
    "before maintenance that its limit ends in time for, as one without a limit may not": Case(
        "n1:.. n2:..",
        "took 2x2 10m 10m 10m 10m 10m; A:1x2,time=1h; maintain n2 4h 1h; B:2x2 C:2x2,time=2h",
        60,
        "limits",
        ("A has to end first",),
    ),
    "at the limit of a user": Case(
        "n1:A. n2:.. A,time=1h,q=q",
        "C:1x1,time=1h,q=q",
        60,
        "limits",
        (
            "A has to end first",
            "queue q or its user ann is at a limit until then",
        ),
        queues="q=1,borrow=0",
    ),
    "behind a job with roles": Case(
        BUSY,
        "D:1x1,roles=500+500,time=2h C:2x2,time=1h",
        180,
        "limits",
        ("D is ahead of it with a reserved start and has to start and end first",),
    ),
    "larger than the cluster": Case(
        BUSY, "C:3x2,time=1h", None, "unknown", ("no nodes in service could hold it, even if idle",)
    ),
    "a job that depends on another": Case(
        BUSY,
        "C:1x1,time=1h,after=A",
        None,
        "unknown",
        ("it depends on other jobs, and when these end is not known",),
    ),
    "an order that preempts": Case(
        BUSY, "C:2x2,time=1h", None, "unknown", ("order las preempts running jobs",), policy="las"
    ),
}


def _forecast(film: Film, gang: str) -> StartRange:
    forecasts = StartForecasts(film.state, film.policy, film.now_ms)
    forecast = with_forecast(film.explanation(gang), film.state, film.policy, forecasts).forecast
    assert forecast is not None
    film.state.validate()
    return forecast


@pytest.mark.parametrize("name", CASES)
def test_the_forecast(name: str) -> None:
    case = CASES[name]
    film = Film(POLICIES[case.policy], case.cluster, case.queues)
    for action in case.actions.split("; "):
        film.do(action)
        film.run_cycles()
    forecast = _forecast(film, "C")
    assert (forecast.basis, forecast.depends_on) == (case.basis, case.depends_on)
    if case.minutes is None:
        assert (forecast.from_ms, forecast.expected_ms, forecast.until_ms) == (None, None, None)
        return
    assert forecast.expected_ms == film.now_ms + case.minutes * MINUTE_MS
    assert forecast.from_ms is not None
    assert forecast.until_ms is not None
    assert film.now_ms <= forecast.from_ms <= forecast.expected_ms <= forecast.until_ms
