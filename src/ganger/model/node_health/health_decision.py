"""Decisions about the health of nodes."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from ganger.model.node_health.health_record import RepairStep


class HealthAction(StrEnum):
    """A step of the health of a node that is decided."""

    RECOVER = "recover"
    CORDON = "cordon"
    DRAIN = "drain"
    REPAIR = "repair"
    VALIDATE = "validate"
    RETURN = "return"
    RELEASE = "release"
    RETIRE = "retire"
    HOLD = "hold"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActOnNode:
    """One step of the health of a node.

    Attributes:
        reason: One sentence.
        domain: Its innermost topology domain, for a cordon.
        repair: Number of the hook that is started, for a repair or a validation.
        step: What that hook does.
        is_dry: It is on record only: the rules say `dry_run`.
    """

    node: str
    action: HealthAction
    reason: str
    domain: str = ""
    repair: int = 0
    step: RepairStep | None = None
    is_dry: bool = False
    kind: Literal["node_action"] = field(default="node_action")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFaults:
    """Faults of many nodes are one event of their domain, or of the cluster: none of the nodes is cordoned for them.

    Attributes:
        code: Empty for all codes of the check.
        domain: Empty for the whole cluster.
    """

    check: str
    code: str
    domain: str
    nodes: tuple[str, ...]
    until_ms: int
    reason: str
    kind: Literal["faults_grouped"] = field(default="faults_grouped")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenHealthBreaker:
    """No node of the domain is cordoned by decisions any more until a time; empty: none of the cluster."""

    domain: str
    until_ms: int
    reason: str
    kind: Literal["breaker_opened"] = field(default="breaker_opened")


HealthDecision = ActOnNode | GroupFaults | OpenHealthBreaker
