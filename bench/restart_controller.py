"""A controller killed with SIGKILL a hundred times at random, with 50 gangs: what is lost, doubled, half bound.

On a real API server with KWOK nodes. Real are the controller, a process that is started anew after each kill, its
lease, and what people do all the while: they submit gangs of one to six whole nodes, stop them, and delete them. No
launcher runs there, so gangs end by being stopped; what launchers make of a restart is in tests/kubernetes. The lease
of a dead controller is taken away at once, but for each tenth, or else the bench would mostly wait for it to run out.

Looked at all the while, by the objects alone: no node is given more GPUs than it has, no gang has pods of two
generations, and none has some but not all of its pods bound `SETTLES_S` after it came to that, or after a new
controller began to lead. In the end every gang that was not stopped is whole, in its first generation, and nothing is
left of the others.
"""

import asyncio
import os
import random
import re
import time
from collections import defaultdict
from dataclasses import dataclass, field

from bench.kwok import NAMESPACE, Seen, controller, job, kwok, seen, until
from bench.measure import Figure, median
from ganger.backends.kubernetes import object_names
from ganger.backends.kubernetes.custom_resources import GANG_JOBS
from ganger.kubeapi.objects import Key, Pod
from ganger.kubeapi.resources import LEASES
from tools.testcluster import Cluster

KILLS = int(os.environ.get("GANGER_BENCH_KILLS", "100"))
GANGS = 50
NODES, GPUS = 120, 8
LARGEST = 6
SETTLES_S = 10.0
WORKING_S = 3.0
STARTS = 1.2
"""A kill comes within so long after the controller began to lead; or within so many times what the one before took to
come to that."""
LOOKS_EVERY_S = 0.1
SEED = 8


@dataclass
class Found:
    """What must not be: names, each once."""

    doubled: set[str] = field(default_factory=set)
    half: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    again: set[str] = field(default_factory=set)


def run() -> list[Figure]:
    with kwok(NODES) as cluster:
        found, starts_s = asyncio.run(_ordeal(cluster))
    for name, what in vars(found).items():
        print(f"  {name}: {', '.join(sorted(what)[:20]) or 'none'}")
    counts = {f"restart_controller_{name}": float(len(what)) for name, what in vars(found).items()}
    return [
        *(Figure(name=name, unit="", samples=(count,), value=count, op="==", bar=0) for name, count in counts.items()),
        median("restart_controller_until_it_leads", "s", starts_s),
    ]


async def _ordeal(cluster: Cluster) -> tuple[Found, list[float]]:
    chance, starts_s = random.Random(SEED), [2.0]
    async with seen(cluster) as its:
        crowd, looks = Crowd(its, random.Random(SEED + 1)), Looks(its)
        tasks = [asyncio.create_task(each) for each in (crowd.come_and_go(), looks.look())]
        for number in range(KILLS):
            began_s = time.monotonic()
            with controller(cluster.kubeconfig, quiet=True) as its_process:
                if chance.random() < 0.3:  # while it starts
                    await asyncio.sleep(chance.uniform(0, STARTS * starts_s[-1]))
                else:
                    await its_process.comes()
                    starts_s.append(time.monotonic() - began_s)
                    looks.led_s = time.monotonic()
                    await asyncio.sleep(chance.uniform(0, WORKING_S))
                its_process.process.kill()
                looks.led_s = float("inf")
            if number % 10:
                await its.take_away(LEASES, "ganger-controller")
        with controller(cluster.kubeconfig) as its_process:
            await its_process.comes()
            looks.led_s = time.monotonic()
            tasks[0].cancel()
            await asyncio.gather(tasks[0], return_exceptions=True)
            await crowd.leave_room()
            await looks.settled(crowd)
            tasks[1].cancel()
        print(f"{crowd.made} gangs, {crowd.stopped} stopped, {crowd.deleted} deleted, {looks.count} looks")
        return looks.found, starts_s[1:]


