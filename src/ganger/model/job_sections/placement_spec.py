"""Placement constraints and the sizes of elastic gangs as a user writes them.

`model.terms` has what the scheduler makes of them.
"""

import math
from dataclasses import dataclass
from typing import Final

from ganger.model.affinity import Affinity
from ganger.model.described import described as _spec
from ganger.model.terms import PACK, PREFERRED, SHARED

CONSTANT_GLOBAL: Final = "constant_global"
SCALE_LR_LINEAR: Final = "scale_lr_linear"
SCALE_LR_SQRT: Final = "scale_lr_sqrt"
CUSTOM: Final = "custom"
BATCH_POLICIES: Final = (CONSTANT_GLOBAL, SCALE_LR_LINEAR, SCALE_LR_SQRT, CUSTOM)
"""Policies for the batch of an elastic gang that is resized; `Batch` describes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A group of nodes that stay together in one domain, for instance those of one tensor-parallel group.

    It lies within the job, or within the slice around it.
    """

    level: str = _spec("topology level whose domains each hold one slice: nvlink", form="level")
    nodes: int | None = _spec("nodes in each slice", form="nodes", default=None)
    ranks: int | None = _spec(
        "processes in each slice, instead of nodes: a multiple of the processes per node",
        form="processes",
        default=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Constraints and preferences on the nodes of a job and their topology."""

    topology: str | None = _spec(
        "topology level that the job should stay within: rack; unset: the lowest whose domain is large enough",
        form="level",
        default=None,
    )
    mode: str = _spec(
        "preferred: use several domains of that level if one is too small; required: never",
        form="mode",
        default=PREFERRED,
    )
    strategy: str = _spec(
        "pack: use few domains; spread: use as many as possible; balanced: use few, in equal parts",
        form="strategy",
        default=PACK,
    )
    slices: tuple[Slice, ...] = _spec(
        "groups of nodes, each within one domain: [{level: nvlink, nodes: 4}]; with several items, each group "
        "consists of groups of the next item, at an inner level: [{level: rack, nodes: 16}, {level: nvlink, "
        "nodes: 4}]",
        default=(),
    )
    sharing: str = _spec(
        "shared: other jobs may use the same nodes; exclusive: no other job may; whole: exclusive, and no GPU of "
        "a node may stay unused",
        form="sharing",
        default=SHARED,
    )
    node_selector: dict[str, str] = _spec("labels that every node must have", form="labels", factory=dict)
    affinity: Affinity = _spec("labels that nodes must or should have, beyond equality", factory=Affinity)
    nodes: tuple[str, ...] = _spec("names of the nodes that the job may use; unset: any", form="node_names", default=())
    devices: tuple[int, ...] = _spec(
        "indices of the GPUs of each node that the job may use: [0, 1]; unset: any", form="devices", default=()
    )
    tolerations: tuple[str, ...] = _spec(
        "taints that the job tolerates: spot, team=nlp, or * for all", form="taints", default=()
    )
    network: tuple[str, ...] = _spec(
        "network that connects all nodes: ib; [ib, roce], or rdma: the first with enough free nodes; unset: any",
        form="networks",
        default=(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The samples of an optimizer step, and what becomes of them and of the learning rate when the gang is resized."""

    global_samples: int = _spec(
        "samples of an optimizer step over all processes at the smallest size: 512",
        form="samples",
        key="global",
    )
    policy: str = _spec(
        "constant_global: the same samples at every size; scale_lr_linear, scale_lr_sqrt: the same samples per "
        "process, with the learning rate times the growth of the gang or its square root; custom: left to the script",
        form="batch_policy",
        default=CONSTANT_GLOBAL,
    )

    def per_rank(self, ranks: int, min_ranks: int) -> int | None:
        """Return the samples of each process; None if that is left to the script."""
        if self.policy == CUSTOM:
            return None
        return self.global_samples // (ranks if self.policy == CONSTANT_GLOBAL else min_ranks)

    def lr_scale(self, ranks: int, min_ranks: int) -> float:
        """Return the factor of the learning rate."""
        growth = ranks / min_ranks
        return {SCALE_LR_LINEAR: growth, SCALE_LR_SQRT: math.sqrt(growth)}.get(self.policy, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """The resizing of a gang with a range of nodes: its units, and the samples at each size."""

    step: int = _spec("nodes that are added or removed together", form="nodes", default=1)
    level: str | None = _spec(
        "topology level whose domains each hold such a unit of nodes: rack; unset: any nodes",
        form="level",
        default=None,
    )
    batch: Batch | None = _spec("samples per optimizer step at each size", default=None)
