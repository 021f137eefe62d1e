"""A law of the idle loop, in every world: after any time without jobs the loop's clock shows the machine's time.

The embedded engine idles really, for a moment; the simulator and the Kubernetes controller idle for an hour of virtual
time and more. The controller has the production clock, over a machine whose clocks show the virtual time.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ganger.backends.simulator.virtual_cluster import VirtualCluster
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.loop import Loop
from ganger.engine.wall_clock import WallClock
from ganger.model import event as e
from tests.engine.scenes import nodes, serve, submit
from tests.kubernetes.admin import credentials_of
from tests.kubernetes.binding import BEGIN_MS, CRD, OFFER, controller
from tests.service.world import Embedded, launcher
from tests.waiting import wait_until
from tools.fakeapi import FakeApi
from tools.skipping import SkippingLoop

HOUR_MS = 3_600_000
NS_PER_MS = 1_000_000
IDLE_MS = 25
"""Real idle time; the fault that the law excludes adds all of it to the clock."""
CORDON_AND_BACK = (e.NodeCordoned(node="n1"), e.NodeUncordoned(node="n1"), e.NodeCordoned(node="n1"))


def assert_on_time(loop: Loop, log: EventLog, before_ms: int, machine_ms: Callable[[], int]) -> None:
    """Check that the newest event has a time between `before_ms` and now, and that the clock shows now."""
    event_ms = log.rows()[-1].at_ms
    assert before_ms <= event_ms <= machine_ms(), f"the event is {event_ms - machine_ms()} ms ahead"
    earliest_ms, shown_ms = machine_ms(), loop.now_ms()
    assert earliest_ms <= shown_ms <= machine_ms(), f"the clock is {shown_ms - machine_ms()} ms ahead"


def wall_ms() -> int:
    return time.time_ns() // NS_PER_MS


def test_the_embedded_engine(tmp_path: Path) -> None:
    embedded = Embedded(tmp_path, launcher(tmp_path))
    try:
        for event in CORDON_AND_BACK:
            idle_until_ms = wall_ms() + IDLE_MS
            wait_until(lambda until_ms=idle_until_ms: wall_ms() >= until_ms, "an idle moment is over")
            before_ms = wall_ms()
            embedded.loop.ask(event)
            assert_on_time(embedded.loop, embedded.log, before_ms, wall_ms)
    finally:
        embedded.close()


def test_the_simulator() -> None:
    world, log = VirtualCluster(nodes(2)), EventLog(":memory:")
    loop = serve(world, log)
    for hour, event in enumerate((*CORDON_AND_BACK, submit("job-1")), start=1):
        world.at(hour * HOUR_MS, event)
        world.run(loop, hour * HOUR_MS)
        assert_on_time(loop, log, world.now_ms(), world.now_ms)


def test_the_kubernetes_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        event_loop = asyncio.get_running_loop()

        def virtual_ns(_: int = 0) -> int:
            return BEGIN_MS * NS_PER_MS + int(event_loop.time() * 1e9)

        monkeypatch.setattr(time, "time_ns", virtual_ns)
        monkeypatch.setattr(time, "clock_gettime_ns", virtual_ns)
        async with FakeApi(kubelet=True) as api:
            for name in ("n1", "n2"):
                api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": OFFER})
            api.put(CRD)
            credentials = credentials_of(api)
            async with controller(credentials, tmp_path, clock=WallClock()) as running:
                for event in CORDON_AND_BACK:
                    await asyncio.sleep(HOUR_MS / 1000 / len(CORDON_AND_BACK))
                    before_ms = wall_ms()
                    await asyncio.wrap_future(running.loop.post(event))
                    assert_on_time(running.loop, running.log, before_ms, wall_ms)

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(play())
