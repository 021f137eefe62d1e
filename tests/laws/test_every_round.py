"""Whatever happens, in whatever order, the laws hold after every event and every round: for every policy there is."""

from hypothesis import given
from hypothesis import strategies as st

from ganger.core.queue_order.policy_interface import Policy
from tests.laws import draws
from tests.laws.answers import everybody_is_answered, nobody_waits_for_nothing, questions_are_answered
from tests.laws.liveness import (
    demand_that_stands_still_settles,
    everybody_can_be_stopped,
    evictions_serve_somebody,
    impossible_jobs_change_nothing,
    suggestions_hold,
)
from tests.laws.policies import SHARED, every_policy
from tests.laws.rounds import (
    log_replays,
    nothing_is_due_before_the_wake,
    nothing_is_taken_for_the_unadmitted,
    order_of_input_says_nothing,
    planned_purely,
)
from tests.laws.shares import usage_is_what_the_log_says
from tests.laws.world import World


def a_life(policy: Policy, data: st.DataObject) -> World:
    """A world in which a dozen batches of things happened; the laws of safety held throughout."""
    world = World(policy, data.draw(draws.nodes()), data.draw(draws.queues())).governed(data)
    for _ in range(data.draw(st.integers(1, 12), label="batches")):
        world.batch(data)
        nothing_is_taken_for_the_unadmitted(world)
        planned = planned_purely(world)
        assert world.round() == planned
        while world.is_due():
            world.round()
        everybody_is_answered(world)
        nobody_waits_for_nothing(world)
        nothing_is_due_before_the_wake(world)
    return world


@every_policy
@SHARED
@given(data=st.data())
def test_laws_hold_throughout_a_life(policy: Policy, data: st.DataObject) -> None:
    world = a_life(policy, data)
    world.round()  # what the last one started is not in the answers that it gave
    questions_are_answered(world)
    suggestions_hold(world)
    log_replays(world)
    usage_is_what_the_log_says(world)
    order_of_input_says_nothing(world, data.draw(st.permutations(range(5)), label="order of listing"))
    impossible_jobs_change_nothing(world)
    evictions_serve_somebody(world)
    demand_that_stands_still_settles(world)
    everybody_can_be_stopped(world)
