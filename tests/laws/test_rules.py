"""Gangs that fail again and again, under rules of their own: what a rule says is done, and an excluded node stays so.

The laws are those of every life; here nearly everything that happens is a failure that a rule may fit.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ganger.core.queue_order.policy_interface import Policy
from ganger.model import event as e
from ganger.model.job import GangState, JobSpec, Limits, Retry, Rule
from ganger.model.units import MINUTE_MS
from tests.laws import draws
from tests.laws.answers import everybody_is_answered, nobody_waits_for_nothing, questions_are_answered
from tests.laws.liveness import everybody_can_be_stopped, suggestions_hold
from tests.laws.policies import POLICIES
from tests.laws.rounds import log_replays, planned_purely
from tests.laws.world import World


@st.composite
def failing(draw: st.DrawFn) -> JobSpec:
    """A small job that runs until it fails, with a rule or two."""
    rules: tuple[Rule, ...] = tuple(draw(st.lists(draws.rules(), min_size=1, max_size=2)))
    retry = Retry(max=draw(st.sampled_from((None, 0, 2, 9, 9))), backoff_first_ms=1, rules=rules)
    spec = draw(draws.specs(("default",)))
    small = replace(spec, array=None, nodes=draw(st.integers(1, 2)), roles={}, retry=retry, limits=Limits())
    return draws.possible(small)


def fail(world: World, data: st.DataObject, gang: str) -> None:
    """It fails somewhere, and mostly a line of a log, somewhere else perhaps, fits one of its rules."""
    rules = world.raw.jobs[gang].spec.retry.rules
    at = data.draw(
        st.sampled_from([None, *(at for at, rule in enumerate(rules) if rule.log)] + [0] * bool(rules[0].log))
    )
    nodes = st.sampled_from(world.left(gang))
    cause, code, signal = data.draw(st.sampled_from(draws.FAILURES))
    found = None if at is None else e.RuleMatch(rule=at, do=rules[at].do, node=data.draw(nodes), rank=0, line="ECC")
    failed = e.Failed(gang=gang, generation=world.generation(gang), node=data.draw(nodes), cause=cause)
    world.happens(replace(failed, exit_code=code, signal=signal, match=found))


@pytest.mark.parametrize("policy", [POLICIES["fifo"], POLICIES["las"]], ids=["fifo", "las"])
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_what_a_rule_says_is_done(policy: Policy, data: st.DataObject) -> None:
    world = World(policy, data.draw(draws.nodes()))
    for number, spec in enumerate(data.draw(st.lists(failing(), min_size=1, max_size=3))):
        world.submit(draws.job(number, "ann", spec))
    for _ in range(data.draw(st.integers(2, 7))):
        planned = planned_purely(world)
        assert world.round() == planned
        everybody_is_answered(world)
        nobody_waits_for_nothing(world)
        if data.draw(st.booleans()):
            world.confirm()
        up = world.in_state(GangState.STARTING, GangState.RUNNING)
        for gang in up if data.draw(st.booleans()) else up[:1]:
            fail(world, data, gang)
        world.round()
        world.clear()
        world.now_ms += MINUTE_MS
    world.round()
    questions_are_answered(world)
    suggestions_hold(world)
    log_replays(world)
    everybody_can_be_stopped(world)
