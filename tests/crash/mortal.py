"""A server that is killed at a chosen moment, and a world that is a witness to what the next one makes of it.

Moments are numbered through a whole day: before each append, inside its transaction, after it, and after each thing the
backend was told to do. A killed server leaves its file as it is; people repeat what they had no answer to.
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
from tests.crash.scripts import Script, written
from tests.engine.scenes import POLICIES, ends, folded, raw, serve


class Killed(BaseException):
    """The server is gone, in the middle of whatever it did."""


@dataclass
class Fuse:
    """Kills at each of the moments `at`."""

    at: tuple[int, ...] = ()
    passed: int = 0
    names: list[str] = field(default_factory=list)

    def burn(self, name: str) -> None:
        """One moment passes."""
        self.passed += 1
        self.names.append(name)
        if self.passed in self.at:
            raise Killed(name)


class MortalLog(EventLog):
    """Dies before, in and after an append."""

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
        self.fuse.burn(f"before {kinds}")
        super().append(batch, self._burning(projections, kinds), shows, encoded)
        self.fuse.burn(f"after {kinds}")

    def _burning(self, projections: Iterable[Projection], kinds: str) -> Iterator[Projection]:
        yield from projections
        self.fuse.burn(f"in {kinds}")


class MortalWorld(VirtualCluster):
    """The server dies after the world was told something, before it is told the next thing."""

    fuse: Fuse

    def start(self, start: Start, job: Job) -> None:
        super().start(start, job)
        self.fuse.burn(f"start {start.gang}.{start.generation}")

    def stop(self, stop: Stop, job: Job) -> None:
        super().stop(stop, job)
        self.fuse.burn(f"stop {stop.gang}.{stop.generation}")

    def forget(self, gang: str) -> None:
        super().forget(gang)
        self.fuse.burn(f"forget {gang}")


@dataclass
class Day:
    """What is left of a day: log, last server, world, and the moments at which it could have been killed."""

    log: EventLog
    loop: Loop
    world: VirtualCluster
    moments: list[str]


def lived(script: Script, path: Path, kills: tuple[int, ...] = (), down_ms: int = 0) -> Day:
    """The day, with the server killed at these moments and started again `down_ms` later."""
    return survived(written(script, MortalWorld), Life(path, script.policy, script.until_ms, kills, down_ms))


@dataclass(frozen=True)
class Life:
    """Where the log is, under which policy until when, killed at which moments, and for how long away."""

    path: Path
    policy: str
    until_ms: int
    kills: tuple[int, ...]
    down_ms: int


def survived(world: MortalWorld, life: Life) -> Day:
    """The world, served by one server after the other, to the end."""
    world.fuse = fuse = Fuse(life.kills)
    while True:
        log = MortalLog(life.path, fuse)
        _ask_again(world, log)
        try:
            loop = serve(world, log, life.policy)
            world.run(loop, life.until_ms)
        except Killed:
            log._writer.close()  # and nothing of what an orderly end does
            world.run(None, world.elapsed_ms() + life.down_ms)
        else:
            return Day(log, loop, world, fuse.names)


def _ask_again(world: VirtualCluster, log: EventLog) -> None:
    """People who had no answer ask again, unless their job is there already."""
    asked, world.asked = world.asked, []
    for event, answer in asked:
        if answer.done():
            world.asked.append((event, answer))
        elif not isinstance(event, e.Submitted) or log.job(event.job.id) is None:
            world.at(world.elapsed_ms(), event)


def check(day: Day, ended_as: dict[str, str]) -> None:
    """Nothing was lost, and everybody ended as on a day without a crash."""
    assert ends(day.log) == ended_as
    check_sound(day)


def check_sound(day: Day) -> None:
    """Nothing leaks, the log is whole, everybody has an answer, and all of it can be decided again."""
    log, state = day.log, day.loop.copy()
    rows = log.rows(limit=1_000_000)
    assert [row.seq for row in rows] == [*range(1, len(rows) + 1)]
    assert all(one.at_ms <= after.at_ms for one, after in pairwise(rows))
    _each_generation_once(rows)
    assert {gang.array or gang.id for gang in state.gangs.values()} == {
        job for job, at in ends(log).items() if at not in ENDED
    }
    assert all(gang.state in DURABLE for gang in state.gangs.values())
    held = {gang.id: gang.left for gang, _ in state.holding()}
    assert day.world.processes() == held, "what runs and what is held are the same"
    state.validate()
    anew = folded(log)
    assert raw(anew) == raw(state), "the state is the fold of its log"
    assert replay(log, POLICIES).difference is None
    assert all(answer.done() for _, answer in day.world.asked), "everybody has an answer in the end"
    assert {*ends(log)} == _accepted(rows), "every job that was accepted is listed, until it is deleted"


def _accepted(rows: list[e.Stamped]) -> set[str]:
    jobs: dict[str, None] = {}
    for row in rows:
        if isinstance(row.event, e.Submitted):
            jobs[row.event.job.id] = None
        elif isinstance(row.event, e.Deleted):
            jobs.pop(row.event.gang, None)
    return {*jobs}


def _each_generation_once(rows: list[e.Stamped]) -> None:
    newest: dict[str, int] = {}
    for row in rows:
        for decision in row.event.plan.decisions if isinstance(row.event, e.Decided) else ():
            if isinstance(decision, Start):
                assert decision.generation == newest.get(decision.gang, 0) + 1
                newest[decision.gang] = decision.generation
