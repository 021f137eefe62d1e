"""Throughput of the Kubernetes client on one core, over TLS: binds sent, and watch events received.

Measured by the CPU seconds of a process that does nothing else. 64 binds are in progress at once; each event is a whole
changed pod, decoded, stored and reported. The fake API server has a process of its own.
"""

import asyncio
import json
import os
import statistics
import time
from collections.abc import Awaitable
from pathlib import Path

from bench.kubeapi.api_server import GPUS, api_server, client
from bench.measure import Figure
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.informer import Informer
from ganger.kubeapi.objects import Pod
from ganger.kubeapi.resources import PODS

BINDS = int(os.environ.get("GANGER_BENCH_PODS", "5000"))
EVENTS = 10 * BINDS
WATCHED = BINDS // 5
BINDS_BAR, EVENTS_BAR = 1_000.0, 20_000.0
UNDER_WAY = 64
RUNS = 3


def run() -> list[Figure]:
    sent, received = [], []
    for _ in range(RUNS):
        with api_server() as server:
            server.call("fill", BINDS, BINDS // GPUS, False)
            sent.append(client(f"from bench.kubeapi.wire import bind; bind({str(server.kubeconfig)!r})"))
        with api_server() as server:
            server.call("fill", WATCHED, 0, True)
            code = f"from bench.kubeapi.wire import follow; follow({str(server.kubeconfig)!r})"
            received.append(client(code, lambda: server.call("touch", EVENTS)))
    return [
        _figure("wire_binds", [BINDS / costs["cpu_s"] for costs in sent], BINDS_BAR),
        _figure("wire_binds_wall", [BINDS / costs["wall_s"] for costs in sent]),
        _figure("wire_events", [EVENTS / costs["cpu_s"] for costs in received], EVENTS_BAR),
        _figure("wire_events_wall", [EVENTS / costs["wall_s"] for costs in received]),
    ]


def bind(kubeconfig: str) -> None:
    """Run the process that binds."""
    print(json.dumps(asyncio.run(_bound(Path(kubeconfig)))))


def follow(kubeconfig: str) -> None:
    """Run the process that follows."""
    print(json.dumps(asyncio.run(_followed(Path(kubeconfig)))))


async def _bound(kubeconfig: Path) -> dict[str, float]:
    async with ApiClient(Credentials.from_kubeconfig([kubeconfig]), PROGRAM) as api:
        waiting = [pod.metadata for pod in await api.list(PODS)]
        assert len(waiting) == BINDS
        queue = iter(enumerate(waiting))

        async def bind_next() -> None:
            for number, metadata in queue:
                await api.bind(metadata, f"gpu-{number // GPUS:05}", {"ganger.dev/gpus": str(number % GPUS)})

        return await _costs(asyncio.gather(*(bind_next() for _ in range(UNDER_WAY))))


async def _followed(kubeconfig: Path) -> dict[str, float]:
    async with ApiClient(Credentials.from_kubeconfig([kubeconfig]), PROGRAM) as api:
        whole, count = asyncio.Event(), 0

        def changed(_old: Pod | None, _new: Pod | None) -> None:
            nonlocal count
            count += 1
            if count == WATCHED + EVENTS:
                whole.set()

        informer = Informer(api, PODS, changed)
        task = asyncio.create_task(informer.run())
        await informer.synced.wait()
        assert len(informer.objects) == WATCHED
        costs = await _costs(whole.wait())
        task.cancel()
        return costs


async def _costs(what: Awaitable[object]) -> dict[str, float]:
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    await what
    return {"cpu_s": time.process_time() - cpu_s, "wall_s": time.perf_counter() - wall_s}


def _figure(name: str, samples: list[float], bar: float | None = None) -> Figure:
    op = None if bar is None else ">="
    return Figure(name=name, unit="1/s", samples=tuple(samples), value=statistics.median(samples), op=op, bar=bar)
