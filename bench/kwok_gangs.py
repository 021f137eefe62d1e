"""Pods of upstream PodGroups on 1,000 nodes of 8 GPUs, placed by ganger and by kube-scheduler's own gang scheduling.

On a real API server with KWOK nodes: 100 gangs of 8 pods, and one gang of 512, of 8 GPUs each. The pods are there
beforehand, gated; the clock runs from the first gate that is taken away to the last pod that is bound, in turns for
the two. `half_bound`: the longest time between the first and the last pod of the large gang. Printed besides:
kube-scheduler on the same pods without a group, and GangJobs of the same size, whose pods are made by the controller.
"""

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from bench.kwok import AT_ONCE, NAMESPACE, WITHIN_S, clear, controller, job, kwok, until
from bench.measure import Figure, median
from ganger.backends.kubernetes.custom_resources import GANG_JOBS, PROGRAM, SCHEDULER
from ganger.backends.kubernetes.foreign.pod_groups import POD_GROUPS
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
"""How many gangs of how many pods."""
THEIRS: Final = "default-scheduler"


@dataclass(slots=True)
class Watched:
    """names: of the pods that were seen; bound_s: when each pod was seen to be bound."""

    api: ApiClient
    bound_s: dict[str, float] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def changed(self, _before: Pod | None, now: Pod | None) -> None:
        if now is not None:
            self.names.add(now.metadata.name)
            if now.spec.node_name:
                self.bound_s.setdefault(now.metadata.name, time.perf_counter())


def run() -> list[Figure]:
    took: dict[tuple[str, str], list[float]] = {}
    half: dict[str, list[float]] = {SCHEDULER: [], THEIRS: []}
    with kwok(NODES) as cluster, controller(cluster.kubeconfig) as its:
        asyncio.run(its.comes())
        for number in range(ROUNDS):
            for shape, (gangs, size) in SHAPES.items():
                for by in (SCHEDULER, THEIRS) if number % 2 else (THEIRS, SCHEDULER):
                    whole_s, between_s = asyncio.run(_ungated(cluster, f"r{number}", by, gangs, size))
                    took.setdefault((shape, by), []).append(whole_s)
                    if gangs == 1:
                        half[by].append(between_s)
                    print(f"{shape} {by}: {whole_s:.2f} s, {between_s:.2f} s from the first to the last", flush=True)
        for shape, (gangs, size) in SHAPES.items():
            alone_s, _ = asyncio.run(_ungated(cluster, "alone", THEIRS, gangs, size, is_grouped=False))
            own_s = asyncio.run(_gang_jobs(cluster, gangs, size))
            print(f"{shape}: kube-scheduler without gangs {alone_s:.2f} s, GangJobs {own_s:.2f} s", flush=True)
    figures = [_median_ratio(f"kwok_{shape}", took[shape, SCHEDULER], took[shape, THEIRS]) for shape in SHAPES]
    longest = max(half[SCHEDULER]) / max(half[THEIRS])
    figures.append(_ratio("half_bound", half[SCHEDULER], half[THEIRS], longest))
    every = [median(f"kwok_{shape}_{by}", "s", samples) for (shape, by), samples in took.items()]
    return [*every, *(median(f"half_bound_{by}", "s", samples) for by, samples in half.items()), *figures]


def _ratio(name: str, ours: list[float], theirs: list[float], value: float) -> Figure:
    """samples: round by round."""
    ratios = tuple(our / their for our, their in zip(ours, theirs, strict=True))
    return Figure(name=name, unit="of kube-scheduler's", samples=ratios, value=value, op="<=", bar=1.0)


def _median_ratio(name: str, ours: list[float], theirs: list[float]) -> Figure:
    value = statistics.median(our / their for our, their in zip(ours, theirs, strict=True))
    return _ratio(name, ours, theirs, value)