class Crowd:
    """People who submit, stop and delete gangs. live: how many nodes each has that was neither stopped nor deleted."""

    def __init__(self, its: Seen, chance: random.Random) -> None:
        self._its, self._chance = its, chance
        self.live: dict[str, int] = {}
        self.made = self.stopped = self.deleted = 0

    async def come_and_go(self) -> None:
        """Until cancelled."""
        while True:
            if len(self.live) < GANGS:
                await self._submit()
            else:
                await self._end(self._chance.choice(sorted(self.live)))
                await asyncio.sleep(self._chance.uniform(0, 1.0))

    async def leave_room(self) -> None:
        """So many are stopped that the others all have room."""
        while sum(self.live.values()) > NODES:
            await self._end(self._chance.choice(sorted(self.live)))

    async def _submit(self) -> None:
        name, nodes = f"gang-{self.made}", self._chance.randint(1, LARGEST)
        self.made += 1
        await self._its.make(GANG_JOBS, [job(name, nodes=nodes, resources={"gpu": GPUS})])
        self.live[name] = nodes

    async def _end(self, name: str) -> None:
        del self.live[name]
        if self._chance.random() < 0.3:
            self.deleted += 1
            await self._its.take_away(GANG_JOBS, name)
        else:
            self.stopped += 1
            await self._its.change(GANG_JOBS, name, {"spec": {"stop": True}})


class Looks:
    """Looks at the objects all the while. led_s: since when a controller leads."""

    def __init__(self, its: Seen) -> None:
        self._its = its
        self._half_s: dict[str, float] = {}
        self.found = Found()
        self.led_s = float("inf")
        self.count = 0

    async def look(self) -> None:
        """Until cancelled."""
        while True:
            self.count += 1
            bound = self._bound()
            self._look_for_doubles(bound)
            self._look_for_halves(bound)
            await asyncio.sleep(LOOKS_EVERY_S)

    async def settled(self, crowd: Crowd) -> None:
        """What is so in the end, when all had their time."""
        try:
            await until(lambda: not self._unsettled(crowd), "all gangs, whole or gone")
        except TimeoutError:
            self.found.lost = self._unsettled(crowd)
        await asyncio.sleep(SETTLES_S)
        self.found.lost |= self._unsettled(crowd)
        generations = {name: pods[0].metadata.labels[object_names.GENERATION] for name, pods in self._bound().items()}
        self.found.again = {name for name, generation in generations.items() if generation != "1"}

    def _bound(self) -> dict[str, list[Pod]]:
        """Pods that have a node and are not going, by job."""
        found = defaultdict(list)
        for pod in self._its.pods.objects.values():
            if pod.spec.node_name and pod.metadata.deletion_timestamp is None:
                found[pod.metadata.labels[object_names.JOB]].append(pod)
        return found

    def _look_for_doubles(self, bound: dict[str, list[Pod]]) -> None:
        for name, pods in bound.items():
            if len({pod.metadata.labels[object_names.GENERATION] for pod in pods}) > 1:
                self.found.doubled.add(name)
        # A pod that goes keeps its GPUs until it is gone.
        used = defaultdict(list)
        for pod in self._its.pods.objects.values():
            used[pod.spec.node_name].append(f"{pod.metadata.name}{', going' * bool(pod.metadata.deletion_timestamp)}")
        doubled = {f"{node} ({'; '.join(pods)})" for node, pods in used.items() if node and len(pods) > 1}
        if not doubled <= self.found.doubled:
            print(f"look {self.count}, {time.monotonic() - self.led_s:.2f} s after it led: {doubled}", flush=True)
        self.found.doubled |= doubled

    def _look_for_halves(self, bound: dict[str, list[Pod]]) -> None:
        now_s, members = time.monotonic(), self._members()
        half = {name for name, pods in bound.items() if len(pods) < members.get(name, 0)}
        self._half_s = {name: self._half_s.get(name, now_s) for name in half}
        self.found.half |= {name for name in half if now_s - max(self._half_s[name], self.led_s) > SETTLES_S}

    def _members(self) -> dict[str, int]:
        """How many pods each gang has when it is whole."""
        said = {
            key.name: re.search(rb'"nodes":(\d+)', bytes(each.spec)) for key, each in self._its.jobs.objects.items()
        }
        return {name: int(match[1]) for name, match in said.items() if match}

    def _unsettled(self, crowd: Crowd) -> set[str]:
        """Gangs that are not whole though they should be, or not gone."""
        bound = {name: len(pods) for name, pods in self._bound().items()}
        there = {pod.metadata.labels[object_names.JOB] for pod in self._its.pods.objects.values()}
        missing = {name for name, nodes in crowd.live.items() if bound.get(name) != nodes}
        missing |= {name for name in crowd.live if Key(NAMESPACE, name) not in self._its.jobs.objects}
        return missing | (there - crowd.live.keys())
