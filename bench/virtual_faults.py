"""Random faults in virtual time, many in one day: ranks, launchers, nodes and servers die, disks are full, ranks hang,
people stop, suspend, drain and preempt, all in the middle of each other. Used by `kill_anything`; not a bench itself.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from bench.audited import Audit, audited
from ganger.backends.simulator.job_behaviour import Behaviour, ScriptedFailure
from ganger.backends.simulator.virtual_cluster import VirtualCluster
from ganger.core.queue_order.policy_interface import Policy
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.eventlog.projection import Projection
from ganger.engine.loop import Loop
from ganger.errors import RequestError
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Cause
from ganger.model.evidence import PythonError
from ganger.model.job import Checkpoint, GpuRequest, Job, JobSpec, Limits, Origin, Resources, Retry
from ganger.model.units import DAY_MS
from ganger.registry import policies

GANGS: Final = 24
NODES, GPUS = 12, 8
FAULT_EVERY_MS: Final = 900
ALONE: Final = 0.8
"""How many of the faults do not come together with another one."""
ERRORS: Final = tuple(PythonError(type=kind, file="train.py", line=9) for kind in ("KeyError", "ValueError"))


@dataclass(frozen=True, slots=True)
class Day:
    """How many faults, from which seed on, under which policy."""

    faults: int
    seed: int
    policy: str = "priority"

    @property
    def until_ms(self) -> int:
        """When the last fault has come."""
        return self.faults * FAULT_EVERY_MS


class _Killed(BaseException):
    """The server is gone, in the middle of whatever it did."""


@dataclass
class _Fuse:
    """What is about to hit the log: the next appends that kill the server, and how many find no room."""

    kills: bool = False
    full: int = 0
    chance: random.Random = field(default_factory=random.Random)


class _MortalLog(EventLog):
    """Dies before, in or after an append, or has no room."""

    def __init__(self, path: Path, fuse: _Fuse) -> None:
        super().__init__(path)
        self._fuse = fuse

    def append(
        self,
        batch: Sequence[e.Stamped],
        projections: Iterable[Projection],
        shows: Callable[[], None] = lambda: None,
        encoded: Mapping[int, bytes] = {},
    ) -> None:
        if self._fuse.full:
            self._fuse.full -= 1
            raise RequestError("disk_full", "the disk is full", "df -h", 507)
        moment = self._fuse.chance.choice(("before", "in", "after")) if self._fuse.kills else ""
        self._fuse.kills = False
        if moment == "before":
            raise _Killed
        super().append(batch, self._killing(projections) if moment == "in" else projections, shows, encoded)
        if moment == "after":
            raise _Killed

    def _killing(self, projections: Iterable[Projection]) -> Iterable[Projection]:
        yield from projections
        raise _Killed


def lived(day: Day, path: Path) -> Audit:
    """The day, and what is wrong with its log."""
    chance = random.Random(day.seed)
    fuse = _Fuse(chance=chance)
    world = _world(day, chance, fuse)
    order = cast(dict[str, Policy], policies())[day.policy]
    while True:
        log = _MortalLog(path, fuse)
        _ask_again(world, log)
        try:
            loop = Loop(log, world, lambda _: order, world, "bench")
            loop.open()
            world.run(loop, day.until_ms + DAY_MS)
            _ask_again(world, log)
            world.run(loop, day.until_ms + 30 * DAY_MS)
        except _Killed:
            log._writer.close()  # and nothing of what an orderly end does
            world.run(None, world.elapsed_ms() + chance.choice((0, 0, 7, 1_500, 20_000)))
        else:
            break
    found = audited(log)
    found.left += [f"{gang} is still on {nodes}" for gang, nodes in world.processes().items()]
    loop.close()
    log.close()
    return found


def _ask_again(world: VirtualCluster, log: EventLog) -> None:
    """People who had no answer, or were told that there is no room, ask again, unless their job is there already."""
    asked, world.asked = world.asked, []
    for event, answer in asked:
        refused = answer.exception() if answer.done() else None
        unheard = not answer.done() or (isinstance(refused, RequestError) and refused.code == "disk_full")
        if unheard and (not isinstance(event, e.Submitted) or log.job(event.job.id) is None):
            world.at(world.elapsed_ms(), event)


def _world(day: Day, chance: random.Random, fuse: _Fuse) -> VirtualCluster:
    """The whole day, written down before it begins."""
    nodes = [_node(at) for at in range(NODES)]
    # So many live at any time; each takes about half a minute of a day without faults.
    names = [f"job-{number}" for number in range(GANGS + day.until_ms * GANGS // 60_000)]
    world = VirtualCluster(nodes, {name: _behaviour(chance) for name in names})
    for number, name in enumerate(names):
        at_ms = 0 if number < GANGS else chance.randrange(day.until_ms)
        world.at(at_ms, e.Submitted(job=_job(name, chance)))
    away: dict[str, int] = {}
    at_ms = 0
    for number in range(day.faults):
        if chance.random() < ALONE:  # else at the very moment of the one before
            at_ms = number * FAULT_EVERY_MS + chance.randrange(FAULT_EVERY_MS)
        chance.choice(FAULTS)(_Moment(world, at_ms, chance, names, away, fuse))
    return world


@dataclass(frozen=True, slots=True)
class _Moment:
    """When something happens, and to whom it may. away: until when a node is gone."""

    world: VirtualCluster
    at_ms: int
    chance: random.Random
    names: list[str]
    away: dict[str, int]
    fuse: _Fuse

    def job(self) -> str:
        """One that may live then."""
        first = max(0, len(self.names) * self.at_ms // max(1, self.at_ms + 60_000) - GANGS)
        return self.chance.choice(self.names[first:])

    def strike(self, death: ScriptedFailure) -> None:
        """Several at once, so that one is likely to live."""
        for name in self.chance.sample(self.names, min(8, len(self.names))):
            self.world.inject_failure(self.at_ms, name, death)


def _rank(now: _Moment) -> None:
    killed = now.chance.random() < 0.6
    error = None if killed or now.chance.random() < 0.3 else now.chance.choice(ERRORS)
    signal = now.chance.choice((6, 9, 11)) if killed else None
    now.strike(ScriptedFailure(generation=0, node=now.chance.randrange(4), signal=signal, error=error))


def _rank_otherwise(now: _Moment) -> None:
    cause = now.chance.choice((Cause.OUT_OF_MEMORY, Cause.START_FAILED, Cause.PORT_BUSY, Cause.HUNG, Cause.HUNG))
    now.strike(ScriptedFailure(generation=0, cause=cause, node=now.chance.randrange(4), exit_code=None, signal=9))


def _launcher(now: _Moment) -> None:
    now.strike(
        ScriptedFailure(
            generation=0, cause=now.chance.choice((Cause.LAUNCHER_LOST, None)), node=now.chance.randrange(4)
        )
    )


def _node_goes(now: _Moment, notice_ms: int | None = None) -> None:
    there = [f"n{at}" for at in range(NODES) if now.away.get(f"n{at}", -1) < now.at_ms]
    if len(there) <= NODES // 2:
        return
    name, back_ms = now.chance.choice(there), now.at_ms + (notice_ms or 0) + now.chance.randrange(1, 20_000)
    now.away[name] = back_ms
    if notice_ms is None:
        now.world.lose(now.at_ms, name)
        now.world.restore(back_ms, name)
        return
    now.world.at(now.at_ms, e.NodePreempted(node=name, notice_ms=notice_ms))  # and the server takes it away
    for later_ms in (0, 60_000):  # the second time in case it was not there to hear of it, or to do it
        now.world.restore(back_ms + later_ms, name)
        now.world.at(back_ms + later_ms + 1, e.NodeUncordoned(node=name))


def _node_is_preempted(now: _Moment) -> None:
    _node_goes(now, now.chance.choice((0, 500, 5_000)))


def _node_is_drained(now: _Moment) -> None:
    name = f"n{now.chance.randrange(NODES)}"
    now.world.at(now.at_ms, e.NodeDrained(node=name))
    now.world.at(now.at_ms + now.chance.randrange(1, 9_000), e.NodeUncordoned(node=name))


def _somebody_asks(now: _Moment) -> None:
    name = now.job()
    if now.chance.random() < 0.5:
        now.world.at(now.at_ms, e.StopRequested(gang=name))
    else:
        now.world.at(now.at_ms, e.SuspendRequested(gang=name))
        for again_ms in (now.chance.randrange(1, 9_000), 60_000):  # the second one in case the first came too early
            now.world.at(now.at_ms + again_ms, e.ResumeRequested(gang=name))


def _server(now: _Moment) -> None:
    now.world.call(now.at_ms, lambda: setattr(now.fuse, "kills", True))


def _disk(now: _Moment) -> None:
    appends = now.chance.randrange(1, 4)
    now.world.call(now.at_ms, lambda: setattr(now.fuse, "full", appends))


FAULTS: Final[tuple[Callable[[_Moment], None], ...]] = (
    *(_rank, _rank, _rank_otherwise, _rank_otherwise, _launcher, _node_goes, _server, _disk),
    *(_node_is_preempted, _node_is_drained, _somebody_asks),
)
"""What may happen, the likelier the oftener."""


def _node(at: int) -> Node:
    return Node(
        name=f"n{at}", domains=(f"r{at // 4}",), gpus=GPUS, gpu_type="h100", cpu_milli=64_000, memory_bytes=1 << 40
    )


def _behaviour(chance: random.Random) -> Behaviour:
    return Behaviour(
        startup_ms=chance.choice((100, 500, 3_000)),
        stagger_ms=chance.choice((0, 10, 300)),
        step_ms=chance.choice((100, 1_000)),
        steps=chance.randrange(1, 40),
        checkpoint_every=chance.choice((0, 3, 10)),
        save_ms=chance.choice((0, 400, 4_000)),
        stop_ms=chance.choice((0, 200, 2_000)),
    )


def _job(name: str, chance: random.Random) -> Job:
    spec = JobSpec(
        run="train",
        nodes=chance.choice((1, 1, 2, 3)),
        nproc_per_node=1,
        resources=Resources(gpu=GpuRequest(count=chance.choice((1, 1, 2)))),
        priority=chance.choice((0, 0, 100)),
        checkpoint=chance.choice((None, Checkpoint(grace_ms=chance.choice((0, 2_000))))),
        retry=Retry(max=chance.choice((None, None, 0, 1, 5)), backoff_first_ms=chance.choice((10, 1_000))),
        limits=Limits(
            time_ms=chance.choice((None, None, None, 20_000)), queue_time_ms=chance.choice((None, None, None, 60_000))
        ),
    )
    return Job(id=name, user=chance.choice(("ada", "bob")), spec=spec, origin=Origin(directory="/"))
