"""Disruptions of a cluster with gangs, drawn from a seed: several of each kind at once, each over when it returns.

Leader and standby are killed, terminated or paused until their lease has expired; the API server is killed or paused;
watches are cut or become silent; requests fail; nodes go and come back; pods are deleted; users edit objects, end
gangs and submit others.
"""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import httpx2

from bench.chaos.controllers import Controllers
from bench.chaos.findings import node_of
from bench.chaos.gangs import GANG_JOB, JOB, KINDS, Users, gang_of
from bench.chaos.raw_objects import NODES, PODS, RawObjects
from bench.kubernetes.kwok import Controller
from tools.fakeapi import Fault, FaultProxy
from tools.testcluster import Cluster
from tools.testcluster.nodes import fake_nodes

API: Final = "kube-apiserver"
SPREAD_S: Final = 5.0
"""Time within which the disruptions of a round begin."""
EXPIRES_S: Final = 18.0
"""Pause of a leader after which another one leads."""
CHANCE: Final = 0.75
"""Probability of each kind in a round."""


@dataclass(frozen=True, slots=True)
class World:
    """Targets of disruptions. pods: returns the pods of the last poll."""

    cluster: Cluster
    proxy: FaultProxy
    objects: RawObjects
    controllers: Controllers
    users: Users
    pods: Callable[[], list[Any]]


Disruption = Callable[[World, random.Random], Awaitable[None]]


async def disrupt(world: World, rng: random.Random) -> Counter[str]:
    """Disrupt everything at once; return what struck, once all is over."""
    drawn = [(name, rng.uniform(0, SPREAD_S), rng.getrandbits(32)) for name in DISRUPTIONS if rng.random() < CHANCE]

    async def one(name: str, after_s: float, seed: int) -> None:
        await asyncio.sleep(after_s)
        await DISRUPTIONS[name](world, random.Random(seed))

    await asyncio.gather(*(one(*row) for row in drawn))
    return Counter(name for name, _, _ in drawn)


async def _leader(world: World, rng: random.Random) -> None:
    if (leader := world.controllers.leader) is not None:
        await _end(world, leader, rng.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)))


async def _standby(world: World, rng: random.Random) -> None:
    if (standby := world.controllers.standby) is not None:
        await _end(world, standby, rng.choice((signal.SIGKILL, signal.SIGTERM)))


async def _end(world: World, running: Controller, number: signal.Signals) -> None:
    world.controllers.strike(running, number)
    if number == signal.SIGSTOP:
        await asyncio.sleep(EXPIRES_S)
        world.controllers.go_on(running)


async def _api_server(world: World, rng: random.Random) -> None:
    """Kill the API server, or pause it; return when it serves again."""
    if rng.random() < 0.5:
        await asyncio.to_thread(world.cluster.kill, API)
        await asyncio.sleep(rng.uniform(0, 4))
        await asyncio.to_thread(world.cluster.start, API)
    else:
        world.cluster.kill(API, signal.SIGSTOP)
        await asyncio.sleep(rng.uniform(1, 8))
        world.cluster.kill(API, signal.SIGCONT)
    await asyncio.to_thread(world.cluster.wait_api)


async def _watches(world: World, rng: random.Random) -> None:
    """Cut the watches several times; some of those that follow stay silent."""
    for _ in range(rng.randint(1, 3)):
        world.proxy.inject(Fault(verb="watch", hung=True, times=rng.choice((0, 0, 1)), skip=rng.randint(0, 6)))
        world.proxy.cut_watches()
        await asyncio.sleep(rng.uniform(0, 2))


async def _requests(world: World, rng: random.Random) -> None:
    """Let requests fail, before or after they are carried out, for some seconds."""
    faults = []
    for _ in range(rng.randint(2, 5)):
        outcome: dict[str, Any] = rng.choice(
            ({"status": 429}, {"status": 500}, {"status": 503}, {"lost": True}, {"dropped": True}, {"delay_s": 1.5})
        )
        verb = rng.choice(("create", "create", "delete", "patch", "get", "list"))
        faults.append(world.proxy.inject(Fault(verb=verb, times=rng.randint(1, 20), chance=0.5, **outcome)))
    await asyncio.sleep(rng.uniform(2, 5))
    for fault in faults:
        fault.times = 0


async def _nodes(world: World, rng: random.Random) -> None:
    """Delete nodes, with or without their pods; they come back."""
    names = sorted(set(map(node_of, world.pods())) - {""})
    for name in rng.sample(names, min(len(names), rng.randint(1, 3))):
        await world.objects.delete(f"{NODES}/{name}")
        if rng.random() < 0.5:
            for pod in world.pods():
                if node_of(pod) == name:
                    await world.objects.delete(f"{PODS}/{pod['metadata']['name']}")
    await asyncio.sleep(rng.uniform(2, 12))
    while True:
        with suppress(httpx2.HTTPError):
            await asyncio.to_thread(fake_nodes.create, world.cluster.shape)
            return
        await asyncio.sleep(0.5)


async def _pods(world: World, rng: random.Random) -> None:
    pods = [pod["metadata"]["name"] for pod in world.pods() if gang_of(pod) in world.users.live]
    for name in rng.sample(pods, min(len(pods), rng.randint(1, 6))):
        await world.objects.delete(f"{PODS}/{name}")


async def _edits(world: World, rng: random.Random) -> None:
    """Edit objects as users do; what would stop a gang is edited back."""
    for _ in range(rng.randint(3, 8)):
        gang = world.users.live[rng.choice(sorted(world.users.live))]
        nodes = sorted(set(map(node_of, world.pods())) - {""})
        pods = [pod["metadata"]["name"] for pod in world.pods() if gang_of(pod) == gang.name]
        note = {"metadata": {"labels": {"chaos": f"n{rng.randint(0, 9)}"}, "annotations": {"note": "edited"}}}
        choice = rng.randrange(4)
        if choice == 0 and pods:
            await world.objects.merge(f"{PODS}/{rng.choice(pods)}", note)
        elif choice == 1 and nodes:
            await _there_and_back(
                world, f"{NODES}/{rng.choice(nodes)}", {"spec": {"unschedulable": True}}, {"unschedulable": None}, rng
            )
        elif choice == 2 and gang.kind == GANG_JOB:
            await world.objects.merge(gang.path, {"spec": {"priority": rng.randint(0, 9)}})
        elif choice == 2 and gang.kind == JOB:
            await _there_and_back(world, gang.path, {"spec": {"suspend": True}}, {"suspend": False}, rng)
        else:
            await world.objects.merge(gang.path, note)


async def _there_and_back(
    world: World, path: str, body: dict[str, Any], back: dict[str, Any], rng: random.Random
) -> None:
    await world.objects.merge(path, body)
    await asyncio.sleep(rng.uniform(0, 3))
    await world.objects.merge(path, {"spec": back})


async def _users(world: World, rng: random.Random) -> None:
    """End gangs of each kind, and submit as many others."""
    for kind in KINDS:
        gangs = [gang for gang in world.users.live.values() if gang.kind == kind]
        for gang in rng.sample(gangs, rng.randint(1, 3)):
            if gang.name not in world.users.busy and gang.name in world.users.live:
                await world.users.end(gang, rng)
                await world.users.submit(kind, rng)


DISRUPTIONS: Final[dict[str, Disruption]] = {
    "leader ended": _leader,
    "standby ended": _standby,
    "API server away": _api_server,
    "watches cut": _watches,
    "requests failed": _requests,
    "nodes gone": _nodes,
    "pods deleted": _pods,
    "objects edited": _edits,
    "gangs replaced": _users,
}
