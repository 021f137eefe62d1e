"""What goes wrong while one gang is being bound, drawn from a seed, and what is left of the gang in the end.

Refusals for good and for a moment, answers that are lost, connections that break, pods and nodes that somebody takes
away, and the controller itself, killed at any moment and followed by another one. Moments are counted in writes,
because on virtual time most of a binding takes no time at all. Used by `binding`, on the fake API server and virtual
time, and by `bind_faults_real`, on a real one; not a bench itself.
"""

import asyncio
import random
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from tools.fakeapi import Call, Fault

PASSING: Final = (429, 500, 503)
FOR_GOOD: Final = (403, 409, 422)
SPREAD_S: Final = 3.0
"""Within which time things go wrong after it began, where nothing takes long."""
SETTLES_S: Final = 10.0
"""After which time all or nothing must stand: the bar."""
LATE_S: Final = 120.0
"""For how long is waited for all of them to be bound after all."""
LOOK_S: Final = 0.02
"""How often is looked what is bound."""


@dataclass(frozen=True, slots=True)
class End:
    """What stood `SETTLES_S` after the last thing that went wrong, or after the last controller began: `bound` of
    `members` pods that nobody is deleting, all of one generation or not; wherever something went wrong later than that
    it is looked again, and what is told is the first look that found what must not be, or else the last one.

    faults, kills: how many there were; settled_s: when the last pod was bound or let go before that look, counted from
    the last fault, or from when the last controller began if that was later (`is_led`); half_s: the longest time that
    some were bound and not all though nothing went wrong meanwhile. bound_late: how many are bound once all are, or
    `LATE_S` later if that does not come; late_s: when that was, counted likewise.
    """

    members: int
    bound: int
    is_mixed: bool
    faults: int
    kills: int
    is_led: bool
    settled_s: float
    half_s: float
    bound_late: int
    late_s: float

    @property
    def holds(self) -> bool:
        """All or nothing, by then and in the end."""
        return {self.bound, self.bound_late} <= {0, self.members} and not self.is_mixed


class World(Protocol):
    """A cluster that goes wrong. slowness: how many times longer a binding takes there than on virtual time; seconds of
    a schedule are as many times longer. version: another one whenever something has changed."""

    slowness: float

    @property
    def version(self) -> int: ...

    def inject(self, fault: Fault) -> Fault:
        """Have this rule strike what the controller asks of the API server."""

    def led(self) -> AbstractAsyncContextManager[float]:
        """Inside it a controller leads, and knows the gang; it is killed at the end. Gives since when both is so, by
        the loop's clock."""

    def bound(self) -> list[str]:
        """Names of the pods that have a node and are not being deleted: the raw objects say it."""

    async def take_away(self, node: int, *, with_pods_alone: bool) -> None:
        """Delete the pods that are meant for a node, and the node with them unless they go alone."""


@dataclass(slots=True)
class _Writes(Fault):
    """A rule that strikes nothing, and counts what is asked to be written of pods."""

    count: int = 0
    waiting: dict[int, asyncio.Event] = field(default_factory=dict)

    def strikes(self, call: Call, rng: random.Random) -> bool:
        """Whether it does this time: it never does."""
        if call.verb in ("create", "delete") and call.resource.startswith("pods"):
            self.count += 1
            if self.count in self.waiting:
                self.waiting.pop(self.count).set()
        return False

    async def reached(self, more: int, within_s: float) -> None:
        """Come back when so many more were asked for, or after so long."""
        event = self.waiting.setdefault(self.count + more, asyncio.Event()) if more else asyncio.Event()
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), within_s)


@dataclass(slots=True)
class _Timed(Fault):
    """A rule that notes when it struck."""

    struck_s: list[float] = field(default_factory=list)

    def strikes(self, call: Call, rng: random.Random) -> bool:
        """Whether it does this time."""
        does = Fault.strikes(self, call, rng)
        if does:
            self.struck_s.append(asyncio.get_running_loop().time() + self.delay_s)
        return does


@dataclass(frozen=True, slots=True)
class Taking:
    """Somebody deletes the pods of a node, after so many writes or so many seconds, and the node as well or not."""

    writes: int
    within_s: float
    node: int
    with_pods_alone: bool


@dataclass(frozen=True, slots=True)
class Schedule:
    """What goes wrong in one life of a gang. faults: rules for its requests, which note in `struck_s` when they strike.
    kills: when each controller but the last is killed: after so many writes, or so many seconds if they do not come."""

    faults: tuple[Fault, ...]
    latency: Fault
    kills: tuple[tuple[int, float], ...]
    takings: tuple[Taking, ...]
    struck_s: list[float]


def drawn(rng: random.Random, members: int) -> Schedule:
    """A schedule for a gang of so many pods."""
    struck_s = list[float]()
    return Schedule(
        faults=tuple(_faults(rng, members, struck_s)),
        latency=_latency(rng),
        kills=tuple(_kills(rng, members)),
        takings=tuple(_takings(rng, members)),
        struck_s=struck_s,
    )


def nodes_for(members: int) -> int:
    """How many nodes there are to be: some more than the gang needs."""
    return members + 1 + members // 8


