"""The health of a node as ganger knows it: its state, its faults, the repair in progress."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ganger.model.node_health.fault import Fault, Severity


class HealthState(StrEnum):
    """The state of a node's health; `core.node_health.health_lifecycle` has the table of transitions."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    CORDONED = "cordoned"
    DRAINING = "draining"
    REPAIRING = "repairing"
    VALIDATING = "validating"
    PROBATION = "probation"
    RETIRED = "retired"


OUT: Final = (
    HealthState.CORDONED,
    HealthState.DRAINING,
    HealthState.REPAIRING,
    HealthState.VALIDATING,
    HealthState.RETIRED,
)
"""States in which a node takes no jobs."""


NOMINAL_MILLI: Final = 1000
"""The usual performance of a node."""
PERFORMANCE_STEP_MILLI: Final = 50


class RepairStep(StrEnum):
    """One thing that a site's hook does with a node; `test` tests it."""

    RESET_DEVICE = "reset_device"
    RESTART_SERVICE = "restart_service"
    REBOOT = "reboot"
    POWER_CYCLE = "power_cycle"
    TICKET = "ticket"
    TEST = "test"


LADDER: Final = (
    RepairStep.RESET_DEVICE,
    RepairStep.RESTART_SERVICE,
    RepairStep.REBOOT,
    RepairStep.POWER_CYCLE,
    RepairStep.TICKET,
)
"""Steps of a repair, the mildest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRecord:
    """A fault of a node, reported once or again while it lasts. Times are those of the server.

    Attributes:
        is_settled: Nothing more is decided about it: its node was cordoned for it, that was recorded in a dry run, or
            it is one of many.
        is_grouped: It is one of many.
    """

    fault: Fault
    first_ms: int
    last_ms: int
    count: int = 1
    is_settled: bool = False
    is_grouped: bool = False

    @property
    def calls_for_repair(self) -> bool:
        """True if its node is to be taken out of service for it."""
        return not self.is_settled and not self.fault.is_shadow and self.fault.severity >= Severity.RESET_DEVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHealth:
    """The health of one node.

    Attributes:
        since_ms: When it came into its state.
        reason: One sentence: why it is in its state.
        points_milli, points_ms: Its score at a time; it decays from then on.
        faults: Those since it was last returned, oldest first; of many the newest.
        due_ms: When time alone ends its state, None for never.
        acts_ms: When a fault that calls for a repair has lasted for long enough to act, None without one.
        repair: Number of the newest hook that was started for it. Reports about older ones are stale.
        step: The step of that hook, or the one that is to be tried next.
        tries: How often this step was tried in a row.
        has_succeeded: How that hook ended, None while it runs.
        is_held: Nothing more happens by itself: a person has to act.
        is_wanted: A person asked for it to be tested and returned.
        keeps_cordon: A person drained it meanwhile: it stays cordoned when it is returned.
        cause: Check and code of the fault that it was last taken out of service for.
        origin: One sentence: that fault, or the request.
        repairs_ms: When repairs of it began, the newest ones.
        returned_ms: When it was last returned, None for never.
        suspicion: What placement holds against it, 0 for nothing.
        performance_milli: Its performance by its newest test, to the usual one, in thousandths.
        measured_ms: When that was, None for never since it was last returned.
        measurement: What was wrong with it in that test, empty for nothing.
    """

    node: str
    state: HealthState = HealthState.HEALTHY
    since_ms: int
    reason: str = ""
    points_milli: int = 0
    points_ms: int = 0
    faults: tuple[FaultRecord, ...] = ()
    due_ms: int | None = None
    acts_ms: int | None = None
    repair: int = 0
    step: RepairStep | None = None
    tries: int = 0
    has_succeeded: bool | None = None
    is_held: bool = False
    is_wanted: bool = False
    keeps_cordon: bool = False
    cause: tuple[str, str] = ("", "")
    origin: str = ""
    repairs_ms: tuple[int, ...] = ()
    returned_ms: int | None = None
    suspicion: int = 0
    performance_milli: int = NOMINAL_MILLI
    measured_ms: int | None = None
    measurement: str = ""

    @property
    def is_out(self) -> bool:
        """True if it takes no jobs because of its health."""
        return self.state in OUT

    @property
    def slowness_milli(self) -> int:
        """Lack of performance, rounded down: two tests of one node differ by less than a step."""
        lack_milli = min(NOMINAL_MILLI, max(0, NOMINAL_MILLI - self.performance_milli))
        return lack_milli - lack_milli % PERFORMANCE_STEP_MILLI

    @property
    def awaits_decision(self) -> bool:
        """True if the next scheduling cycle has to look at it, whatever the time is."""
        if self.state in (HealthState.CORDONED, HealthState.RETIRED):
            return self.is_wanted or (self.state is HealthState.CORDONED and not self.is_held)
        return (
            self.state is HealthState.DRAINING
            or (self.state in (HealthState.REPAIRING, HealthState.VALIDATING) and self.has_succeeded is not None)
            or (not self.is_out and any(record.calls_for_repair for record in self.faults))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonRecord:
    """A node that was taken out of service by a decision, and its innermost domain."""

    node: str
    domain: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultGroup:
    """Faults of one check, of one code in one domain, that have one cause outside their nodes.

    Attributes:
        code: Empty for all codes of the check.
        domain: Innermost topology domain; empty for the whole cluster.
        until_ms: Until when further faults of this kind are taken as part of it.
    """

    check: str
    code: str
    domain: str
    nodes: tuple[str, ...]
    until_ms: int

    def has(self, fault: Fault, domain: str) -> bool:
        """Return whether a fault of a node of a domain is part of it."""
        return self.check == fault.check and self.code in ("", fault.code) and self.domain in ("", domain)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBreaker:
    """A stop of automatic cordons in a domain, or in the whole cluster (empty), until a time."""

    domain: str
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthImage:
    """The health of all nodes, for a snapshot.

    Attributes:
        leaving: Nodes that are to be taken away, with the time.
    """

    nodes: list[NodeHealth] = field(default_factory=list)
    cordons: list[CordonRecord] = field(default_factory=list)
    groups: list[FaultGroup] = field(default_factory=list)
    breakers: list[OpenBreaker] = field(default_factory=list)
    leaving: dict[str, int] = field(default_factory=dict)
