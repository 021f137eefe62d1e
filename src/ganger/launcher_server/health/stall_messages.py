"""The messages `standing` and `stacked`, by which a launcher says how its ranks stand, as objects. Used by `hang`.

The fields are those of docs/reference/launcher-protocol.md, "Standing".
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple, Self


class StoppedRank(NamedTuple):
    """A rank whose processes stand still: `kind` is stopped, blocked or dead; since when, in Unix ms; whether its node
    has seen ranks make steps."""

    rank: int
    kind: str
    since_ms: int
    is_known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StallReport:
    """Of the ranks of one node."""

    has_run: bool
    reports: bool = False
    frozen: tuple[StoppedRank, ...] = ()
    silent_ms: int | None = None
    deserted_ms: int | None = None

    @classmethod
    def of(cls, message: dict[str, Any], ranks: Collection[int]) -> Self:
        """Take what a message says of these ranks."""
        return cls(
            has_run=message["has_run"],
            reports=message["reports"],
            frozen=tuple(StoppedRank(*each) for each in message["frozen"] if each[0] in ranks),
            silent_ms=message["silent_ms"],
            deserted_ms=message["deserted_ms"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """One rank when the stacks were taken: its newest step, its state as /proc has it, how much it worked lately."""

    rank: int
    node: str
    step: int | None
    state: str
    busy_permille: int


def details(message: dict[str, Any], node: str, ranks: Collection[int]) -> tuple[Detail, ...]:
    """Return what `stacked` says of these ranks."""
    return tuple(
        Detail(
            rank=int(rank),
            node=node,
            step=found["step"],
            state=found["state"],
            busy_permille=found["busy_permille"],
        )
        for rank, found in message["ranks"].items()
        if int(rank) in ranks
    )


def frame(function: str, file: str, line: int) -> str:
    """A place in a program, as people are told of it."""
    return f"{function} ({file}:{line})"
