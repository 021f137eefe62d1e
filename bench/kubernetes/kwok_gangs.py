"""Pods of upstream PodGroups on 1,000 nodes of 8 GPUs, placed by ganger and by kube-scheduler's own gang scheduling.

On a real API server with KWOK nodes: 100 gangs of 8 pods, and one gang of 512, of 8 GPUs each. The pods exist
beforehand, gated; the time is from the first gate that is removed to the last pod that is bound, alternating between
the two. `half_bound` is the longest time between the first and the last pod of the large gang. Also printed:
kube-scheduler on the same pods without a group, and GangJobs of the same size, whose pods the controller creates.
"""

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from bench.kubernetes.kwok import AT_ONCE, NAMESPACE, WITHIN_S, clear, controller, job, kwok, until
from bench.measure import Figure, median
from ganger.backends.kubernetes.foreign.pod_groups import POD_GROUPS
from ganger.gang_jobs.custom_resources import GANG_JOBS, PROGRAM, SCHEDULER
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.informer import Informer
from ganger.kubeapi.objects import Object, ObjectMeta, Pod
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import PODS, Resource
from tools.testcluster import Cluster

ROUNDS: Final = int(os.environ.get("GANGER_BENCH_ROUNDS", "5"))
NODES: Final = int(os.environ.get("GANGER_BENCH_NODES", "1000"))
SHAPES: Final = {"100_gangs": (NODES // 10, 8), "one_gang": (1, NODES * 64 // 125)}
"""Number of gangs, and pods of each."""
THEIRS: Final = "default-scheduler"


@dataclass(slots=True)
class Watched:
    """Pods as they are seen.

    Attributes:
        bound_s: time at which each pod was seen bound.
        names: names of all pods seen.
    """

    api: ApiClient
    bound_s: dict[str, float] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def on_change(self, _old: Pod | None, after: Pod | None) -> None:
        if after is not None:
            self.names.add(after.metadata.name)
            if after.spec.node_name:
                self.bound_s.setdefault(after.metadata.name, time.perf_counter())


def run() -> list[Figure]:
    took: dict[tuple[str, str], list[float]] = {}
    half: dict[str, list[float]] = {SCHEDULER: [], THEIRS: []}
    with kwok(NODES) as cluster, controller(cluster.kubeconfig) as leader:
        asyncio.run(leader.wait_leading())
        for number in range(ROUNDS):
            for shape, (gangs, size) in SHAPES.items():
                for scheduler_name in (SCHEDULER, THEIRS) if number % 2 else (THEIRS, SCHEDULER):
                    whole_s, between_s = asyncio.run(_ungated(cluster, f"r{number}", scheduler_name, gangs, size))
                    took.setdefault((shape, scheduler_name), []).append(whole_s)
                    if gangs == 1:
                        half[scheduler_name].append(between_s)
                    print(
                        f"{shape} {scheduler_name}: {whole_s:.2f} s, {between_s:.2f} s from the first to the last",
                        flush=True,
                    )
        for shape, (gangs, size) in SHAPES.items():
            ungrouped_s, _ = asyncio.run(_ungated(cluster, "alone", THEIRS, gangs, size, is_grouped=False))
            own_s = asyncio.run(_gang_jobs(cluster, gangs, size))
            print(f"{shape}: kube-scheduler without gangs {ungrouped_s:.2f} s, GangJobs {own_s:.2f} s", flush=True)
    figures = [_median_ratio(f"kwok_{shape}", took[shape, SCHEDULER], took[shape, THEIRS]) for shape in SHAPES]
    longest = max(half[SCHEDULER]) / max(half[THEIRS])
    figures.append(_ratio("half_bound", half[SCHEDULER], half[THEIRS], longest))
    every = [
        median(f"kwok_{shape}_{scheduler_name}", "s", samples) for (shape, scheduler_name), samples in took.items()
    ]
    return [
        *every,
        *(median(f"half_bound_{scheduler_name}", "s", samples) for scheduler_name, samples in half.items()),
        *figures,
    ]


def _ratio(name: str, ours: list[float], theirs: list[float], value: float) -> Figure:
    """Return a figure with one ratio for each round."""
    ratios = tuple(our / their for our, their in zip(ours, theirs, strict=True))
    return Figure(name=name, unit="of kube-scheduler's", samples=ratios, value=value, op="<=", bar=1.0)


def _median_ratio(name: str, ours: list[float], theirs: list[float]) -> Figure:
    value = statistics.median(our / their for our, their in zip(ours, theirs, strict=True))
    return _ratio(name, ours, theirs, value)


async def _ungated(
    cluster: Cluster, name: str, scheduler_name: str, gangs: int, size: int, *, is_grouped: bool = True
) -> tuple[float, float]:
    """Return the seconds from the first gate to the last bound pod, and from the first to the last bound pod."""
    prefix = f"{name}-{scheduler_name[0]}-{size}"
    members = [(f"{prefix}-{gang}", index) for gang in range(gangs) for index in range(size)]
    async with watching(cluster) as watched:
        if is_grouped:
            await create_all([group_of(f"{prefix}-{gang}", size) for gang in range(gangs)], watched, POD_GROUPS)
        await create_all(
            [pod_of(gang, index, scheduler_name, is_grouped=is_grouped) for gang, index in members], watched, PODS
        )
        await until(lambda: len(watched.names) == len(members), "the gated pods")
        began_s = time.perf_counter()
        await _ungate([f"{gang}-{index}" for gang, index in members], watched)
        await until(lambda: len(watched.bound_s) == len(members), "the last pod, bound")
        bound_s = sorted(watched.bound_s.values())
        await delete_groups([f"{prefix}-{gang}" for gang in range(gangs)] if is_grouped else [], watched)
    await asyncio.to_thread(clear, cluster)
    return bound_s[-1] - began_s, bound_s[-1] - bound_s[0]


async def _gang_jobs(cluster: Cluster, gangs: int, size: int) -> float:
    """Return the seconds from the first submitted GangJob to the last bound pod."""
    async with watching(cluster) as watched:
        began_s = time.perf_counter()
        needs = {"gpu": 8, "cpu": "100m"}
        await create_all(
            [job(f"own-{size}-{gang}", nodes=size, resources=needs) for gang in range(gangs)], watched, GANG_JOBS
        )
        await until(lambda: len(watched.bound_s) == gangs * size, "the last pod, bound")
        took_s = max(watched.bound_s.values()) - began_s
    await asyncio.to_thread(clear, cluster)
    return took_s


@asynccontextmanager
async def watching(cluster: Cluster) -> AsyncIterator[Watched]:
    """Watch pods for the duration of the context."""
    async with ApiClient(Credentials.from_kubeconfig([cluster.kubeconfig]), PROGRAM) as api:
        watched = Watched(api)
        informer = Informer(api, PODS, watched.on_change)
        task = asyncio.create_task(informer.run())
        await informer.synced.wait()
        try:
            yield watched
        finally:
            task.cancel()


async def create_all(bodies: list[Object], watched: Watched, resource: Resource[Any]) -> None:
    """Create all objects, several at a time."""
    remaining = iter(bodies)

    async def create_next() -> None:
        for body in remaining:
            await watched.api.create(resource, body)

    await asyncio.gather(*(create_next() for _ in range(AT_ONCE)))


async def _ungate(names: list[str], watched: Watched) -> None:
    remaining = iter(names)

    async def ungate_next() -> None:
        for name in remaining:
            await watched.api.merge(ObjectRef(PODS, NAMESPACE, name), {"spec": {"schedulingGates": None}})

    async with asyncio.timeout(WITHIN_S):
        await asyncio.gather(*(ungate_next() for _ in range(AT_ONCE)))


async def delete_groups(names: list[str], watched: Watched) -> None:
    """Delete these PodGroups."""
    for name in names:
        await watched.api.delete(POD_GROUPS, ObjectMeta(name=name, namespace=NAMESPACE))


def group_of(name: str, size: int) -> Object:
    """Return a PodGroup of that many pods, all or none."""
    about = {"name": name, "namespace": NAMESPACE}
    spec = {"schedulingPolicy": {"gang": {"minCount": size}}}
    return {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": about, "spec": spec}


def pod_of(gang: str, index: int, scheduler_name: str, *, is_gated: bool = True, is_grouped: bool = True) -> Object:
    """Return a pod that takes a whole node."""
    limits = {"nvidia.com/gpu": "8"}
    spec: Object = {
        "schedulerName": scheduler_name,
        "containers": [{"name": "ranks", "image": "none", "resources": {"limits": limits}}],
        "terminationGracePeriodSeconds": 0,
    }
    if is_gated:
        spec["schedulingGates"] = [{"name": "ganger.dev/bench"}]
    if is_grouped:
        spec["schedulingGroup"] = {"podGroupName": gang}
    about = {"name": f"{gang}-{index}", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}
