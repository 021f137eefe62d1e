"""What a launcher says of how its ranks stand: the messages `standing` and `stacked`, read and checked. Used by `hang`.

The fields are those of docs/launcher-protocol.md, "Standing".
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Self


class Frozen(NamedTuple):
    """A rank whose processes stand still: `kind` is stopped, blocked or dead; since when, in Unix ms; whether its node
    has seen ranks make steps."""

    rank: int
    kind: str
    since_ms: int
    is_known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Of the ranks of one node."""

    has_run: bool
    reports: bool = False
    frozen: tuple[Frozen, ...] = ()
    silent_ms: int | None = None
    deserted_ms: int | None = None

    @classmethod
    def of(cls, message: dict[str, Any]) -> Self:
        """ValueError when it is not of the protocol."""
        return cls(
            has_run=bool(message["has_run"]),
            reports=bool(message["reports"]),
            frozen=tuple(
                Frozen(int(rank), str(kind), int(since_ms), bool(is_known))
                for rank, kind, since_ms, is_known in message["frozen"]
            ),
            silent_ms=_time(message, "silent_ms"),
            deserted_ms=_time(message, "deserted_ms"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """One rank when the stacks were taken: its newest step, its state as /proc has it, how much it worked lately."""

    rank: int
    node: str
    step: int | None
    state: str
    busy_permille: int


def details(message: dict[str, Any], node: str) -> tuple[Detail, ...]:
    """What `stacked` says. ValueError when it is not of the protocol."""
    return tuple(
        Detail(
            rank=int(rank),
            node=node,
            step=None if found["step"] is None else int(found["step"]),
            state=str(found["state"]),
            busy_permille=int(found["busy_permille"]),
        )
        for rank, found in dict(message["ranks"]).items()
    )


def frame(function: str, file: str, line: int) -> str:
    """A place in a program, as people are told of it."""
    return f"{function} ({file}:{line})"


def _time(message: dict[str, Any], name: str) -> int | None:
    value = message[name]
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError(f"standing: {name} must be a time in ms, not {value!r}")
    return value
