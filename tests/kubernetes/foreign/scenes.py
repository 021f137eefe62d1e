"""Foreign pods on the fake API server, on virtual time: what tests put there, and what they read of it."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ganger.kubeapi.credentials import Credentials
from ganger.model.event import PolicySet
from ganger.model.policy import Preemption, document_of
from tests.kubernetes.admin import credentials_of
from tests.kubernetes.binding import CRD, OFFER
from tools.fakeapi import FakeApi
from tools.skipping import SkippingLoop

GATE = "example.com/wait"
Play = Callable[[FakeApi, Credentials, Path], Awaitable[None]]


def scene(nodes: int, play: Play) -> None:
    async def played(folder: Path) -> None:
        async with FakeApi(kubelet=True) as api:
            for index in range(nodes):
                api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{index}"}, "status": OFFER})
            api.put(CRD)
            await play(api, credentials_of(api), folder)

    with asyncio.Runner(loop_factory=SkippingLoop) as runner, TemporaryDirectory() as folder:
        runner.run(played(Path(folder)))


def group(api: FakeApi, name: str, least: int, queue: str = "", **more: Any) -> None:
    about = {"name": name, "namespace": "default", "labels": {"ganger.dev/queue": queue} if queue else {}}
    spec = {"schedulingPolicy": {"gang": {"minCount": least}}, **more}
    api.put({"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": about, "spec": spec})


def pod(
    api: FakeApi,
    name: str,
    of: str = "",
    gpus: int = 8,
    *,
    is_gated: bool = False,
    queue: str = "",
    metadata: dict[str, Any] | None = None,
    **spec: Any,
) -> None:
    container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    body: dict[str, Any] = {"schedulerName": "ganger", "containers": [container], **spec}
    body |= {"schedulingGroup": {"podGroupName": of}} if of else {}
    body |= {"schedulingGates": [{"name": GATE}]} if is_gated else {}
    about = {"name": name, "namespace": "default", "labels": {"ganger.dev/queue": queue} if queue else {}}
    about |= metadata or {}
    api.put({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": body, "status": {"phase": "Pending"}})


def required(**expression: Any) -> dict[str, Any]:
    """Return the affinity of a pod that requires such a label."""
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def node(api: FakeApi, name: str, **labels: str) -> None:
    about = {"name": name, "labels": {key.replace("_", "/"): value for key, value in labels.items()}}
    api.put({"apiVersion": "v1", "kind": "Node", "metadata": about, "status": OFFER})


def ungate(api: FakeApi, name: str) -> None:
    actual = api.get("pods", name)
    assert actual is not None
    api.put({**actual, "spec": {key: value for key, value in actual["spec"].items() if key != "schedulingGates"}})


def bound(api: FakeApi) -> dict[str, str]:
    every = {item["metadata"]["name"]: item["spec"].get("nodeName", "") for item in api.objects("pods")}
    return {name: node for name, node in every.items() if node}


def gpus_of_nodes(api: FakeApi) -> Counter[str]:
    """Return the requests of pods that have not ended, by node."""
    actual: Counter[str] = Counter()
    for item in api.objects("pods"):
        if item["spec"].get("nodeName") and item.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            limits = item["spec"]["containers"][0]["resources"]["limits"]
            actual[item["spec"]["nodeName"]] += int(limits["nvidia.com/gpu"])
    return actual


def pending_message(api: FakeApi, name: str) -> str:
    actual = api.get("pods", name)
    conditions: Sequence[Any] = (actual or {}).get("status", {}).get("conditions", ())
    return "".join(item["message"] for item in conditions if item["type"] == "PodScheduled" and "message" in item)


def preempt_by_priority(system: Any) -> None:
    with system.loop.view() as state:
        document = document_of(state.document, state.document.queues)
    preemption = Preemption(priority="all")
    system.loop.post(PolicySet(document=replace(document, preemption=preemption), version=1))