async def lived(schedule: Schedule, members: int, world: World) -> End:
    """One life of one gang of so many pods."""
    loop = asyncio.get_running_loop()
    struck_s, writes = schedule.struck_s, _Writes()
    for rule in (writes, *schedule.faults, schedule.latency):
        world.inject(rule)
    taking = loop.create_task(_taken_away(schedule, writes, world))
    for more, within_s in schedule.kills:
        async with world.led():
            await writes.reached(more, within_s * world.slowness)
    async with world.led() as led_s:
        await taking
        return await _judged(_Eye(world, members, led_s, struck_s), len(schedule.kills))


@dataclass(slots=True)
class _Eye:
    """Looks at what is bound. since_s: since when it is so; half_s: as `End` has it."""

    world: World
    members: int
    led_s: float
    struck_s: list[float]
    found: list[str] = field(default_factory=list)
    since_s: float = 0.0
    half_s: float = 0.0
    _came_s: float | None = None
    _version: int = -1

    @property
    def last_s(self) -> float:
        """When the last thing went wrong, or the last controller began to lead."""
        return max(self.led_s, *self.struck_s, 0.0)

    async def look(self) -> None:
        """Once more, a moment later."""
        await asyncio.sleep(LOOK_S)
        now_s = asyncio.get_running_loop().time()
        if self._came_s is not None:
            self.half_s = max(self.half_s, now_s - max(self._came_s, self.last_s))
        if self.world.version != self._version:
            self._version, found = self.world.version, self.world.bound()
            if found != self.found:
                self.found, self.since_s = found, now_s
        if len(self.found) in (0, self.members):
            self._came_s = None
        elif self._came_s is None:
            self._came_s = now_s

    @property
    def is_mixed(self) -> bool:
        """Whether there are some of several generations."""
        return len({pod.rsplit("-", 2)[1] for pod in self.found}) > 1


async def _judged(eye: _Eye, kills: int) -> End:
    """What is bound once that has had its time after whatever struck last, and later on."""
    loop, told = asyncio.get_running_loop(), None
    while True:
        while loop.time() < (last_s := eye.last_s) + SETTLES_S:
            await eye.look()
        if told is None or told.holds:
            told = End(
                members=eye.members,
                bound=len(eye.found),
                is_mixed=eye.is_mixed,
                faults=0,
                kills=kills,
                is_led=last_s == eye.led_s,
                settled_s=max(0.0, eye.since_s - last_s),
                half_s=0.0,
                bound_late=0,
                late_s=0.0,
            )
        while len(eye.found) < eye.members and eye.last_s == last_s and loop.time() < last_s + LATE_S:
            await eye.look()
        if eye.last_s == last_s:
            late_s = loop.time() - last_s
            return replace(told, faults=len(eye.struck_s), half_s=eye.half_s, bound_late=len(eye.found), late_s=late_s)


async def _taken_away(schedule: Schedule, writes: _Writes, world: World) -> None:
    """Somebody deletes pods, or nodes vanish with theirs, while it is being bound."""
    for each in schedule.takings:
        await writes.reached(each.writes, each.within_s * world.slowness)
        await world.take_away(each.node, with_pods_alone=each.with_pods_alone)
        schedule.struck_s.append(asyncio.get_running_loop().time())


def _faults(rng: random.Random, members: int, struck_s: list[float]) -> list[Fault]:
    """Rules for the requests of a life; most lives have a few, some none."""
    found: list[Fault] = []
    for _ in range(rng.choice((0, 1, 1, 2, 3, 6))):
        where: dict[str, Any] = {
            "verb": rng.choice(("create", "create", "create", "get", "list", "delete")),
            "resource": rng.choice(("pods", "pods/binding", "pods*")),
            "skip": rng.randrange(members),
            "times": rng.choice((1, 1, 3, members)),
            "struck_s": struck_s,
        }
        match rng.randrange(6):
            case 0:
                found.append(_Timed(**where | {"verb": "create"}, status=rng.choice(FOR_GOOD)))
            case 1 | 2:
                found.append(_Timed(**where | {"times": min(where["times"], 20)}, status=rng.choice(PASSING)))
            case 3:
                found.append(_Timed(**where | {"times": min(where["times"], 5)}, lost=True))
            case 4:
                found.append(_Timed(**where | {"times": min(where["times"], 5)}, dropped=True))
            case _:
                found.append(_Timed(**where, delay_s=rng.uniform(0.1, 2.0)))
    return found


def _latency(rng: random.Random) -> Fault:
    """How long the server takes for anything but a watch: what is under way at a time is then under way for a while."""
    return Fault(verb="[!w]*", times=float("inf"), delay_s=rng.choice((0.0, 0.005, 0.05)))


def _kills(rng: random.Random, members: int) -> list[tuple[int, float]]:
    return [(rng.randrange(2 * members + 2), rng.expovariate(1 / 0.5)) for _ in range(rng.choice((0, 0, 1, 1, 2)))]


def _takings(rng: random.Random, members: int) -> list[Taking]:
    return [
        Taking(
            writes=rng.randrange(2 * members),
            within_s=rng.uniform(0, SPREAD_S / 2),
            node=rng.randrange(members),
            with_pods_alone=rng.random() >= 0.5,
        )
        for _ in range(rng.choice((0, 0, 0, 1, 2)))
    ]
