"""The plan of one generation on one node: `plan-G.json`, read and checked."""

from __future__ import annotations

import json

TYPE_CHECKING = False  # typing is not imported at run time: it would take a tenth of the startup time
if TYPE_CHECKING:
    from typing import Any

TASK_DIRECTORY = "@GANGER_TASK_DIR@"
"""Placeholder for the generation's directory, known only to its launcher, in commands, variables and files."""


class BadPlanError(Exception):
    """A plan that cannot be read or is invalid; the text is one sentence."""


class RankPlan:
    """One process of the plan.

    ends: True if its exit with 0 counts for the end of the job
    is_ignored: True if its failure does no harm
    stage: when it is started
    """

    def __init__(self, value: object, argv: list[str]) -> None:
        self.rank: int = _field(value, "rank", int)
        self.environment: dict[str, str] = _field(value, "environment", dict)
        self.argv: list[str] = _field(value, "argv", list, default=argv)
        self.ends: bool = _field(value, "ends", bool, default=False)
        self.is_ignored: bool = _field(value, "on_failure", str, default="restart") == "ignore"
        self.stage: int = _field(value, "stage", int, default=0)
        if not self.argv:
            raise BadPlanError(f"rank {self.rank} has no command")


class PreflightPlan:
    """The test of nodes that runs before the ranks: a command, variables of its own, and a time limit."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.argv: list[str] = _field(value, "argv", list)
        self.environment: dict[str, str] = _field(value, "environment", dict)
        self.timeout_s: int = _field(value, "timeout_s", int)
        if not self.argv or self.timeout_s <= 0:
            raise BadPlanError("the test of nodes has no command or no time limit")


class Plan:
    """The fields of `plan-G.json`; a node without ranks has only the remote-start agent.

    warm_words: number of the first words of `argv` that start Python, if ranks are forked from a zygote; else 0
    warm_only: no rank is started yet
    warm_without: variables that the zygote does not get, besides ganger's own
    """

    def __init__(self, value: dict[str, Any]) -> None:
        self.gang: str = _field(value, "gang", str)
        self.node: str = _field(value, "node", str)
        self.generation: int = _field(value, "generation", int)
        self.directory: str = _field(value, "directory", str)
        self.setup: str | None = _field(value, "setup", str, default=None)
        self.argv: list[str] = _field(value, "argv", list)
        self.environment: dict[str, str] = _field(value, "environment", dict)
        self.ranks = [RankPlan(rank, self.argv) for rank in _field(value, "ranks", list)]
        self.signal: str | None = _field(value, "signal", str, default=None)
        self.files: dict[str, str] = _field(value, "files", dict, default={})
        self.stages: int = _field(value, "stages", int, default=1)
        self.agent: bool = _field(value, "agent", bool, default=False)
        self.peer: str = _field(value, "peer", str, default="")
        self.agent_address: str = _field(value, "agent_address", str, default="")
        self.agent_token: str = _field(value, "agent_token", str, default="")
        self.secrets: str | None = _field(value, "secrets", str, default=None)
        warm = _field(value, "warm", dict, default={"words": 0, "without": []})
        self.warm_words: int = _field(warm, "words", int)
        self.warm_only: bool = _field(warm, "only", bool, default=False)
        self.warm_without: list[str] = _field(warm, "without", list)
        self.watch: dict[str, Any] | None = _field(value, "watch", dict, default=None)
        preflight = _field(value, "preflight", dict, default=None)
        self.preflight = None if preflight is None else PreflightPlan(preflight)
        self.inherits: bool = _field(value, "inherits", bool, default=False)
        self.pauses: dict[str, Any] = _field(value, "pauses", dict, default={})
        self.log_bytes: int = _field(value, "log_bytes", int, default=0)
        self._check()

    def _check(self) -> None:
        if not self.ranks and not self.agent:
            raise BadPlanError("the plan has no ranks")
        if any(not 0 <= rank.stage < self.stages for rank in self.ranks):
            raise BadPlanError(f"the stage of a rank is not one of the {self.stages} stages")
        if (self.agent or self.peer) and not (self.agent_address and self.agent_token):
            raise BadPlanError("the agent has no address or no token")
        for name in self.files:
            if "/" in name or name in ("", ".", ".."):
                raise BadPlanError(f"{name!r} is not a file name")


def load_plan(path: str, generation: int) -> Plan:
    """Read and check a plan; raise BadPlanError."""
    try:
        with open(path, encoding="utf-8") as file:
            plan = Plan(json.load(file))
    except OSError as error:
        raise BadPlanError(f"cannot read the plan {path}: {error.strerror}") from error
    except (ValueError, RecursionError, BadPlanError) as error:
        raise BadPlanError(f"the plan {path} is invalid: {error}") from error
    if plan.generation != generation:
        raise BadPlanError(f"the plan {path} is for generation {plan.generation}, not {generation}")
    return plan


_REQUIRED = object()


def _field(value: object, name: str, kind: type, *, default: object = _REQUIRED) -> Any:
    content = value.get(name) if isinstance(value, dict) else None
    if content is None and default is not _REQUIRED:
        return default
    if not isinstance(content, kind):
        raise BadPlanError(f"{name!r} is {content!r}, not a {kind.__name__}")
    return content
