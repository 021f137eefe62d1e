"""A cycle decides the same with simple structures in place of the fast ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.core.cycle import plan as planning
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.queues.quota import QueueTree
from ganger.core.reservations import reservations
from tests.laws import draws
from tests.laws.oracles.simple_candidates import SimpleCandidates
from tests.laws.policies import FEWER_EXAMPLES, every_policy
from tests.laws.world import World


def _with_simple_candidates(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(planning, "Candidates", SimpleCandidates)


def _with_the_quota_forecast_of_any_tree(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueTree, "is_flat", property(lambda _: False))


def _with_new_tables_of_reservations(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reservations, "MAX_TAKEN_OUT", 0)


SIMPLIFIED = (_with_simple_candidates, _with_the_quota_forecast_of_any_tree, _with_new_tables_of_reservations)


@every_policy
@FEWER_EXAMPLES
@given(data=st.data())
def test_simple_structures_decide_the_same(policy: Policy, data: st.DataObject) -> None:
    world = World(policy, data.draw(draws.nodes()), data.draw(draws.queues())).with_drawn_policy(data)
    for _ in range(data.draw(st.integers(1, 4), label="batches")):
        world.draw_events(data)
        planned = planning.plan(world.state, world.now_ms, world.policy, explains=False)
        for simplify in SIMPLIFIED:
            with pytest.MonkeyPatch.context() as patch:
                simplify(patch)
                assert planning.plan(world.state, world.now_ms, world.policy, explains=False) == planned
        world.run_cycle()
