"""A gang of 512 pods bound on a real API server while things go wrong, fifty times: always whole or nowhere.

The first fifty schedules of `bind_faults`, on KWOK nodes. Real are the API server, before which stands a proxy that
lets the faults strike, and the controller, a process that is killed with SIGKILL; pods and nodes are deleted by way of
the API server. What is bound is read from the raw objects by a reader of the bench's own, past the proxy. The lease of
a dead controller is taken away at once: ten seconds are counted from when the next one asks for it.

Lives are kept as those of `bind_faults` are.
"""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

import aiohttp

from bench.bind_faults import figures, lives
from bench.disrupting import End, drawn, lived, nodes_for
from bench.kwok import NAMESPACE, clear, controller, job, kwok, until
from bench.measure import Figure
from ganger.backends.kubernetes import object_names
from tools.fakeapi import Call, Fault, FaultProxy
from tools.testcluster import Cluster, fake_nodes
from tools.testcluster.api import tls

LIVES = int(os.environ.get("GANGER_BENCH_LIVES", "50"))
MEMBERS = int(os.environ.get("GANGER_BENCH_PODS", "512"))
GPUS: Final = 8
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
LEASE: Final = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/ganger-controller"
JOBS: Final = f"/apis/ganger.dev/v1alpha1/namespaces/{NAMESPACE}/gangjobs"
AT_ONCE: Final = {"gracePeriodSeconds": 0}
LONGEST_LINE: Final = 1 << 20


def run() -> list[Figure]:
    return figures("bind_faults_real", lives(LIVES, MEMBERS, partial(lived_through, MEMBERS)))


def lived_through(members: int, seeds: list[int]) -> Iterator[End]:
    """What becomes of gangs of so many pods, one after the other."""
    with kwok(nodes_for(members)) as cluster:
        for seed in seeds:
            end = asyncio.run(_life(seed, members, cluster))
            print(f"life {seed}: {end}", flush=True)
            yield end


async def _life(seed: int, members: int, cluster: Cluster) -> End:
    rng = random.Random(seed)
    chance = rng.getrandbits(32)
    schedule = drawn(rng, members)
    with TemporaryDirectory(prefix="ganger-bench-") as folder:
        async with FaultProxy(cluster.shape.url, tls(cluster.shape), seed=chance) as proxy, Raw(cluster) as raw:
            end = await lived(schedule, members, _Real(proxy, proxy.kubeconfig(Path(folder) / "config"), raw, members))
            await raw.check()
    await asyncio.to_thread(_clean, cluster)
    return end


def _clean(cluster: Cluster) -> None:
    """Nothing is left of a life, and no node lacks."""
    clear(cluster)
    fake_nodes.create(cluster.shape)
    cluster.wait_nodes()


class Raw:
    """Pods as the API server has them, followed by nothing of ganger's. version: how many changes were seen."""

    def __init__(self, cluster: Cluster) -> None:
        self._session = aiohttp.ClientSession(
            cluster.shape.url,
            connector=aiohttp.TCPConnector(ssl=tls(cluster.shape)),
            read_bufsize=LONGEST_LINE,
        )
        self._pods: dict[str, Any] = {}
        self._following: asyncio.Task[None]
        self.version = 0

    async def __aenter__(self) -> Self:
        self._pods, since = await self._listed()
        self._following = asyncio.create_task(self._follow(since))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
        await self._session.close()

    @property
    def pods(self) -> list[Any]:
        """All of them."""
        if self._following.done():
            self._following.result()
        return list(self._pods.values())

    async def ask(self, method: str, path: str, body: object = None) -> None:
        """Have something done; if it is a deletion, of what may be gone already."""
        async with self._session.request(method, path, json=body) as answer:
            if answer.status >= 300 and not (method == "DELETE" and answer.status == 404):
                raise RuntimeError(f"{method} {path}: {answer.status}: {await answer.text()}")

    async def check(self) -> None:
        """RuntimeError: what was followed is not what the API server lists."""
        there, _ = await self._listed()
        await until(lambda: _nodes(self._pods) == _nodes(there), "what the API server lists")

    async def _listed(self) -> tuple[dict[str, Any], str]:
        async with self._session.get(PODS, raise_for_status=True) as answer:
            found = await answer.json()
        return {pod["metadata"]["name"]: pod for pod in found["items"]}, found["metadata"]["resourceVersion"]

    async def _follow(self, since: str) -> None:
        """Again and again: the server ends a watch whose reader is behind."""
        while True:
            query = {"watch": "true", "resourceVersion": since}
            timeout = aiohttp.ClientTimeout()
            async with self._session.get(PODS, params=query, raise_for_status=True, timeout=timeout) as answer:
                async for line in answer.content:
                    since = self._heard(json.loads(line))

    def _heard(self, news: Any) -> str:
        """The version as of which what is known is right."""
        pod = news["object"]
        if news["type"] == "ERROR":
            raise RuntimeError(f"the watch of the pods ended: {pod}")
        self.version += 1
        self._pods[pod["metadata"]["name"]] = pod
        if news["type"] == "DELETED":
            del self._pods[pod["metadata"]["name"]]
        return str(pod["metadata"]["resourceVersion"])


def _nodes(pods: dict[str, Any]) -> dict[str, str | None]:
    return {name: pod["spec"].get("nodeName") for name, pod in pods.items()}


@dataclass(slots=True)
class _Acquired(Fault):
    """A rule that strikes nothing, and notes when the lease was first asked for."""

    at_s: float | None = None

    def strikes(self, call: Call, rng: random.Random) -> bool:
        """Whether it does this time: it never does."""
        if self.at_s is None and call.resource == "leases" and call.verb in ("create", "patch"):
            self.at_s = asyncio.get_running_loop().time()
        return False


class _Real:
    """The real API server, and a controller that asks it by way of the proxy."""

    slowness = 30.0

    def __init__(self, proxy: FaultProxy, kubeconfig: Path, raw: Raw, members: int) -> None:
        self._kubeconfig, self._raw = kubeconfig, raw
        needs = {"gpu": GPUS, "cpu": "100m"}
        self._job = job("big", nodes=members, resources=needs, retry={"max": 100})
        self._is_submitted = False
        self.inject = proxy.inject
        self._lease = _Acquired()
        self.inject(self._lease)

    @property
    def version(self) -> int:
        """Of the pods that were seen."""
        return self._raw.version

    @asynccontextmanager
    async def led(self) -> AsyncIterator[float]:
        """Inside it a controller leads."""
        self._lease.at_s = None
        with controller(self._kubeconfig, quiet=True) as its:
            await its.comes()
            led_s = self._lease.at_s or 0.0
            if not self._is_submitted:
                self._is_submitted, led_s = True, asyncio.get_running_loop().time()
                await self._raw.ask("POST", JOBS, self._job)
            yield led_s
            its.process.kill()
        await self._raw.ask("DELETE", LEASE)

    def bound(self) -> list[str]:
        """Names of the pods that have a node and are not being deleted."""
        return [
            pod["metadata"]["name"]
            for pod in self._raw.pods
            if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
        ]

    async def take_away(self, node: int, *, with_pods_alone: bool) -> None:
        """Delete the pods that are meant for a node, and the node with them unless they go alone."""
        name = fake_nodes.name_of(node + 1)
        for pod in self._raw.pods:
            if pod["metadata"].get("annotations", {}).get(object_names.NODE) == name:
                await self._raw.ask("DELETE", f"{PODS}/{pod['metadata']['name']}", AT_ONCE)
        if not with_pods_alone:
            await self._raw.ask("DELETE", f"/api/v1/nodes/{name}")
