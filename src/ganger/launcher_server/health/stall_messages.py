"""The messages `stall_report` and `stacks_taken` as objects: the state of a node's ranks.

docs/reference/launcher-protocol.md, "Stall report", describes the fields.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self


class StoppedRank(NamedTuple):
    """A rank that makes no progress.

    kind: stopped, blocked or dead
    since_ms: in Unix ms
    is_known: True if its node has seen ranks make steps
    """

    rank: int
    kind: str
    since_ms: int
    is_known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StallReport:
    """Stall report of the ranks of one node.

    silent_since_ms: since when they do nothing
    quiet_since_ms: since when they write nothing, once that is unusual
    unwritten_since_ms: since when they write nothing, of ranks that report nothing, once that is some time ago
    usual_gap_ms: their usual time between outputs, once that is known
    pauses: what the node has learned of the job's pauses
    """

    has_run: bool
    has_reports: bool = False
    stopped_ranks: tuple[StoppedRank, ...] = ()
    silent_since_ms: int | None = None
    quiet_since_ms: int | None = None
    unwritten_since_ms: int | None = None
    usual_gap_ms: int | None = None
    ranks_lost_since_ms: int | None = None
    pauses: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_message(cls, message: dict[str, Any], ranks: Collection[int]) -> Self:
        """Convert a message, limited to these ranks."""
        return cls(
            has_run=message["has_run"],
            has_reports=message["has_reports"],
            stopped_ranks=tuple(StoppedRank(*fields) for fields in message["stopped_ranks"] if fields[0] in ranks),
            silent_since_ms=message["silent_since_ms"],
            quiet_since_ms=message["quiet_since_ms"],
            unwritten_since_ms=message["unwritten_since_ms"],
            usual_gap_ms=message["usual_gap_ms"],
            ranks_lost_since_ms=message["ranks_lost_since_ms"],
            pauses=message["pauses"],
        )


def merge_pauses(known: dict[str, Any], reported: dict[str, Any]) -> dict[str, Any]:
    """Return what a job has learned of its pauses on all nodes and in all attempts: each pause at its longest.

    A silence that may be a pause is that at the latest step; launchers forget it by themselves once past that step.
    """
    longest_s = dict(known.get("longest_s", {}))
    for phase, lasted_s in reported["longest_s"].items():
        longest_s[phase] = max(lasted_s, longest_s.get(phase, 0.0))
    suspected = max(
        (known.get("stuck_step", -1), known.get("suspected_s", 0.0)), (reported["stuck_step"], reported["suspected_s"])
    )
    return {"longest_s": longest_s, "suspected_s": suspected[1], "stuck_step": suspected[0]}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDetail:
    """One rank when the stacks were taken: newest step, state in /proc, how much it worked lately.

    idle_ms: for how long it has neither used a processor nor transferred or written anything
    """

    rank: int
    node: str
    step: int | None
    state: str
    busy_permille: int
    idle_ms: int = 0


def details(message: dict[str, Any], node: str, ranks: Collection[int]) -> tuple[RankDetail, ...]:
    """Convert a `stacks_taken` message, limited to these ranks."""
    return tuple(
        RankDetail(
            rank=int(rank),
            node=node,
            step=fields["step"],
            state=fields["state"],
            busy_permille=fields["busy_permille"],
            idle_ms=fields["idle_ms"],
        )
        for rank, fields in message["ranks"].items()
        if int(rank) in ranks
    )


def format_frame(function: str, file: str, line: int) -> str:
    """Format a stack frame for display."""
    return f"{function} ({file}:{line})"
