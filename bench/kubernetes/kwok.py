"""A real API server whose nodes are only objects (KWOK), and one controller in a process of its own; not a bench.

etcd, the API server, the controller and everything between them are real; nodes and kubelets are not: a bound pod is
reported as running, but nothing runs.
"""

import asyncio
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
import psutil

import ganger
from bench.measure import ROOT
from ganger.gang_jobs.custom_resources import GANG_JOBS, PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.informer import Informer
from ganger.kubeapi.objects import Object, ObjectMeta
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import PODS, Resource
from tools.testcluster import Cluster, cluster
from tools.testcluster.control_plane.admin_client import admin

MANIFESTS: Final = Path(ganger.__file__).parent / "manifests"
DEFINITIONS: Final = ("gangjobs", "queues", "schedulingpolicies")
NAMESPACE: Final = "default"
AT_ONCE: Final = 64
"""The bench's own requests in progress at a time."""
WITHIN_S: Final = 300.0
POLL_S: Final = 0.05
WRITES: Final = ("POST", "PUT", "PATCH", "APPLY", "DELETE")
WRITTEN: Final = ("pods", "pods/binding", "gangjobs/status", "secrets", "configmaps", "events")
_COUNT = re.compile(r"^apiserver_request_total\{(.*)\} ([0-9.e+]+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@contextmanager
def kwok(nodes: int) -> Iterator[Cluster]:
    """Run a cluster with that many nodes of 8 GPUs that serves GangJobs."""
    with cluster(f"bench-{os.getpid()}", fake_nodes=nodes) as test_cluster:
        for name in (*DEFINITIONS, "priority-class"):
            test_cluster.kubectl("apply", "-f", str(MANIFESTS / f"{name}.yaml"))
        test_cluster.kubectl("wait", "--for=condition=Established", *(f"crd/{name}.ganger.dev" for name in DEFINITIONS))
        yield test_cluster


@dataclass(frozen=True)
class Controller:
    """A controller process and its log."""

    process: psutil.Process
    log: Path

    @property
    def leads(self) -> bool:
        """True once it leads."""
        return " serves " in self.log.read_text()

    @property
    def stands_by(self) -> bool:
        """True once it has a warm cache."""
        return "standing by" in self.log.read_text()

    async def wait_leading(self) -> None:
        """Wait until it leads.

        Raises RuntimeError with the end of its log if it exits or does not lead in time.
        """
        try:
            await until(lambda: self.leads or not self.runs, "a leader")
        except TimeoutError:
            raise RuntimeError(f"no leader within {WITHIN_S:g} s; its log: {self._log_tail}") from None
        if not self.leads:
            raise RuntimeError(f"the controller ended before it led; its log: {self._log_tail}")

    @property
    def runs(self) -> bool:
        """True until the process has ended."""
        return self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE

    @property
    def _log_tail(self) -> str:
        return self.log.read_text()[-3000:]


@contextmanager
def controller(kubeconfig: Path, *, quiet: bool = False) -> Iterator[Controller]:
    """Run a controller for the duration of the context; print the end of its log unless `quiet`."""
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as name, socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        probe.close()
        command = [sys.executable, "-P", "-m", "ganger.controller", "--home", name, "--launcher-address", address]
        command += ["--kubeconfig", str(kubeconfig), "--namespace", NAMESPACE, "--image", "none"]
        log = Path(name) / "log"
        with log.open("wb") as out, subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out) as process:
            try:
                yield Controller(psutil.Process(process.pid), log)
            finally:
                process.terminate()
                process.wait()
                print("" if quiet else log.read_text()[-2000:], end="")


