"""A placed generation, and the variables that every process gets.

Ranks are processes, never nodes: WORLD_SIZE counts processes in every framework. The variables are described in
docs/reference/environment.md.
"""

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import count
from pathlib import PurePosixPath
from typing import Final

from ganger.model.job import WORKER
from ganger.model.job_sections.checkpoint_spec import ResumeSource
from ganger.model.watch.rollback import Rollback

RESERVED: Final = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "WORLD_SIZE")
"""Variables that ganger sets under every framework and that users may not set, like all that begin with GANGER_."""
PREFIX: Final = "GANGER_"
TASK_DIRECTORY: Final = "@GANGER_TASK_DIR@"
"""Placeholder for the generation's directory on a node, which only the launcher there knows."""
QUORUM_RETRIES: Final = "10"
HOSTFILE: Final = "hostfile"
AGENT_TOKEN: Final = "agent-token"  # noqa: S105 - the name of a file
"""Files in that directory: the nodes; for frameworks with an agent, a secret that only nodes of the generation know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedNode:
    """The share of one node that one part of a gang has.

    Attributes:
        ranks: Its ranks on the node.
        devices: Indices of its devices among the node's slots.
        gpus: The driver's numbers of these devices, None on a node whose GPUs are only slots.
        cpu_milli: CPU of these ranks together.
        gpu_milli, gpu_memory_bytes: Of a shared device, what each share has of it.
    """

    name: str
    address: str
    ranks: tuple[int, ...]
    devices: tuple[int, ...] = ()
    gpus: tuple[int, ...] | None = None
    role: str = WORKER
    cpu_milli: int = 0
    gpu_milli: int = 0
    gpu_memory_bytes: int = 0

    @property
    def is_share(self) -> bool:
        """True where its device may be shared with others."""
        return bool(self.gpu_milli or self.gpu_memory_bytes)


@dataclass(frozen=True, kw_only=True)
class PlacedGang:
    """A generation of a gang and its shares of nodes, in rank order; its ranks rendezvous at `host`:`port`.

    Attributes:
        job_uid: Unlike ids, never reused.
        max_restarts: The number of attempts that are retried.
        checkpoint_directory: Absolute.
        checkpoints_in_place: That directory is not the job's own.
        checkpoint_local: Directory on each node into which they are saved first.
        checkpoint_pattern: Name of those that the script writes by itself.
        resumes: Checkpoints of other jobs from which it begins.
        checkpoints_skipped: Steps of checkpoints that attempts failed on.
        rollback: Its return to an older checkpoint.
        array, index: Of an array element: the id of its array, and its index.
        replica_groups: The number of replica groups, of which it is the one with its index; None for another job.
    """

    job_id: str
    job_uid: str
    job_name: str
    generation: int
    nodes: tuple[PlacedNode, ...]
    host: str
    port: int
    max_restarts: int
    checkpoint_directory: str
    checkpoint_local: str | None = None
    checkpoint_pattern: str | None = None
    checkpoint_every_ms: int | None = None
    checkpoints_kept: int | None = None
    checkpoints_kept_every: int | None = None
    checkpoints_in_place: bool = False
    resumes: tuple[ResumeSource, ...] = ()
    checkpoints_skipped: tuple[int, ...] = ()
    rollback: Rollback | None = None
    array: str | None = None
    index: int | None = None
    replica_groups: int | None = None

    @cached_property
    def world_size(self) -> int:
        """The number of processes of the gang."""
        return len(self._places)

    @cached_property
    def hosts(self) -> tuple[PlacedNode, ...]:
        """The nodes, each once, in the order of their first rank, with all that the gang has there."""
        shares_of_node: dict[str, list[PlacedNode]] = {}
        for share in self.nodes:
            shares_of_node.setdefault(share.name, []).append(share)
        return tuple(_joined(shares) for shares in shares_of_node.values())

    @cached_property
    def roles(self) -> dict[str, tuple[int, ...]]:
        """The ranks of each role, in rank order."""
        ranks_of_role: dict[str, tuple[int, ...]] = {}
        for share in self.nodes:
            ranks_of_role[share.role] = ranks_of_role.get(share.role, ()) + share.ranks
        return ranks_of_role

    def place_of(self, rank: int) -> tuple[int, int]:
        """Return the index in `nodes` of the share that `rank` belongs to, and its index in that share."""
        return self._places[rank]

    def share_of(self, rank: int) -> PlacedNode:
        """Return the share that `rank` belongs to."""
        return self.nodes[self._places[rank][0]]

    def host_rank(self, rank: int) -> int:
        """Return the index in `hosts` of the node that `rank` runs on."""
        return self._host_ranks[self.share_of(rank).name]

    def role_rank(self, rank: int) -> int:
        """Return the index of `rank` among those of its role."""
        return self.roles[self.share_of(rank).role].index(rank)

    def port_of(self, rank: int) -> int:
        """Return a port at the address of `rank` that no other rank of the gang has."""
        return self._ports[rank]

    def endpoint(self, rank: int) -> str:
        """Return ADDRESS:PORT of `rank` itself."""
        return f"{self.share_of(rank).address}:{self._ports[rank]}"

    def started_by(self, per: str) -> tuple[int, ...]:
        """Return the ranks that ganger starts: all (`rank`), the first of each node (`node`), or rank 0 (`gang`)."""
        if per == "gang":
            return (0,)
        return tuple(min(host.ranks) for host in self.hosts) if per == "node" else tuple(sorted(self._places))

    @cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        return {
            rank: (index, local) for index, share in enumerate(self.nodes) for local, rank in enumerate(share.ranks)
        }

    @cached_property
    def _host_ranks(self) -> dict[str, int]:
        return {host.name: index for index, host in enumerate(self.hosts)}

    @cached_property
    def _ports(self) -> dict[int, int]:
        """Ports above that of the rendezvous, for each address in rank order: nodes may share an address."""
        numbers: dict[str, count[int]] = {}
        return {
            rank: next(numbers.setdefault(self.share_of(rank).address, count(self.port + 1)))
            for rank in sorted(self._places)
        }


def shared_environment(placed: PlacedGang, rank: int) -> dict[str, str]:
    """Return the variables that the process `rank` gets under every framework."""
    _, local_rank = placed.place_of(rank)
    share = placed.share_of(rank)
    return (
        node_environment(placed, placed.host_rank(rank))
        | _of_share(share)
        | {
            "GANGER_RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(placed.world_size),
        }
    )


def node_environment(placed: PlacedGang, host_rank: int) -> dict[str, str]:
    """Return the variables that all processes of a node have in common, including those of `setup:`."""
    host = placed.hosts[host_rank]
    environment = {
        "GANGER_JOB_ID": placed.job_id,
        "GANGER_JOB_UID": placed.job_uid,
        "GANGER_JOB_NAME": placed.job_name,
        "GANGER_ATTEMPT": str(placed.generation),
        "GANGER_NODE_RANK": str(host_rank),
        "GANGER_NODES": str(len(placed.hosts)),
        "GANGER_NODE_HOSTS": "\n".join(node.address for node in placed.hosts),
        "GANGER_HOSTFILE": f"{TASK_DIRECTORY}/{HOSTFILE}",
        "GANGER_MASTER_ADDR": placed.host,
        "GANGER_MASTER_PORT": str(placed.port),
        "GANGER_CHECKPOINT_DIR": placed.checkpoint_directory,
        "PYTHONUNBUFFERED": "1",
    }
    if placed.checkpoints_in_place:
        environment["GANGER_CHECKPOINT_IN_PLACE"] = "1"
    if placed.resumes:
        environment["GANGER_RESUME_SOURCES"] = json.dumps([asdict(source) for source in placed.resumes])
    if placed.checkpoints_skipped:
        environment["GANGER_RESUME_SKIP"] = _listed(placed.checkpoints_skipped)
    if placed.rollback is not None:
        environment["GANGER_ROLLBACK_STEP"] = str(placed.rollback.step)
        environment["GANGER_ROLLBACK_ATTEMPT"] = str(placed.rollback.generation)
    if placed.checkpoint_local is not None:
        # Nodes may share a machine, and jobs always share the directory.
        own = PurePosixPath(placed.checkpoint_local) / f"ganger-{placed.job_uid}" / host.name
        environment |= {"GANGER_CHECKPOINT_LOCAL": str(own), "GANGER_LOCAL_WORLD_SIZE": str(len(host.ranks))}
    if placed.checkpoint_pattern is not None:
        environment["GANGER_CHECKPOINT_PATTERN"] = placed.checkpoint_pattern
    if placed.checkpoint_every_ms is not None:
        environment["GANGER_CHECKPOINT_EVERY_S"] = _seconds(placed.checkpoint_every_ms)
    if placed.checkpoints_kept is not None:
        environment["GANGER_CHECKPOINT_KEEP"] = str(placed.checkpoints_kept)
    if placed.checkpoints_kept_every is not None:
        environment["GANGER_CHECKPOINT_KEEP_EVERY"] = str(placed.checkpoints_kept_every)
    if placed.replica_groups is not None:
        # The names that torchft and its scripts read. Groups that are there survive a lighthouse that starts again.
        environment |= {"REPLICA_GROUP_ID": str(placed.index), "NUM_REPLICA_GROUPS": str(placed.replica_groups)}
        environment |= {"TORCHFT_QUORUM_RETRIES": QUORUM_RETRIES}
    if placed.array is not None:
        environment |= {"GANGER_ARRAY_ID": placed.array, "GANGER_ARRAY_INDEX": str(placed.index)}
    return environment | _of_share(host)


def hostfile(placed: PlacedGang) -> str:
    """Return `NAME slots=N` for each node, in the order of their first rank: the file that GANGER_HOSTFILE names."""
    return "".join(f"{host.name} slots={len(host.ranks)}\n" for host in placed.hosts)


def thread_count(placed: PlacedGang, rank: int) -> int:
    """Return how many threads the process `rank` may run without oversubscribing the CPUs that it shares."""
    share = placed.share_of(rank)
    return max(1, share.cpu_milli // 1000 // len(share.ranks))


def _of_share(share: PlacedNode) -> dict[str, str]:
    environment = {
        "GANGER_ROLE": share.role,
        "GANGER_GPUS_PER_NODE": str(len(share.devices)),
        "GANGER_DEVICES": _listed(share.devices),
    }
    if share.gpu_milli:
        environment["GANGER_GPU_MILLI"] = str(share.gpu_milli)
    if share.gpu_memory_bytes:
        environment["GANGER_GPU_MEMORY_BYTES"] = str(share.gpu_memory_bytes)
    if share.gpus is not None:
        # The driver numbers GPUs by bus, CUDA by speed unless set otherwise. None of them is an empty list, not all.
        environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": _listed(share.gpus)}
    return environment


def _joined(shares: list[PlacedNode]) -> PlacedNode:
    """Return all shares of one node as one; its role is that of the first."""
    first = shares[0]
    return PlacedNode(
        name=first.name,
        address=first.address,
        ranks=tuple(sorted(rank for share in shares for rank in share.ranks)),
        # Several shares may be on one device.
        devices=tuple(sorted(dict.fromkeys(device for share in shares for device in share.devices))),
        gpus=None
        if first.gpus is None
        else tuple(sorted(dict.fromkeys(gpu for share in shares for gpu in share.gpus or ()))),
        role=first.role,
        cpu_milli=sum(share.cpu_milli for share in shares),
    )


def _listed(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


def _seconds(duration_ms: int) -> str:
    """Return exact decimal seconds: `1800`, `0.25`."""
    whole, rest = divmod(duration_ms, 1000)
    return f"{whole}.{rest:03d}".rstrip("0").rstrip(".")
