"""Jobs that no nodes in service could hold: they wait for nodes to come, and cost a cycle and other jobs nothing."""

import pytest

from ganger.core.cycle import cycle as cycle_plan
from ganger.core.cycle.attempt import Outcome
from ganger.core.cycle.cycle import plan
from ganger.core.cycle.cycle_state import Cycle
from ganger.core.state.gang import Gang
from ganger.model.decision import ReservedStart, Start
from tests.laws.policies import POLICIES
from tests.pictures.film import Film

CLUSTER = "n1:A n2:A n3:. n4:. A,time=2h"
OTHERS = "B:3x1,time=1h C:1x1,time=1h"


@pytest.mark.parametrize("policy", ["fair_share", "priority"])
def test_they_are_not_tried_and_delay_no_other(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried, attempt = list[str](), cycle_plan.attempt

    def count(cycle: Cycle, gang: Gang, last_start: Start | None) -> Outcome:
        tried.append(gang.id)
        return attempt(cycle, gang, last_start)

    monkeypatch.setattr(cycle_plan, "attempt", count)
    for large in ("", " ".join(f"L{index}:{5 + index % 2}x1,time={1 + index}h" for index in range(40))):
        film = Film(POLICIES[policy], CLUSTER, "")
        for action in filter(None, (large, OTHERS)):
            film.do(action)
        tried.clear()
        decisions = plan(film.state, film.now_ms, film.policy).decisions
        assert [decision.gang for decision in decisions if isinstance(decision, Start)] == ["C"]
        assert [decision.gang for decision in decisions if isinstance(decision, ReservedStart)] == ["B"]
        assert sorted(tried) == ["B", "C"]
