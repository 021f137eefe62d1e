"""The invariants of the core that hold of whole lives, each by its number (reference: scheduling, section 5).

`World` checks them after every event and every cycle anyway, and `test_every_cycle` for longer; here each can be found,
and fails, by itself, and few examples are enough. Others have files of their own: 3 also `test_profile`, 4 `test_fair`,
5 `test_quota`, 9 `test_reservations` and `test_backfill`, 11 `test_place`, 12 also `test_parts`, 16 `test_explain`, 17
`test_no_starvation`, 18 `test_share`.
"""

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import strategies as st

from ganger.core.cycle.cycle import plan
from ganger.core.cycle.publish_reasons import MAX_REASONS
from ganger.core.queue_order.policy_interface import Policy
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Start
from ganger.model.job import Array, GpuRequest, JobSpec, Resources
from ganger.model.job_sections.retry_spec import Limits
from ganger.model.policy import Starvation
from ganger.model.units import HOUR_MS, MINUTE_MS
from tests.laws import draws
from tests.laws.liveness import impossible_jobs_change_nothing
from tests.laws.oracles.job_parts import parts
from tests.laws.oracles.over_allocation import over_allocated
from tests.laws.policies import POLICIES, every_policy, guaranteeing
from tests.laws.reason_laws import work_is_conserved
from tests.laws.safety import copy_of, derived_figures_are_exact
from tests.laws.world import World


def cycles(policy: Policy, data: st.DataObject) -> Iterator[tuple[World, list[Start]]]:
    """Yield a world after each of its cycles, with the starts."""
    world = World(policy, data.draw(draws.nodes()), data.draw(draws.queues())).with_drawn_policy(data)
    for _ in range(data.draw(st.integers(1, 6), label="batches")):
        world.draw_events(data)
        started = [decision for decision in world.run_cycle().decisions if isinstance(decision, Start)]
        while world.is_due():
            started += [decision for decision in world.run_cycle().decisions if isinstance(decision, Start)]
        yield world, started


@every_policy(each=2, data=st.data())
def test_invariant_1_nothing_is_over_allocated(policy: Policy, data: st.DataObject) -> None:
    for world, _ in cycles(policy, data):
        assert over_allocated(world.raw) == []


@every_policy(each=2, data=st.data())
def test_invariant_2_a_gang_has_all_its_nodes_or_none(policy: Policy, data: st.DataObject) -> None:
    for world, started in cycles(policy, data):
        for start in started:
            held = [(gang, node) for gang, node in world.raw.left if gang == start.gang]
            assert sum(len(world.raw.left[gang_and_node]) for gang_and_node in held) == len(start.shares), (
                "it has them all at once"
            )
            assert len(start.shares) == sum(part.count for part in parts(world.raw.jobs[start.gang].spec))
        for gang in world.state.gangs.values():
            assert (gang.id in world.raw.starts) == (gang.attempt.start is not None)


@every_policy(each=2, data=st.data())
def test_invariant_3_what_is_derived_is_what_is_counted_anew(policy: Policy, data: st.DataObject) -> None:
    """Check by the state itself, by a snapshot's, and by the raw facts; capacity over time is in `test_profile`."""
    for world, _ in cycles(policy, data):
        derived_figures_are_exact(world.state, world.raw)
        world.state.validate()
        copy_of(world.state)


@guaranteeing("work_conservation", each=2, data=st.data())
def test_invariant_10_no_gang_waits_for_free_capacity(policy: Policy, data: st.DataObject) -> None:
    for world, _ in cycles(policy, data):
        work_is_conserved(world)


def test_invariant_10_where_more_classes_wait_than_a_cycle_considers() -> None:
    """Hold a node for an array that starves: most of the classes that fit beside it were last told that it was full."""
    world = World(POLICIES["first_fit"], (Node(name="n1", gpus=2, cpu_milli=99_000, memory_bytes=1 << 40),))
    document = replace(world.state.document, starvation=Starvation(after_ms=MINUTE_MS))
    assert world.try_event(e.PolicySet(document=document, version=1))
    for number, gpus in enumerate((1, 1, 2, *[1] * 2 * MAX_REASONS)):
        array = Array(indices=(0, 1), limit=1) if gpus == 2 else None
        resources, limits = Resources(gpu=GpuRequest(count=gpus)), Limits(time_ms=(number + 1) * HOUR_MS)
        spec = JobSpec(run="train", resources=resources, limits=limits, array=array)
        assert world.submit(draws.job(number, "ada", spec))
    world.run_cycle()
    world.now_ms += MINUTE_MS
    world.finish(min(world.raw.starts))
    world.run_cycle()
    assert len(world.raw.starts) == 1, "the array holds the node"
    work_is_conserved(world)


@every_policy(each=2, data=st.data())
def test_invariant_12_remembered_failures_hide_no_place(policy: Policy, data: st.DataObject) -> None:
    """Check that a state that remembers nothing plans the same.

    That a gang is placed wherever brute force finds a place is law 10, and `test_place`.
    """
    for world, _ in cycles(policy, data):
        assert plan(copy_of(world.state), world.now_ms, policy) == plan(world.state, world.now_ms, policy)


@every_policy(each=2, data=st.data())
def test_invariant_13_an_impossible_head_blocks_and_preempts_none(policy: Policy, data: st.DataObject) -> None:
    for world, _ in cycles(policy, data):
        last = world
    impossible_jobs_change_nothing(last)


@every_policy(each=2, data=st.data())
def test_invariant_14_a_node_out_of_service_gets_nothing_new(policy: Policy, data: st.DataObject) -> None:
    """Check starts only: that a lost node takes its gangs alone is checked at every loss (`World.try_event`)."""
    for world, started in cycles(policy, data):
        out = {*world.raw.cordoned, *world.raw.lost}
        assert all(share.node not in out for start in started for share in start.shares)
