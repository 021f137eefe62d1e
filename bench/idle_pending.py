"""A cluster that is full, and a gang that waits: what the controller uses of the CPU while nothing happens.

500 KWOK nodes, full with 4,000 pods of others of one GPU each, on a real API server; the gang asks for 16 nodes of 8
GPUs. Counted is the controller's process alone, a minute at a time, once all pods are said to run.
"""

import asyncio
import os
from itertools import pairwise

import psutil

from bench.kwok import NAMESPACE, controller, job, kwok, seen, until, used_s
from bench.measure import Figure, median
from ganger.backends.kubernetes.custom_resources import GANG_JOBS
from ganger.kubeapi.objects import Object
from ganger.kubeapi.resources import PODS
from tools.testcluster import Cluster

NODES = int(os.environ.get("GANGER_BENCH_NODES", "500"))
GPUS = 8
MINUTE_S = 60.0
CALM_S = 20.0
"""Between the last pod that runs and the first minute: what was told late is told by then."""
BAR_S = 1.0
RUNS = 3


def run() -> list[Figure]:
    with kwok(NODES) as cluster:
        asyncio.run(_fill(cluster))
        with controller(cluster.kubeconfig) as its:
            return [median("idle_pending", "s", asyncio.run(_idle(cluster, its.process)), under=BAR_S)]


async def _fill(cluster: Cluster) -> None:
    async with seen(cluster) as its:
        await its.make(PODS, (_pod(number) for number in range(GPUS * NODES)))
        running = its.pods.objects.values()
        await until(lambda: sum(pod.status.phase == "Running" for pod in running) == GPUS * NODES, "all pods, running")


async def _idle(cluster: Cluster, process: psutil.Process) -> list[float]:
    """CPU seconds of each minute."""
    async with seen(cluster) as its:
        await its.make(GANG_JOBS, [job("large", nodes=16, resources={"gpu": GPUS})])
        jobs = its.jobs.objects.values()
        await until(lambda: all(b'"phase":"Pending"' in bytes(each.status) for each in jobs), "the job, pending")
        await asyncio.sleep(CALM_S)
        used = [used_s(process)]
        for _ in range(RUNS):
            await asyncio.sleep(MINUTE_S)
            used.append(used_s(process))
        assert len(its.pods.objects) == GPUS * NODES
        return [after - before for before, after in pairwise(used)]


def _pod(number: int) -> Object:
    """A pod of somebody else's, bound already."""
    gpu = {"nvidia.com/gpu": "1"}
    container = {"name": "main", "image": "none", "resources": {"requests": gpu, "limits": gpu}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"other-{number}", "namespace": NAMESPACE},
        "spec": {"nodeName": f"fake-{number // GPUS + 1:04}", "containers": [container]},
    }
