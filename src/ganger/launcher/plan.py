"""What to run for one generation on one node: `plan-G.json`, read and checked. Called by `runtime`."""

from __future__ import annotations

import json

TYPE_CHECKING = False  # typing is not imported at run time: it would cost a tenth of the start-up
if TYPE_CHECKING:
    from typing import Any


class BadPlanError(Exception):
    """The plan cannot be read or is not one; the text is one sentence."""


class Plan:
    """The fields of `plan-G.json`; `ranks` holds (rank, variables only it gets)."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.gang: str = _field(value, "gang", str)
        self.node: str = _field(value, "node", str)
        self.generation: int = _field(value, "generation", int)
        self.directory: str = _field(value, "directory", str)
        self.setup: str | None = _field(value, "setup", str, optional=True)
        self.argv: list[str] = _field(value, "argv", list)
        self.environment: dict[str, str] = _field(value, "environment", dict)
        self.ranks: list[tuple[int, dict[str, str]]] = [
            (_field(rank, "rank", int), _field(rank, "environment", dict)) for rank in _field(value, "ranks", list)
        ]
        self.signal: str | None = _field(value, "signal", str, optional=True)
        if not self.argv or not self.ranks:
            raise BadPlanError("it has no command or no rank")


def load_plan(path: str, generation: int) -> Plan:
    """Raises BadPlanError."""
    try:
        with open(path, encoding="utf-8") as file:
            plan = Plan(json.load(file))
    except OSError as error:
        raise BadPlanError(f"the plan {path} cannot be read: {error.strerror}") from error
    except (ValueError, BadPlanError) as error:
        raise BadPlanError(f"the plan {path} is broken: {error}") from error
    if plan.generation != generation:
        raise BadPlanError(f"the plan {path} is of generation {plan.generation}, not of {generation}")
    return plan


def _field(value: object, name: str, kind: type, *, optional: bool = False) -> Any:
    found = value.get(name) if isinstance(value, dict) else None
    if found is None and optional:
        return None
    if not isinstance(found, kind):
        raise BadPlanError(f"{name!r} is {found!r}, not a {kind.__name__}")
    return found
