"""Events of idle jobs."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal


class IdleStep(StrEnum):
    """Next step for an idle job. Stable: these are codes of the API.

    Attributes:
        warned: It will be suspended or stopped if it stays idle.
        active: It was warned, and is idle no more.
        ended: It has been idle for the whole window, and is suspended or stopped.
    """

    WARNED = "warned"
    ACTIVE = "active"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """A generation without activity is warned, suspended or stopped, or is active again after a warning.

    Attributes:
        idle_ms: How long it has been idle; of one that is active again, how long it was.
        left_ms: After which time it is suspended or stopped if it stays idle.
        action: suspend or stop.
    """

    gang: str
    generation: int
    step: IdleStep
    idle_ms: int
    left_ms: int
    action: str
    kind: Literal["idle"] = field(default="idle")
