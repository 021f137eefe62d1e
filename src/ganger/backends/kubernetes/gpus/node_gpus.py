"""The GPUs of a Node object: how many, of which type and memory, and the resource by which pods ask for them.

GPUs are those that a device plugin reports, unhealthy ones included: a gang continues beside one. Their type and memory
come from labels of GPU feature discovery. GPUs that are parts of devices have a type of their own, which only jobs that
name it get: MIG slices of a plugin with the strategy `single` (`a100-mig-1g.5gb`), and devices that are advertised
several times by time-slicing or MPS (`a100-shared`). Slices with a resource of their own (`nvidia.com/mig-1g.10gb`,
`nvidia.com/gpu.shared`) are extended resources. Source: "Labels" of NVIDIA/k8s-device-plugin.

Device plugins of the dialects of `sharing_dialects` show shares instead of GPUs: HAMi's lists its GPUs in an annotation
of the node, gpushare's only their number and the sum of their memory. GPUs of gpushare have the type `gpushare`, and
only pods that ask in this dialect get shares of them.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from ganger.backends.kubernetes.gpus.hami_devices import HamiGpu, hami_gpus
from ganger.gang_jobs.custom_resources import GROUP
from ganger.kubeapi.objects import Node
from ganger.kubeapi.quantity import available_amount
from ganger.model.cluster import gpu_type
from ganger.model.units import GIB_BYTES, MIB_BYTES
from ganger.registry import gpu_resources

REPLICAS: Final = "nvidia.com/gpu.replicas"
SHARING_STRATEGY: Final = "nvidia.com/gpu.sharing-strategy"
MEMORY_MIB: Final = "nvidia.com/gpu.memory"
SHARED: Final = "shared"
GPUSHARE: Final = "gpushare"
GPUSHARE_MEMORY, GPUSHARE_COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
OPENB_COUNT: Final = "alibabacloud.com/gpu-count"
PLUGIN_LABEL: Final = f"{GROUP}/gpu-plugin"
"""Label that nodes have in the model: the device plugin by which GPUs of theirs can be shared."""
NVIDIA_GPU: Final = "nvidia.com/gpu"
MAX_GPUS: Final = 999
"""More than any node has, shared ones included: those of a node with more do not count."""
MAX_MEMORY_BYTES: Final = 1 << 44
"""More than any GPU has: the memory of GPUs with more is unknown."""
_PLUGINS: Final = {NVIDIA_GPU: "nvidia", OPENB_COUNT: "openb"}
"""Device plugins by the resource of GPUs of nodes where nothing else says which it is."""
_MIB_FROM: Final = 1024
"""Units of memory of a GPU from which gpushare's are MiB: no GPU has as many GiB."""
_NO_STRATEGY: Final = ("", "none")
_MIG: Final = re.compile(r"-(MIG-[0-9]+g\.[0-9]+gb(?:\.[a-z0-9.]+)?)(-SHARED)?$", re.IGNORECASE)
_SHARED_SUFFIX: Final = re.compile(r"-SHARED$", re.IGNORECASE)
_REPLICAS: Final = re.compile(r"0*([2-9]|[1-9][0-9]+)")
"""More than one."""
_log = logging.getLogger(__name__)


class NodeGpus(NamedTuple):
    """The GPUs of a node.

    Attributes:
        resource: what pods with GPUs of this node ask for; empty if it has none.
        healthy: the healthy GPUs, used or not.
        total: the same with unhealthy ones.
        memory_bytes: of each of them, 0 if unknown.
        is_partial: they are parts of devices.
        unhealthy: indices of those known not to be healthy.
    """

    resource: str = ""
    healthy: int = 0
    total: int = 0
    gpu_type: str = ""
    memory_bytes: int = 0
    is_partial: bool = False
    unhealthy: tuple[int, ...] = ()


def node_gpus(node: Node) -> NodeGpus:
    """Return the GPUs of a node. Invalid amounts, and ones that no node has, are logged and count as 0."""
    gpus, name = _reported_gpus(node), node.metadata.name
    if gpus.total > MAX_GPUS:
        _log_absurd(name, f"it has {gpus.total} GPUs, more than {MAX_GPUS}; they do not count")
        return NodeGpus(gpus.resource)
    if gpus.memory_bytes > MAX_MEMORY_BYTES:
        mib = f"{gpus.memory_bytes // MIB_BYTES} MiB, more than {MAX_MEMORY_BYTES // MIB_BYTES}"
        _log_absurd(name, f"its GPUs have {mib}; their memory counts as unknown")
        return gpus._replace(memory_bytes=0)
    return gpus


