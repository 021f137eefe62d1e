"""A round that is left out would have started and stopped nobody, and promised nobody a start
(`core.cycle.cycle_skip`).

Jobs come one after the other while others run, as in a queue that is full; beside it plans a core that leaves nothing
out. The same world is drawn for both.
"""

from hypothesis import given
from hypothesis import strategies as st

from ganger.core.cycle.cycle_skip import CycleSkip
from ganger.core.cycle.plan import plan
from ganger.core.queue_order.policy_interface import Policy
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Decision, Moved, Plan, ReservedStart, Wait
from ganger.model.job import GpuRequest, JobSpec, Limits, Resources
from ganger.model.units import HOUR_MS, MINUTE_MS
from ganger.policies import priority
from tests.laws import draws
from tests.laws.policies import SHARED, every_policy
from tests.laws.world import World


class Watched(World):
    """A world whose rounds are planned twice; left_out: how many were not."""

    settled, left_out = CycleSkip(), 0

    def happens(self, event: e.Event) -> bool:
        """Also to what is asked whether a round may be left out."""
        taken = super().happens(event)
        if taken and not isinstance(event, e.Decided):
            self.settled.hear(event)
        return taken

    def round(self) -> Plan:
        """The one that leaves out nothing counts."""
        quick = plan(self.state, self.now_ms, self.policy, self.settled)
        planned = super().round()
        whole = [each for each in planned.decisions if not isinstance(each, Wait)]
        if list(quick.decisions) != whole:
            assert quick.decisions == (), "a round is held whole or not at all"
            assert all(map(_moves_earlier, whole)), "it would have changed something"
            self.left_out += 1
        assert quick.next_wake_ms == planned.next_wake_ms or whole
        return planned


def _moves_earlier(decision: Decision) -> bool:
    return isinstance(decision, ReservedStart) and decision.cause is Moved.EARLIER


@every_policy
@SHARED
@given(data=st.data())
def test_a_round_that_is_left_out_would_have_changed_nothing(policy: Policy, data: st.DataObject) -> None:
    world = Watched(policy, data.draw(draws.nodes()), data.draw(draws.queues())).governed(data)
    world.settled = CycleSkip()
    for number in range(data.draw(st.integers(1, 8), label="batches")):
        if data.draw(st.booleans(), label="only comes"):
            world.now_ms += data.draw(st.sampled_from((0, 1_000, 40 * MINUTE_MS)), label="later")
            user = data.draw(st.sampled_from(draws.USERS))
            world.submit(draws.job(1_000 + number, user, data.draw(draws.specs(tuple(world.state.queues)))))
        else:
            world.batch(data)
        world.round()
        while world.is_due():
            world.round()


def test_a_promise_that_is_late_is_told_by_the_next_round() -> None:
    node = Node(name="n1", gpus=4, gpu_type="h100", cpu_milli=64_000)
    world = Watched(priority, (node,))
    world.settled = CycleSkip()
    world.submit(draws.job(1, "ann", _takes(4, HOUR_MS)))
    world.round()
    world.now_ms += HOUR_MS
    world.submit(draws.job(2, "ann", _takes(4, HOUR_MS)))
    world.round()  # stops the first, whose nodes are expected to be free soon
    world.submit(draws.job(3, "ann", _takes(8, HOUR_MS)))
    world.round()
    assert world.state.promises["j2"].start_ms is not None
    world.now_ms += HOUR_MS  # the first is still there
    world.submit(draws.job(4, "ann", _takes(8, HOUR_MS)))
    assert [each.cause for each in world.round().decisions if isinstance(each, ReservedStart)] == [Moved.OVERRUN]


def _takes(gpus: int, time_ms: int) -> JobSpec:
    return JobSpec(
        run="train", resources=Resources(gpu=GpuRequest(count=gpus)), limits=Limits(time_ms=time_ms), checkpoint=None
    )
