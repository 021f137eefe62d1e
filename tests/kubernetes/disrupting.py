"""Faults during the binding of one gang, drawn from a seed, and the resulting state of the gang.

Permanent and transient errors, lost responses, broken connections, deleted pods and nodes, and the controller itself,
killed at any moment and followed by another one. Moments are counted in writes, because on virtual time most of a
binding takes no time at all. Used by `binding`, on the fake API server and virtual time, and by `pods.real_binding`,
on a real one.
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
"""Time within which faults strike after binding begins, where nothing is slow."""
SETTLES_S: Final = 10.0
"""The bar: time after which the gang must be bound fully or not at all."""
LATE_S: Final = 120.0
"""Longest time to wait for all pods to be bound after that."""
POLL_S: Final = 0.02
"""Interval between two checks of the bound pods."""


@dataclass(frozen=True, slots=True)
class End:
    """State of the gang `SETTLES_S` after the last fault, or after the last controller began.

    `bound` of `members` pods that are not being deleted are bound, all of one generation or not. Where a fault strikes
    later than that, the check is repeated; reported is the first check that failed, or else the last one.

    Attributes:
        faults, kills: number of faults and of killed controllers.
        is_led: the last controller began to lead after the last fault.
        settled_s: time of the last change of the bound pods before the check, since the last fault or, if `is_led`,
            since the last controller began.
        half_s: longest time that the gang was partly bound without a new fault.
        bound_late: number of pods bound once all are, or after `LATE_S`.
        late_s: time of that, counted as `settled_s` is.
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
        """True if the gang was bound fully or not at all, at the check and in the end."""
        return {self.bound, self.bound_late} <= {0, self.members} and not self.is_mixed


class World(Protocol):
    """A cluster with faults.

    Attributes:
        slowness: how many times longer a binding, and the seconds of a schedule, take than on virtual time.
        version: changes whenever an object changes.
    """

    slowness: float

    @property
    def version(self) -> int: ...

    def inject(self, fault: Fault) -> Fault:
        """Apply this rule to the controller's requests to the API server."""

    def led(self) -> AbstractAsyncContextManager[float]:
        """Run a controller that leads and knows the gang; kill it at the end.

        Yields the loop time at which both became true.
        """

    def bound(self) -> list[str]:
        """Return the names of pods that have a node and are not being deleted, from the raw objects."""

    async def take_away(self, node: int, *, with_pods_alone: bool) -> None:
        """Delete the pods meant for a node, and the node too unless `with_pods_alone`."""


@dataclass(slots=True)
class _Writes(Fault):
    """A rule without effect that counts write requests for pods."""

    count: int = 0
    waiting: dict[int, asyncio.Event] = field(default_factory=dict)

    def strikes(self, call: Call, rng: random.Random) -> bool:
        """Count the call; return False always."""
        if call.verb in ("create", "delete") and call.resource.startswith("pods"):
            self.count += 1
            if self.count in self.waiting:
                self.waiting.pop(self.count).set()
        return False

    async def reached(self, more: int, within_s: float) -> None:
        """Wait for that many more writes, or for `within_s`."""
        event = self.waiting.setdefault(self.count + more, asyncio.Event()) if more else asyncio.Event()
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), within_s)


@dataclass(slots=True)
class _Timed(Fault):
    """A rule that records when it struck."""

    struck_s: list[float] = field(default_factory=list)

    def strikes(self, call: Call, rng: random.Random) -> bool:
        """Return whether it strikes this call, and record the time."""
        struck = Fault.strikes(self, call, rng)
        if struck:
            self.struck_s.append(asyncio.get_running_loop().time() + self.delay_s)
        return struck


@dataclass(frozen=True, slots=True)
class Taking:
    """Deletion of the pods of a node, after a number of writes or seconds, with or without the node."""

    writes: int
    within_s: float
    node: int
    with_pods_alone: bool


@dataclass(frozen=True, slots=True)
class Schedule:
    """The faults of one gang.

    Attributes:
        faults: rules for its requests, which record their strikes in `struck_s`.
        kills: for each controller but the last, the writes after which it is killed, or the seconds if those do not
            come.
    """

    faults: tuple[Fault, ...]
    latency: Fault
    kills: tuple[tuple[int, float], ...]
    takings: tuple[Taking, ...]
    struck_s: list[float]


def draw_schedule(rng: random.Random, members: int) -> Schedule:
    """Draw a schedule for a gang of that many pods."""
    struck_s = list[float]()
    return Schedule(
        faults=tuple(_faults(rng, members, struck_s)),
        latency=_latency(rng),
        kills=tuple(_kills(rng, members)),
        takings=tuple(_takings(rng, members)),
        struck_s=struck_s,
    )


def nodes_for(members: int) -> int:
    """Return the number of nodes: some more than the gang needs."""
    return members + 1 + members // 8


