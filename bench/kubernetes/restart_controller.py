"""A controller killed with SIGKILL a hundred times at random, with 50 gangs: lost, doubled or partly bound gangs.

On a real API server with KWOK nodes. Real are the controller, a process that is restarted after each kill, its lease,
and what users do all the while: they submit gangs of one to six whole nodes, stop them, and delete them. No launcher
runs, so gangs end by being stopped; the launchers' side of a restart is covered in tests/kubernetes. The lease of a
dead controller is deleted at once, except every tenth time, or the bench would mostly wait for leases to expire.

Checked all the while, by the objects alone: no node has more GPUs allocated than it has, no gang has pods of two
generations, and none has some but not all of its pods bound `SETTLES_S` after that began or after a new controller
began to lead. In the end every gang that was not stopped is fully bound, in its first generation, and nothing is left
of the others.
"""

import asyncio
import os
import random
import re
import time
from collections import defaultdict
from dataclasses import dataclass, field

from bench.kubernetes.kwok import NAMESPACE, ClusterView, cluster_view, controller, job, kwok, until
from bench.measure import Figure, median
from ganger.gang_jobs import object_names
from ganger.gang_jobs.custom_resources import GANG_JOBS
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
"""A kill comes within WORKING_S after the controller began to lead, or within that multiple of the last start time."""
POLL_S = 0.1
SEED = 8


@dataclass
class Errors:
    """Names of gangs, and of nodes, by error."""

    doubled: set[str] = field(default_factory=set)
    half: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    again: set[str] = field(default_factory=set)


def run() -> list[Figure]:
    with kwok(NODES) as cluster:
        errors, starts_s = asyncio.run(_run_kills(cluster))
    for name, names in vars(errors).items():
        print(f"  {name}: {', '.join(sorted(names)[:20]) or 'none'}")
    counts = {f"restart_controller_{name}": float(len(names)) for name, names in vars(errors).items()}
    return [
        *(Figure(name=name, unit="", samples=(count,), value=count, op="==", bar=0) for name, count in counts.items()),
        median("restart_controller_until_it_leads", "s", starts_s),
    ]


async def _run_kills(cluster: Cluster) -> tuple[Errors, list[float]]:
    chance, starts_s = random.Random(SEED), [2.0]
    async with cluster_view(cluster) as view:
        users, observer = Users(view, random.Random(SEED + 1)), Observer(view)
        tasks = [asyncio.create_task(work) for work in (users.run_load(), observer.run())]
        for number in range(KILLS):
            began_s = time.monotonic()
            with controller(cluster.kubeconfig, quiet=True) as running:
                if chance.random() < 0.3:  # while it starts
                    await asyncio.sleep(chance.uniform(0, STARTS * starts_s[-1]))
                else:
                    await running.wait_leading()
                    starts_s.append(time.monotonic() - began_s)
                    observer.led_s = time.monotonic()
                    await asyncio.sleep(chance.uniform(0, WORKING_S))
                running.process.kill()
                observer.led_s = float("inf")
            if number % 10:
                await view.delete(LEASES, "ganger-controller")
        with controller(cluster.kubeconfig) as running:
            await running.wait_leading()
            observer.led_s = time.monotonic()
            tasks[0].cancel()
            await asyncio.gather(tasks[0], return_exceptions=True)
            await users.stop_excess()
            await observer.check_settled(users)
            tasks[1].cancel()
        print(f"{users.made} gangs, {users.stopped} stopped, {users.deleted} deleted, {observer.count} checks")
        return observer.errors, starts_s[1:]


