"""Events about the health of nodes: faults, ends of repairs, and what an operator asks for."""

from dataclasses import dataclass, field
from typing import Literal

from ganger.model.node_health.fault import Fault
from ganger.model.node_health.health_record import RepairStep


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFaulty:
    """A check found a fault of a node; reported again while it lasts."""

    fault: Fault
    kind: Literal["node_faulty"] = field(default="node_faulty")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairEnded:
    """The hook of a repair step, or of a test, ended.

    Attributes:
        repair: The number of the hook. One about another than the newest of its node is stale.
        detail: One sentence, empty for nothing to say.
    """

    node: str
    repair: int
    has_succeeded: bool
    detail: str = ""
    kind: Literal["repair_ended"] = field(default="repair_ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairRequested:
    """A user asked for a node to be taken out of service and repaired, beginning with `step`, None for the mildest."""

    node: str
    step: RepairStep | None = None
    by: str = ""
    reason: str = ""
    kind: Literal["repair_requested"] = field(default="repair_requested")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReturnRequested:
    """A user asked for a node that is out of service because of its health to be tested and returned."""

    node: str
    by: str = ""
    kind: Literal["node_return_requested"] = field(default="node_return_requested")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRetired:
    """A user took a node out of service for good."""

    node: str
    by: str = ""
    reason: str = ""
    kind: Literal["node_retired"] = field(default="node_retired")


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerReset:
    """A user allowed nodes to be cordoned by decisions again, after the breaker had stopped that."""

    by: str = ""
    kind: Literal["breaker_reset"] = field(default="breaker_reset")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMeasurement:
    """The performance of a node by one test.

    Attributes:
        performance_milli: To the usual one of the nodes that were tested with it, in thousandths.
        sentence: What is wrong with it, with figures; empty for nothing.
    """

    node: str
    performance_milli: int
    sentence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesMeasured:
    """A test of nodes, run as the job `gang` or before it, measured their performance."""

    gang: str
    measurements: tuple[NodeMeasurement, ...]
    kind: Literal["nodes_measured"] = field(default="nodes_measured")


HealthRequest = RepairRequested | NodeReturnRequested | NodeRetired | BreakerReset
HealthFact = NodeFaulty | RepairEnded | NodesMeasured
HealthEvent = HealthRequest | HealthFact
