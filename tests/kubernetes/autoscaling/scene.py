"""A controller with an autoscaling policy against the fake API server, on virtual time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ganger.controller.autoscaling.node_requests import NodeOperations
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.credentials import Credentials
from ganger.model.event import PolicySet
from ganger.model.policy import Autoscaling
from ganger.model.units import MINUTE_MS
from tests.kubernetes.admin import credentials_of
from tests.kubernetes.binding import CRD, OFFER, Controlled
from tests.kubernetes.jobs.test_gang_jobs import reconciling_controller
from tests.kubernetes.policy.test_policy_objects import definition
from tools.fakeapi import FakeApi
from tools.skipping import SkippingLoop

CLASS = "check-capacity.autoscaling.x-k8s.io"
AFTER = Autoscaling(after_ms=MINUTE_MS, provisioning_class=CLASS)
LABELS = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}


def request_crd(version: str = "v1") -> Any:
    """Return the definition of ProvisioningRequests."""
    created = definition("provisioningrequests", "ProvisioningRequest")
    created["metadata"]["name"] = "provisioningrequests.autoscaling.x-k8s.io"
    created["spec"] |= {"group": "autoscaling.x-k8s.io", "scope": "Namespaced"}
    created["spec"]["versions"][0]["name"] = version
    return created


@dataclass
class Scene:
    """The API server, and how to run a controller on it."""

    api: FakeApi
    access: Credentials
    folder: Path

    def add_node(self, name: str, **labels: str) -> None:
        """Add a node with eight GPUs."""
        metadata = {"name": name, "labels": LABELS | labels}
        self.api.put({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": OFFER})

    @asynccontextmanager
    async def leads(self, autoscaling: Autoscaling = AFTER) -> AsyncIterator[Controlled]:
        """Run a controller whose policy requests nodes."""
        async with (
            ApiClient(self.access, PROGRAM) as api,
            reconciling_controller(self.access, self.folder) as system,
        ):
            with system.loop.view() as state:
                document, version = replace(state.document, autoscaling=autoscaling), state.policy_version + 1
            await asyncio.wrap_future(system.loop.post(PolicySet(document=document, version=version, by="test")))
            requests = NodeOperations(api, system.loop, system.backend, lambda: True)
            running = asyncio.create_task(requests.run())
            try:
                yield system
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    def requests(self) -> list[Any]:
        """Return the ProvisioningRequests."""
        return self.api.objects("provisioningrequests")

    def answer(self, type_: str, message: str, time: str = "2026-01-01T00:02:00Z") -> None:
        """Answer the only request as the autoscaler does."""
        (request,) = self.requests()
        condition = {"type": type_, "status": "True", "message": message, "reason": type_, "lastTransitionTime": time}
        self.api.put(request | {"status": {"conditions": [condition]}})

    def placeholders(self) -> list[Any]:
        """Return the placeholder pods."""
        pods = self.api.objects("pods")
        return [pod for pod in pods if pod["spec"]["containers"][0]["name"] == "ganger-placeholder"]

    def bound(self) -> list[str]:
        """Return the nodes of the gang's pods."""
        pods = [pod for pod in self.api.objects("pods") if pod["spec"].get("schedulerName") == "ganger"]
        return sorted(pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName"))

    def message(self) -> str:
        """Return the pending reason of the job."""
        found: str = (self.api.get("gangjobs", "big") or {}).get("status", {}).get("message", "")
        return found


Play = Callable[[Scene], Awaitable[None]]


def play(played: Play, *definitions: Any) -> None:
    """Play on one node, with these definitions beside that of GangJobs."""

    async def whole(folder: Path) -> None:
        async with FakeApi(kubelet=True) as api:
            for created in (CRD, *definitions):
                api.put(created)
            scene = Scene(api, credentials_of(api), folder)
            scene.add_node("n0")
            await played(scene)

    with asyncio.Runner(loop_factory=SkippingLoop) as runner, TemporaryDirectory() as folder:
        runner.run(whole(Path(folder)))