class Users:
    """Users who submit, stop and delete gangs.

    Attributes:
        live: number of nodes of each gang that was neither stopped nor deleted.
    """

    def __init__(self, view: ClusterView, chance: random.Random) -> None:
        self._view, self._chance = view, chance
        self.live: dict[str, int] = {}
        self.made = self.stopped = self.deleted = 0

    async def run_load(self) -> None:
        """Submit and end gangs until cancelled."""
        while True:
            if len(self.live) < GANGS:
                await self._submit()
            else:
                await self._end(self._chance.choice(sorted(self.live)))
                await asyncio.sleep(self._chance.uniform(0, 1.0))

    async def stop_excess(self) -> None:
        """End gangs until the others fit on the nodes."""
        while sum(self.live.values()) > NODES:
            await self._end(self._chance.choice(sorted(self.live)))

    async def _submit(self) -> None:
        name, nodes = f"gang-{self.made}", self._chance.randint(1, LARGEST)
        self.made += 1
        await self._view.make(GANG_JOBS, [job(name, nodes=nodes, resources={"gpu": GPUS})])
        self.live[name] = nodes

    async def _end(self, name: str) -> None:
        del self.live[name]
        if self._chance.random() < 0.3:
            self.deleted += 1
            await self._view.delete(GANG_JOBS, name)
        else:
            self.stopped += 1
            await self._view.change(GANG_JOBS, name, {"spec": {"stop": True}})


class Observer:
    """Observer of the objects.

    Attributes:
        led_s: since when a controller leads.
    """

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._half_s: dict[str, float] = {}
        self.errors = Errors()
        self.led_s = float("inf")
        self.count = 0

    async def run(self) -> None:
        """Check again and again until cancelled."""
        while True:
            self.count += 1
            bound = self._bound()
            self._check_doubles(bound)
            self._check_halves(bound)
            await asyncio.sleep(POLL_S)

    async def check_settled(self, users: Users) -> None:
        """Record the errors that remain in the end, after time to settle."""
        try:
            await until(lambda: not self._unsettled(users), "all gangs, whole or gone")
        except TimeoutError:
            self.errors.lost = self._unsettled(users)
        await asyncio.sleep(SETTLES_S)
        self.errors.lost |= self._unsettled(users)
        generations = {name: pods[0].metadata.labels[object_names.GENERATION] for name, pods in self._bound().items()}
        self.errors.again = {name for name, generation in generations.items() if generation != "1"}

    def _bound(self) -> dict[str, list[Pod]]:
        """Return the pods that have a node and are not being deleted, by job."""
        by_job = defaultdict(list)
        for pod in self._view.pods.objects.values():
            if pod.spec.node_name and pod.metadata.deletion_timestamp is None:
                by_job[pod.metadata.labels[object_names.JOB]].append(pod)
        return by_job

    def _check_doubles(self, bound: dict[str, list[Pod]]) -> None:
        for name, pods in bound.items():
            if len({pod.metadata.labels[object_names.GENERATION] for pod in pods}) > 1:
                self.errors.doubled.add(name)
        # A pod that is being deleted keeps its GPUs until it is gone.
        used = defaultdict(list)
        for pod in self._view.pods.objects.values():
            used[pod.spec.node_name].append(
                f"{pod.metadata.name}{', deleting' * bool(pod.metadata.deletion_timestamp)}"
            )
        doubled = {f"{node} ({'; '.join(pods)})" for node, pods in used.items() if node and len(pods) > 1}
        if not doubled <= self.errors.doubled:
            print(f"check {self.count}, {time.monotonic() - self.led_s:.2f} s after it led: {doubled}", flush=True)
        self.errors.doubled |= doubled

    def _check_halves(self, bound: dict[str, list[Pod]]) -> None:
        now_s, members = time.monotonic(), self._members()
        half = {name for name, pods in bound.items() if len(pods) < members.get(name, 0)}
        self._half_s = {name: self._half_s.get(name, now_s) for name in half}
        self.errors.half |= {name for name in half if now_s - max(self._half_s[name], self.led_s) > SETTLES_S}

    def _members(self) -> dict[str, int]:
        """Return the number of pods of each complete gang."""
        matches = {
            key.name: re.search(rb'"nodes":(\d+)', bytes(gang_job.spec))
            for key, gang_job in self._view.jobs.objects.items()
        }
        return {name: int(match[1]) for name, match in matches.items() if match}

    def _unsettled(self, users: Users) -> set[str]:
        """Return gangs that are not fully bound though they should be, or not gone."""
        bound = {name: len(pods) for name, pods in self._bound().items()}
        jobs_with_pods = {pod.metadata.labels[object_names.JOB] for pod in self._view.pods.objects.values()}
        missing = {name for name, nodes in users.live.items() if bound.get(name) != nodes}
        missing |= {name for name in users.live if Key(NAMESPACE, name) not in self._view.jobs.objects}
        return missing | (jobs_with_pods - users.live.keys())
