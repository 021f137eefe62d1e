"""15,000 jobs of Kueue's baseline shape in 30 queues: jobs completed per second by ganger, and by Kueue.

On a real API server with KWOK nodes, one after the other, with the same Jobs: ganger queues and places their pods; or
Kueue admits the Jobs and kube-scheduler places the pods. A pod that runs is reported as succeeded when its time is
over. The rate is that from the first creation to the last completed pod; a run that GANGER_BENCH_PART_S cuts off counts
what was completed by then, and says so. GANGER_BENCH_SHARE (1.0) is the share of the jobs of each queue.
GANGER_BENCH_WORLDS (ganger,kueue) picks one.
"""

import asyncio
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import psutil

from bench.chaos.raw_objects import JOBS, PODS, RawObjects
from bench.kubernetes.kwok import controller, kwok, used_s
from bench.measure import Figure
from bench.scale.baseline_shape import JOB_SHAPES, QUEUES, JobShape, ganger_objects, kueue_objects
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.informer import Informer
from ganger.kubeapi.objects import Pod
from ganger.kubeapi.resources import PODS as POD_RESOURCE
from tools.operators import OPERATORS, is_built, program_of, running_operator
from tools.testcluster import Cluster

SHARE: Final = float(os.environ.get("GANGER_BENCH_SHARE", "1"))
PART_S: Final = float(os.environ.get("GANGER_BENCH_PART_S", "inf"))
WORLDS: Final = os.environ.get("GANGER_BENCH_WORLDS", "ganger,kueue").split(",")
GANGER, KUEUE = "ganger", "kueue"
NODES: Final = 16
AT_ONCE: Final = 32
PRINTS_S: Final = 30.0


@dataclass(slots=True)
class Run:
    """One run.

    Attributes:
        completed_s: times at which pods were reported as succeeded, since the first creation.
        cpu_s: CPU seconds of each program.
        peak_bytes: greatest memory of each program.
    """

    created: int = 0
    running: int = 0
    completed_s: list[float] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Completed jobs per second."""
        return len(self.completed_s) / self.completed_s[-1]


def run() -> list[Figure]:
    if KUEUE in WORLDS and not is_built("kueue"):
        raise RuntimeError("Kueue is not built: `make operators` builds it")
    runs = {world: _run(world) for world in WORLDS}
    figures = [
        Figure(name=f"kueue_baseline_{world}", unit="jobs/s", samples=(run.rate,), value=run.rate)
        for world, run in runs.items()
    ]
    if len(runs) > 1:
        ratio = runs[GANGER].rate / runs[KUEUE].rate
        figures.append(
            Figure(name="kueue_baseline", unit="of Kueue's", samples=(ratio,), value=ratio, op=">=", bar=1.0)
        )
    return figures


def _run(world: str) -> Run:
    with kwok(NODES) as cluster, _scheduler(world, cluster) as programs:
        run = asyncio.run(_all_jobs(cluster, world, programs))
        for name, process in programs.items():
            run.cpu_s[name] = used_s(process) - run.cpu_s[name]
    total = len(QUEUES) * sum(map(_count, JOB_SHAPES))
    part = "" if len(run.completed_s) == total else f", cut off of {total}"
    used = ", ".join(
        f"{name} {run.cpu_s[name]:.1f} CPU s and {run.peak_bytes[name] / 1e6:.0f} MB" for name in run.cpu_s
    )
    print(f"{world}: {len(run.completed_s)} jobs in {run.completed_s[-1]:.0f} s{part}: {run.rate:.1f}/s; {used}")
    return run


@contextmanager
def _scheduler(world: str, cluster: Cluster) -> Iterator[dict[str, psutil.Process]]:
    """Run the programs that schedule; yield them by name."""
    if world == GANGER:
        _apply(cluster, ganger_objects())
        with controller(cluster.kubeconfig) as leader:
            asyncio.run(leader.wait_leading())
            yield {GANGER: leader.process}
        return
    # Without its webhooks it is faster: the Jobs are created suspended, as those would make them.
    with running_operator(replace(OPERATORS[KUEUE], webhook_groups=("none",)), cluster, is_last=True) as log:
        _apply(cluster, kueue_objects())
        scheduler = cluster.pid("kube-scheduler")
        assert scheduler is not None
        yield {KUEUE: program_of(log), "kube-scheduler": psutil.Process(scheduler)}


def _apply(cluster: Cluster, objects: Iterator[dict[str, Any]]) -> None:
    cluster.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))


def _count(shape: JobShape) -> int:
    return max(1, round(shape.count * SHARE))


async def _all_jobs(cluster: Cluster, world: str, programs: dict[str, psutil.Process]) -> Run:
    """Create all jobs, and complete their pods when their time is over."""
    run = Run(cpu_s={name: used_s(process) for name, process in programs.items()})
    total, runs_s = len(QUEUES) * sum(map(_count, JOB_SHAPES)), {shape.name: shape.runs_s for shape in JOB_SHAPES}
    loop, at_once, began_s = asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE), time.monotonic()
    over = asyncio.Event()
    async with (
        RawObjects(cluster) as objects,
        ApiClient(Credentials.from_kubeconfig([cluster.kubeconfig]), PROGRAM) as api,
        asyncio.TaskGroup() as group,
    ):

        async def complete(name: str) -> None:
            if not await objects.merge(f"{PODS}/{name}/status", {"status": {"phase": "Succeeded"}}):
                return  # it was preempted
            run.completed_s.append(time.monotonic() - began_s)
            if len(run.completed_s) == total:
                over.set()

        def on_change(before: Pod | None, after: Pod | None) -> None:
            is_running = after is not None and after.status.phase == "Running"
            if after is not None and is_running and (before is None or before.status.phase != "Running"):
                run.running += 1
                name, for_s = after.metadata.name, runs_s[after.metadata.labels["bench"]]
                loop.call_later(for_s, lambda: group.create_task(complete(name)))

        async def create(queue: str, shape: JobShape) -> None:
            for number in range(_count(shape)):
                await asyncio.sleep(began_s + number * shape.every_s - time.monotonic())
                async with at_once:
                    await objects.create(JOBS, shape.job(queue, number, by_kueue=world == KUEUE))
                run.created += 1

        informer = Informer(api, POD_RESOURCE, on_change)
        tasks = [group.create_task(informer.run()), group.create_task(_watch(run, programs, began_s))]
        await informer.synced.wait()
        tasks += [group.create_task(create(queue, shape)) for _, queue in QUEUES for shape in JOB_SHAPES]
        try:
            await asyncio.wait_for(over.wait(), None if float("inf") == PART_S else PART_S)
        except TimeoutError:
            print(f"cut off after {PART_S:.0f} s")
        for task in tasks:
            task.cancel()
    return run


async def _watch(run: Run, programs: dict[str, psutil.Process], began_s: float) -> None:
    """Sample memory every second, and print the progress."""
    printed_s = began_s
    while True:
        await asyncio.sleep(1)
        for name, process in programs.items():
            run.peak_bytes[name] = max(run.peak_bytes.get(name, 0), int(process.memory_info().rss))
        if time.monotonic() - printed_s > PRINTS_S:
            printed_s = time.monotonic()
            text = f"{run.created} jobs created, {run.running} pods ran, {len(run.completed_s)} completed"
            print(f"  {printed_s - began_s:.0f} s: {text}", flush=True)
