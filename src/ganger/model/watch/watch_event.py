"""Events of the loss watch, and requests to return to an older checkpoint."""

from dataclasses import dataclass, field
from typing import Literal

from ganger.model.watch.watch_rules import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """The loss watch found something in a generation; `launcher_server.health.loss_watch` has the rules.

    Attributes:
        step: The first step that shows it.
        value: The loss, or of slow steps the milliseconds of one; None: it is not a finite number.
        usual: What it was before, None where that does not matter.
        lasted: The number of steps for which it has lasted, where that matters.
    """

    gang: str
    generation: int
    finding: Finding
    step: int
    value: float | None = None
    usual: float | None = None
    lasted: int = 0
    kind: Literal["anomaly"] = field(default="anomaly")


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackRequested:
    """A user asked for a job to go on from its checkpoint of `step`, without newer ones."""

    gang: str
    step: int
    by: str = ""
    kind: Literal["rollback_requested"] = field(default="rollback_requested")
