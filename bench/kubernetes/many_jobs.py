"""Two thousand jobs of one GPU each on 500 nodes: from the first submission to the last bound pod.

On a real API server with KWOK nodes. Also printed: the controller's write requests per job, and its CPU seconds.

And 800 of them on room for 200, which end after at most ten minutes: how often the status of the object of one that
waits is written before it starts. That is on the fake API server, on virtual time.
"""

import asyncio
import os
import random
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from bench.kubernetes.kwok import (
    NAMESPACE,
    clear,
    cluster_view,
    controller,
    job,
    kwok,
    requests,
    until,
    used_s,
    written,
)
from bench.measure import Figure, median
from ganger.gang_jobs.custom_resources import GANG_JOBS
from ganger.gang_jobs.object_names import key_of
from ganger.kubeapi.credentials import Credentials
from ganger.model.event import StopRequested, Submitted
from ganger.model.job import GpuRequest, Resources
from tests.kubernetes.binding import CRD, OFFER, job_of
from tests.kubernetes.binding import controller as controller_in_process
from tools.fakeapi import Call, FakeApi, Fault
from tools.skipping import SkippingLoop
from tools.testcluster import Cluster

JOBS = int(os.environ.get("GANGER_BENCH_JOBS", "2000"))
NODES = JOBS // 4
BAR_S = 30.0
RUNS = 3
WAITING = 600
WAITING_NODES = 25
USERS = 8
MAX_RUN_S = 600.0
MAX_WRITES = 2
"""One when a job begins to wait, and one when it is known why, or the kind of its reason has changed."""


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
        _most_writes(writes_while_waiting(WAITING_NODES, WAITING)),
    ]


def _most_writes(writes: list[int]) -> Figure:
    print("jobs by writes while they waited:", dict(sorted(Counter(writes).items())))
    most, samples = max(writes), tuple(map(float, writes))
    return Figure(name="many_jobs_waiting_writes", unit="", samples=samples, value=most, op="<=", bar=MAX_WRITES)


def writes_while_waiting(nodes: int, waiting: int) -> list[int]:
    """Return how often the status of each of so many jobs was written while it waited for full nodes.

    All jobs have one GPU, and end some time within `MAX_RUN_S` after their start.
    """
    with asyncio.Runner(loop_factory=SkippingLoop) as runner, TemporaryDirectory() as folder:
        return runner.run(_writes_while_waiting(nodes, waiting, Path(folder)))


async def _writes_while_waiting(nodes: int, waiting: int, folder: Path) -> list[int]:
    now_s, rng, writes, ends_s = asyncio.get_running_loop().time, random.Random(0), Counter[str](), dict[str, float]()
    names = [f"job-{index}.{NAMESPACE}" for index in range(8 * nodes + waiting)]
    async with FakeApi(kubelet=True) as api:
        for index in range(nodes):
            api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{index}"}, "status": OFFER})
        api.put(CRD)
        access = Credentials.from_kubeconfig([api.kubeconfig(folder / "config")])
        async with controller_in_process(access, folder) as led:

            class Counts(Fault):
                def strikes(self, call: Call, rng: random.Random) -> bool:
                    name = f"{call.name}.{call.namespace}"
                    if (call.verb, call.resource) == ("patch", "gangjobs/status") and led.state_of(name) == "pending":
                        writes[name] += 1
                    return False

            api.inject(Counts())
            plain = job_of(1)
            spec = replace(plain.spec, resources=Resources(gpu=GpuRequest(count=1)))
            for index, name in enumerate(names):
                api.put(job(key_of(name).name))
                led.loop.post(Submitted(job=replace(plain, id=name, user=f"user-{index % USERS}", spec=spec)))
            while len(ends_s) < len(names):
                await asyncio.sleep(1.0)
                with led.loop.view() as state:
                    placed = [gang.id for gang in state.gangs.values() if gang.nodes]
                for name in placed:
                    if ends_s.setdefault(name, now_s() + rng.uniform(0.0, MAX_RUN_S)) <= now_s():
                        led.loop.post(StopRequested(gang=name))
    return [writes[name] for name in names[8 * nodes :]]


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
