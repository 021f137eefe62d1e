"""What readers see between rounds, on random days: each view is the fold of the log, however often somebody looks."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ganger.backends.simulator.script import Behaviour
from ganger.backends.simulator.world import World
from ganger.engine.log import MEMORY, EventLog
from ganger.engine.loop import copy_of
from ganger.model import event as e
from ganger.model.units import MINUTE_MS
from tests.engine.days import Day, days
from tests.engine.scenes import folded, nodes, raw, serve, submit

S = 1_000


@given(day=days(), looks_ms=st.lists(st.integers(0, 40 * MINUTE_MS), max_size=40).map(sorted))
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_every_view_is_the_fold(day: Day, looks_ms: list[int]) -> None:
    log, world = EventLog(MEMORY), day.world()
    loop = serve(world, log, day.policy)
    for moment_ms in looks_ms:
        world.run(loop, moment_ms)
        before = raw(loop.view())
        assert before == raw(folded(log))
        loop.view().validate()
    world.run(loop, 60 * MINUTE_MS)
    assert raw(loop.view()) == raw(folded(log))


def test_a_view_does_not_change_once_it_is_given() -> None:
    log = EventLog(MEMORY)
    world = World(nodes(2), {"job-1": Behaviour(steps=None)})
    loop = serve(world, log)
    for number in range(3):
        world.at(number, submit(f"job-{number}", 1 + number % 2))
    world.run(loop, 2)
    view = loop.view()
    before = raw(copy_of(view))
    world.at(S, e.StopRequested(gang="job-1"))
    world.run(loop, 60 * S)
    assert raw(loop.view()) == raw(folded(log)) != before
    assert raw(view) == before
