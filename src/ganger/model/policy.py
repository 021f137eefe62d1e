"""The policy document: everything that an operator configures about scheduling, as data.

`State.document` is the one in force; `PolicySet` installs a new version. Like those of
a job, its fields carry the key, the form and the sentence by which `spec` parses, writes and documents them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from ganger.model.described import described
from ganger.model.node_health.health_rules import NodeHealthRules
from ganger.model.queue import DEFAULT, ROOT, Queue
from ganger.model.units import DAY_MS, MINUTE_MS
from ganger.model.watch.watch_rules import WatchRules

RESERVED, SPOT, ON_DEMAND, CPU = "reserved", "spot", "on-demand", "cpu"
POOL_KINDS: Final = (RESERVED, SPOT, ON_DEMAND, CPU)
"""Kinds of pools, by how their nodes are paid for.

Reserved nodes are paid for in any case, on-demand nodes while they are held; spot nodes may be reclaimed at any time;
cpu nodes have no GPUs and serve jobs that request none.
"""
FRAGMENTATION: Final = "fgd"
LEAST: Final = "least"
TIES: Final = (LEAST, "order")
RESTRICTED, BASELINE, PRIVILEGED = "restricted", "baseline", "privileged"
POD_SECURITY: Final = (RESTRICTED, BASELINE, PRIVILEGED)
"""Pod Security Standards of Kubernetes that the pods of jobs can comply with."""
NONE, GUARANTEE, FAIR_SHARE, QUEUE, ALL = "none", "guarantee", "fair_share", "queue", "all"
RECLAIMS: Final = (NONE, GUARANTEE, FAIR_SHARE)
"""Values of `preemption.reclaim`."""
PRIORITY_SCOPES: Final = (NONE, QUEUE, ALL)
"""Values of `preemption.priority`."""
ORDER: Final = "dynamic"
"""The default queue order."""
ATOMIC_SCALE_UP: Final = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
"""Provisioning class of the cluster autoscaler that adds all nodes of a request or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The weight of each factor of the order `dynamic`, in points."""

    priority: int = described("points for each unit of a job's priority", form="points", default=20)
    queue: int = described(
        "maximum points for the part of its fair share that the queue has not used, and for each 2 h of it that the "
        "queue lags behind its siblings",
        form="points",
        default=10_000,
    )
    user: int = described(
        "maximum points for the part of the fair share that the user has not used; far fewer than those of the queue, "
        "so that a queue gets its share however many users it has",
        form="points",
        default=100,
    )
    passed_over: int = described(
        "points for each minute after passed_over_after, without a limit, so that every job starts eventually",
        form="some_points",
        default=100,
    )
    passed_over_after_ms: int = described(
        "time since a job was submitted, or one that was submitted before it started, from which it gets these points",
        form="pause",
        key="passed_over_after",
        default=DAY_MS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Starvation:
    """The age from which a pending job starves: nodes are then reserved for it."""

    after_ms: int | None = described(
        "age from which a pending job starves; unset: the default of the queue order (30m; las: never)",
        form="duration",
        key="after",
        default=None,
    )
    by_priority: dict[int, int] = described(
        "age from which a job of at least a priority (low, normal, high or a number) starves: the highest "
        "priority that the job reaches decides",
        form="ages",
        factory=dict,
    )

    def age_ms(self, priority: int, default_ms: int | None) -> int | None:
        """Return the age for a job of that priority; `default_ms`: the age where the document sets none."""
        if self.by_priority:
            reached = [threshold for threshold in self.by_priority if threshold <= priority]
            if reached:
                return self.by_priority[max(reached)]
        return default_ms if self.after_ms is None else self.after_ms

    def soonest_ms(self, default_ms: int | None) -> int | None:
        """Return the age below which no job of any priority starves; None: no job ever does."""
        base_ms = default_ms if self.after_ms is None else self.after_ms
        return min((age_ms for age_ms in (base_ms, *self.by_priority.values()) if age_ms is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Large:
    """Reservations of jobs on many nodes, for which enough nodes rarely become free while smaller jobs keep arriving.

    Those that have waited for long get reservations of their own, besides that of the first job of their queue.
    """

    nodes: int = described("number of nodes from which a job counts as large", form="nodes", default=2)
    after_ms: int | None = described(
        "age from which nodes are reserved for a large job; unset: the age from which it starves",
        form="duration",
        key="after",
        default=None,
    )
    per_queue: int | None = described(
        "large jobs of one queue with a reservation, in addition to reservations.per_queue: a number, or all; 0: none",
        form="jobs",
        default=5,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservations:
    """The number of jobs with a reservation at a time. None: all, which is conservative backfill; total 1 is EASY."""

    total: int | None = described("jobs of all queues with a reservation: a number, or all", form="jobs", default=20)
    per_queue: int | None = described("jobs of one queue with a reservation: a number, or all", form="jobs", default=1)
    large: Large = described("additional reservations for jobs on many nodes, within the total", factory=Large)
    prefetch: bool = described(
        "whether the image of a job is pulled before its reserved start on those of its nodes that lack it, on "
        "Kubernetes",
        form="flag",
        default=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Nodes that are filled after those of the pools before it, and released before them."""

    name: str = described("name of the pool", form="name")
    kind: str = described("reserved, spot, on-demand or cpu", form="pool_kind")
    nodes: dict[str, str] = described(
        "labels of its nodes; a node belongs to the first pool that matches", form="labels"
    )
    notice_ms: int | None = described(
        "time between the announcement that a node is taken away and its end: 2m; a job whose saves take longer is "
        "warned",
        form="pause",
        key="notice",
        default=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A topology level: a node label names the domain of each node."""

    name: str = described("name of the level, as used in placement.topology", form="level_name", key="level")
    labels: tuple[str, ...] = described(
        "keys of the node labels that name the domain of a node: the first key that the node has counts; a node "
        "without any is in no domain of the level",
        form="label_keys",
    )

    def domain(self, labels: Mapping[str, str]) -> str:
        """Return the domain of a node with these labels; empty for none."""
        return next((labels[key] for key in self.labels if labels.get(key)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShares:
    """Rules by which a node, and a device on it, is chosen among the candidates with enough free capacity."""

    score: str = described(
        "how candidate nodes are ranked: pack: for GPU shares, the device with the least left; fgd: the node "
        "whose free capacity is least fragmented by the job, given what jobs here request; or that of a plug-in. With "
        "any but pack a job of one node that accepts several GPU types gets the best node of any of them",
        form="score",
        default="pack",
    )
    cut: int = described(
        "number of grades that scores are rounded to, so that nodes with similar scores tie; 0: exact scores",
        form="grades",
        default=0,
    )
    ties: str = described(
        "tie-breaker of equal scores: least: the node with the least left; order: the first in topology order",
        form="ties",
        default="least",
    )
    seed: int = described("seed of a plug-in score that draws nodes, for simulations", form="seed", default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """Rights of the pods of jobs on Kubernetes, and the names that a job may use.

    A pattern is a name with * for any text. `*` alone does not match names that are reserved; `**` matches all.
    """

    security: str = described(
        "Pod Security Standard of the pods of jobs: restricted: a user other than root and no capabilities, whatever "
        "the image says; baseline: the user of the image, with the capabilities that containers have by default; "
        "privileged: as baseline, and whatever the section pod of a job asks for",
        form="pod_security",
        default=RESTRICTED,
    )
    volumes: tuple[str, ...] = described(
        "patterns of the PersistentVolumeClaims of its namespace that a job may mount", form="patterns", default=("*",)
    )
    secrets: tuple[str, ...] = described(
        "patterns of the keys of the Secret ganger-secrets of its namespace that a job may use",
        form="patterns",
        default=("*",),
    )
    references: tuple[str, ...] = described(
        "patterns of KIND/NAME of what the section pod of a job may name: Secret/registry, ConfigMap/*, "
        "ServiceAccount/NAME, PriorityClass/NAME, RuntimeClass/NAME, StorageClass/NAME, ResourceClaimTemplate/NAME, "
        "csi/DRIVER, nfs/SERVER/PATH, hostPath/PATH, other sources of volumes as SOURCE/*, and Capability/NAME beyond "
        "`security`",
        form="patterns",
        default=(),
    )
    labels: tuple[str, ...] = described(
        "patterns of the keys of labels, and of annotations of pods, that a job may have; reserved: those of "
        "kubernetes.io, k8s.io, ganger.dev and the domains below them",
        form="patterns",
        default=("*",),
    )
    tolerations: tuple[str, ...] = described(
        "patterns of the keys of taints that a job may tolerate; reserved: those of kubernetes.io, k8s.io, ganger.dev "
        "and the domains below them, and * for all taints",
        form="patterns",
        default=("*",),
    )
    git_hosts: tuple[str, ...] = described(
        "patterns of the hosts from which code: {git: URL} is fetched; reserved: IP addresses, names without a dot, "
        "and names below svc, local, localhost and internal",
        form="patterns",
        default=("*",),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceQueues:
    """Queues of the jobs of some namespaces on Kubernetes; the first item whose pattern matches a namespace decides."""

    match: tuple[str, ...] = described("patterns of the namespaces: [team-a, research-*]", form="patterns")
    queue: str = described("queue of their jobs that name none, or default", form="queue_name")
    others: tuple[str, ...] = described(
        "patterns of other queues that their jobs may name; unset: none", form="patterns", default=()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """Rules by which running jobs are preempted for a pending one, under an order with reservations.

    Victims get the notice of their checkpoint section, lose no retry and start again by themselves.
    """

    reclaim: str | None = described(
        "none, or guarantee: a job of a queue that stays within its guarantee preempts those of queues that exceed "
        "theirs; fair_share: so does one whose queue has no greater share after that than those which lose any; unset: "
        "guarantee under the order dynamic, none under others",
        form="reclaim",
        default=None,
    )
    priority: str | None = described(
        "running jobs that one of a higher priority preempts: none; queue: those of its own queue and of queues "
        "above or below it; all: those of all queues, except jobs within the guarantee of another queue; unset: queue "
        "under the order dynamic, none under others",
        form="priority_scope",
        default=None,
    )
    priority_gap: int = described(
        "difference of priorities from which a job preempts another one", form="some_points", default=100
    )
    min_run_ms: int = described(
        "time from its start within which a job is not preempted", form="pause", key="min_run", default=0
    )
    cooldown_ms: int = described(
        "time from its start within which a job that was preempted before is not preempted again",
        form="pause",
        key="cooldown",
        default=10 * MINUTE_MS,
    )
    max_per_hour: int | None = described(
        "jobs of one queue that are preempted within an hour: a number, 0 for none, or all", form="jobs", default=None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Defrag:
    """Consolidation by schedule: running jobs that are `movable` are moved so that a larger job fits."""

    every_ms: int | None = described(
        "interval at which jobs are moved if that makes room, 1m or more; unset: only by `ganger defrag apply`",
        form="duration",
        key="every",
        default=None,
    )
    level: str | None = described(
        "topology level in one domain of which the largest job becomes larger; unset: the lowest",
        form="level_name",
        default=None,
    )
    budget_ms: int | None = described(
        "GPU time that the moves of one run may waste, 2h being two hours of one GPU; unset: no limit",
        form="duration",
        key="budget",
        default=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spares:
    """Spare nodes of large jobs whose job file does not name a number of spares."""

    from_nodes: int | None = described(
        "number of nodes from which a job gets spares, if there is room for them in its domain; unset: none does",
        form="nodes",
        default=None,
    )
    count: int = described("number of spare nodes of such a job", form="spares", default=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaling:
    """Nodes that are requested from the autoscaler of a Kubernetes cluster for jobs that wait for nodes.

    Jobs larger than the cluster are accepted then.
    """

    after_ms: int | None = described(
        "time for which a job waits for nodes until more are requested, on Kubernetes; unset: none are requested",
        form="pause",
        key="after",
        default=None,
    )
    provisioning_class: str = described(
        "provisioning class of the ProvisioningRequests; placeholder pods take their place in a cluster without them",
        form="provisioning_class",
        key="class",
        default=ATOMIC_SCALE_UP,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The policy document without its queues."""

    order: str = described(
        "queue order: dynamic, fair_share, priority, fifo, las, max_min, or that of a plug-in; strict_fifo, "
        "first_fit, easy and conservative are baselines for simulations",
        form="order",
        default=ORDER,
    )
    weights: Weights = described("weight of each factor of the order `dynamic`", factory=Weights)
    half_life_ms: int = described("half-life of past usage", form="half_life", key="half_life", default=7 * DAY_MS)
    starvation: Starvation = described("age from which a pending job starves", factory=Starvation)
    reservations: Reservations = described("number of jobs that nodes are reserved for", factory=Reservations)
    preemption: Preemption = described("rules by which running jobs are preempted", factory=Preemption)
    spares: Spares = described("spare nodes of large jobs", factory=Spares)
    defrag: Defrag = described("when running jobs are moved so that a larger one fits", factory=Defrag)
    autoscaling: Autoscaling = described(
        "when nodes are requested from the autoscaler of a Kubernetes cluster", factory=Autoscaling
    )
    pools: tuple[Pool, ...] = described(
        "node pools by how they are paid for, in the order in which they are filled", default=()
    )
    topology: tuple[Level, ...] = described(
        "topology levels by node labels, outermost first; unset: those of the topology file, or, on Kubernetes, "
        "of well-known labels",
        default=(),
    )
    gpu_shares: GpuShares = described("how nodes and devices are chosen", factory=GpuShares)
    namespaces: tuple[NamespaceQueues, ...] = described(
        "queues of the jobs of namespaces on Kubernetes; those of a namespace that no item matches may name any",
        default=(),
    )
    pods: Pods = described("rights of the pods of jobs on Kubernetes, and the names that a job may use", factory=Pods)
    node_health: NodeHealthRules = described(
        "when faulty nodes are taken out of service, repaired and returned", factory=NodeHealthRules
    )
    watch: WatchRules = described("consequences of the findings of the loss watch", factory=WatchRules)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDocument(Rules):
    """The whole policy document. `queues`: by name; root and default always exist."""

    queues: dict[str, Queue] = described(
        "queues by name; keys of root and default that are left out keep their defaults",
        factory=dict,
    )


def document_of(rules: Rules, queues: Mapping[str, Queue]) -> PolicyDocument:
    """Return the document of these rules and queues, with the queues in order of their names."""
    values: dict[str, Any] = {part.name: getattr(rules, part.name) for part in fields(Rules)}
    return PolicyDocument(**values, queues={name: queues[name] for name in sorted(queues)})


def initial_document() -> PolicyDocument:
    """Return the document of a server that was never given one."""
    return document_of(Rules(), {ROOT: Queue(name=ROOT, parent=None), DEFAULT: Queue(name=DEFAULT)})
