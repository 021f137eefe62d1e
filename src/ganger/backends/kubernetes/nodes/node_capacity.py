"""Capacity of a Node object in the model's terms, before foreign usage.

GPUs are those that a device plugin reports, unhealthy ones included: a gang continues beside one. Their type and memory
come from labels of GPU feature discovery. Whether a node takes gangs at all is its state, and not a taint: the taints
of nodes that are not ready, unreachable or cordoned are left out. Networks come from node feature discovery: a device
of the InfiniBand class is `ib`; an Ethernet device with RDMA loaded is `roce`; every node has `tcp`.
"""

import re
from collections.abc import Sequence
from typing import Final

from ganger.backends.kubernetes.nodes.pod_requests import CPU, GPU_RESOURCES, MEMORY
from ganger.backends.kubernetes.nodes.topology_labels import Labels, domains
from ganger.kubeapi.objects import Condition, Node
from ganger.kubeapi.quantity import available_amount
from ganger.model import cluster
from ganger.model.cluster import gpu_type
from ganger.model.policy import Level
from ganger.model.units import MIB_BYTES

READY: Final = "Ready"
STATE_TAINTS: Final = tuple(f"node.kubernetes.io/{state}" for state in ("not-ready", "unreachable", "unschedulable"))
"""Taints that repeat what conditions and `unschedulable` say."""
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
BLOCKING_EFFECTS: Final = ("NoSchedule", "NoExecute")

_PRODUCTS: Final = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator")
_MEMORY_MIB, _REPLICAS = "nvidia.com/gpu.memory", "nvidia.com/gpu.replicas"
_TIMESTAMP_LABELS: Final = ("nvidia.com/gfd.timestamp",)
"""Labels that change whenever their writer restarts."""
_FEATURE: Final = "feature.node.kubernetes.io/"
_RDMA: Final = tuple(f"{_FEATURE}{name}" for name in ("custom-rdma.available", "rdma.available"))
_INFINIBAND = re.compile(re.escape(_FEATURE) + r"pci-0207(?:_\w+)*\.present")
_ETHERNET = re.compile(re.escape(_FEATURE) + r"pci-0200(?:_\w+)*\.present")
_TRUE: Final = "true"
_UNKNOWN: Final = Condition(type=READY, status="")


def capacity_of(node: Node, levels: Sequence[Level]) -> cluster.Node:
    """Return the node without any usage. Invalid amounts are logged and count as 0."""
    name, labels = node.metadata.name, node.metadata.labels
    resource, usable = _gpus(node)
    gpus = max(usable, available_amount(node.status.capacity.get(resource, "0"), 1, f"node {name}: {resource}"))
    return cluster.Node(
        name=name,
        domains=domains(labels, levels),
        gpus=gpus,
        gpu_type=_type(labels, resource) if gpus else "",
        gpu_memory_bytes=_gpu_memory_bytes(name, labels) if gpus else 0,
        cpu_milli=_amount(node, CPU, 1000),
        memory_bytes=_amount(node, MEMORY, 1),
        address=_address(node),
        labels={key: value for key, value in labels.items() if key not in _TIMESTAMP_LABELS},
        taints=_taints(node),
        networks=_networks(labels),
    )


def usable_gpus(node: Node) -> int:
    """Return the number of healthy GPUs, used or not."""
    return _gpus(node)[1]


def not_ready_reason(node: Node) -> str | None:
    """Return why the node is not ready; None if it is."""
    ready = next((condition for condition in node.status.conditions if condition.type == READY), _UNKNOWN)
    if ready.status == "True":
        return None
    return ": ".join(filter(None, (ready.reason, ready.message))) or "it has not reported that it is ready"


def is_out_of_service(node: Node) -> bool:
    """Return whether an administrator has marked the node as shut down, so that nothing runs there."""
    return any(taint.key == OUT_OF_SERVICE for taint in node.spec.taints)


def _amount(node: Node, resource: str, per_unit: int) -> int:
    text = node.status.allocatable.get(resource, "0")
    return available_amount(text, per_unit, f"node {node.metadata.name}: {resource}")


def _gpus(node: Node) -> tuple[str, int]:
    """Return the resource name of the node's GPUs, and how many pods may use."""
    present = [resource for resource in GPU_RESOURCES if node.status.capacity.get(resource, "0") != "0"]
    counts = ((resource, _amount(node, resource, 1)) for resource in GPU_RESOURCES)
    return next(((resource, count) for resource, count in counts if count), (present[0] if present else "", 0))


def _type(labels: Labels, resource: str) -> str:
    """Return the GPU type from labels; without them the vendor."""
    product = next((labels[key] for key in _PRODUCTS if labels.get(key)), "")
    return gpu_type(product.replace("_", " ")) or GPU_RESOURCES[resource]


def _gpu_memory_bytes(name: str, labels: Labels) -> int:
    """Return the memory of a GPU; where one device is advertised several times, of each part."""
    memory_bytes = available_amount(labels.get(_MEMORY_MIB, "0"), MIB_BYTES, f"node {name}: label {_MEMORY_MIB}")
    return memory_bytes // max(1, available_amount(labels.get(_REPLICAS, "1"), 1, f"node {name}: label {_REPLICAS}"))


def _address(node: Node) -> str:
    by_type = {address.type: address.address for address in reversed(node.status.addresses)}
    return by_type.get("InternalIP") or by_type.get("Hostname") or node.metadata.name


def _taints(node: Node) -> tuple[str, ...]:
    taints = [taint for taint in node.spec.taints if taint.effect in BLOCKING_EFFECTS and taint.key not in STATE_TAINTS]
    return tuple(dict.fromkeys(f"{taint.key}={taint.value}" if taint.value else taint.key for taint in taints))


def _networks(labels: Labels) -> tuple[str, ...]:
    features = [key for key, value in labels.items() if value == _TRUE and key.startswith(_FEATURE)]
    networks = {
        "ib": any(map(_INFINIBAND.fullmatch, features)),
        "roce": any(map(_ETHERNET.fullmatch, features)) and any(key in features for key in _RDMA),
        "tcp": True,
    }
    return tuple(name for name, is_present in networks.items() if is_present)
