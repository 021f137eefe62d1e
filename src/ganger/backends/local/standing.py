"""What a launcher says of how its ranks stand: the message `standing`, read and checked. Used by `hang`."""

from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Of the ranks of one node; the fields are those of docs/launcher-protocol.md, "Standing"."""

    has_run: bool
    deserted_ms: int | None = None

    @classmethod
    def of(cls, message: dict[str, Any]) -> Self:
        """ValueError when it is not of the protocol."""
        return cls(has_run=bool(message["has_run"]), deserted_ms=_time(message, "deserted_ms"))


def _time(message: dict[str, Any], name: str) -> int | None:
    value = message[name]
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError(f"standing: {name} must be a time in ms, not {value!r}")
    return value
