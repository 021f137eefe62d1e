"""A cycle decides the same with simple structures in place of the fast ones."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.core.cycle import cycle as planning
from ganger.core.cycle.candidates import Candidates
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.queues.quota import QueueTree
from ganger.core.reservations import reservations
from ganger.core.state.pending_index import LaneEntry
from tests.laws import draws
from tests.laws.oracles.simple_candidates import SimpleCandidates
from tests.laws.policies import FEWER_EXAMPLES, POLICIES, every_policy
from tests.laws.world import World


def _with_simple_candidates(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(planning, "Candidates", SimpleCandidates)


def _with_the_quota_forecast_of_any_tree(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueTree, "is_flat", property(lambda _: False))


def _with_new_tables_of_reservations(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reservations, "MAX_TAKEN_OUT", 0)


SIMPLIFIED = (_with_simple_candidates, _with_the_quota_forecast_of_any_tree, _with_new_tables_of_reservations)


@every_policy(each=2, data=st.data())
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


class CheckedCandidates(Candidates):
    """Candidates that check, whenever one is tried, gang by gang, which reservations each may move."""

    def next(self) -> LaneEntry | None:
        entry, cycle, movable = super().next(), self._cycle, self._viability._movable
        for job_class in self._lanes.index.rows:
            gang = job_class.entries[0].gang
            if not cycle.state.nodes.capacity_index.have_room(job_class.demand.parts):
                continue
            may_move = [other.gang.id for other in movable.parts[movable.of_class[job_class.row]]]
            moved = cycle.precedence.movable_by(gang, cycle.reservations.by_gang.values())
            assert {other.gang.id for other, _ in moved} <= {*may_move}
        return entry


@every_policy(each=2, data=st.data())
def test_all_gangs_that_may_move_a_reservation_are_found(policy: Policy, data: st.DataObject) -> None:
    world = World(policy, data.draw(draws.nodes()), data.draw(draws.queues())).with_drawn_policy(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "Candidates", CheckedCandidates)
        for _ in range(data.draw(st.integers(1, 4), label="batches")):
            world.draw_events(data)
            world.run_cycle()


@FEWER_EXAMPLES
@given(data=st.data())
def test_gangs_that_are_released_together_free_the_same_as_one_by_one(data: st.DataObject) -> None:
    world = World(POLICIES["dynamic"], data.draw(draws.nodes()), data.draw(draws.queues())).with_drawn_policy(data)
    for _ in range(data.draw(st.integers(1, 4), label="batches")):
        world.draw_events(data)
        world.run_cycle()
    state, nodes = world.state, world.state.nodes
    gangs = [gang for gang, _ in state.allocated() if data.draw(st.booleans())]

    def free_after(release: Callable[[], object]) -> object:
        with state.trial():
            release()
            by_account = state.tree.users, state.fair_shares.users, state.arrays.active, state.quota_charges
            free = [amounts.tolist() for amounts in (*nodes.free, nodes.occupancy.guests, nodes.occupancy.alone)]
            used = [*map(list, state.tree.usage)], list(state.fair_shares.queues), [*map(dict, by_account)]
            return used, free, nodes.devices.owner.tolist(), list(state.allocations)

    together = free_after(lambda: state.release_all(gangs))
    assert together == free_after(lambda: [state.release(gang) for gang in gangs])
    nodes.validate()