async def run_life(schedule: Schedule, members: int, world: World) -> End:
    """Bind one gang of that many pods under the faults of a schedule."""
    loop = asyncio.get_running_loop()
    struck_s, writes = schedule.struck_s, _Writes()
    for rule in (writes, *schedule.faults, schedule.latency):
        world.inject(rule)
    taking = loop.create_task(_delete_pods(schedule, writes, world))
    for more, within_s in schedule.kills:
        async with world.led():
            await writes.reached(more, within_s * world.slowness)
    async with world.led() as led_s:
        await taking
        return await _observe(_Observer(world, members, led_s, struck_s), len(schedule.kills))


@dataclass(slots=True)
class _Observer:
    """Observer of the bound pods.

    Attributes:
        bound: names of the bound pods.
        since_s: time of their last change.
        half_s: as in `End`.
    """

    world: World
    members: int
    led_s: float
    struck_s: list[float]
    bound: list[str] = field(default_factory=list)
    since_s: float = 0.0
    half_s: float = 0.0
    _partial_since_s: float | None = None
    _version: int = -1

    @property
    def last_s(self) -> float:
        """Time of the last fault, or of the last controller's begin."""
        return max(self.led_s, *self.struck_s, 0.0)

    async def poll(self) -> None:
        """Check once more, after `POLL_S`."""
        await asyncio.sleep(POLL_S)
        now_s = asyncio.get_running_loop().time()
        if self._partial_since_s is not None:
            self.half_s = max(self.half_s, now_s - max(self._partial_since_s, self.last_s))
        if self.world.version != self._version:
            self._version, bound = self.world.version, self.world.bound()
            if bound != self.bound:
                self.bound, self.since_s = bound, now_s
        if len(self.bound) in (0, self.members):
            self._partial_since_s = None
        elif self._partial_since_s is None:
            self._partial_since_s = now_s

    @property
    def is_mixed(self) -> bool:
        """True if pods of several generations are bound."""
        return len({pod.rsplit("-", 2)[1] for pod in self.bound}) > 1


async def _observe(observer: _Observer, kills: int) -> End:
    """Return the outcome once `SETTLES_S` have passed since the last fault, or later."""
    loop, outcome = asyncio.get_running_loop(), None
    while True:
        while loop.time() < (last_s := observer.last_s) + SETTLES_S:
            await observer.poll()
        if outcome is None or outcome.holds:
            outcome = End(
                members=observer.members,
                bound=len(observer.bound),
                is_mixed=observer.is_mixed,
                faults=0,
                kills=kills,
                is_led=last_s == observer.led_s,
                settled_s=max(0.0, observer.since_s - last_s),
                half_s=0.0,
                bound_late=0,
                late_s=0.0,
            )
        while len(observer.bound) < observer.members and observer.last_s == last_s and loop.time() < last_s + LATE_S:
            await observer.poll()
        if observer.last_s == last_s:
            late_s = loop.time() - last_s
            return replace(
                outcome,
                faults=len(observer.struck_s),
                half_s=observer.half_s,
                bound_late=len(observer.bound),
                late_s=late_s,
            )


async def _delete_pods(schedule: Schedule, writes: _Writes, world: World) -> None:
    """Delete pods, or nodes with their pods, during the binding."""
    for taking in schedule.takings:
        await writes.reached(taking.writes, taking.within_s * world.slowness)
        await world.take_away(taking.node, with_pods_alone=taking.with_pods_alone)
        schedule.struck_s.append(asyncio.get_running_loop().time())


def _faults(rng: random.Random, members: int, struck_s: list[float]) -> list[Fault]:
    """Return rules for the requests of a life; most lives have a few, some none."""
    rules: list[Fault] = []
    for _ in range(rng.choice((0, 1, 1, 2, 3, 6))):
        pattern: dict[str, Any] = {
            "verb": rng.choice(("create", "create", "create", "get", "list", "delete")),
            "resource": rng.choice(("pods", "pods/binding", "pods*")),
            "skip": rng.randrange(members),
            "times": rng.choice((1, 1, 3, members)),
            "struck_s": struck_s,
        }
        match rng.randrange(6):
            case 0:
                rules.append(_Timed(**pattern | {"verb": "create"}, status=rng.choice(FOR_GOOD)))
            case 1 | 2:
                rules.append(_Timed(**pattern | {"times": min(pattern["times"], 20)}, status=rng.choice(PASSING)))
            case 3:
                rules.append(_Timed(**pattern | {"times": min(pattern["times"], 5)}, lost=True))
            case 4:
                rules.append(_Timed(**pattern | {"times": min(pattern["times"], 5)}, dropped=True))
            case _:
                rules.append(_Timed(**pattern, delay_s=rng.uniform(0.1, 2.0)))
    return rules


def _latency(rng: random.Random) -> Fault:
    """Delay everything but watches, so that several requests can be in progress at a time."""
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
