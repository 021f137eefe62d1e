"""What a Node object offers, in ganger's terms, before what others use of it. Pure; called by `nodes`.

GPUs are what a device plugin says there are, those out of order included: a gang goes on beside one. Their type and
memory come from labels of GPU feature discovery. Whether a node takes gangs at all is its state, and not said by
taints: those that Kubernetes puts on nodes that are not ready, do not answer or are cordoned are left out. Networks
come from node feature discovery: a device of the class of InfiniBand is `ib`; one of Ethernet where RDMA is loaded is
`roce`; every node has `tcp`.
"""

import re
from collections.abc import Sequence
from typing import Final

from ganger.backends.kubernetes.nodes.pod_requests import CPU, GPU_RESOURCES, MEMORY
from ganger.backends.kubernetes.nodes.topology_labels import Labels, domains
from ganger.kubeapi.objects import Condition, Node
from ganger.kubeapi.quantity import offered
from ganger.model import cluster
from ganger.model.gpu_type import gpu_type
from ganger.model.policy import Level
from ganger.model.units import MIB_BYTES

READY: Final = "Ready"
STATES: Final = tuple(f"node.kubernetes.io/{state}" for state in ("not-ready", "unreachable", "unschedulable"))
"""Taints that say again what conditions and `unschedulable` say."""
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
KEEPING_AWAY: Final = ("NoSchedule", "NoExecute")

_PRODUCTS: Final = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator")
_MEMORY_MIB, _REPLICAS = "nvidia.com/gpu.memory", "nvidia.com/gpu.replicas"
_CLOCKS: Final = ("nvidia.com/gfd.timestamp",)
"""Labels that are new whenever their maker starts: they say nothing of the node."""
_FEATURE: Final = "feature.node.kubernetes.io/"
_RDMA: Final = tuple(f"{_FEATURE}{name}" for name in ("custom-rdma.available", "rdma.available"))
_INFINIBAND = re.compile(re.escape(_FEATURE) + r"pci-0207(?:_\w+)*\.present")
_ETHERNET = re.compile(re.escape(_FEATURE) + r"pci-0200(?:_\w+)*\.present")
_TRUE: Final = "true"
_UNSAID: Final = Condition(type=READY, status="")


def offer(node: Node, levels: Sequence[Level]) -> cluster.Node:
    """The node as if nobody used anything of it. Amounts that cannot be read are said, and count as 0."""
    name, labels = node.metadata.name, node.metadata.labels
    resource, usable = _gpus(node)
    gpus = max(usable, offered(node.status.capacity.get(resource, "0"), 1, f"node {name}: {resource}"))
    return cluster.Node(
        name=name,
        domains=domains(labels, levels),
        gpus=gpus,
        gpu_type=_type(labels, resource) if gpus else "",
        gpu_memory_bytes=_gpu_memory_bytes(name, labels) if gpus else 0,
        cpu_milli=_amount(node, CPU, 1000),
        memory_bytes=_amount(node, MEMORY, 1),
        address=_address(node),
        labels={key: value for key, value in labels.items() if key not in _CLOCKS},
        taints=_taints(node),
        networks=_networks(labels),
    )


def usable_gpus(node: Node) -> int:
    """Its GPUs that are in order, whoever uses them."""
    return _gpus(node)[1]


def silence(node: Node) -> str | None:
    """Why the node does not answer, or None where it is ready."""
    ready = next((each for each in node.status.conditions if each.type == READY), _UNSAID)
    if ready.status == "True":
        return None
    return ": ".join(filter(None, (ready.reason, ready.message))) or "it has not said that it is ready"


def is_out_of_service(node: Node) -> bool:
    """Return whether an administrator has marked the node as shut down, so that nothing runs there."""
    return any(taint.key == OUT_OF_SERVICE for taint in node.spec.taints)


def _amount(node: Node, resource: str, per_unit: int) -> int:
    text = node.status.allocatable.get(resource, "0")
    return offered(text, per_unit, f"node {node.metadata.name}: {resource}")


def _gpus(node: Node) -> tuple[str, int]:
    """The resource that its GPUs are, and how many pods may have."""
    there = [resource for resource in GPU_RESOURCES if node.status.capacity.get(resource, "0") != "0"]
    counts = [(resource, _amount(node, resource, 1)) for resource in GPU_RESOURCES]
    return next((found for found in counts if found[1]), (there[0] if there else "", 0))


def _type(labels: Labels, resource: str) -> str:
    """Of GPUs that no label tells of at least who makes them."""
    product = next((labels[key] for key in _PRODUCTS if labels.get(key)), "")
    return gpu_type(product.replace("_", " ")) or GPU_RESOURCES[resource]


def _gpu_memory_bytes(name: str, labels: Labels) -> int:
    """Of each; where one device is shown several times, of each of these its part."""
    has = offered(labels.get(_MEMORY_MIB, "0"), MIB_BYTES, f"node {name}: label {_MEMORY_MIB}")
    return has // max(1, offered(labels.get(_REPLICAS, "1"), 1, f"node {name}: label {_REPLICAS}"))


def _address(node: Node) -> str:
    by_type = {each.type: each.address for each in reversed(node.status.addresses)}
    return by_type.get("InternalIP") or by_type.get("Hostname") or node.metadata.name


def _taints(node: Node) -> tuple[str, ...]:
    kept = (each for each in node.spec.taints if each.effect in KEEPING_AWAY and each.key not in STATES)
    return tuple(dict.fromkeys(f"{each.key}={each.value}" if each.value else each.key for each in kept))


def _networks(labels: Labels) -> tuple[str, ...]:
    features = [key for key, value in labels.items() if value == _TRUE and key.startswith(_FEATURE)]
    found = {
        "ib": any(map(_INFINIBAND.fullmatch, features)),
        "roce": any(map(_ETHERNET.fullmatch, features)) and any(key in features for key in _RDMA),
        "tcp": True,
    }
    return tuple(name for name, there in found.items() if there)
