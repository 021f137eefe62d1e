"""Nodes, their resources, and their place in the network topology."""

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

RACK: Final = ("rack",)
"""The topology levels of a cluster that names none."""
IB, ROCE, TCP = "ib", "roce", "tcp"
FABRICS: Final = (IB, ROCE, TCP)
"""Kinds of networks between nodes."""
SRIOV, HOST_DEVICE, MACVLAN, DRA, CLUSTER = "sriov", "hostdev", "macvlan", "dra", "cluster"
ATTACHMENTS: Final = (SRIOV, HOST_DEVICE, MACVLAN, DRA, CLUSTER)
"""Ways to attach pods to one, which `model.network_profile` describes."""
LINK_SCORES: Final = {"SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50}
"""Scores of links through PCIe by the words of `nvidia-smi topo -m`: between NUMA nodes, within one, through a host
bridge, through several switches, through one switch."""
GDR_LEVELS: Final = ("PIX", "PXB", "PHB", "SYS")
"""Ways between a GPU and a network card, nearest first, as NCCL_NET_GDR_LEVEL takes them."""
NVLINK_SCORE: Final = 100
"""Score of each NVLink between two devices. Both scales are those of NVIDIA's device plugin, and of HAMi."""

_GPU_VENDOR: Final = re.compile(r"\b(nvidia|tesla|quadro|geforce|graphics|device)\b", re.IGNORECASE)


class NodeState(StrEnum):
    """The scheduling state of a node; `core.state.lifecycle` has the table of transitions."""

    READY = "ready"
    CORDONED = "cordoned"
    LOST = "lost"
    LOST_CORDONED = "lost_cordoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine, or a virtual node of an embedded server.

    Attributes:
        domains: Its topology domains, parallel to the levels of its cluster, outermost first; empty or missing: in no
            domain of that level.
        gpus: Whole devices, indexed from 0.
        gpu_type: Lower-case; empty without GPUs.
        gpu_resource: The extended resource by which pods ask for them; empty on machines.
        gpu_memory_bytes: Memory of each device; 0 if unknown.
        gpu_links: The link of each device to each other one, symmetric, the more the better; on the diagonal 0. Empty
            if unknown. `LINK_SCORES` has the kinds of links.
        partial_gpus: Its GPUs are parts of devices, such as MIG slices: only gangs that name their type get them.
        cpu_milli, memory_bytes: What processes outside ganger leave of the node's.
        extended: The same of other resources, by name: rdma/hca.
        address: Where other nodes reach it.
        device_ids: The driver's numbers of the devices, in order; empty where GPUs are only slots.
        foreign: Indices of devices that are in use by processes outside ganger, or out of order.
        taints: Each `key` or `key=value`: only gangs that tolerate them are placed here.
        networks: The networks it is connected to, lower-case: ib, roce, tcp.
        suspicion, performance_milli: Tie-breakers: 0 is no suspicion, 1000 is full performance.
        images: Of the images that jobs ask for, those that need not be pulled here.
        unready: One sentence on a node that is not ready and not known to be lost: running jobs continue, nothing new
            starts there; empty for a ready node.
    """

    name: str
    domains: tuple[str, ...] = ()
    gpus: int = 0
    gpu_type: str = ""
    gpu_resource: str = ""
    gpu_memory_bytes: int = 0
    gpu_links: tuple[tuple[int, ...], ...] = ()
    partial_gpus: bool = False
    cpu_milli: int = 0
    memory_bytes: int = 0
    extended: dict[str, int] = field(default_factory=dict)
    address: str = "127.0.0.1"
    device_ids: tuple[int, ...] = ()
    foreign: tuple[int, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    suspicion: int = 0
    performance_milli: int = 1000
    images: tuple[str, ...] = ()
    unready: str = ""

    @property
    def unused(self) -> "Node":
        """The same node with no device in use by processes outside ganger."""
        return replace(self, foreign=()) if self.foreign else self


def is_same_node(before: Node, after: Node) -> bool:
    """Return whether two descriptions differ at most in what a node has for gangs now.

    That is the amounts of CPU, memory and the same extended resources, the foreign devices, the images, and readiness.
    """
    return before.extended.keys() == after.extended.keys() and after == replace(
        before,
        cpu_milli=after.cpu_milli,
        memory_bytes=after.memory_bytes,
        extended=after.extended,
        foreign=after.foreign,
        images=after.images,
        unready=after.unready,
    )


@dataclass(frozen=True, slots=True)
class Cluster:
    """The nodes that a backend reports, and their topology levels, outermost first: ("spine", "rack", "nvlink")."""

    nodes: tuple[Node, ...]
    levels: tuple[str, ...] = RACK


def gpu_type(name: str) -> str:
    """Return the short name of a GPU: `h100` for "NVIDIA H100 80GB HBM3", `rtx4090` for "GeForce RTX 4090".

    Without the vendor's words (NVIDIA, Tesla, Quadro, GeForce), it is the first word with a digit, in lower case; a
    bare number is joined to the word before it. A name without digits is used as a whole, with `-` for blanks.
    """
    words = re.split(r"[\s/-]+", _GPU_VENDOR.sub(" ", name).strip())
    for previous, word in zip(["", *words], words, strict=False):
        if any(letter.isdigit() for letter in word):
            return (previous + word if word.isdigit() else word).lower()
    return "-".join(words).lower()
