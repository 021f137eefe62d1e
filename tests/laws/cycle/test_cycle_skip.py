"""A skipped cycle would have started and stopped no gang, and made no reservation (`core.cycle.cycle_skip`).

Jobs arrive one after the other while others run, as in a queue that is full; a core that skips nothing plans beside it.
"""

from hypothesis import given
from hypothesis import strategies as st

from ganger.core.cycle.cycle_skip import CycleSkip
from ganger.core.cycle.plan import plan
from ganger.core.queue_order.policy_interface import Policy
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Decision, Plan, ReservationCause, ReservedStart, Wait
from ganger.model.job import GpuRequest, JobSpec, Limits, Resources
from ganger.model.units import HOUR_MS, MINUTE_MS
from ganger.policies import priority
from tests.laws import draws
from tests.laws.policies import FEWER_EXAMPLES, every_policy
from tests.laws.world import World


class TwicePlannedWorld(World):
    """A world whose cycles are planned twice, counting those that were skipped."""

    cycle_skip, skipped_count = CycleSkip(), 0

    def try_event(self, event: e.Event) -> bool:
        """Fold an event in, and let the cycle skip observe it."""
        taken = super().try_event(event)
        if taken and not isinstance(event, e.Decided):
            self.cycle_skip.observe(event)
        return taken

    def run_cycle(self) -> Plan:
        """Run a cycle, of which the one that is never skipped counts."""
        quick = plan(self.state, self.now_ms, self.policy, self.cycle_skip)
        planned = super().run_cycle()
        whole = [decision for decision in planned.decisions if not isinstance(decision, Wait)]
        if list(quick.decisions) != whole:
            assert quick.decisions == (), "a cycle is run whole or not at all"
            assert all(map(_moves_earlier, whole)), "it would have changed something"
            self.skipped_count += 1
        assert quick.next_wake_ms == planned.next_wake_ms or whole
        return planned


def _moves_earlier(decision: Decision) -> bool:
    return isinstance(decision, ReservedStart) and decision.cause is ReservationCause.EARLIER


@every_policy
@FEWER_EXAMPLES
@given(data=st.data())
def test_a_skipped_cycle_would_have_changed_nothing(policy: Policy, data: st.DataObject) -> None:
    world = TwicePlannedWorld(policy, data.draw(draws.nodes()), data.draw(draws.queues())).with_drawn_policy(data)
    world.cycle_skip = CycleSkip()
    for number in range(data.draw(st.integers(1, 8), label="batches")):
        if data.draw(st.booleans(), label="only comes"):
            world.now_ms += data.draw(st.sampled_from((0, 1_000, 40 * MINUTE_MS)), label="later")
            user = data.draw(st.sampled_from(draws.USERS))
            world.submit(draws.job(1_000 + number, user, data.draw(draws.specs(tuple(world.state.queues)))))
        else:
            world.draw_events(data)
        world.run_cycle()
        while world.is_due():
            world.run_cycle()


def test_an_overdue_reservation_is_published_by_the_next_cycle() -> None:
    node = Node(name="n1", gpus=4, gpu_type="h100", cpu_milli=64_000)
    world = TwicePlannedWorld(priority, (node,))
    world.cycle_skip = CycleSkip()
    world.submit(draws.job(1, "ann", _takes(4, HOUR_MS)))
    world.run_cycle()
    world.now_ms += HOUR_MS
    world.submit(draws.job(2, "ann", _takes(4, HOUR_MS)))
    world.run_cycle()  # stops the first, whose nodes are expected to be free soon
    world.submit(draws.job(3, "ann", _takes(8, HOUR_MS)))
    world.run_cycle()
    assert world.state.reservations["j2"].start_ms is not None
    world.now_ms += HOUR_MS  # the first is still there
    world.submit(draws.job(4, "ann", _takes(8, HOUR_MS)))
    assert [decision.cause for decision in world.run_cycle().decisions if isinstance(decision, ReservedStart)] == [
        ReservationCause.OVERRUN
    ]


def _takes(gpus: int, time_ms: int) -> JobSpec:
    return JobSpec(
        run="train", resources=Resources(gpu=GpuRequest(count=gpus)), limits=Limits(time_ms=time_ms), checkpoint=None
    )
