"""The messages `standing` and `stacked` as objects: the state of a node's ranks.

docs/reference/launcher-protocol.md, "Standing", describes the fields.
"""

from collections.abc import Collection
from dataclasses import dataclass
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
    """Stall report of the ranks of one node."""

    has_run: bool
    reports: bool = False
    frozen: tuple[StoppedRank, ...] = ()
    silent_ms: int | None = None
    deserted_ms: int | None = None

    @classmethod
    def from_message(cls, message: dict[str, Any], ranks: Collection[int]) -> Self:
        """Convert a message, limited to these ranks."""
        return cls(
            has_run=message["has_run"],
            reports=message["reports"],
            frozen=tuple(StoppedRank(*fields) for fields in message["frozen"] if fields[0] in ranks),
            silent_ms=message["silent_ms"],
            deserted_ms=message["deserted_ms"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDetail:
    """One rank when the stacks were taken: newest step, state in /proc, how much it worked lately."""

    rank: int
    node: str
    step: int | None
    state: str
    busy_permille: int


def details(message: dict[str, Any], node: str, ranks: Collection[int]) -> tuple[RankDetail, ...]:
    """Convert a `stacked` message, limited to these ranks."""
    return tuple(
        RankDetail(
            rank=int(rank),
            node=node,
            step=fields["step"],
            state=fields["state"],
            busy_permille=fields["busy_permille"],
        )
        for rank, fields in message["ranks"].items()
        if int(rank) in ranks
    )


def format_frame(function: str, file: str, line: int) -> str:
    """Format a stack frame for display."""
    return f"{function} ({file}:{line})"
