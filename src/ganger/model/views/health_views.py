"""Rows about the health of nodes, as REST, CLI and SDK show them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRow:
    """A fault of a node.

    Attributes:
        severity: note, restart_job, reset_device, reboot or replace.
        device: Empty for the whole node.
        count: How often it was reported.
        is_grouped: It is one of many, for which no node is cordoned.
        is_shadow: Its rule is tried: nothing is done for it.
    """

    check: str
    code: str
    severity: str
    device: str
    sentence: str
    first_ms: int
    last_ms: int
    count: int
    is_grouped: bool
    is_shadow: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHealthRow:
    """The health of a node.

    Attributes:
        state: healthy, suspect, cordoned, draining, repairing, validating, probation or retired.
        sentence: Why, and what comes next.
        since_ms: When it came into that state.
        until_ms: When time alone ends it, None for never.
        points: Its score, of which half decays in each half-life.
        step: The repair step that is in progress, or was the last one; empty for none.
        repairs: Repairs that began within 7 days.
        performance: By its newest test, to the usual one: 1.0 is the usual one; None if it was not tested.
        measured_ms: When that was.
    """

    node: str
    state: str
    sentence: str
    since_ms: int
    until_ms: int | None
    points: float
    step: str = ""
    repairs: int = 0
    performance: float | None = None
    measured_ms: int | None = None
    faults: tuple[FaultRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthOverview:
    """The health of all nodes that something has happened to.

    Attributes:
        notes: Sentences about the cluster: automatic cordons that are stopped, faults of many nodes that are one event.
    """

    nodes: tuple[NodeHealthRow, ...]
    notes: tuple[str, ...] = ()
