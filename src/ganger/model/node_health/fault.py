"""Faults of nodes, as checks find them, and their severity."""

from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """The least that cures a fault. The numbers are those of rule tables, and of events."""

    NOTE = 0
    """Nothing: it is on record, and counts against the node."""
    RESTART_JOB = 1
    """The job starts again; the node is suspect."""
    RESET_DEVICE = 2
    """The node is drained, and the device reset or the service started again."""
    REBOOT = 3
    REPLACE = 4
    """A person, and a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of a node.

    Attributes:
        check: NAME of the check that found it.
        code: Within the check: xid_79, link_downed. Check, code and device together are one fault: found again while
            it lasts, it is no other one.
        device: GPU UUID, mlx5_0/1, /mnt/data; empty for the whole node.
        gpu: Index of the GPU on its node, None if it is of none.
        at_ms: Unix ms at which it happened, by the clock of the node.
        sentence: For people, with figures.
        evidence: Lines or figures that prove it, at most three.
        is_shadow: It is reported and counted, and nothing is done: a rule that is tried.
    """

    node: str
    check: str
    code: str
    severity: Severity
    device: str = ""
    gpu: int | None = None
    at_ms: int
    sentence: str
    evidence: tuple[str, ...] = ()
    is_shadow: bool = False

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The identity of a fault: two reports with an equal key are the same one."""
        return self.node, self.check, self.code, self.device