@lru_cache(maxsize=1 << 14)
def _log_absurd(node: str, message: str) -> None:
    """Log an absurd amount once, not with each heartbeat of the node."""
    _log.warning("node %s: %s", node, message)


def _reported_gpus(node: Node) -> NodeGpus:
    name, labels, capacity = node.metadata.name, node.metadata.labels, node.status.capacity
    present = [resource for resource in gpu_resources() if capacity.get(resource, "0") != "0"]
    counts = ((resource, _amount(node, resource)) for resource in gpu_resources())
    if (gpus := hami_gpus(node.metadata.annotations)) and NVIDIA_GPU in present:
        return _registered_gpus(node, gpus)
    if not present and (units := gpushare_units(node)):
        count, unit_bytes = _amount(node, GPUSHARE_COUNT), MIB_BYTES if units >= _MIB_FROM else GIB_BYTES
        return NodeGpus("", count, count, GPUSHARE, units * unit_bytes, is_partial=True)
    resource, count = next(((resource, count) for resource, count in counts if count), (next(iter(present), ""), 0))
    total = max(count, available_amount(capacity.get(resource, "0"), 1, f"node {name}: {resource}"))
    if not total:
        return NodeGpus(resource)
    replicas = available_amount(labels.get(REPLICAS, "1"), 1, f"node {name}: label {REPLICAS}")
    memory_bytes = available_amount(labels.get(MEMORY_MIB, "0"), MIB_BYTES, f"node {name}: label {MEMORY_MIB}")
    whole_type, part = _type(labels, resource)
    type_name = "-".join(filter(None, (whole_type, part)))
    return NodeGpus(resource, count, total, type_name, memory_bytes // max(1, replicas), bool(part))


def _registered_gpus(node: Node, gpus: Sequence[HamiGpu]) -> NodeGpus:
    """Return the GPUs of a node that HAMi's device plugin has registered."""
    unhealthy = tuple(index for index, gpu in enumerate(gpus) if not gpu.is_healthy)
    healthy = len(gpus) - len(unhealthy) if _amount(node, NVIDIA_GPU) else 0
    memory_bytes = MIB_BYTES * min(gpu.memory_mib for gpu in gpus)
    name = gpu_type(gpus[0].name) or "nvidia"
    return NodeGpus(NVIDIA_GPU, healthy, len(gpus), name, memory_bytes, unhealthy=unhealthy)


def plugin_of(node: Node) -> str:
    """Return the device plugin of a node whose GPUs can be shared: hami, gpushare, openb or nvidia; empty for others.

    It is NVIDIA's own only where a GPU is a whole device.
    """
    gpus = node_gpus(node)
    if gpus.gpu_type == GPUSHARE:
        return GPUSHARE
    if gpus.resource == NVIDIA_GPU and hami_gpus(node.metadata.annotations):
        return "hami"
    return "" if gpus.is_partial or not gpus.total else _PLUGINS.get(gpus.resource, "")


def gpushare_units(node: Node) -> int:
    """Return the memory of each GPU in the units of gpushare's plugin; 0 without it."""
    return _amount(node, GPUSHARE_MEMORY) // max(1, _amount(node, GPUSHARE_COUNT))


def _type(labels: Mapping[str, str], resource: str) -> tuple[str, str]:
    """Return the GPU type from labels, without them the vendor; and of which parts of a device its GPUs are."""
    row = gpu_resources()[resource]
    product = next((labels[key] for key in row.product_labels if labels.get(key)), "")
    slices, replicas = _MIG.search(product), labels.get(REPLICAS, "1")
    is_replicated = _REPLICAS.fullmatch(replicas) is not None
    is_shared = bool(_SHARED_SUFFIX.search(product)) or (
        is_replicated and labels.get(SHARING_STRATEGY, "") not in _NO_STRATEGY
    )
    parts = (slices[1].lower() if slices else "", SHARED if is_shared else "")
    whole = _SHARED_SUFFIX.sub("", product[: slices.start()] if slices else product)
    return gpu_type(whole.replace("_", " ")) or row.vendor, "-".join(filter(None, parts))


def _amount(node: Node, resource: str) -> int:
    text = node.status.allocatable.get(resource, "0")
    return available_amount(text, 1, f"node {node.metadata.name}: {resource}")