async def _ungated(
    cluster: Cluster, name: str, by: str, gangs: int, size: int, *, is_grouped: bool = True
) -> tuple[float, float]:
    """Seconds from the first gate to the last pod that is bound, and from the first pod to the last."""
    called = f"{name}-{by[0]}-{size}"
    members = [(f"{called}-{gang}", at) for gang in range(gangs) for at in range(size)]
    async with watching(cluster) as seen:
        if is_grouped:
            await each([group_of(f"{called}-{gang}", size) for gang in range(gangs)], seen, POD_GROUPS)
        await each([pod_of(gang, at, by, is_grouped=is_grouped) for gang, at in members], seen, PODS)
        await until(lambda: len(seen.names) == len(members), "the gated pods")
        began_s = time.perf_counter()
        await _ungate([f"{gang}-{at}" for gang, at in members], seen)
        await until(lambda: len(seen.bound_s) == len(members), "the last pod, bound")
        found = sorted(seen.bound_s.values())
        await groups_gone([f"{called}-{gang}" for gang in range(gangs)] if is_grouped else [], seen)
    await asyncio.to_thread(clear, cluster)
    return found[-1] - began_s, found[-1] - found[0]


async def _gang_jobs(cluster: Cluster, gangs: int, size: int) -> float:
    """The same as GangJobs: seconds from the first that is submitted to the last pod that is bound."""
    async with watching(cluster) as seen:
        began_s = time.perf_counter()
        needs = {"gpu": 8, "cpu": "100m"}
        await each([job(f"own-{size}-{gang}", nodes=size, resources=needs) for gang in range(gangs)], seen, GANG_JOBS)
        await until(lambda: len(seen.bound_s) == gangs * size, "the last pod, bound")
        took_s = max(seen.bound_s.values()) - began_s
    await asyncio.to_thread(clear, cluster)
    return took_s


@asynccontextmanager
async def watching(cluster: Cluster) -> AsyncIterator[Watched]:
    """Inside it pods are followed."""
    async with ApiClient(Credentials.from_kubeconfig([cluster.kubeconfig]), PROGRAM) as api:
        seen = Watched(api)
        follower = Informer(api, PODS, seen.changed)
        following = asyncio.create_task(follower.run())
        await follower.synced.wait()
        try:
            yield seen
        finally:
            following.cancel()


async def each(bodies: list[Object], seen: Watched, resource: Resource[Any]) -> None:
    """Make all of them, some at a time."""
    rest = iter(bodies)

    async def some() -> None:
        for body in rest:
            await seen.api.create(resource, body)

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))


async def _ungate(names: list[str], seen: Watched) -> None:
    rest = iter(names)

    async def some() -> None:
        for name in rest:
            await seen.api.merge(ObjectRef(PODS, NAMESPACE, name), {"spec": {"schedulingGates": None}})

    async with asyncio.timeout(WITHIN_S):
        await asyncio.gather(*(some() for _ in range(AT_ONCE)))


async def groups_gone(names: list[str], seen: Watched) -> None:
    """Delete these PodGroups."""
    for name in names:
        await seen.api.delete(POD_GROUPS, ObjectMeta(name=name, namespace=NAMESPACE))


def group_of(name: str, size: int) -> Object:
    """A PodGroup of so many pods, all or none."""
    about = {"name": name, "namespace": NAMESPACE}
    spec = {"schedulingPolicy": {"gang": {"minCount": size}}}
    return {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": about, "spec": spec}


def pod_of(gang: str, at: int, by: str, *, is_gated: bool = True, is_grouped: bool = True) -> Object:
    """A pod that takes a whole node."""
    limits = {"nvidia.com/gpu": "8"}
    spec: Object = {
        "schedulerName": by,
        "containers": [{"name": "ranks", "image": "none", "resources": {"limits": limits}}],
        "terminationGracePeriodSeconds": 0,
    }
    if is_gated:
        spec["schedulingGates"] = [{"name": "ganger.dev/bench"}]
    if is_grouped:
        spec["schedulingGroup"] = {"podGroupName": gang}
    about = {"name": f"{gang}-{at}", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}
