"""Gangs that fail repeatedly, under retry rules: the rule's action is applied, and an excluded node stays excluded.

The laws are those of every life; here nearly every event is a failure that a rule may match.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ganger.core.queue_order.policy_interface import Policy
from ganger.model import event as e
from ganger.model.evidence import RuleMatch
from ganger.model.job import GangState, JobSpec
from ganger.model.job_sections.retry_spec import Limits, Retry, Rule
from ganger.model.units import MINUTE_MS
from tests.examples import examples
from tests.laws import draws
from tests.laws.cycle_laws import log_replays, plan_purely
from tests.laws.liveness import every_gang_can_be_stopped, suggestions_hold
from tests.laws.policies import POLICIES
from tests.laws.reason_laws import every_class_has_a_true_reason, explanations_agree, work_is_conserved
from tests.laws.world import World


@st.composite
def failing(draw: st.DrawFn) -> JobSpec:
    """Draw a small job that runs until it fails, with a rule or two."""
    rules: tuple[Rule, ...] = tuple(draw(st.lists(draws.rules(), min_size=1, max_size=2)))
    retry = Retry(max=draw(st.sampled_from((None, 0, 2, 9, 9))), backoff_first_ms=1, rules=rules)
    spec = draw(draws.specs(("default",)))
    small = replace(spec, array=None, nodes=draw(st.integers(1, 2)), roles={}, retry=retry, limits=Limits())
    return draws.possible(small)


def fail(world: World, data: st.DataObject, gang: str) -> None:
    """Fail the gang somewhere; mostly a line of a log, perhaps of another node, matches one of its rules."""
    rules = world.raw.jobs[gang].spec.retry.rules
    index = data.draw(
        st.sampled_from([None, *(index for index, rule in enumerate(rules) if rule.log)] + [0] * bool(rules[0].log))
    )
    nodes = st.sampled_from(world.left(gang))
    cause, code, signal = data.draw(st.sampled_from(draws.FAILURES))
    match = (
        None if index is None else RuleMatch(rule=index, do=rules[index].do, node=data.draw(nodes), rank=0, line="ECC")
    )
    failed = e.Failed(gang=gang, generation=world.generation(gang), node=data.draw(nodes), cause=cause)
    world.try_event(replace(failed, exit_code=code, signal=signal, match=match))


@pytest.mark.parametrize("policy", [POLICIES["fifo"], POLICIES["las"]], ids=["fifo", "las"])
@examples(gate=6, otherwise=settings().max_examples // 2)
@given(data=st.data())
def test_what_a_rule_says_is_done(policy: Policy, data: st.DataObject) -> None:
    world = World(policy, data.draw(draws.nodes()))
    for number, spec in enumerate(data.draw(st.lists(failing(), min_size=1, max_size=3))):
        world.submit(draws.job(number, "ann", spec))
    for _ in range(data.draw(st.integers(2, 7))):
        planned = plan_purely(world)
        assert world.run_cycle() == planned
        every_class_has_a_true_reason(world)
        work_is_conserved(world)
        if data.draw(st.booleans()):
            world.confirm_starts()
        up = world.in_state(GangState.STARTING, GangState.RUNNING)
        for gang in up if data.draw(st.booleans()) else up[:1]:
            fail(world, data, gang)
        world.run_cycle()
        world.clear_leaving()
        world.now_ms += MINUTE_MS
    world.run_cycle()
    explanations_agree(world)
    suggestions_hold(world)
    log_replays(world)
    every_gang_can_be_stopped(world)
