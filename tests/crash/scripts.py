"""Rich days in virtual time: everything that happens to a cluster, so that a crash can hit any part of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ganger.backends.simulator.job_behaviour import Behaviour, ScriptedFailure
from ganger.backends.simulator.virtual_cluster import VirtualCluster
from ganger.model import event as e
from ganger.model.decision import Cause
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from ganger.model.job_sections.retry_spec import Retry
from ganger.model.queue import Amount, Queue, UserLimits
from ganger.model.units import HOUR_MS, MINUTE_MS
from tests.engine.scenes import limits, nodes, submit

S = 1_000
W = TypeVar("W", bound=VirtualCluster)


@dataclass(frozen=True)
class Script:
    """A day: the policy, the nodes, and what happens."""

    name: str
    policy: str
    nodes: int
    gpus: int
    write: Callable[[VirtualCluster], None]
    acts: dict[str, Behaviour]
    until_ms: int


def _busy_day(world: VirtualCluster) -> None:
    """Submit 20 jobs, each with a problem of its own."""
    for number in range(6):
        world.at(number * 700, submit(f"plain-{number}", 1, 1 + number % 3, user="ada" if number % 2 else "bob"))
    world.at(900, submit("wide-0", 4, 4, checkpoint=Checkpoint(), priority=100))
    world.at(1_000, submit("wide-1", 3, 2, user="bob"))
    world.at(1_500, submit("dies-0", 2, 1, retry=Retry(max=2)))
    world.at(1_600, submit("dies-1", 2, 1, retry=Retry(max=0)))
    world.at(1_700, submit("broken-0", 1, 1))
    world.at(1_800, submit("port-0", 2, 2))
    world.at(1_900, submit("launcher-0", 2, 1))
    world.at(2_000, submit("silent-0", 2, 1))
    world.at(2_100, submit("signal-0", 1, 2, checkpoint=Checkpoint()))
    world.at(2_200, submit("endless-0", 1, 1, limits=limits(time_ms=95 * S)))
    world.at(2_300, submit("endless-1", 2, 1, checkpoint=Checkpoint()))
    world.at(2_400, submit("patient-0", 4, 4, limits=limits(queue_time_ms=7 * S)))
    world.at(2_500, submit("unlucky-0", 4, 4, user="bob"))
    world.at(2_600, submit("slow-0", 1, 1))
    world.at(47 * S, e.StopRequested(gang="endless-1"))
    world.at(9 * S, e.StopRequested(gang="unlucky-0"))
    world.at(61 * S, e.StopRequested(gang="slow-0"))
    world.at(30 * MINUTE_MS, e.Deleted(gang="plain-0"))


_BUSY_ACTS = {
    "wide-0": Behaviour(
        steps=30, checkpoint_every=10, failures=(ScriptedFailure(generation=1, after_ms=14_400, node=2),)
    ),
    "wide-1": Behaviour(steps=5, stagger_ms=300),
    "dies-0": Behaviour(failures=tuple(ScriptedFailure(generation=g, after_ms=3_300) for g in (1, 2, 3))),
    "dies-1": Behaviour(failures=(ScriptedFailure(generation=1, after_ms=3_300, exit_code=7),)),
    "broken-0": Behaviour(
        failures=tuple(ScriptedFailure(generation=g, cause=Cause.START_FAILED, after_ms=130) for g in range(5))
    ),
    "port-0": Behaviour(
        failures=tuple(ScriptedFailure(generation=g, cause=Cause.PORT_BUSY, after_ms=110) for g in (1, 2))
    ),
    "launcher-0": Behaviour(
        failures=(ScriptedFailure(generation=1, cause=Cause.LAUNCHER_LOST, after_ms=2_600, node=1),)
    ),
    "silent-0": Behaviour(failures=(ScriptedFailure(generation=1, cause=None, after_ms=2_700),)),
    "signal-0": Behaviour(
        steps=40,
        checkpoint_every=7,
        failures=tuple(ScriptedFailure(generation=g, after_ms=9_100, signal=9) for g in (1, 2, 3)),
    ),
    "endless-0": Behaviour(steps=None, stop_ms=2_500),
    "endless-1": Behaviour(steps=None, checkpoint_every=4, save_ms=700),
    "slow-0": Behaviour(steps=None, stop_ms=90_000),
}


def _falling_nodes(world: VirtualCluster) -> None:
    """Lose and restore nodes, in racks and alone; cordon some; one gang never obeys until its node is gone."""
    for number in range(4):
        world.at(number * 300, submit(f"wide-{number}", 2, 2, checkpoint=Checkpoint()))
    for number in range(6):
        world.at(1_300 + number * 200, submit(f"small-{number}", 1, 1))
    world.at(1_000, submit("deaf-0", 2, 1))
    world.at(5_100, e.NodeCordoned(node="n5", by="ada"))
    world.lose(8_050, "n1")
    world.lose(8_050, "n2")
    world.restore(16_070, "n1")
    world.lose(18_090, "n5")
    world.at(20_000, e.StopRequested(gang="deaf-0"))
    world.restore(24_010, "n2")
    world.at(26_000, e.NodeUncordoned(node="n5", by="ada"))
    world.restore(31_030, "n5")
    for index in range(1, 7):
        world.lose(60_000 + index * 170, f"n{index}")
        world.restore(66_000 + index * 230, f"n{index}")
    world.at(70_000, submit("after-0", 6, 2))


_FALLING_ACTS = {
    **{f"wide-{n}": Behaviour(steps=25 + n, checkpoint_every=6, stagger_ms=90) for n in range(4)},
    **{f"small-{n}": Behaviour(steps=4 + 3 * n) for n in range(6)},
    "deaf-0": Behaviour(steps=None, stop_ms=None),
}


def _divided_cluster(world: VirtualCluster) -> None:
    """Create, change and delete queues with quotas while jobs wait in them."""
    world.at(10, e.QueueSet(queue=Queue(name="lab", nominal=Amount(gpus=8))))
    world.at(11, e.QueueSet(queue=Queue(name="vision", parent="lab", nominal=Amount(gpus=4), lending=Amount(gpus=2))))
    world.at(12, e.QueueSet(queue=Queue(name="speech", parent="lab", borrowing=Amount(gpus=4))))
    world.at(13, e.QueueSet(queue=Queue(name="guest", user_limits=UserLimits(gpus=3, node_ms=HOUR_MS))))
    for number in range(5):
        world.at(100 + number * 150, submit(f"vision-{number}", 1 + number % 2, 2, queue="vision"))
        world.at(180 + number * 150, submit(f"speech-{number}", 1, 2 + number % 3, queue="speech", user="bob"))
        world.at(
            240 + number * 150,
            submit(
                f"guest-{number}", 1, 1 + number % 2, queue="guest", user="eve", limits=limits(time_ms=15 * MINUTE_MS)
            ),
        )
    world.at(7_000, e.QueueSet(queue=Queue(name="speech", parent="lab", borrowing=Amount(gpus=1))))
    world.at(15_000, e.QueueSet(queue=Queue(name="guest", user_limits=UserLimits(gpus=6))))
    world.at(21_000, e.QueueSet(queue=Queue(name="speech", parent="root", nominal=Amount(gpus=4))))
    world.at(22_000, e.QueueDeleted(queue="vision"))
    world.at(5 * MINUTE_MS, e.QueueDeleted(queue="vision"))
    world.at(6 * MINUTE_MS, submit("late-0", 2, 2, queue="lab"))


_DIVIDED_ACTS = {
    f"{queue}-{n}": Behaviour(steps=5 + 4 * n) for queue in ("vision", "speech", "guest") for n in range(5)
}


def _young_and_old(world: VirtualCluster) -> None:
    """Preempt running gangs for younger ones; some save their work within their notice."""
    for number in range(4):
        world.at(number * 20 * S, submit(f"old-{number}", 1, 4, checkpoint=Checkpoint(grace_ms=20 * S)))
    for number in range(5):
        world.at(17 * MINUTE_MS + number * 9 * S, submit(f"young-{number}", 1 + number % 2, 2))
    world.at(25 * MINUTE_MS, submit("wide-0", 4, 4, user="bob"))
    world.at(26 * MINUTE_MS, e.StopRequested(gang="old-3"))


_YOUNG_ACTS = {
    **{
        f"old-{n}": Behaviour(step_ms=60 * S, steps=60, checkpoint_every=10, save_ms=8 * S + n * 6 * S)
        for n in range(4)
    },
    **{f"young-{n}": Behaviour(step_ms=30 * S, steps=4 + n) for n in range(5)},
    "wide-0": Behaviour(step_ms=30 * S, steps=3),
}


def _short_day(world: VirtualCluster) -> None:
    """Do a little of everything, short enough to try every point every time."""
    world.at(0, submit("dies-0", 2, 2, checkpoint=Checkpoint()))
    world.at(100, submit("waits-0", 2, 2))
    world.at(200, submit("stops-0", 1, 1))
    world.at(300, submit("never-0", 1, 1))
    world.at(400, e.StopRequested(gang="never-0"))
    world.at(4_300, e.StopRequested(gang="stops-0"))
    world.lose(8_600, "n1")
    world.restore(9_700, "n1")
    world.at(60_000, e.Deleted(gang="never-0"))


_SHORT_ACTS = {
    "dies-0": Behaviour(
        steps=4, checkpoint_every=2, failures=(ScriptedFailure(generation=1, after_ms=2_500, node=1, signal=9),)
    ),
    "stops-0": Behaviour(steps=None, stop_ms=1_500),
}

SHORT = Script("short day", "priority", 3, 2, _short_day, _SHORT_ACTS, HOUR_MS)

SCRIPTS = (
    Script("busy day", "priority", 4, 4, _busy_day, _BUSY_ACTS, HOUR_MS),
    Script("falling nodes", "fifo", 6, 2, _falling_nodes, _FALLING_ACTS, HOUR_MS),
    Script("divided cluster", "fair_share", 4, 4, _divided_cluster, _DIVIDED_ACTS, HOUR_MS),
    Script("young and old", "las", 4, 4, _young_and_old, _YOUNG_ACTS, 8 * HOUR_MS),
)


def world_of(script: Script) -> VirtualCluster:
    """Return the world of the day at its beginning."""
    return written(script, VirtualCluster)


def written(script: Script, kind: type[W]) -> W:
    """Return the day in a world of that kind."""
    world = kind(nodes(script.nodes, script.gpus), dict(script.acts))
    script.write(world)
    return world
