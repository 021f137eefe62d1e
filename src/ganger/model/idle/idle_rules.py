"""Settings of a queue for its idle jobs."""

from dataclasses import dataclass
from typing import Final

from ganger.model.described import described

SUSPEND, STOP = "suspend", "stop"
IDLE_ACTIONS: Final = (SUSPEND, STOP)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRules:
    """Consequence for jobs of a queue that hold nodes without any activity. They are warned before."""

    window_ms: int = described(
        "time without activity after which a job is idle: its GPUs have no work, its processes use no CPU time, it "
        "saves no checkpoint, and no `ganger exec` begins; a job of which any of this is not measured is never idle",
        form="duration",
        key="window",
    )
    action: str = described(
        "suspend or stop: the consequence for a job that is idle, after the notice of its checkpoint section",
        form="idle_action",
        key="do",
        default=SUSPEND,
    )
    exempt_until_ms: int | None = described(
        "time until which nothing happens to idle jobs, which have a whole window after that: 2030-01-31, or "
        "2030-01-31T18:00Z; UTC unless it has an offset",
        form="moment",
        key="exempt_until",
        default=None,
    )