class ClusterView:
    """The cluster's pods and GangJobs, kept current, and requests to create, change and delete objects."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self.pods = Informer(api, PODS, lambda _old, _new: None)
        self.jobs = Informer(api, GANG_JOBS, lambda _old, _new: None)

    async def make(self, resource: Resource[Any], bodies: Iterable[Object]) -> None:
        """Create all objects, several at a time."""
        remaining = iter(bodies)

        async def create_next() -> None:
            for body in remaining:
                await self._api.create(resource, body)

        await asyncio.gather(*(create_next() for _ in range(AT_ONCE)))

    async def change(self, resource: Resource[Any], name: str, fields: Object) -> None:
        """Change fields of one object."""
        await self._api.merge(ObjectRef(resource, NAMESPACE, name), fields)

    async def delete(self, resource: Resource[Any], name: str) -> None:
        """Delete one object, if it exists."""
        await self._api.delete(resource, ObjectMeta(name=name, namespace=NAMESPACE))

    @property
    def bound(self) -> int:
        """Number of pods that have a node."""
        return sum(bool(pod.spec.node_name) for pod in self.pods.objects.values())


@asynccontextmanager
async def cluster_view(test_cluster: Cluster) -> AsyncIterator[ClusterView]:
    """Keep pods and GangJobs current for the duration of the context."""
    async with ApiClient(Credentials.from_kubeconfig([test_cluster.kubeconfig]), PROGRAM) as api:
        view = ClusterView(api)
        tasks = [asyncio.create_task(informer.run()) for informer in (view.pods, view.jobs)]
        await view.pods.synced.wait()
        await view.jobs.synced.wait()
        try:
            yield view
        finally:
            for task in tasks:
                task.cancel()


async def until(holds: Callable[[], Any], what: str) -> None:
    """Wait until the condition holds. Raises TimeoutError."""
    until_s = time.monotonic() + WITHIN_S
    while not holds():
        if time.monotonic() > until_s:
            raise TimeoutError(f"{what} did not come within {WITHIN_S:g} s")
        await asyncio.sleep(POLL_S)


def job(name: str, **spec: Any) -> Object:
    """Return a GangJob."""
    about = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "ganger.dev/v1alpha1", "kind": "GangJob", "metadata": about, "spec": {"run": "true", **spec}}


def requests(test_cluster: Cluster) -> Counter[tuple[str, str]]:
    """Count the requests to the API server so far, of all clients, by verb and resource with subresource."""
    with admin(test_cluster.shape) as client:
        text = client.get("/metrics").raise_for_status().text
    counts = Counter[tuple[str, str]]()
    for labels, count in _COUNT.findall(text):
        label = dict(_LABEL.findall(labels))
        resource = "/".join(filter(None, (label["resource"], label["subresource"])))
        counts[label["verb"], resource] += int(float(count))
    return counts


def written(test_cluster: Cluster, before: Counter[tuple[str, str]]) -> Counter[tuple[str, str]]:
    """Count the requests since `before` that write what only controllers write for jobs."""
    requested = requests(test_cluster) - before
    return Counter(
        {request: count for request, count in requested.items() if request[0] in WRITES and request[1] in WRITTEN}
    )


def clear(test_cluster: Cluster) -> None:
    """Delete all GangJobs and then the pods they left; some thousand of them take a while.

    Their Secrets are deleted by the cluster's own garbage collector: this waits for it, or the next run would compete
    with it.
    """
    kinds = ("apis/ganger.dev/v1alpha1", "gangjobs"), ("api/v1", "pods")
    with admin(test_cluster.shape) as client:
        for group, plural in kinds:
            path = f"/{group}/namespaces/{NAMESPACE}/{plural}"
            while client.get(path, params={"limit": 1}).raise_for_status().json()["items"]:
                with suppress(
                    httpx2.TransportError
                ):  # the server ends requests after a minute; what it has done by then counts
                    client.request("DELETE", path, json={"gracePeriodSeconds": 0}, timeout=WITHIN_S)
        secrets = f"/api/v1/namespaces/{NAMESPACE}/secrets"
        until_s = time.monotonic() + WITHIN_S
        while client.get(secrets, params={"limit": 1}).raise_for_status().json()["items"]:
            if time.monotonic() > until_s:
                raise TimeoutError(f"Secrets of deleted jobs still exist after {WITHIN_S:g} s")
            time.sleep(POLL_S)


def used_s(process: psutil.Process) -> float:
    """Return the CPU seconds that a process has used so far."""
    used = process.cpu_times()
    return float(used.user + used.system)
