"""What a gang says of where it may be: which nodes at all, and how they lie to each other.

Made by `model.job` out of a spec's `placement:`; read by `core.placement.place` and what explains it.
"""

from dataclasses import dataclass, replace
from typing import Final

from ganger.model.affinity import Preference, Term

PREFERRED: Final = "preferred"
REQUIRED: Final = "required"
PACK: Final = "pack"
SPREAD: Final = "spread"
BALANCED: Final = "balanced"
SHARED: Final = "shared"
EXCLUSIVE: Final = "exclusive"
WHOLE: Final = "whole"


@dataclass(frozen=True, slots=True, order=True)
class Selector:
    """Nodes that may be used at all: those with each of these labels, and with labels as any one term of `required`
    says, whose taints it tolerates, on any one of these networks, or on any where none is named. `sharing`: shared,
    exclusive (nobody else is on them) or whole (nobody else, and no GPU of theirs is left over). `nodes`: only these;
    `devices`: of each node only these GPUs, by index; all where none are named. `preferred`: what its nodes are rather,
    of those that may be used."""

    labels: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    sharing: str = SHARED
    nodes: tuple[str, ...] = ()
    devices: tuple[int, ...] = ()
    required: tuple[Term, ...] = ()
    preferred: tuple[Preference, ...] = ()

    def tolerates(self, taint: str) -> bool:
        """Whether a taint, `key` or `key=value`, is no hindrance: it is named, its key is, or all are by `*`."""
        return any(named in ("*", taint, taint.partition("=")[0]) for named in self.tolerations)

    def __str__(self) -> str:
        """Nothing for one that says nothing; else as short as can be."""
        parts = [f"{key}={value}" for key, value in self.labels]
        parts += [f"({' | '.join(map(str, self.required))})"] if self.required else []
        parts += [f"{each.weight}*({each.match})" for each in self.preferred]
        parts += [f"~{taint}" for taint in self.tolerations]
        parts += ["|".join(self.networks)] if self.networks else []
        parts += [f"@{'|'.join(self.nodes)}"] if self.nodes else []
        parts += [f"#{'|'.join(map(str, self.devices))}"] if self.devices else []
        return ",".join(parts + ([self.sharing] if self.sharing != SHARED else []))


@dataclass(frozen=True, slots=True, order=True)
class Layout:
    """How the nodes of a gang lie: in one domain of `level` (none: of any) if that is required, or else if it can be;
    packed on few domains, spread over many, or in equal parts on few."""

    level: str = ""
    required: bool = False
    strategy: str = PACK

    def __str__(self) -> str:
        """Nothing for one that says nothing; else as short as can be."""
        if self == Layout():
            return ""
        return f"{self.strategy}@{self.level}" + "!" * self.required


@dataclass(frozen=True, slots=True, order=True)
class Slices:
    """A part's nodes in groups of `nodes`, each of them in one domain of `level`; none where that is empty. `inner`:
    the groups that each is made of, and so on, the largest first; none of these has any of its own."""

    level: str = ""
    nodes: int = 1
    inner: tuple["Slices", ...] = ()

    @property
    def layers(self) -> tuple["Slices", ...]:
        """Itself and all inside it, each with what is inside that, the largest first; none where there are none."""
        return (self, *(replace(each, inner=self.inner[at:]) for at, each in enumerate(self.inner, 1))) * bool(
            self.level
        )

    @property
    def where(self) -> str:
        """In words, after how many nodes: `each in one rack, every 4 of them in one nvlink`."""
        inside = (f", every {each.nodes} of them in one {each.level}" for each in self.inner if each.nodes > 1)
        return f"each in one {self.level}{''.join(inside)}"

    def __str__(self) -> str:
        """Nothing for none."""
        return "/".join(f"{each.nodes}@{each.level}" for each in self.layers)
