"""One run of a comparison: the simulation, its figures, and its series for pictures. Called by
`simulation.compare.compare`.

It is what a process of its own does, so what goes in and what comes out can be pickled.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from ganger.model import event as e
from ganger.simulation.metrics.occupancy import Bar, Occupancy
from ganger.simulation.metrics.run_history import History
from ganger.simulation.metrics.time_series import series
from ganger.simulation.process_pool import Tell
from ganger.simulation.result import Record, figures, flaws, looks
from ganger.simulation.run import Outcome, Run, simulate

TOLD_S: Final = 0.2
"""How often a process says how far it is."""
LOOKED: Final = 64
"""Rows after which it looks at the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """What is run. `seed`: None where nothing draws."""

    policy: str
    seed: int | None
    run: Run

    @property
    def name(self) -> str:
        """As tables have it."""
        return self.policy if self.seed is None else f"{self.policy} #{self.seed}"


class Progress:
    """Tells how far a run is: half of the way is that all have come, the other half that all have ended."""

    def __init__(self, jobs: int, tell: Tell) -> None:
        self._all, self._tell = 2 * max(1, jobs), tell
        self._done = self._rows = 0
        self._told_s = time.monotonic()

    def take(self, row: e.Stamped) -> None:
        """The next row of the log."""
        self._rows += 1
        self._done += isinstance(row.event, e.Submitted | e.Finished)
        if self._rows % LOOKED == 0 and time.monotonic() - self._told_s > TOLD_S:
            self._told_s = time.monotonic()
            self._tell(min(1.0, self._done / self._all))


def compared(contender: Contender, tell: Tell) -> Record:
    """How it went: what `sim run` says of it, its name, its series, and the bars of a small one's Gantt picture."""
    run = contender.run
    records = run.trace.records
    occupancy = looks(run)
    outcome = simulate(run, occupancy.take, Progress(len(records), tell).take)
    names = {"policy": contender.policy, "seed": contender.seed, "name": contender.name}
    return pictured(names, outcome, occupancy)


def pictured(names: Record, outcome: Outcome, occupancy: Occupancy) -> Record:
    """A run under its names, with its series and bars."""
    first_ms = min((job.submitted_ms for job in outcome.histories), default=0)
    idle = [(at_ms - first_ms, share) for at_ms, share in occupancy.idle_of_no_use(outcome.histories)]
    return {
        **names,
        "findings": flaws(outcome.findings),
        **figures(outcome, occupancy),
        "series": {**asdict(series(outcome.histories)), "idle_of_no_use": idle},
        "bars": None if occupancy.bars is None else [_bar(bar, outcome.histories, first_ms) for bar in occupancy.bars],
    }


def _bar(bar: Bar, jobs: Sequence[History], first_ms: int) -> Record:
    """A bar with its tenant, in ms after the first submission."""
    times = {"from_ms": bar.from_ms - first_ms, "to_ms": bar.to_ms - first_ms}
    return {"job": bar.job, "tenant": jobs[bar.job].tenant, "node": bar.node, "devices": list(bar.devices), **times}
