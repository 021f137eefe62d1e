"""The size of a gang as the scheduler sees it: what every node of it needs, how many nodes, and how they may lie.

Made by `model.job` from what a spec asks for; nearly everything that the core derives is found by it.
"""

from dataclasses import dataclass, replace

from ganger.model.terms import Layout, Selector, Slices
from ganger.model.units import DEVICE_MILLI, format_bytes


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """The size of a gang: `nodes` times the same need, with `ranks` processes each, and `more` parts that differ.

    `gpus` are whole devices; instead of these gpu_milli and gpu_memory_bytes are of one device that others may share;
    a lower-case type, None for any. The nodes of a part are different ones, unless it is `stacked`: then they are
    shares of nodes, several of which one node may hold. `layout` is that of the whole gang.
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

    def __hash__(self) -> int:
        # Of its sizes alone: cheap, since whatever the core knows of a kind of gang it finds by its shape.
        gpus = (self.gpus << 28) ^ (self.gpu_milli << 20)
        return (self.nodes << 44) ^ (self.ranks << 36) ^ gpus ^ (self.memory_bytes >> 20) ^ self.cpu_milli

    @property
    def has_share(self) -> bool:
        """Whether each of its nodes is to have a share of one device."""
        return bool(self.gpu_milli or self.gpu_memory_bytes)

    @property
    def has_gpus(self) -> bool:
        """Whether it asks for GPUs, or for a share of one."""
        return bool(self.gpus or self.gpu_milli or self.gpu_memory_bytes)

    @property
    def devices(self) -> int:
        """On how many devices each of its nodes is."""
        return self.gpus or int(self.has_share)

    def gpu_milli_of(self, part: int) -> int:
        """Thousandths of GPUs that a node of that part has."""
        of = self.parts[part] if part else self
        return of.gpus * DEVICE_MILLI + of.gpu_milli

    @property
    def share(self) -> str:
        """What it has of one device, in words: `0.5`, `10Gi`, `0.5/10Gi`; nothing for none."""
        compute = f"{self.gpu_milli / DEVICE_MILLI:g}" if self.gpu_milli else ""
        memory = format_bytes(self.gpu_memory_bytes) if self.gpu_memory_bytes else ""
        return "/".join(filter(None, (compute, memory)))

    @property
    def parts(self) -> tuple["Shape", ...]:
        """Every part, this one first, without the others."""
        return (replace(self, more=()), *self.more) if self.more else (self,)

    @property
    def one(self) -> "Shape":
        """A single one of its nodes: equal for parts whose nodes need the same."""
        return replace(self, nodes=1, ranks=1, more=(), slices=Slices(), layout=Layout())

    @property
    def choices(self) -> tuple["Shape", ...]:
        """What this part may be, the first that has room: all its nodes of one type and on one network."""
        networks = self.selector.networks
        if not self.other_types and len(networks) < 2:
            return (self,)
        return tuple(
            replace(self, gpu_type=kind, other_types=(), selector=replace(self.selector, networks=of))
            for kind in (self.gpu_type, *self.other_types)
            for of in (*((each,) for each in networks), *[()] * (not networks))
        )

    @property
    def terms(self) -> str:
        """What this part says of where it may be, in one word; nothing where it says nothing."""
        share = f"gpu={self.gpu_milli}m,{self.gpu_memory_bytes}" if self.has_share else ""
        said = ("|".join(self.other_types), str(self.selector), str(self.slices), str(self.layout), share)
        return ";".join(said) if any(said) else ""

    @property
    def all_nodes(self) -> int:
        """Nodes of all parts."""
        return self.nodes + sum(part.nodes for part in self.more)

    def __str__(self) -> str:
        """`2x8 h100`: nodes, GPUs on each, type; `1x0.5 gpu`, `1x10Gi gpu` for a share; `2x3 cpu` for a gang that asks
        for no GPU; parts joined by `+`."""
        kind = "|".join((self.gpu_type or "gpu", *self.other_types))
        size = f"{self.gpus or self.share} {kind}" if self.has_gpus else f"{self.cpu_milli / 1000:g} cpu"
        return " + ".join([f"{self.nodes}x{size}", *map(str, self.more)])
