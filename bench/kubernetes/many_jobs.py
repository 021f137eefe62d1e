"""Two thousand jobs of one GPU each on 500 nodes: from the first submission to the last bound pod.

On a real API server with KWOK nodes. Also printed: the controller's write requests per job, and its CPU seconds.
"""

import asyncio
import os
import time

import psutil

from bench.kubernetes.kwok import clear, cluster_view, controller, job, kwok, requests, until, used_s, written
from bench.measure import Figure, median
from ganger.gang_jobs.custom_resources import GANG_JOBS
from tools.testcluster import Cluster

JOBS = int(os.environ.get("GANGER_BENCH_JOBS", "2000"))
NODES = JOBS // 4
BAR_S = 30.0
RUNS = 3


def run() -> list[Figure]:
    took, writes, cpu = [], [], []
    with kwok(NODES) as cluster:
        for _ in range(RUNS):
            before = requests(cluster)
            with controller(cluster.kubeconfig) as leader:
                seconds, cpu_s = asyncio.run(_submitted(cluster, leader.process))
            requested = written(cluster, before)
            print(
                "; ".join(
                    f"{verb} {resource}: {count / JOBS:.2f} a job"
                    for (verb, resource), count in requested.most_common()
                )
            )
            took.append(seconds)
            cpu.append(cpu_s)
            writes.append(requested.total() / JOBS)
            clear(cluster)
    return [
        Figure(name="many_jobs", unit="s", samples=tuple(took), value=sorted(took)[RUNS // 2], op="<=", bar=BAR_S),
        median("many_jobs_writes_per_job", "", writes),
        median("many_jobs_controller_cpu", "s", cpu),
    ]


async def _submitted(cluster: Cluster, process: psutil.Process) -> tuple[float, float]:
    """Return the seconds until all pods are bound, and the controller's CPU seconds of these."""
    async with cluster_view(cluster) as view:
        await view.make(GANG_JOBS, [job("first", resources={"gpu": 1})])
        await until(lambda: view.bound == 1, "the first pod, bound")
        began_s, before_s = time.perf_counter(), used_s(process)
        await view.make(GANG_JOBS, (job(f"small-{number}", resources={"gpu": 1}) for number in range(JOBS)))
        print(f"submitted in {time.perf_counter() - began_s:.1f} s")
        await until(lambda: view.bound == JOBS + 1, "the last pod, bound")
        return time.perf_counter() - began_s, used_s(process) - before_s
