"""The laws hold after every event and every cycle, whatever happens in whatever order, for every policy there is."""

from hypothesis import strategies as st

from ganger.core.queue_order.policy_interface import Policy
from tests.examples import IN_GATE
from tests.laws import draws
from tests.laws.cycle_laws import (
    input_order_does_not_matter,
    log_replays,
    nothing_is_due_before_the_wake_time,
    nothing_is_taken_for_the_unadmitted,
    plan_purely,
    reports_change_no_plan,
)
from tests.laws.liveness import (
    constant_demand_settles,
    every_gang_can_be_stopped,
    impossible_jobs_change_nothing,
    preemption_serves_preemptors,
    suggestions_hold,
)
from tests.laws.oracles.usage_oracle import usage_agrees_with_the_log
from tests.laws.policies import every_policy
from tests.laws.reason_laws import every_class_has_a_true_reason, explanations_agree, work_is_conserved
from tests.laws.world import World

MOST_BATCHES = 6 if IN_GATE else 12


def drawn_life(policy: Policy, data: st.DataObject) -> World:
    """Return a world after some batches of events, with the laws of safety checked throughout."""
    world = World(policy, data.draw(draws.nodes()), data.draw(draws.queues())).with_drawn_policy(data)
    for _ in range(data.draw(st.integers(1, MOST_BATCHES), label="batches")):
        world.draw_events(data)
        nothing_is_taken_for_the_unadmitted(world)
        planned = plan_purely(world)
        assert world.run_cycle() == planned
        while world.is_due():
            world.run_cycle()
        every_class_has_a_true_reason(world)
        work_is_conserved(world)
        nothing_is_due_before_the_wake_time(world)
    return world


@every_policy(each=2, data=st.data())
def test_laws_hold_throughout_a_life(policy: Policy, data: st.DataObject) -> None:
    world = drawn_life(policy, data)
    world.run_cycle()  # what the last one started is not in its reasons
    explanations_agree(world)
    suggestions_hold(world)
    log_replays(world)
    reports_change_no_plan(world)
    usage_agrees_with_the_log(world)
    input_order_does_not_matter(world, data.draw(st.permutations(range(5)), label="order of listing"))
    impossible_jobs_change_nothing(world)
    preemption_serves_preemptors(world)
    constant_demand_settles(world)
    every_gang_can_be_stopped(world)
