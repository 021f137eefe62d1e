"""CPU time of an idle controller on a full cluster with a pending gang.

500 KWOK nodes, full with 4,000 foreign pods of one GPU each, on a real API server; the gang asks for 16 nodes of 8
GPUs. Counted is the controller's process alone, a minute at a time, once all pods are Running.
"""

import asyncio
import os
from itertools import pairwise

import psutil

from bench.kubernetes.kwok import NAMESPACE, cluster_view, controller, job, kwok, until, used_s
from bench.measure import Figure, median
from ganger.gang_jobs.custom_resources import GANG_JOBS
from ganger.kubeapi.objects import Object
from ganger.kubeapi.resources import PODS
from tools.testcluster import Cluster

NODES = int(os.environ.get("GANGER_BENCH_NODES", "500"))
GPUS = 8
MINUTE_S = 60.0
CALM_S = 20.0
"""Time between the last running pod and the first minute, for late changes."""
BAR_S = 1.0
RUNS = 3


def run() -> list[Figure]:
    with kwok(NODES) as cluster:
        asyncio.run(_fill(cluster))
        with controller(cluster.kubeconfig) as leader:
            return [median("idle_pending", "s", asyncio.run(_idle(cluster, leader.process)), under=BAR_S)]


async def _fill(cluster: Cluster) -> None:
    async with cluster_view(cluster) as view:
        await view.make(PODS, (_pod(number) for number in range(GPUS * NODES)))
        running = view.pods.objects.values()
        await until(lambda: sum(pod.status.phase == "Running" for pod in running) == GPUS * NODES, "all pods, running")


async def _idle(cluster: Cluster, process: psutil.Process) -> list[float]:
    """Return the CPU seconds of each minute."""
    async with cluster_view(cluster) as view:
        await view.make(GANG_JOBS, [job("large", nodes=16, resources={"gpu": GPUS})])
        jobs = view.jobs.objects.values()
        await until(
            lambda: all(b'"phase":"Pending"' in bytes(gang_job.status) for gang_job in jobs), "the job, pending"
        )
        await asyncio.sleep(CALM_S)
        used = [used_s(process)]
        for _ in range(RUNS):
            await asyncio.sleep(MINUTE_S)
            used.append(used_s(process))
        assert len(view.pods.objects) == GPUS * NODES
        return [after - before for before, after in pairwise(used)]


def _pod(number: int) -> Object:
    """Return a foreign pod that is already bound."""
    gpu = {"nvidia.com/gpu": "1"}
    container = {"name": "main", "image": "none", "resources": {"requests": gpu, "limits": gpu}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"other-{number}", "namespace": NAMESPACE},
        "spec": {"nodeName": f"fake-{number // GPUS + 1:04}", "containers": [container]},
    }
