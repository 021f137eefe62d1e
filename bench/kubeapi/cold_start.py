"""Start of a controller on a large cluster: 50,000 pods and 5,000 nodes listed, decoded and stored, over TLS.

CPU seconds and peak memory of a process that does nothing else, imports included, until both stores are complete. The
fake API server has a process of its own.
"""

import asyncio
import json
import os
import time
from pathlib import Path

from bench.kubeapi.api_server import api_server, client, peak_mb
from bench.measure import Figure, median
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.informer import Informer
from ganger.kubeapi.resources import NODES, PODS

MANY_PODS = int(os.environ.get("GANGER_BENCH_PODS", "50000"))
MANY_NODES = MANY_PODS // 10
CPU_BAR_S, MEMORY_BAR_MB = 5.0, 400.0
RUNS = 5


def run() -> list[Figure]:
    with api_server() as server:
        size_bytes = server.call("fill", MANY_PODS, MANY_NODES, True)
        code = f"from bench.kubeapi.cold_start import measure; measure({str(server.kubeconfig)!r})"
        samples = [client(code) for _ in range(RUNS)]
    return [
        median("cold_start_cpu", "s", [sample["cpu_s"] for sample in samples], under=CPU_BAR_S),
        median("cold_start_memory", "MB", [sample["peak_mb"] for sample in samples], under=MEMORY_BAR_MB),
        median("cold_start_wall", "s", [sample["wall_s"] for sample in samples]),
        median("cold_start_pod_size", "bytes", [float(size_bytes)]),
    ]


def measure(kubeconfig: str) -> None:
    """Measure, in the client's process."""
    print(json.dumps(asyncio.run(_measured(Path(kubeconfig)))))


async def _measured(kubeconfig: Path) -> dict[str, float]:
    began_s = time.perf_counter()
    async with ApiClient(Credentials.from_kubeconfig([kubeconfig]), PROGRAM) as api:
        pods = Informer(api, PODS, lambda _, __: None)
        nodes = Informer(api, NODES, lambda _, __: None)
        following = [asyncio.create_task(informer.run()) for informer in (pods, nodes)]
        await pods.synced.wait()
        await nodes.synced.wait()
        figures = {"cpu_s": time.process_time(), "peak_mb": peak_mb(), "wall_s": time.perf_counter() - began_s}
        assert len(pods.objects) == MANY_PODS
        assert len(nodes.objects) == MANY_NODES
        for task in following:
            task.cancel()
        return figures
