"""Capacity of a Node object in the model's terms, before foreign usage.

GPUs are those of `gpus.node_gpus`. Whether a node takes gangs at all is its state, and not a taint: the taints
of nodes that are not ready, unreachable or cordoned are left out. Networks come from node feature discovery: a device
of the InfiniBand class is `ib`; an Ethernet device with RDMA loaded is `roce`; every node has `tcp`.
"""

import re
from collections.abc import Sequence
from typing import Final

from ganger.backends.kubernetes.gpus.gpu_links import gpu_links
from ganger.backends.kubernetes.gpus.node_gpus import PLUGIN_LABEL, node_gpus, plugin_of
from ganger.backends.kubernetes.nodes.pod_requests import CPU, MEMORY, is_extended
from ganger.backends.kubernetes.nodes.topology_labels import Labels, domains
from ganger.kubeapi.objects import Condition, Node
from ganger.kubeapi.quantity import available_amount
from ganger.model import cluster
from ganger.model.policy import Level

READY: Final = "Ready"
STATE_TAINTS: Final = tuple(f"node.kubernetes.io/{state}" for state in ("not-ready", "unreachable", "unschedulable"))
"""Taints that repeat what conditions and `unschedulable` say."""
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
BLOCKING_EFFECTS: Final = ("NoSchedule", "NoExecute")

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
    plugin = plugin_of(node)
    gpus = node_gpus(node)
    return cluster.Node(
        name=name,
        domains=domains(labels, levels),
        gpus=gpus.total,
        gpu_type=gpus.gpu_type,
        gpu_resource=gpus.resource,
        gpu_memory_bytes=gpus.memory_bytes,
        gpu_links=gpu_links(node.metadata.annotations, gpus.total, name),
        partial_gpus=gpus.is_partial,
        cpu_milli=_amount(node, CPU, 1000),
        memory_bytes=_amount(node, MEMORY, 1),
        extended={name: _amount(node, name, 1) for name in node.status.allocatable if is_extended(name)},
        address=_address(node),
        labels={key: value for key, value in labels.items() if key not in _TIMESTAMP_LABELS}
        | ({PLUGIN_LABEL: plugin} if plugin else {}),
        taints=_taints(node),
        networks=_networks(labels),
    )


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
