"""A real API server whose nodes are only objects (KWOK), and on it one controller in a process of its own.

Used by `many_jobs`, `idle_pending`, `restart_controller` and `waiting_jobs`; not a bench itself. Real are etcd, the API
server, the controller, and everything that goes between them; nodes and kubelets are not: a pod that is bound is said
to run, and nothing runs.
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
from ganger.backends.kubernetes.custom_resources import GANG_JOBS, PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.informer import Informer
from ganger.kubeapi.objects import Object, ObjectMeta
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import PODS, Resource
from tools.testcluster import Cluster, cluster
from tools.testcluster.api import admin

MANIFESTS: Final = Path(ganger.__file__).parent / "manifests"
DEFINITIONS: Final = ("gangjobs", "queues", "schedulingpolicies")
NAMESPACE: Final = "default"
AT_ONCE: Final = 64
"""Requests of ours under way at a time."""
WITHIN_S: Final = 300.0
LOOKS_EVERY_S: Final = 0.05
WRITES: Final = ("POST", "PUT", "PATCH", "APPLY", "DELETE")
WRITTEN: Final = ("pods", "pods/binding", "gangjobs/status", "secrets", "configmaps", "events")
_COUNT = re.compile(r"^apiserver_request_total\{(.*)\} ([0-9.e+]+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@contextmanager
def kwok(nodes: int) -> Iterator[Cluster]:
    """A cluster with so many nodes of 8 GPUs, that knows GangJobs."""
    with cluster(f"bench-{os.getpid()}", fake_nodes=nodes) as found:
        for name in DEFINITIONS:
            found.kubectl("apply", "-f", str(MANIFESTS / f"{name}.yaml"))
        found.kubectl("wait", "--for=condition=Established", *(f"crd/{name}.ganger.dev" for name in DEFINITIONS))
        yield found


@dataclass(frozen=True)
class Controller:
    """A controller, and what it says."""

    process: psutil.Process
    log: Path

    @property
    def leads(self) -> bool:
        """Whether it has begun to."""
        return " serves " in self.log.read_text()

    async def comes(self) -> None:
        """Until it leads. RuntimeError: it ended, or does not come to it; what it said."""
        try:
            await until(lambda: self.leads or not self._lives, "a leader")
        except TimeoutError:
            raise RuntimeError(f"no leader within {WITHIN_S:g} s; it said: {self._last}") from None
        if not self.leads:
            raise RuntimeError(f"the controller ended before it led; it said: {self._last}")

    @property
    def _lives(self) -> bool:
        return self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE

    @property
    def _last(self) -> str:
        return self.log.read_text()[-3000:]


@contextmanager
def controller(kubeconfig: Path, *, quiet: bool = False) -> Iterator[Controller]:
    """Inside it a controller runs. What it said is printed at the end, unless `quiet`."""
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as name, socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        held.close()
        command = [sys.executable, "-P", "-m", "ganger.controller", "--home", name, "--launcher-address", address]
        command += ["--kubeconfig", str(kubeconfig), "--namespace", NAMESPACE, "--image", "none"]
        log = Path(name) / "log"
        with log.open("wb") as out, subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out) as its:
            try:
                yield Controller(psutil.Process(its.pid), log)
            finally:
                its.terminate()
                its.wait()
                print("" if quiet else log.read_text()[-2000:], end="")


class Seen:
    """What of the cluster's pods and GangJobs is seen, and a way to make more."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self.pods = Informer(api, PODS, lambda _old, _new: None)
        self.jobs = Informer(api, GANG_JOBS, lambda _old, _new: None)

    async def make(self, resource: Resource[Any], bodies: Iterable[Object]) -> None:
        """All of them, some at a time."""
        rest = iter(bodies)

        async def some() -> None:
            for body in rest:
                await self._api.create(resource, body)

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))

    async def change(self, resource: Resource[Any], name: str, fields: Object) -> None:
        """Change fields of one."""
        await self._api.merge(ObjectRef(resource, NAMESPACE, name), fields)

    async def take_away(self, resource: Resource[Any], name: str) -> None:
        """Delete one, if it is there."""
        await self._api.delete(resource, ObjectMeta(name=name, namespace=NAMESPACE))

    @property
    def bound(self) -> int:
        """How many pods have a node."""
        return sum(bool(pod.spec.node_name) for pod in self.pods.objects.values())


@asynccontextmanager
async def seen(of: Cluster) -> AsyncIterator[Seen]:
    """Inside it pods and GangJobs are followed."""
    async with ApiClient(Credentials.from_kubeconfig([of.kubeconfig]), PROGRAM) as api:
        its = Seen(api)
        following = [asyncio.create_task(each.run()) for each in (its.pods, its.jobs)]
        await its.pods.synced.wait()
        await its.jobs.synced.wait()
        try:
            yield its
        finally:
            for task in following:
                task.cancel()


async def until(holds: Callable[[], Any], what: str) -> None:
    """TimeoutError: it never came to be."""
    until_s = time.monotonic() + WITHIN_S
    while not holds():
        if time.monotonic() > until_s:
            raise TimeoutError(f"{what} did not come within {WITHIN_S:g} s")
        await asyncio.sleep(LOOKS_EVERY_S)


def job(name: str, **spec: Any) -> Object:
    """A GangJob."""
    about = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "ganger.dev/v1alpha1", "kind": "GangJob", "metadata": about, "spec": {"run": "true", **spec}}


def requests(of: Cluster) -> Counter[tuple[str, str]]:
    """What the API server was asked so far, by everybody: (verb, resource with its sub-resource)."""
    with admin(of.shape) as client:
        text = client.get("/metrics").raise_for_status().text
    found = Counter[tuple[str, str]]()
    for labels, count in _COUNT.findall(text):
        said = dict(_LABEL.findall(labels))
        what = "/".join(filter(None, (said["resource"], said["subresource"])))
        found[said["verb"], what] += int(float(count))
    return found


def written(of: Cluster, before: Counter[tuple[str, str]]) -> Counter[tuple[str, str]]:
    """What controllers have asked to be written of jobs since: nobody else writes it."""
    asked = requests(of) - before
    return Counter({what: count for what, count in asked.items() if what[0] in WRITES and what[1] in WRITTEN})


def clear(of: Cluster) -> None:
    """Take away all GangJobs, and then what pods they left, at once, some thousand of which take a while.

    Their Secrets go with them, by the cluster's own collector: it is waited for, or the next run would compete with it.
    """
    kinds = ("apis/ganger.dev/v1alpha1", "gangjobs"), ("api/v1", "pods")
    with admin(of.shape) as client:
        for group, plural in kinds:
            path = f"/{group}/namespaces/{NAMESPACE}/{plural}"
            while client.get(path, params={"limit": 1}).raise_for_status().json()["items"]:
                with suppress(httpx2.TransportError):  # the server ends what takes a minute; so far it was done
                    client.request("DELETE", path, json={"gracePeriodSeconds": 0}, timeout=WITHIN_S)
        secrets = f"/api/v1/namespaces/{NAMESPACE}/secrets"
        until_s = time.monotonic() + WITHIN_S
        while client.get(secrets, params={"limit": 1}).raise_for_status().json()["items"]:
            if time.monotonic() > until_s:
                raise TimeoutError(f"Secrets of jobs that are gone were there {WITHIN_S:g} s later")
            time.sleep(LOOKS_EVERY_S)


def used_s(process: psutil.Process) -> float:
    """CPU seconds that a process has used so far."""
    used = process.cpu_times()
    return float(used.user + used.system)
