"""Two gangs that each need all nodes and whose pods arrive in alternating halves: the classic deadlock.

On a real API server with KWOK nodes. Bar: in no round of ganger's is neither gang fully bound once binding has settled,
or the other gang not fully bound soon after the first is deleted. Also printed: the result of kube-scheduler on the
same pods, with PodGroups of its own gang scheduling and without.
"""

import asyncio
import os
from collections import Counter
from typing import Final

from bench.kubernetes.kwok import clear, controller, kwok
from bench.kubernetes.kwok_gangs import THEIRS, Watched, create_all, delete_groups, group_of, pod_of, watching
from bench.measure import Figure
from ganger.backends.kubernetes.foreign.pod_groups import POD_GROUPS
from ganger.gang_jobs.custom_resources import SCHEDULER
from ganger.kubeapi.objects import ObjectMeta
from ganger.kubeapi.resources import PODS
from tools.testcluster import Cluster

ROUNDS: Final = int(os.environ.get("GANGER_BENCH_ROUNDS", "5"))
NODES: Final = 16
SETTLES_S: Final = 8.0
"""Time after which the set of bound pods is taken to be final."""


def run() -> list[Figure]:
    deadlocks = []
    with kwok(NODES) as cluster, controller(cluster.kubeconfig) as leader:
        asyncio.run(leader.wait_leading())
        for number in range(ROUNDS):
            first, then = asyncio.run(_interleaved(cluster, f"r{number}", SCHEDULER))
            print(f"ganger: {first}; after the first was deleted: {then}", flush=True)
            deadlocks.append(float(NODES not in first.values() or len(first) > 1 or NODES not in then.values()))
        for grouped in (True, False):
            first, then = asyncio.run(_interleaved(cluster, f"theirs-{grouped:d}", THEIRS, is_grouped=grouped))
            grouping = "with" if grouped else "without"
            print(f"kube-scheduler {grouping} groups: {first}; after the fuller was deleted: {then}", flush=True)
    total = sum(deadlocks)
    return [Figure(name="deadlock", unit="rounds", samples=tuple(deadlocks), value=total, op="==", bar=0.0)]


async def _interleaved(
    cluster: Cluster, name: str, scheduler_name: str, *, is_grouped: bool = True
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bound pods of each gang once settled, and again after the fuller gang was deleted."""
    gangs = [f"{name}-a", f"{name}-b"]
    half = NODES // 2
    order = [
        (gang, index) for half_start in (0, half) for gang in gangs for index in range(half_start, half_start + half)
    ]
    async with watching(cluster) as watched:
        if is_grouped:
            await create_all([group_of(gang, NODES) for gang in gangs], watched, POD_GROUPS)
        await create_all(
            [pod_of(gang, index, scheduler_name, is_gated=False, is_grouped=is_grouped) for gang, index in order],
            watched,
            PODS,
        )
        await asyncio.sleep(SETTLES_S)
        first = _bound(watched)
        fuller = max(gangs, key=lambda gang: first.get(gang, 0))
        for index in range(NODES):
            await watched.api.delete(PODS, ObjectMeta(name=f"{fuller}-{index}", namespace="default"), grace_s=0)
            watched.bound_s.pop(f"{fuller}-{index}", None)
        await asyncio.sleep(SETTLES_S)
        then = _bound(watched)
        await delete_groups(gangs if is_grouped else [], watched)
    await asyncio.to_thread(clear, cluster)
    return first, then


def _bound(watched: Watched) -> dict[str, int]:
    return dict(Counter(name.rpartition("-")[0] for name in watched.bound_s))
