"""The parts of a job and what they request, read from the spec alone: nothing of `ganger.core`."""

from dataclasses import dataclass, replace

from ganger.model.cluster import Node
from ganger.model.job import JobSpec, Resources
from ganger.model.job_sections.placement_spec import Placement, Slice

RESOURCES = ("gpu_milli", "cpu_milli", "memory_bytes")
"""Resources that quota counts."""
HCA = "rdma/hca"
OF_NODE = ("gpus", "cpu_milli", "memory_bytes", HCA)
"""Resources of a node, beside those of its GPUs; the last one is extended."""
LEADERS = ("chief", "master", "head", "scheduler")


@dataclass(frozen=True)
class Part:
    """A part of a job, a role or the workers: `count` times `need`, with `ranks` processes each.

    Attributes:
        share: Thousandths of the compute and bytes of the memory of one GPU, (0, 0) for none.
        stacked: Several of them may share a node.
        gpu_type, network: Of all its nodes, None for any.
        other_kinds: Other types and networks that it may be of instead.
        placement: The placement of the job.
    """

    count: int
    need: dict[str, int]
    gpu_type: str | None
    ranks: int
    stacked: bool
    placement: Placement
    network: str | None = None
    other_kinds: tuple[tuple[str | None, str | None], ...] = ()
    share: tuple[int, int] = (0, 0)

    @property
    def variants(self) -> "list[Part]":
        """The part with each of the types and networks that it may be of."""
        other_variants = [
            replace(self, gpu_type=kind, network=other_network, other_kinds=())
            for kind, other_network in self.other_kinds
        ]
        return [replace(self, other_kinds=()), *other_variants]


def parts(spec: JobSpec) -> list[Part]:
    """Return the parts of a gang in the order of their ranks: leaders, the workers of `nodes`, the others."""
    ranks = spec.nproc_per_node or spec.resources.gpu.count or 1
    workers = [] if "worker" in spec.roles else [_part(spec, spec.nodes, spec.resources, ranks)]
    roles = {
        name: replace(_part(spec, role.count, role.resources, 1), stacked=True) for name, role in spec.roles.items()
    }
    leading = [part for name in LEADERS for role, part in roles.items() if role == name]
    named = [part for role, part in roles.items() if role == "worker"]
    return leading + workers + named + [part for role, part in roles.items() if role not in (*LEADERS, "worker")]


def _part(spec: JobSpec, count: int, resources: Resources, ranks: int) -> Part:
    cpu = 1000 * ranks if resources.cpu_milli is None else resources.cpu_milli
    need = {"gpus": resources.gpu.count, "cpu_milli": cpu, "memory_bytes": resources.memory_bytes}
    share = resources.gpu.milli or 0, resources.gpu.memory_bytes or 0
    need[HCA] = resources.extended.get(HCA, 0)
    need["gpu_milli"] = 1000 * resources.gpu.count + share[0]
    types = [kind.lower() for kind in (resources.gpu.type, *resources.gpu.other_types) if kind] or [None]
    (kind, network), *other_kinds = [
        (kind, node_network) for kind in types for node_network in spec.placement.network or [None]
    ]
    return Part(count, need, kind, ranks, False, spec.placement, network, tuple(other_kinds), share)


def amount_of(node: Node, resource: str) -> int:
    """Return how much a node has of a resource of `OF_NODE`."""
    return node.extended.get(HCA, 0) if resource == HCA else getattr(node, resource)


def total(spec: JobSpec, resource: str) -> int:
    """Return what the whole gang uses."""
    return sum(part.count * part.need[resource] for part in parts(spec))


def named_types(spec: JobSpec) -> dict[str | None, int]:
    """Return thousandths of GPUs that a job requests, by the type it names."""
    by_type: dict[str | None, int] = {}
    for part in parts(spec):
        if part.need["gpus"] or any(part.share):
            kinds = {variant.gpu_type: None for variant in part.variants}
            kind = part.gpu_type if len(kinds) == 1 else None
            by_type[kind] = by_type.get(kind, 0) + part.count * part.need["gpu_milli"]
    return by_type


def together(spec: JobSpec, groups: int) -> JobSpec:
    """Return a job as large as that many replica groups, each of which may need a domain of its own."""
    placement = spec.placement
    if groups > 1 and placement.topology and placement.mode == "required":
        slices = (Slice(level=placement.topology, nodes=spec.nodes), *placement.slices)
        placement = replace(placement, topology=None, mode="preferred", slices=slices)
    return replace(spec, nodes=groups * spec.nodes, placement=placement)


def all_nodes(spec: JobSpec) -> int:
    """Return the number of nodes of the workers, and one for each other process."""
    return sum(part.count for part in parts(spec))
