"""50,000 pending jobs and 1,000 nodes: memory of the controller, and jobs per second that it has read and answered.

On a real API server with KWOK nodes. One gang has all nodes; each of the others asks for one. Counted when the object
of each reports it as pending; afterwards the gang that runs is stopped, and the first thousand of the others are bound.
Kueue's own bench of 50,000 workloads admits 42 a second. GANGER_BENCH_JOBS and GANGER_BENCH_NODES are the numbers; a
run ends early after GANGER_BENCH_PART_S, with the figures of the jobs until then.
"""

import asyncio
import os
import time
from typing import Final

import psutil

from bench.kubernetes.kwok import ClusterView, cluster_view, controller, job, kwok, until, used_s
from bench.measure import Figure
from ganger.gang_jobs.custom_resources import GANG_JOBS
from tools.testcluster import Cluster

JOBS: Final = int(os.environ.get("GANGER_BENCH_JOBS", "50000"))
NODES: Final = int(os.environ.get("GANGER_BENCH_NODES", "1000"))
PART_S: Final = float(os.environ.get("GANGER_BENCH_PART_S", "inf"))
MEMORY_BAR_MB: Final = 1_000.0
KUEUE_RATE: Final = 42.0
BATCH: Final = 1_000
POLL_S: Final = 1.0


def run() -> list[Figure]:
    with kwok(NODES) as cluster, controller(cluster.kubeconfig) as leader:
        asyncio.run(leader.wait_leading())
        memory_mb, rate, bound_s, cpu_s = asyncio.run(_pending(cluster, leader.process))
    return [
        Figure(
            name="pending_50k_memory",
            unit="MB",
            samples=tuple(memory_mb),
            value=max(memory_mb),
            op="<",
            bar=MEMORY_BAR_MB,
        ),
        Figure(name="pending_50k_rate", unit="jobs/s", samples=(rate,), value=rate, op=">=", bar=KUEUE_RATE),
        Figure(name="pending_50k_until_bound", unit="s", samples=(bound_s,), value=bound_s),
        Figure(name="pending_50k_controller_cpu", unit="s", samples=(cpu_s,), value=cpu_s),
    ]


async def _pending(cluster: Cluster, process: psutil.Process) -> tuple[list[float], float, float, float]:
    """Return memory by time, jobs per second, seconds until the first ones are bound, and CPU seconds."""
    memory_mb = list[float]()
    async with cluster_view(cluster) as view:
        sampling = asyncio.create_task(_sample(process, memory_mb))
        await view.make(GANG_JOBS, [job("all", nodes=NODES, resources={"gpu": 8, "cpu": "100m"})])
        await until(lambda: view.bound == NODES, "the gang that has all nodes, bound")
        began_s, before_s = time.monotonic(), used_s(process)
        count = await _submit(view, began_s)
        while _answered(view) < count:
            await asyncio.sleep(POLL_S)
            print(f"  {time.monotonic() - began_s:.0f} s: {_answered(view)} of {count} pending", flush=True)
        took_s, cpu_s = time.monotonic() - began_s, used_s(process) - before_s
        print(f"{count} jobs pending after {took_s:.0f} s, {memory_mb[-1]:.0f} MB", flush=True)
        stopped_s = time.monotonic()
        await view.change(GANG_JOBS, "all", {"spec": {"stop": True}})
        await until(lambda: _bound_others(view) == min(NODES, count), "the first of the others, bound")
        sampling.cancel()
        return memory_mb, count / took_s, time.monotonic() - stopped_s, cpu_s


async def _submit(view: ClusterView, began_s: float) -> int:
    """Submit the jobs, as many as there is time for; return their number."""
    for first in range(0, JOBS, BATCH):
        if time.monotonic() - began_s > PART_S:
            return first
        await view.make(GANG_JOBS, (job(f"j{number}", resources={"gpu": 8}) for number in range(first, first + BATCH)))
        print(f"  {time.monotonic() - began_s:.0f} s: {first + BATCH} submitted, {_answered(view)} pending", flush=True)
    return JOBS


async def _sample(process: psutil.Process, memory_mb: list[float]) -> None:
    while True:
        memory_mb.append(process.memory_info().rss / 1e6)
        await asyncio.sleep(POLL_S)


def _answered(view: ClusterView) -> int:
    """Return the number of objects that report a pending job."""
    return sum(b'"phase":"Pending"' in bytes(gang_job.status) for gang_job in view.jobs.objects.values())


def _bound_others(view: ClusterView) -> int:
    """Return the number of bound pods of other gangs than the first."""
    pods = view.pods.objects.values()
    return sum(bool(pod.spec.node_name) and not pod.metadata.name.startswith("all-") for pod in pods)
