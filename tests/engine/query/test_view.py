"""Views between cycles, on random days: each view is the fold of the log, however often it is read."""

from concurrent.futures import Future

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ganger.backends.simulator.job_behaviour import Behaviour
from ganger.backends.simulator.virtual_cluster import VirtualCluster
from ganger.engine.eventlog.event_log import MEMORY, EventLog
from ganger.engine.query import state_replica
from ganger.engine.query.state_replica import copy_of
from ganger.model import event as e
from ganger.model.units import MINUTE_MS
from tests.engine.days import Day, days
from tests.engine.scenes import folded, nodes, raw, serve, submit
from tests.examples import examples

S = 1_000


@given(day=days(), looks_ms=st.lists(st.integers(0, 40 * MINUTE_MS), max_size=40).map(sorted))
@settings(examples(6), suppress_health_check=[HealthCheck.too_slow])
def test_every_view_is_the_fold(day: Day, looks_ms: list[int]) -> None:
    log, world = EventLog(MEMORY), day.world()
    loop = serve(world, log, day.policy)
    for moment_ms in looks_ms:
        world.run(loop, moment_ms)
        with loop.view() as state:
            assert raw(state) == raw(folded(log))
            state.validate()
    world.run(loop, 60 * MINUTE_MS)
    with loop.view() as state:
        assert raw(state) == raw(folded(log))
    assert raw(loop.copy()) == raw(folded(log))


def test_a_view_does_not_change_while_it_is_read() -> None:
    log = EventLog(MEMORY)
    world = VirtualCluster(nodes(2), {"job-1": Behaviour(steps=None)})
    loop = serve(world, log)
    for number in range(3):
        world.at(number, submit(f"job-{number}", 1 + number % 2))
    world.run(loop, 2)
    with loop.view() as state:
        before = raw(copy_of(state))
        world.at(S, e.StopRequested(gang="job-1"))
        world.run(loop, 60 * S)
        assert raw(state) == before
    assert raw(loop.copy()) == raw(folded(log)) != before


def test_a_reader_that_was_away_for_long_sees_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are kept for readers up to a limit; beyond it the next reader gets a new copy."""
    monkeypatch.setattr(state_replica, "MAX_LAG", 3)
    log, world = EventLog(MEMORY), VirtualCluster(nodes(2), {})
    loop = serve(world, log)
    for count in (1, 5, 1, 9):
        for number in range(count):
            loop.run_cycle([(submit(f"job-{log.last_seq()}-{number}"), Future())])
        with loop.view() as state:
            assert raw(state) == raw(folded(log))
            state.validate()
