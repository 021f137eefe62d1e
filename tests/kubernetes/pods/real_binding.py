"""One gang bound under faults, on a real API server and KWOK nodes.

`disrupting` defines the faults. The API server is behind a proxy that injects them, and the controller is a process
that is killed with SIGKILL; pods and nodes are deleted through the API server. Bound pods are read from the raw objects
by a client of its own, past the proxy. The lease of a dead controller is deleted at once: the ten seconds start when
the next controller requests it.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

import aiohttp

from bench.kubernetes.kwok import NAMESPACE, clear, controller, job, kwok, until
from ganger.gang_jobs import object_names
from tests.kubernetes.disrupting import End, draw_schedule, nodes_for, run_life
from tools.fakeapi import Call, Fault, FaultProxy
from tools.testcluster import Cluster
from tools.testcluster.control_plane.admin_client import tls
from tools.testcluster.nodes import fake_nodes

GPUS: Final = 8
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
LEASE: Final = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/ganger-controller"
JOBS: Final = f"/apis/ganger.dev/v1alpha1/namespaces/{NAMESPACE}/gangjobs"
AT_ONCE: Final = {"gracePeriodSeconds": 0}
LONGEST_LINE: Final = 1 << 20


def run_lives(members: int, seeds: list[int]) -> Iterator[End]:
    """Yield the outcome of each gang, one after the other."""
    with kwok(nodes_for(members)) as cluster:
        for seed in seeds:
            yield asyncio.run(_life(seed, members, cluster))


async def _life(seed: int, members: int, cluster: Cluster) -> End:
    rng = random.Random(seed)
    chance = rng.getrandbits(32)
    schedule = draw_schedule(rng, members)
    with TemporaryDirectory(prefix="ganger-bench-") as folder:
        async with FaultProxy(cluster.shape.url, tls(cluster.shape), seed=chance) as proxy, Raw(cluster) as raw:
            end = await run_life(
                schedule, members, _Real(proxy, proxy.kubeconfig(Path(folder) / "config"), raw, members)
            )
            await raw.check()
    await asyncio.to_thread(_clean, cluster)
    return end


def _clean(cluster: Cluster) -> None:
    """Delete everything a gang left behind and restore missing nodes."""
    clear(cluster)
    fake_nodes.create(cluster.shape)
    cluster.wait_nodes()


class Raw:
    """The pods as the API server has them, read without ganger's client.

    Attributes:
        version: number of changes seen.
    """

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
        """All pods."""
        if self._following.done():
            self._following.result()
        return list(self._pods.values())

    async def request(self, method: str, path: str, body: object = None) -> None:
        """Send a request; a deletion may find its object gone."""
        async with self._session.request(method, path, json=body) as answer:
            if answer.status >= 300 and not (method == "DELETE" and answer.status == 404):
                raise RuntimeError(f"{method} {path}: {answer.status}: {await answer.text()}")

    async def check(self) -> None:
        """Raise RuntimeError where the watched pods differ from the listed ones."""
        listed, _ = await self._listed()
        await until(lambda: _nodes(self._pods) == _nodes(listed), "what the API server lists")

    async def _listed(self) -> tuple[dict[str, Any], str]:
        async with self._session.get(PODS, raise_for_status=True) as answer:
            body = await answer.json()
        return {pod["metadata"]["name"]: pod for pod in body["items"]}, body["metadata"]["resourceVersion"]

    async def _follow(self, since: str) -> None:
        """Watch pods, again and again: the server ends a watch whose reader is too slow."""
        while True:
            query = {"watch": "true", "resourceVersion": since}
            timeout = aiohttp.ClientTimeout()
            async with self._session.get(PODS, params=query, raise_for_status=True, timeout=timeout) as answer:
                async for line in answer.content:
                    since = self._apply(json.loads(line))

    def _apply(self, event: Any) -> str:
        """Apply a watch event; return the version up to which the pods are current."""
        pod = event["object"]
        if event["type"] == "ERROR":
            raise RuntimeError(f"the watch of the pods ended: {pod}")
        self.version += 1
        self._pods[pod["metadata"]["name"]] = pod
        if event["type"] == "DELETED":
            del self._pods[pod["metadata"]["name"]]
        return str(pod["metadata"]["resourceVersion"])


def _nodes(pods: dict[str, Any]) -> dict[str, str | None]:
    return {name: pod["spec"].get("nodeName") for name, pod in pods.items()}


@dataclass(slots=True)
class _Acquired(Fault):
    """A rule without effect that records when the lease was first requested."""

    at_s: float | None = None

    def strikes(self, call: Call, rng: random.Random) -> bool:
        """Return False always."""
        if self.at_s is None and call.resource == "leases" and call.verb in ("create", "patch"):
            self.at_s = asyncio.get_running_loop().time()
        return False


class _Real:
    """The real API server, and a controller that reaches it through the proxy."""

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
        """Version of the pods seen."""
        return self._raw.version

    @asynccontextmanager
    async def led(self) -> AsyncIterator[float]:
        """Run a controller that leads for the duration of the context."""
        self._lease.at_s = None
        with controller(self._kubeconfig, quiet=True) as running:
            await running.wait_leading()
            led_s = self._lease.at_s or 0.0
            if not self._is_submitted:
                self._is_submitted, led_s = True, asyncio.get_running_loop().time()
                await self._raw.request("POST", JOBS, self._job)
            yield led_s
            running.process.kill()
        await self._raw.request("DELETE", LEASE)

    def bound(self) -> list[str]:
        """Return the names of pods that have a node and are not being deleted."""
        return [
            pod["metadata"]["name"]
            for pod in self._raw.pods
            if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
        ]

    async def take_away(self, node: int, *, with_pods_alone: bool) -> None:
        """Delete the pods meant for a node, and the node too unless `with_pods_alone`."""
        name = fake_nodes.name_of(node + 1)
        for pod in self._raw.pods:
            if pod["metadata"].get("annotations", {}).get(object_names.NODE) == name:
                await self._raw.request("DELETE", f"{PODS}/{pod['metadata']['name']}", AT_ONCE)
        if not with_pods_alone:
            await self._raw.request("DELETE", f"/api/v1/nodes/{name}")
