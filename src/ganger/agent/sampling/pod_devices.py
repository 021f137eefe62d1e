"""Devices of pods, as the kubelet gave them: its PodResources API on a unix socket (k8s.io/kubelet, podresources/v1).

The kubelet chooses the devices of a pod, and no object of the API server says which. gRPC is spoken by grpclib and the
messages are decoded by protobuf; their fields are declared here, as far as they are read.
"""

import asyncio
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import Message
from grpclib.client import Channel, UnaryUnaryMethod

from ganger.agent.sampling.bounded_call import BoundedCall, UnansweredError
from ganger.agent.sampling.message_types import MessageFields, message_types
from ganger.model.node_health.node_sample import GpuSample, ProbeSample

KUBELET: Final = "kubelet"
"""Name of the probe."""
TIMEOUT_S: Final = 3.0
MAX_PODS: Final = 1_000
"""A kubelet runs 110 by default."""
_METHOD: Final = "/v1.PodResourcesLister/List"
_FIELDS: Final[MessageFields] = {
    "ListPodResourcesRequest": {},
    "ListPodResourcesResponse": {"pod_resources": (1, "PodResources", True)},
    "PodResources": {
        "name": (1, "", False),
        "namespace": (2, "", False),
        "containers": (3, "ContainerResources", True),
    },
    "ContainerResources": {
        "devices": (2, "ContainerDevices", True),
        "dynamic_resources": (5, "DynamicResource", True),
    },
    "ContainerDevices": {"resource_name": (1, "", False), "device_ids": (2, "", True)},
    "DynamicResource": {"claim_resources": (4, "ClaimResource", True)},
    "ClaimResource": {"driver_name": (2, "", False), "device_name": (4, "", False)},
}
_GPU_RESOURCE: Final = re.compile(r"nvidia\.com/(gpu|mig-.*)(\.shared)?")
_GPU_DRIVER: Final = "gpu.nvidia.com"
_DRA_DEVICE: Final = re.compile(r"gpu-(\d{1,3})(-.*)?")
"""Devices of NVIDIA's DRA driver, by their minor number; a part of a GPU has a suffix."""
_REPLICA: Final = "::"
"""Separator before the number of a share, where a device plugin offers a GPU several times."""

PodsOfDevice = Mapping[str, tuple[str, ...]]
"""Pods by the UUID or the index of a GPU."""


@dataclass(frozen=True, slots=True)
class KubeletAnswer:
    """An answer of the kubelet.

    probe: how it answered.
    pods: which pods have which GPU; empty where nothing is known.
    """

    probe: ProbeSample
    pods: PodsOfDevice = field(default_factory=dict)

    def join(self, gpus: Iterable[GpuSample]) -> tuple[GpuSample, ...]:
        """Return the samples of GPUs with the pods that have them."""
        return tuple(
            replace(gpu, pods=pods) if (pods := self.pods.get(gpu.uuid) or self.pods.get(str(gpu.index), ())) else gpu
            for gpu in gpus
        )


class PodDevices:
    """The kubelet of this node. Used by one thread."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._call = BoundedCall(KUBELET, self._list)

    def begin(self) -> None:
        """Begin to ask it."""
        self._call.begin()

    def result(self, deadline_s: float) -> KubeletAnswer:
        """Return its answer, at the deadline at the latest."""
        try:
            return self._call.result(deadline_s)
        except (UnansweredError, TimeoutError):
            return KubeletAnswer(ProbeSample(name=KUBELET))
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the answer, the sample is taken
            text = f"{self._socket}: {str(error) or type(error).__name__}"
            return KubeletAnswer(ProbeSample(name=KUBELET, error=text))

    def _list(self) -> KubeletAnswer:
        began_s = time.monotonic()
        pods = pods_by_device(asyncio.run(_ask(self._socket)))
        return KubeletAnswer(ProbeSample(name=KUBELET, took_ms=round(1000 * (time.monotonic() - began_s))), pods)


def pods_by_device(answer: Any) -> PodsOfDevice:
    """Return which pods have which GPU, by an answer of the kubelet. A MIG device is not joined to its GPU."""
    pods: dict[str, dict[str, None]] = {}
    for pod in answer.pod_resources[:MAX_PODS]:
        for container in pod.containers:
            for device in _gpus_of(container):
                pods.setdefault(device, {})[f"{pod.namespace}/{pod.name}"] = None
    return {device: tuple(names) for device, names in pods.items()}


def _gpus_of(container: Any) -> Iterable[str]:
    for devices in container.devices:
        if _GPU_RESOURCE.fullmatch(devices.resource_name):
            yield from (device.partition(_REPLICA)[0] for device in devices.device_ids)
    for resource in container.dynamic_resources:
        for claim in resource.claim_resources:
            if claim.driver_name == _GPU_DRIVER and (match := _DRA_DEVICE.fullmatch(claim.device_name)):
                yield match[1]


async def _ask(socket: Path) -> Message:
    async with asyncio.timeout(TIMEOUT_S), Channel(path=str(socket)) as channel:
        answer: Message = await UnaryUnaryMethod(channel, _METHOD, REQUEST, RESPONSE)(REQUEST())
        return answer


_TYPES: Final = message_types("v1", _FIELDS)
REQUEST, RESPONSE = _TYPES["ListPodResourcesRequest"], _TYPES["ListPodResourcesResponse"]
