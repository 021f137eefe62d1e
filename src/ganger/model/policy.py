"""The policy document: everything that an operator sets of how the cluster is given out, as data.

`State.rules` has all of it but the queues, which are `State.queues`; `PolicySet` brings a new version. Every field
carries the key, the form and the sentence that `spec` reads, writes and documents it by, as those of a job do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from ganger.model.described import described
from ganger.model.queue import Queue
from ganger.model.units import DAY_MS

RESERVED, SPOT, ON_DEMAND, CPU = "reserved", "spot", "on-demand", "cpu"
POOL_KINDS: Final = (RESERVED, SPOT, ON_DEMAND, CPU)
"""What a pool's nodes are: owned or paid for anyway; taken back at any time; paid for while they are held; without
GPUs, for jobs that ask for none."""
FRAGMENTATION: Final = "fgd"
SCORES: Final = ("pack", FRAGMENTATION, "best-fit", "dotprod", "gpu-packing", "gpu-clustering", "random")
LEAST: Final = "least"
TIES: Final = (LEAST, "order")
ORDER: Final = "dynamic"
"""The queue order of a server that nobody configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What each factor of the order `dynamic` is worth, in points."""

    priority: int = described("for each point of a job's priority", form="points", default=1)
    queue: int = described("at most, for what its queue has not used of its fair part", form="points", default=500)
    user: int = described("at most, for what its user has not used", form="points", default=500)
    age: int = described("for each minute since submission, up to age_cap", form="points", default=1)
    age_cap_ms: int = described("the age beyond which age counts no more", form="pause", key="age_cap", default=DAY_MS)
    starvation: int = described(
        "for each minute after a job began to starve, without end, so that nobody starves",
        form="some_points",
        default=1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Starvation:
    """From which age on a waiting job starves: nodes are then reserved for it."""

    after_ms: int | None = described(
        "the age; unset: what the order says (30m; las: never)", form="duration", key="after", default=None
    )
    by_priority: dict[int, int] = described(
        "the age for jobs of at least a priority, low, normal, high or a number: the highest of these that a job has "
        "reached decides",
        form="ages",
        factory=dict,
    )

    def age_ms(self, priority: int, otherwise_ms: int | None) -> int | None:
        """The age for a job of that priority; `otherwise_ms`: where nothing is said of it."""
        if self.by_priority:
            reached = [each for each in self.by_priority if each <= priority]
            if reached:
                return self.by_priority[max(reached)]
        return otherwise_ms if self.after_ms is None else self.after_ms

    def soonest_ms(self, otherwise_ms: int | None) -> int | None:
        """The age below which no job starves, whatever its priority; None: none ever does."""
        base_ms = otherwise_ms if self.after_ms is None else self.after_ms
        return min((each for each in (base_ms, *self.by_priority.values()) if each is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Large:
    """Jobs on many nodes, for which room never comes by itself while smaller ones come: those that have waited for long
    have reservations of their own, beside that of the first of their queue."""

    nodes: int = described("from how many nodes on a job is large", form="nodes", default=2)
    after_ms: int | None = described(
        "the age from which on nodes are reserved for it; unset: from which on it starves",
        form="duration",
        key="after",
        default=None,
    )
    per_queue: int | None = described(
        "of one queue, besides reservations.per_queue: a number, or all; 0: large jobs have none of their own",
        form="jobs",
        default=5,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservations:
    """For how many jobs at a time nodes are reserved. None is for all of them: conservative backfill; total 1 is
    EASY."""

    total: int | None = described("of all queues: a number, or all", form="jobs", default=20)
    per_queue: int | None = described("of one queue: a number, or all", form="jobs", default=1)
    large: Large = described("those that jobs on many nodes have besides, within the total", factory=Large)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Nodes that are filled after those of the pools before it, and given back before them."""

    name: str = described("its name", form="name")
    kind: str = described("reserved, spot, on-demand or cpu", form="pool_kind")
    nodes: dict[str, str] = described(
        "labels that its nodes have; a node is in the first pool that fits", form="labels"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A level of the network: which part of it a node is in, one of its labels says."""

    name: str = described("its name, as jobs ask for it: placement.topology", form="level_name", key="level")
    labels: tuple[str, ...] = described(
        "keys of the labels that say which domain of it a node is in: the first that the node has counts; without any "
        "it is in none",
        form="label_keys",
    )

    def domain(self, labels: Mapping[str, str]) -> str:
        """The domain of it that a node with these labels is in; empty for none."""
        return next((labels[key] for key in self.labels if labels.get(key)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShares:
    """How a node, and a device on it, is chosen among those that have room."""

    score: str = described(
        "pack: of shares, the device with the least left; fgd: the node whose room is least broken up by it, for what "
        "jobs here ask for; best-fit: the node left with the least CPU and GPU; dotprod: the node whose rest is least "
        "like what is asked for; gpu-packing: shared devices before free ones, nodes in use before idle ones; "
        "gpu-clustering: nodes with jobs of the same size; random: any",
        form="score",
        default="pack",
    )
    cut: int = described(
        "into how many whole grades the score is cut, so that nodes of about the same score tie; 0: none, it is exact",
        form="grades",
        default=0,
    )
    ties: str = described(
        "of equal scores: least, the node with the least left; order, the first in topology order",
        form="ties",
        default="least",
    )
    seed: int = described("of the score random: with another one nodes are drawn otherwise", form="seed", default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The policy document without its queues."""

    order: str = described(
        "the queue order: dynamic, fair_share, priority, fifo, las, max_min, or that of a plug-in; strict_fifo, "
        "first_fit, easy, conservative, sjf, srtf, srsf and tiresias are those that simulators compare with",
        form="order",
        default=ORDER,
    )
    weights: Weights = described("what each factor of the order `dynamic` is worth", factory=Weights)
    half_life_ms: int = described(
        "after which what was used counts half as much", form="half_life", key="half_life", default=7 * DAY_MS
    )
    starvation: Starvation = described("from which age on a waiting job starves", factory=Starvation)
    reservations: Reservations = described("for how many jobs nodes are reserved", factory=Reservations)
    pools: tuple[Pool, ...] = described(
        "nodes by how they are paid for, in the order in which they are filled", default=()
    )
    topology: tuple[Level, ...] = described(
        "the levels of the network by labels of nodes, outermost first; unset: those of the topology file, or, on "
        "Kubernetes, of the labels that clusters have by themselves",
        default=(),
    )
    gpu_shares: GpuShares = described("how nodes and devices are chosen", factory=GpuShares)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDocument(Rules):
    """The whole document. `queues`: by name; root and default are always among them."""

    queues: dict[str, Queue] = described(
        "the queues, by name; what is left out of root and default is as it is without a document",
        factory=dict,
    )

    @property
    def rules(self) -> Rules:
        """All of it but the queues."""
        return Rules(**{part.name: getattr(self, part.name) for part in fields(Rules)})


def document_of(rules: Rules, queues: Mapping[str, Queue]) -> PolicyDocument:
    """The document that these make; queues in order of their names."""
    said: dict[str, Any] = {part.name: getattr(rules, part.name) for part in fields(Rules)}
    return PolicyDocument(**said, queues={name: queues[name] for name in sorted(queues)})
