"""Rules of the policy document about the health of nodes."""

from dataclasses import dataclass
from typing import Final

from ganger.model.described import described
from ganger.model.node_health.fault import Severity
from ganger.model.node_health.health_record import LADDER, RepairStep
from ganger.model.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

ACT, DRY_RUN, RECORD = "act", "dry_run", "record"
HEALTH_MODES: Final = (ACT, DRY_RUN, RECORD)
NOW, CHECKPOINT, JOB_END = "now", "checkpoint", "job_end"
DRAINS: Final = (NOW, CHECKPOINT, JOB_END)
HOOK_STEPS: Final = tuple(step.value for step in RepairStep)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspicionRules:
    """The score of a node: points for each fault, which decay."""

    half_life_ms: int = described(
        "half-life of the points of a node", form="duration", key="half_life", default=30 * DAY_MS
    )
    note: int = described("points for a fault that calls for nothing", form="points", default=5)
    restart_job: int = described("points for a fault that ends a job", form="points", default=10)
    repair: int = described("points for a fault that calls for a repair", form="points", default=30)
    suspect_from: int = described("points from which a node is suspect", form="some_points", default=10)
    large: int = described(
        "number of nodes from which a job avoids suspect nodes where it can; while such jobs run, smaller ones take "
        "them first, each user at most a share",
        form="nodes",
        default=2,
    )
    per_job: int = described(
        "suspect nodes of such a job where it cannot do without; if they do not suffice, as few as do",
        form="spares",
        default=1,
    )

    def points(self, severity: Severity) -> int:
        """Return the points for a fault."""
        if severity >= Severity.RESET_DEVICE:
            return self.repair
        return self.restart_job if severity is Severity.RESTART_JOB else self.note


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairBudget:
    """Nodes that may be out of service at a time because of their health; those that a person retired do not count."""

    percent: int = described(
        "share of the nodes of the cluster, in percent, at least one node", form="percent", default=10
    )
    nodes: int | None = described("number of nodes: a number, or all", form="jobs", default=None)
    per_domain: int = described("number of nodes of one innermost topology domain", form="nodes", default=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthBreaker:
    """Cordons by decisions within a window beyond which no more follow: the cause is probably not the nodes."""

    percent: int = described(
        "share of the nodes of the cluster, in percent, at least one node", form="percent", default=5
    )
    per_domain: int = described("number of nodes of one innermost topology domain", form="nodes", default=3)
    window_ms: int = described(
        "window, after which nodes are cordoned again", form="duration", key="window", default=HOUR_MS
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    """Faults of many nodes that are one event of their domain or of the cluster, for which no node is cordoned."""

    nodes: int = described(
        "number of nodes of one innermost topology domain with a fault of the same code; in the cluster with faults "
        "of the same check also more than the breaker's share",
        form="nodes",
        default=4,
    )
    window_ms: int = described("window for these faults", form="duration", key="window", default=10 * MINUTE_MS)
    settle_ms: int = described(
        "time that is waited for others of the kind before a node is cordoned",
        form="pause",
        key="settle",
        default=15 * SECOND_MS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairHooks:
    """Commands that repair a node, the program first: no shell; a step without one is skipped.

    The server's machine runs them, or a Job of Kubernetes, with GANGER_NODE, GANGER_ADDRESS, GANGER_STEP,
    GANGER_REPAIR, GANGER_CHECK, GANGER_CODE, GANGER_DEVICE and GANGER_GPU. Exit code 0 is success.
    """

    reset_device: tuple[str, ...] = described("resets the device with the fault", form="argv", default=())
    restart_service: tuple[str, ...] = described("restarts the driver or a service", form="argv", default=())
    reboot: tuple[str, ...] = described("reboots the node and waits for it", form="argv", default=())
    power_cycle: tuple[str, ...] = described("power-cycles the node and waits for it", form="argv", default=())
    ticket: tuple[str, ...] = described("asks a person for a repair; the node stays cordoned", form="argv", default=())
    test: tuple[str, ...] = described(
        "tests a node before it is returned; unset: it is returned without", form="argv", default=()
    )
    timeout_ms: int = described(
        "time after which a command is stopped and has failed", form="duration", key="timeout", default=30 * MINUTE_MS
    )
    attempts: int = described("how often a step is tried before the next one", form="some_points", default=1)
    image: str | None = described(
        "on Kubernetes: image of the Jobs that run the commands; unset: that of jobs", form="image", default=None
    )
    on_node: tuple[str, ...] = described(
        "on Kubernetes: steps whose Job runs on the node itself; the others run on another one",
        form="repair_steps",
        default=(RepairStep.RESET_DEVICE.value, RepairStep.RESTART_SERVICE.value, RepairStep.TEST.value),
    )
    template: str | None = described(
        "on Kubernetes: ConfigMap in the namespace of the controller with the pod of the Jobs, in template.yaml: "
        "volumes, privileges; unset: a pod without any",
        form="object_name",
        default=None,
    )

    def of(self, step: RepairStep) -> tuple[str, ...]:
        """Return the command of a step, empty for none."""
        command: tuple[str, ...] = getattr(self, step.value)
        return command

    def next_step(self, first: RepairStep) -> RepairStep | None:
        """Return the first step from `first` on that has a command."""
        return next((step for step in LADDER[LADDER.index(first) :] if self.of(step)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probation:
    """The time after a repair, in which a node takes small jobs only."""

    time_ms: int = described("time on probation", form="pause", key="time", default=4 * HOUR_MS)
    nodes: int = described("largest number of nodes of a job that may use such a node", form="nodes", default=1)
    relapse_ms: int = described(
        "time after its return within which the same fault calls for the next repair step",
        form="pause",
        key="relapse",
        default=DAY_MS,
    )
    retire_after: int = described("repairs within 7 days after which a node is retired", form="some_points", default=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightRules:
    """The test of nodes before a large job starts on them, of GPUs and of all-reduce in pairs: by the job's torch."""

    min_nodes: int | None = described(
        "number of nodes from which a job has its nodes tested; unset: none has", form="nodes", default=None
    )
    every_ms: int = described(
        "time for which a test of a node holds: a job all of whose nodes were tested since then starts at once",
        form="pause",
        key="every",
        default=DAY_MS,
    )
    timeout_ms: int = described(
        "time limit of a test, after which the job starts", form="duration", key="timeout", default=10 * MINUTE_MS
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHealthRules:
    """Rules by which faulty nodes are taken out of service, repaired and returned."""

    mode: str = described(
        "act: nodes with grave faults are cordoned and drained, and repaired where a hook is set; dry_run: that is "
        "decided and recorded, and not carried out; record: faults count against a node, and nothing is decided",
        form="health_mode",
        default=ACT,
    )
    drain: str = described(
        "when jobs leave a cordoned node: now, with their notice; checkpoint: after their next one; job_end",
        form="health_drain",
        default=NOW,
    )
    drain_timeout_ms: int = described(
        "longest wait for a checkpoint, and for jobs that are stopped to leave",
        form="duration",
        key="drain_timeout",
        default=30 * MINUTE_MS,
    )
    suspicion: SuspicionRules = described("score of a node", factory=SuspicionRules)
    budget: RepairBudget = described("nodes that may be out of service at a time", factory=RepairBudget)
    breaker: HealthBreaker = described("cordons within a window beyond which none follow", factory=HealthBreaker)
    correlation: Correlation = described("faults of many nodes that are one event", factory=Correlation)
    hooks: RepairHooks = described("commands that repair and test nodes", factory=RepairHooks)
    probation: Probation = described("what follows a repair", factory=Probation)
    preflight: PreflightRules = described("test of nodes before a large job", factory=PreflightRules)
