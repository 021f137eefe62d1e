"""A queue of 10,000 pending jobs: it creates no pods; its cost in writes and memory.

On the fake API server. One node of 8 GPUs is allocated to a first job; each of the others asks for all of it. Counted
when every object reports its job as pending, and once more a minute later, when every changed sentence has been
written.
"""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from ruamel.yaml import YAML

from bench.kubernetes.binding import OFFER
from bench.kubernetes.kwok import DEFINITIONS, MANIFESTS, controller, job
from bench.measure import Figure
from tools.fakeapi import FakeApi

JOBS = int(os.environ.get("GANGER_BENCH_JOBS", "10000"))
AT_ONCE = 100
MINUTE_S, WITHIN_S = 60.0, 600.0
WRITES = ("create", "update", "patch", "delete", "deletecollection")


def run() -> list[Figure]:
    with TemporaryDirectory(prefix="ganger-bench-") as folder:
        figures = asyncio.run(_waiting(Path(folder)))
    bars = {"waiting_jobs_pods": 0.0}
    return [
        Figure(
            name=name, unit=unit, samples=(value,), value=value, op="==" if name in bars else None, bar=bars.get(name)
        )
        for name, unit, value in figures
    ]


async def _waiting(folder: Path) -> list[tuple[str, str, float]]:
    """Return figures: name, unit, value."""
    async with FakeApi(tls=True, kubelet=True) as api:
        for name in DEFINITIONS:
            api.put(YAML(typ="safe").load((MANIFESTS / f"{name}.yaml").read_text()))
        api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}, "status": OFFER})
        with controller(api.kubeconfig(folder / "config")) as running:
            api.put(job("first", resources={"gpu": 8}))
            await _until(lambda: len(api.objects("pods")) == 1)
            writes, memory, began_s = _writes(api), _memory_mb(running.process), time.monotonic()
            for number in range(JOBS):
                api.put(job(f"waits-{number}", resources={"gpu": 8}))
                if number % AT_ONCE == 0:
                    await asyncio.sleep(0)
            await _until(lambda: _pending(api) == JOBS)
            took_s, first = time.monotonic() - began_s, _writes(api)
            await asyncio.sleep(MINUTE_S)
            return [
                ("waiting_jobs_pods", "", float(len(api.objects("pods")) - 1)),
                ("waiting_jobs_writes_per_job", "", (first - writes) / JOBS),
                ("waiting_jobs_writes_per_job_and_minute", "", (_writes(api) - first) / JOBS),
                ("waiting_jobs_until_all_are_answered", "s", took_s),
                ("waiting_jobs_memory_per_job", "kB", (_memory_mb(running.process) - memory) / JOBS * 1e3),
            ]


def _pending(api: FakeApi) -> int:
    """Count the objects that report a pending job."""
    return sum(b'"phase":"Pending"' in stored.raw for stored in api.table("gangjobs").objects.values())


def _writes(api: FakeApi) -> int:
    """Count the write requests, those of the lease excepted."""
    written = (count for call, count in api.server.calls.items() if call.verb in WRITES and call.resource != "leases")
    return sum(written)


def _memory_mb(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 1e6


async def _until(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WITHIN_S
    while not holds():
        if time.monotonic() > until_s:
            raise TimeoutError(f"it did not come within {WITHIN_S:g} s")
        await asyncio.sleep(0.5)
