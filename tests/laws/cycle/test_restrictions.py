"""A restriction that keeps a pending job from a place is named in its reason, and dropping it starts the job."""

from dataclasses import replace

from hypothesis import strategies as st

from ganger.core.queue_order.policy_interface import Policy
from ganger.model.job import JobSpec
from ganger.model.job_sections.placement_spec import Placement
from ganger.model.queue import DEFAULT
from tests.laws import draws
from tests.laws.liveness import suggestions_hold
from tests.laws.policies import guaranteeing
from tests.laws.reason_laws import every_class_has_a_true_reason
from tests.laws.world import World


def _specs() -> st.SearchStrategy[JobSpec]:
    """Draw a job of one part that nothing but nodes keeps waiting."""
    return draws.specs((DEFAULT,)).map(lambda spec: draws.possible(replace(spec, roles={}, array=None)))


@guaranteeing("work_conservation", each=2, data=st.data())
def test_restrictions_are_named_and_tried(policy: Policy, data: st.DataObject) -> None:
    taints = st.sampled_from(((), (), ("spot",), ("spot", "team=nlp")))
    nodes = tuple(replace(node, taints=data.draw(taints)) for node in data.draw(draws.nodes()))
    world = World(policy, nodes)
    for number in range(data.draw(st.integers(1, 4), label="running")):
        world.submit(draws.job(number, "ann", replace(data.draw(_specs()), placement=Placement())))
    world.run_cycle()
    for number in range(data.draw(st.integers(1, 3), label="restricted")):
        spec = draws.possible(replace(data.draw(_specs()), placement=data.draw(draws.placements())))
        world.submit(draws.job(100 + number, "ann", spec))
    world.run_cycle()
    every_class_has_a_true_reason(world)
    suggestions_hold(world)
