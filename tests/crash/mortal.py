"""A server that is killed at a chosen point, and a simulated world that checks what the next server makes of it.

Points are numbered through a whole day: before each append, inside its transaction, after it, and after each call of
the backend. A killed server leaves its file as it is; users repeat requests that were not answered.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from ganger.backends.simulator.virtual_cluster import VirtualCluster
from ganger.core.state.lifecycle import DURABLE
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.eventlog.projection import Projection
from ganger.engine.loop import Loop
from ganger.engine.replay import replay
from ganger.model import event as e
from ganger.model.decision import Start, Stop
from ganger.model.job import ENDED, Job
from ganger.ports import RepairCall
from tests.crash.scripts import Script, written
from tests.engine.scenes import POLICIES, folded, listed_states, raw, serve


class Killed(BaseException):
    """The server is killed at this point."""


@dataclass
class Fuse:
    """Kills the server at each of the points `at`."""

    at: tuple[int, ...] = ()
    passed: int = 0
    names: list[str] = field(default_factory=list)

    def pass_point(self, name: str) -> None:
        """Pass one point; raise Killed if it is one of `at`."""
        self.passed += 1
        self.names.append(name)
        if self.passed in self.at:
            raise Killed(name)


class MortalLog(EventLog):
    """An event log whose server may be killed before, in and after an append."""

    def __init__(self, path: Path, fuse: Fuse) -> None:
        super().__init__(path)
        self.fuse = fuse

    def append(
        self,
        batch: Sequence[e.Stamped],
        projections: Iterable[Projection],
        shows: Callable[[], None] = lambda: None,
        encoded: Mapping[int, bytes] = {},
    ) -> None:
        kinds = ", ".join(stamped.event.kind for stamped in batch)
        self.fuse.pass_point(f"before {kinds}")
        super().append(batch, self._with_point(projections, kinds), shows, encoded)
        self.fuse.pass_point(f"after {kinds}")

    def _with_point(self, projections: Iterable[Projection], kinds: str) -> Iterator[Projection]:
        yield from projections
        self.fuse.pass_point(f"in {kinds}")


class MortalWorld(VirtualCluster):
    """A world whose server may be killed after each call."""

    fuse: Fuse

    def start(self, start: Start, job: Job) -> None:
        super().start(start, job)
        self.fuse.pass_point(f"start {start.gang}.{start.generation}")

    def stop(self, stop: Stop, job: Job) -> None:
        super().stop(stop, job)
        self.fuse.pass_point(f"stop {stop.gang}.{stop.generation}")

    def repair_node(self, call: RepairCall) -> None:
        super().repair_node(call)
        self.fuse.pass_point(f"repair {call.node}.{call.repair}")

    def forget(self, gang: str) -> None:
        super().forget(gang)
        self.fuse.pass_point(f"forget {gang}")


@dataclass
class Day:
    """The result of a day: log, last server, world, and the points at which the server could have been killed."""

    log: EventLog
    loop: Loop
    world: VirtualCluster
    points: list[str]


def live_day(script: Script, path: Path, kills: tuple[int, ...] = (), down_ms: int = 0) -> Day:
    """Simulate the day with the server killed at these points, and started again `down_ms` later."""
    return survive(written(script, MortalWorld), Life(path, script.policy, script.until_ms, kills, down_ms))


@dataclass(frozen=True)
class Life:
    """A server to be killed: its log, policy and end, the points of its deaths, and how long it is away."""

    path: Path
    policy: str
    until_ms: int
    kills: tuple[int, ...]
    down_ms: int


def survive(world: MortalWorld, life: Life) -> Day:
    """Serve the world with one server after the other, to the end."""
    world.fuse = fuse = Fuse(life.kills)
    while True:
        log = MortalLog(life.path, fuse)
        _repeat_requests(world, log)
        try:
            loop = serve(world, log, life.policy)
            world.run(loop, life.until_ms)
        except Killed:
            log._writer.close()  # and nothing else of an orderly shutdown
            world.run(None, world.elapsed_ms() + life.down_ms)
        else:
            return Day(log, loop, world, fuse.names)


def _repeat_requests(world: VirtualCluster, log: EventLog) -> None:
    """Repeat the requests that were not answered, unless their job exists already."""
    requests, world.asked = world.asked, []
    for event, answer in requests:
        if answer.done():
            world.asked.append((event, answer))
        elif not isinstance(event, e.Submitted) or log.job(event.job.id) is None:
            world.at(world.elapsed_ms(), event)


def check(day: Day, ended_as: dict[str, str]) -> None:
    """Check that nothing was lost, and every job ended as on a day without a crash."""
    assert listed_states(day.log) == ended_as
    check_sound(day)


def check_sound(day: Day) -> None:
    """Check that nothing leaks, the log is complete, every request is answered, and all decisions can be repeated."""
    log, state = day.log, day.loop.copy()
    rows = log.rows(limit=1_000_000)
    assert [row.seq for row in rows] == [*range(1, len(rows) + 1)]
    assert all(row.at_ms <= following.at_ms for row, following in pairwise(rows))
    _check_generations(rows)
    assert {gang.array or gang.id for gang in state.gangs.values()} == {
        job for job, state_name in listed_states(log).items() if state_name not in ENDED
    }
    assert all(gang.state in DURABLE for gang in state.gangs.values())
    allocated = {gang.id: [*gang.attempt.left] for gang, _ in state.allocated()}
    assert day.world.processes() == allocated, "exactly the allocated gangs run"
    state.validate()
    refolded = folded(log)
    assert raw(refolded) == raw(state), "the state is the fold of its log"
    assert replay(log, POLICIES).difference is None
    assert all(answer.done() for _, answer in day.world.asked), "every request is answered in the end"
    assert {*listed_states(log)} == _accepted(rows), "every accepted job is listed until it is deleted"


def _accepted(rows: list[e.Stamped]) -> set[str]:
    jobs: dict[str, None] = {}
    for row in rows:
        if isinstance(row.event, e.Submitted):
            jobs[row.event.job.id] = None
        elif isinstance(row.event, e.Deleted):
            jobs.pop(row.event.gang, None)
    return {*jobs}


def _check_generations(rows: list[e.Stamped]) -> None:
    newest: dict[str, int] = {}
    for row in rows:
        for decision in row.event.plan.decisions if isinstance(row.event, e.Decided) else ():
            if isinstance(decision, Start):
                assert decision.generation == newest.get(decision.gang, 0) + 1
                newest[decision.gang] = decision.generation
