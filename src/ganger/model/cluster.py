"""Nodes, what they offer, and where in the network they are.

Called by backends (which list nodes) and by `core.state.state` (which keeps them as arrays).
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

RACK: Final = ("rack",)
"""The levels of a cluster that names none."""


class NodeState(StrEnum):
    """Whether a node takes gangs; `core.state.lifecycle` has the table of what leads where."""

    READY = "ready"
    CORDONED = "cordoned"
    LOST = "lost"
    LOST_CORDONED = "lost_cordoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine, or a virtual node of an embedded server.

    `domains` are the names of the domains that it is in, parallel to the levels of its cluster, outermost first; one
    that is empty or missing says that it is in none of that level. `gpus` counts whole devices, indexed from 0;
    `gpu_type` is lower-case, empty without GPUs; `address` is where the other nodes reach it. `device_ids` are the
    driver's numbers of the devices, in their order; empty where GPUs are only slots. `foreign` are the indices of
    devices that others use, whom ganger does not place, or that are out of order; of CPUs and memory the node has what
    others leave of them. `gpu_memory_bytes` is what each device has, 0 where nobody says. `taints`, each `key` or
    `key=value`, keep gangs away that do not tolerate them; `networks` are those that it is connected to, lower-case:
    ib, roce, tcp. `suspicion` (0: none) and `performance_milli` (1000: as it should be) decide where all else is equal.
    `unready` is one sentence on a node that is not ready at present and not known to be lost, empty for one that is
    ready: nothing new starts there, what runs goes on.
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
        """The same if others used none of its devices."""
        return replace(self, foreign=()) if self.foreign else self


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a backend shows: nodes, and the levels of the network, outermost first: ("spine", "rack", "nvlink")."""

    nodes: tuple[Node, ...]
    levels: tuple[str, ...] = RACK
