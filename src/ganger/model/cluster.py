"""Nodes, their resources, and their place in the network topology."""

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

RACK: Final = ("rack",)
"""The topology levels of a cluster that names none."""

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
        gpu_memory_bytes: Memory of each device; 0 if unknown.
        cpu_milli, memory_bytes: What processes outside ganger leave of the node's.
        address: Where other nodes reach it.
        device_ids: The driver's numbers of the devices, in order; empty where GPUs are only slots.
        foreign: Indices of devices that are in use by processes outside ganger, or out of order.
        taints: Each `key` or `key=value`: only gangs that tolerate them are placed here.
        networks: The networks it is connected to, lower-case: ib, roce, tcp.
        suspicion, performance_milli: Tie-breakers: 0 is no suspicion, 1000 is full performance.
        unready: One sentence on a node that is not ready and not known to be lost: running jobs continue, nothing new
            starts there; empty for a ready node.
    """

    name: str
    domains: tuple[str, ...] = ()
    gpus: int = 0
    gpu_type: str = ""
    gpu_memory_bytes: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0
    address: str = "127.0.0.1"
    device_ids: tuple[int, ...] = ()
    foreign: tuple[int, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    suspicion: int = 0
    performance_milli: int = 1000
    unready: str = ""

    @property
    def unused(self) -> "Node":
        """The same node with no device in use by processes outside ganger."""
        return replace(self, foreign=()) if self.foreign else self


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
