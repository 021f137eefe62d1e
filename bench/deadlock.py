"""Two gangs that each need all nodes, and whose pods come in halves, in turns: the classic way to a deadlock.

On a real API server with KWOK nodes. Held to be never: a round of ganger's in which neither gang is whole once things
have settled, or in which the other one is not whole soon after the first has gone. Printed besides: what kube-scheduler
makes of the same pods, with PodGroups of its own gang scheduling and without.
"""

import asyncio
import os
from collections import Counter
from typing import Final

from bench.kwok import clear, controller, kwok
from bench.kwok_gangs import THEIRS, Watched, each, group_of, groups_gone, pod_of, watching
from bench.measure import Figure
from ganger.backends.kubernetes.custom_resources import SCHEDULER
from ganger.backends.kubernetes.foreign.pod_groups import POD_GROUPS
from ganger.kubeapi.objects import ObjectMeta
from ganger.kubeapi.resources import PODS
from tools.testcluster import Cluster

ROUNDS: Final = int(os.environ.get("GANGER_BENCH_ROUNDS", "5"))
NODES: Final = 16
SETTLES_S: Final = 8.0
"""After which time what stands is taken to stay."""


def run() -> list[Figure]:
    deadlocks = []
    with kwok(NODES) as cluster, controller(cluster.kubeconfig) as its:
        asyncio.run(its.comes())
        for number in range(ROUNDS):
            first, then = asyncio.run(_interleaved(cluster, f"r{number}", SCHEDULER))
            print(f"ganger: {first}; when the first had gone: {then}", flush=True)
            deadlocks.append(float(NODES not in first.values() or len(first) > 1 or NODES not in then.values()))
        for grouped in (True, False):
            first, then = asyncio.run(_interleaved(cluster, f"theirs-{grouped:d}", THEIRS, is_grouped=grouped))
            how = "with" if grouped else "without"
            print(f"kube-scheduler {how} groups: {first}; when the fuller had gone: {then}", flush=True)
    total = sum(deadlocks)
    return [Figure(name="deadlock", unit="rounds", samples=tuple(deadlocks), value=total, op="==", bar=0.0)]


async def _interleaved(
    cluster: Cluster, name: str, by: str, *, is_grouped: bool = True
) -> tuple[dict[str, int], dict[str, int]]:
    """How many pods of which gang are bound once that has settled, and then when the fuller one has been deleted."""
    gangs = [f"{name}-a", f"{name}-b"]
    half = NODES // 2
    order = [(gang, at) for half_at in (0, half) for gang in gangs for at in range(half_at, half_at + half)]
    async with watching(cluster) as seen:
        if is_grouped:
            await each([group_of(gang, NODES) for gang in gangs], seen, POD_GROUPS)
        await each([pod_of(gang, at, by, is_gated=False, is_grouped=is_grouped) for gang, at in order], seen, PODS)
        await asyncio.sleep(SETTLES_S)
        first = _bound(seen)
        fuller = max(gangs, key=lambda gang: first.get(gang, 0))
        for at in range(NODES):
            await seen.api.delete(PODS, ObjectMeta(name=f"{fuller}-{at}", namespace="default"), grace_s=0)
            seen.bound_s.pop(f"{fuller}-{at}", None)
        await asyncio.sleep(SETTLES_S)
        then = _bound(seen)
        await groups_gone(gangs if is_grouped else [], seen)
    await asyncio.to_thread(clear, cluster)
    return first, then


def _bound(seen: Watched) -> dict[str, int]:
    return dict(Counter(name.rpartition("-")[0] for name in seen.bound_s))
