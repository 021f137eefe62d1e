"""The size of a gang as the scheduler sees it: number of nodes, resources of each node, constraints on topology.

Derived by `model.job` from a spec; nearly all that the core derives is looked up by it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ganger.model.terms import Layout, Selector, Slices
from ganger.model.units import DEVICE_MILLI, format_bytes


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """The size of a gang: `nodes` nodes of equal resources, with `ranks` processes each, and `more` parts that differ.

    Attributes:
        gpus: Whole devices of each node.
        gpu_milli, gpu_memory_bytes: Instead of these, a share of one device.
        gpu_type: Lower-case, None for any.
        gpu_resources: Extended resources by which pods ask for GPUs: all its nodes have GPUs of the same one of these,
            since programs for the devices of one vendor do not run on those of another; empty for any.
        stacked: The part consists of shares of nodes, several of which one node may hold; otherwise its nodes are
            distinct.
        layout: That of the whole gang.
        extended: Other resources of each node, by name.
    """

    nodes: int
    gpus: int = 0
    gpu_type: str | None = None
    cpu_milli: int = 0
    memory_bytes: int = 0
    ranks: int = 1
    stacked: bool = False
    more: tuple["Shape", ...] = ()
    other_types: tuple[str, ...] = ()
    selector: Selector = Selector()
    slices: Slices = Slices()
    layout: Layout = Layout()
    gpu_milli: int = 0
    gpu_memory_bytes: int = 0
    extended: tuple[tuple[str, int], ...] = ()
    gpu_resources: tuple[str, ...] = ()

    def __hash__(self) -> int:
        # Of the sizes alone: shapes are the keys of most caches of the core, so hashing must be cheap.
        gpus = (self.gpus << 28) ^ (self.gpu_milli << 20)
        return (self.nodes << 44) ^ (self.ranks << 36) ^ gpus ^ (self.memory_bytes >> 20) ^ self.cpu_milli

    @property
    def has_share(self) -> bool:
        """True if each of its nodes has a share of one device."""
        return bool(self.gpu_milli or self.gpu_memory_bytes)

    @property
    def has_gpus(self) -> bool:
        """True if GPUs, or a share of one, are requested."""
        return bool(self.gpus or self.gpu_milli or self.gpu_memory_bytes)

    @property
    def gpu_types(self) -> tuple[str | None, ...]:
        """The GPU types that it accepts, in order of preference; None alone for any."""
        return (self.gpu_type, *self.other_types)

    @property
    def devices(self) -> int:
        """The number of devices of each of its nodes."""
        return self.gpus or int(self.has_share)

    def gpu_milli_of(self, part: int) -> int:
        """Return thousandths of GPUs of each node of that part."""
        shape = self.parts[part] if part else self
        return shape.gpus * DEVICE_MILLI + shape.gpu_milli

    @property
    def share(self) -> str:
        """Its share of one device as text: `0.5`, `10Gi`, `0.5/10Gi`; empty for none."""
        compute = f"{self.gpu_milli / DEVICE_MILLI:g}" if self.gpu_milli else ""
        memory = format_bytes(self.gpu_memory_bytes) if self.gpu_memory_bytes else ""
        return "/".join(filter(None, (compute, memory)))

    @property
    def parts(self) -> tuple["Shape", ...]:
        """Every part, this one first, as shapes of one part."""
        return (replace(self, more=()), *self.more) if self.more else (self,)

    @property
    def one(self) -> "Shape":
        """A single one of its nodes: equal for parts whose nodes have the same resources."""
        return replace(self, nodes=1, ranks=1, more=(), slices=Slices(), layout=Layout())

    @property
    def choices(self) -> tuple["Shape", ...]:
        """The alternatives of this part, in order of preference: all its nodes of one type and on one network."""
        networks, resources = self.selector.networks, self.gpu_resources
        if not self.other_types and len(networks) < 2 and len(resources) < 2:
            return (self,)
        return tuple(
            replace(
                self,
                gpu_type=gpu_type,
                other_types=(),
                selector=replace(self.selector, networks=choice),
                gpu_resources=resource,
            )
            for gpu_type in self.gpu_types
            for resource in (*((resource,) for resource in resources), *[()] * (not resources))
            for choice in (*((network,) for network in networks), *[()] * (not networks))
        )

    @property
    def uniform(self) -> tuple["Shape", ...]:
        """The alternatives of a gang of several parts: all of them have GPUs of the same resource."""
        resources = dict.fromkeys(resource for part in self.parts for resource in part.gpu_resources)
        if len(resources) < 2:
            return (self,)

        def limited(part: Shape, resource: str) -> Shape:
            return replace(part, gpu_resources=(resource,)) if resource in part.gpu_resources else part

        return tuple(
            replace(limited(self, resource), more=tuple(limited(part, resource) for part in self.more))
            for resource in resources
        )

    @property
    def terms(self) -> str:
        """The placement constraints of this part as one word; empty without any."""
        share = f"gpu={self.gpu_milli}m,{self.gpu_memory_bytes}" if self.has_share else ""
        words = ["|".join(self.other_types), str(self.selector), str(self.slices), str(self.layout), share]
        words += ["|".join(self.gpu_resources)] if self.gpu_resources else []
        words += [",".join(f"{name}={amount}" for name, amount in self.extended)] if self.extended else []
        return ";".join(words) if any(words) else ""

    def with_nodes(self, counts: Sequence[int]) -> "Shape":
        """Return the shape with as many nodes of each part."""
        first, *more = counts
        parts = zip(self.more, more, strict=True)
        return replace(self, nodes=first, more=tuple(replace(part, nodes=nodes) for part, nodes in parts))

    @property
    def all_nodes(self) -> int:
        """The number of nodes of all parts."""
        return self.nodes + sum(part.nodes for part in self.more)

    def __str__(self) -> str:
        """Return `2x8 h100`: nodes, GPUs on each, type; parts are joined by `+`.

        A share is `1x0.5 gpu` or `1x10Gi gpu`, a gang without GPUs `2x3 cpu`.
        """
        types = "|".join((self.gpu_type or "gpu", *self.other_types))
        size = f"{self.gpus or self.share} {types}" if self.has_gpus else f"{self.cpu_milli / 1000:g} cpu"
        return " + ".join([f"{self.nodes}x{size}", *map(str, self.more)])
