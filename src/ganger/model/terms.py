"""Placement constraints of a gang: which nodes it may use, and how they relate in the topology."""

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
    """Eligible nodes.

    Attributes:
        labels: Each of them must be present.
        tolerations: Taints that are tolerated.
        networks: The node must be on one of them; empty: on any.
        sharing: Shared; exclusive: no other gang is on them; whole: exclusive, and no GPU of theirs is left over.
        nodes: Only these; empty: all.
        devices: Only these GPUs of each node, by index; empty: all.
        required: One of these terms must hold for its labels.
        preferred: Preferences among eligible nodes.
    """

    labels: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    sharing: str = SHARED
    nodes: tuple[str, ...] = ()
    devices: tuple[int, ...] = ()
    required: tuple[Term, ...] = ()
    preferred: tuple[Preference, ...] = ()

    def tolerates(self, taint: str) -> bool:
        """Return whether a taint, `key` or `key=value`, is tolerated: by itself, by its key, or by `*`."""
        return any(toleration in ("*", taint, taint.partition("=")[0]) for toleration in self.tolerations)

    def __str__(self) -> str:
        """Return the shortest text; empty for an empty selector."""
        parts = [f"{key}={value}" for key, value in self.labels]
        parts += [f"({' | '.join(map(str, self.required))})"] if self.required else []
        parts += [f"{preference.weight}*({preference.match})" for preference in self.preferred]
        parts += [f"~{taint}" for taint in self.tolerations]
        parts += ["|".join(self.networks)] if self.networks else []
        parts += [f"@{'|'.join(self.nodes)}"] if self.nodes else []
        parts += [f"#{'|'.join(map(str, self.devices))}"] if self.devices else []
        return ",".join(parts + ([self.sharing] if self.sharing != SHARED else []))


@dataclass(frozen=True, slots=True, order=True)
class Layout:
    """Relation of a gang's nodes: in one domain of `level` (empty: of any), if that is required or possible.

    Attributes:
        strategy: Packed on few domains, spread over many, or in equal parts on few.
    """

    level: str = ""
    required: bool = False
    strategy: str = PACK

    def __str__(self) -> str:
        """Return the shortest text; empty for the default."""
        if self == Layout():
            return ""
        return f"{self.strategy}@{self.level}" + "!" * self.required


@dataclass(frozen=True, slots=True, order=True)
class Slices:
    """The nodes of a part in groups of `nodes`, each group in one domain of `level`; none if that is empty.

    Attributes:
        inner: The groups that each group consists of, and so on, the largest first; none of these has inner groups
            itself.
    """

    level: str = ""
    nodes: int = 1
    inner: tuple["Slices", ...] = ()

    @property
    def layers(self) -> tuple["Slices", ...]:
        """The slices and all their inner ones, each with those inside it, the largest first; empty without slices."""
        if not self.level:
            return ()
        return (self, *(replace(layer, inner=self.inner[depth:]) for depth, layer in enumerate(self.inner, 1)))

    @property
    def where(self) -> str:
        """The levels in words, to follow a number of nodes: `each in one rack, every 4 of them in one nvlink`."""
        inner = (f", every {layer.nodes} of them in one {layer.level}" for layer in self.inner if layer.nodes > 1)
        return f"each in one {self.level}{''.join(inner)}"

    def __str__(self) -> str:
        """Return the shortest text; empty for none."""
        return "/".join(f"{layer.nodes}@{layer.level}" for layer in self.layers)
