"""Random faults in virtual time, many in one day.

Ranks, launchers, nodes and servers die, disks are full, ranks hang, users stop, suspend, drain and preempt, all of it
interleaved.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from ganger.backends.simulator.job_behaviour import Behaviour, ScriptedFailure
from ganger.backends.simulator.virtual_cluster import VirtualCluster
from ganger.core.queue_order.policy_interface import Policy
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.loop import Loop
from ganger.errors import RequestError
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Cause
from ganger.model.evidence import PythonError
from ganger.model.job import GpuRequest, Job, JobSpec, Origin, Resources
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from ganger.model.job_sections.retry_spec import Limits, Retry
from ganger.model.units import DAY_MS
from ganger.registry import policies
from tests.crash.audited import Audit, audit_log
from tests.crash.mortal import Fuse, Killed, MortalLog

GANGS: Final = 24
NODES, GPUS = 12, 8
FAULT_EVERY_MS: Final = 900
ALONE: Final = 0.8
"""Part of the faults that do not coincide with another one."""
ERRORS: Final = tuple(PythonError(type=kind, file="train.py", line=9) for kind in ("KeyError", "ValueError"))


@dataclass(frozen=True, slots=True)
class Day:
    """Number of faults, seed and policy of one run."""

    faults: int
    seed: int
    policy: str = "priority"

    @property
    def until_ms(self) -> int:
        """Time after the last fault."""
        return self.faults * FAULT_EVERY_MS


@dataclass
class _Fuse(Fuse):
    """Faults about to strike the log: the next append kills the server, and the next `full` appends find no room."""

    kills: bool = False
    full: int = 0
    chance: random.Random = field(default_factory=random.Random)
    moment: str = ""

    def pass_point(self, name: str) -> None:
        """Pass the point before, in or after an append; raise what strikes there."""
        point = name.partition(" ")[0]
        if point == "before":
            if self.full:
                self.full -= 1
                raise RequestError("disk_full", "the disk is full", "df -h", 507)
            self.moment = self.chance.choice(("before", "in", "after")) if self.kills else ""
            self.kills = False
        if point == self.moment:
            raise Killed


def run_day(day: Day, path: Path) -> Audit:
    """Run the day; return the audit of its log."""
    chance = random.Random(day.seed)
    fuse = _Fuse(chance=chance)
    world = _world(day, chance, fuse)
    order = cast(dict[str, Policy], policies())[day.policy]
    while True:
        log = MortalLog(path, fuse)
        _ask_again(world, log)
        try:
            loop = Loop(log, world, lambda _: order, world, "bench")
            loop.open()
            world.run(loop, day.until_ms + DAY_MS)
            _ask_again(world, log)
            world.run(loop, day.until_ms + 30 * DAY_MS)
        except Killed:
            log._writer.close()  # without the steps of an orderly shutdown
            world.run(None, world.elapsed_ms() + chance.choice((0, 0, 7, 1_500, 20_000)))
        else:
            break
    audit = audit_log(log)
    audit.left += [f"{gang} is still on {nodes}" for gang, nodes in world.processes().items()]
    loop.close()
    log.close()
    return audit


def _ask_again(world: VirtualCluster, log: EventLog) -> None:
    """Repeat requests that had no response or found no room, unless their job exists already."""
    requests, world.asked = world.asked, []
    for event, answer in requests:
        error = answer.exception() if answer.done() else None
        is_unanswered = not answer.done() or (isinstance(error, RequestError) and error.code == "disk_full")
        if is_unanswered and (not isinstance(event, e.Submitted) or log.job(event.job.id) is None):
            world.at(world.elapsed_ms(), event)


def _world(day: Day, chance: random.Random, fuse: _Fuse) -> VirtualCluster:
    """Return a cluster with the events of the whole day, planned before it begins."""
    nodes = [_node(number) for number in range(NODES)]
    # GANGS jobs are live at any time; each takes about half a minute of a day without faults.
    names = [f"job-{number}" for number in range(GANGS + day.until_ms * GANGS // 60_000)]
    world = VirtualCluster(nodes, {name: _behaviour(chance) for name in names})
    for number, name in enumerate(names):
        at_ms = 0 if number < GANGS else chance.randrange(day.until_ms)
        world.at(at_ms, e.Submitted(job=_job(name, chance)))
    away: dict[str, int] = {}
    at_ms = 0
    for number in range(day.faults):
        if chance.random() < ALONE:  # otherwise at the very moment of the previous fault
            at_ms = number * FAULT_EVERY_MS + chance.randrange(FAULT_EVERY_MS)
        chance.choice(FAULTS)(_Moment(world, at_ms, chance, names, away, fuse))
    return world


@dataclass(frozen=True, slots=True)
class _Moment:
    """The time of a fault, and its possible targets.

    Attributes:
        away: until when each node is gone.
    """

    world: VirtualCluster
    at_ms: int
    chance: random.Random
    names: list[str]
    away: dict[str, int]
    fuse: _Fuse

    def job(self) -> str:
        """Return a job that may be live then."""
        first = max(0, len(self.names) * self.at_ms // max(1, self.at_ms + 60_000) - GANGS)
        return self.chance.choice(self.names[first:])

    def strike(self, death: ScriptedFailure) -> None:
        """Inject the failure into several jobs, so that one of them is likely to be live."""
        for name in self.chance.sample(self.names, min(8, len(self.names))):
            self.world.inject_failure(self.at_ms, name, death)


def _rank(moment: _Moment) -> None:
    killed = moment.chance.random() < 0.6
    error = None if killed or moment.chance.random() < 0.3 else moment.chance.choice(ERRORS)
    signal = moment.chance.choice((6, 9, 11)) if killed else None
    moment.strike(ScriptedFailure(generation=0, node=moment.chance.randrange(4), signal=signal, error=error))


def _rank_otherwise(moment: _Moment) -> None:
    cause = moment.chance.choice((Cause.OUT_OF_MEMORY, Cause.START_FAILED, Cause.PORT_BUSY, Cause.HUNG, Cause.HUNG))
    moment.strike(ScriptedFailure(generation=0, cause=cause, node=moment.chance.randrange(4), exit_code=None, signal=9))


def _launcher(moment: _Moment) -> None:
    moment.strike(
        ScriptedFailure(
            generation=0, cause=moment.chance.choice((Cause.LAUNCHER_LOST, None)), node=moment.chance.randrange(4)
        )
    )


def _node_goes(moment: _Moment, notice_ms: int | None = None) -> None:
    present = [f"n{number}" for number in range(NODES) if moment.away.get(f"n{number}", -1) < moment.at_ms]
    if len(present) <= NODES // 2:
        return
    name, back_ms = moment.chance.choice(present), moment.at_ms + (notice_ms or 0) + moment.chance.randrange(1, 20_000)
    moment.away[name] = back_ms
    if notice_ms is None:
        moment.world.lose(moment.at_ms, name)
        moment.world.restore(back_ms, name)
        return
    moment.world.at(moment.at_ms, e.NodePreempted(node=name, notice_ms=notice_ms))  # the server removes it
    for later_ms in (0, 60_000):  # the second time in case the server was down the first time
        moment.world.restore(back_ms + later_ms, name)
        moment.world.at(back_ms + later_ms + 1, e.NodeUncordoned(node=name))


def _node_is_preempted(moment: _Moment) -> None:
    _node_goes(moment, moment.chance.choice((0, 500, 5_000)))


def _node_is_drained(moment: _Moment) -> None:
    name = f"n{moment.chance.randrange(NODES)}"
    moment.world.at(moment.at_ms, e.NodeDrained(node=name))
    moment.world.at(moment.at_ms + moment.chance.randrange(1, 9_000), e.NodeUncordoned(node=name))


def _user_request(moment: _Moment) -> None:
    name = moment.job()
    if moment.chance.random() < 0.5:
        moment.world.at(moment.at_ms, e.StopRequested(gang=name))
    else:
        moment.world.at(moment.at_ms, e.SuspendRequested(gang=name))
        for again_ms in (moment.chance.randrange(1, 9_000), 60_000):  # the second one in case the first came too early
            moment.world.at(moment.at_ms + again_ms, e.ResumeRequested(gang=name))


def _server(moment: _Moment) -> None:
    moment.world.call(moment.at_ms, lambda: setattr(moment.fuse, "kills", True))


def _disk(moment: _Moment) -> None:
    appends = moment.chance.randrange(1, 4)
    moment.world.call(moment.at_ms, lambda: setattr(moment.fuse, "full", appends))


FAULTS: Final[tuple[Callable[[_Moment], None], ...]] = (
    *(_rank, _rank, _rank_otherwise, _rank_otherwise, _launcher, _node_goes, _server, _disk),
    *(_node_is_preempted, _node_is_drained, _user_request),
)
"""The faults; a repeated one is more likely."""


def _node(number: int) -> Node:
    return Node(
        name=f"n{number}",
        domains=(f"r{number // 4}",),
        gpus=GPUS,
        gpu_type="h100",
        cpu_milli=64_000,
        memory_bytes=1 << 40,
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
