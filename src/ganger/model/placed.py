"""A generation with its place: what a framework file may know of it, and the variables that every process gets.

Made by `engine.launch`, read by the files in `frameworks/`. Ranks are processes, never nodes: in every framework
WORLD_SIZE counts processes. Names: docs/decisions/3-foundation.md, "Environment of a rank".
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

RESERVED: Final = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "WORLD_SIZE")
"""Variables that ganger gives under every framework and nobody else may set, as well as all that begin with GANGER_."""
PREFIX: Final = "GANGER_"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedNode:
    """One node of a generation: its ranks, and the indices of its devices among the node's slots.

    `gpus` has the driver's numbers of these devices, or is None on a node whose GPUs are only slots.
    """

    name: str
    address: str
    ranks: tuple[int, ...]
    devices: tuple[int, ...] = ()
    gpus: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """One generation of a gang, nodes in rank order, the same number of ranks on each; ranks meet at `host`:`port`.

    cpu_milli: what the gang has of each node; max_restarts: attempts that are forgiven; the checkpoint directory is
    absolute, None for a job that keeps no checkpoints.
    """

    job_id: str
    job_name: str
    generation: int
    nodes: tuple[PlacedNode, ...]
    host: str
    port: int
    cpu_milli: int
    max_restarts: int
    checkpoint_directory: str | None = None
    checkpoint_every_ms: int | None = None
    resume: str = "auto"

    @property
    def world_size(self) -> int:
        """Processes in the gang."""
        return sum(len(node.ranks) for node in self.nodes)

    def place_of(self, rank: int) -> tuple[int, int]:
        """(index of the node, index of the process on it) of `rank`."""
        index = bisect_right(self.nodes, rank, key=lambda node: node.ranks[0]) - 1
        return index, self.nodes[index].ranks.index(rank)


def shared_environment(placed: Placed, rank: int) -> dict[str, str]:
    """The variables that the process `rank` gets under every framework."""
    node_rank, local_rank = placed.place_of(rank)
    return node_environment(placed, node_rank) | {
        "GANGER_RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(placed.world_size),
    }


def node_environment(placed: Placed, node_rank: int) -> dict[str, str]:
    """The part that all processes of a node have in common; `setup:` gets it too."""
    node = placed.nodes[node_rank]
    environment = {
        "GANGER_JOB_ID": placed.job_id,
        "GANGER_JOB_NAME": placed.job_name,
        "GANGER_ATTEMPT": str(placed.generation),
        "GANGER_ROLE": "worker",
        "GANGER_NODE_RANK": str(node_rank),
        "GANGER_NODES": str(len(placed.nodes)),
        "GANGER_NODE_HOSTS": "\n".join(each.address for each in placed.nodes),
        "GANGER_GPUS_PER_NODE": str(len(node.devices)),
        "GANGER_DEVICES": _listed(node.devices),
        "GANGER_MASTER_ADDR": placed.host,
        "GANGER_MASTER_PORT": str(placed.port),
        "PYTHONUNBUFFERED": "1",
    }
    if node.gpus is not None:
        # The driver numbers GPUs by bus, CUDA by speed unless told otherwise. None of them is an empty list, not all.
        environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": _listed(node.gpus)}
    if placed.checkpoint_directory is not None:
        environment |= {"GANGER_CHECKPOINT_DIR": placed.checkpoint_directory, "GANGER_RESUME": placed.resume}
        if placed.checkpoint_every_ms is not None:
            environment["GANGER_CHECKPOINT_EVERY_S"] = _seconds(placed.checkpoint_every_ms)
    return environment


def _listed(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


def _seconds(duration_ms: int) -> str:
    """Seconds in decimals, exactly: `1800`, `0.25`."""
    whole, rest = divmod(duration_ms, 1000)
    return f"{whole}.{rest:03d}".rstrip("0").rstrip(".")
