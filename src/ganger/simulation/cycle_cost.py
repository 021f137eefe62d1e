"""What deciding took in a simulation: the cycles of the loop, in processor time. Called by `simulation.run`.

These are figures of the machine, not of the run: nothing of them is in the log, which is the same each time.
"""

import resource
import time
from array import array
from concurrent.futures import Future
from dataclasses import dataclass

from ganger.engine.loop import Loop
from ganger.model import event as e
from ganger.model.units import SECOND_MS
from ganger.simulation.metrics.run_history import Summary, summary


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfCost:
    """cycle_ms: of the processor, for a cycle of the loop; cpu_s: for all of them and the world; events_per_s:
    submissions and ends in a second of that; peak_bytes: memory of the process, resident, so far."""

    cycle_ms: Summary
    cpu_s: float
    events_per_s: float | None
    peak_bytes: int


class Cycles:
    """The loop as a world turns it, with what each cycle took."""

    def __init__(self, loop: Loop) -> None:
        self._loop, self._taken_ns, self._began_ns = loop, array("q"), time.thread_time_ns()

    @property
    def next_wake_ms(self) -> int | None:
        """As of the loop."""
        return self._loop.next_wake_ms

    def drain(self) -> list[tuple[e.Event, "Future[int]"]]:
        """As the loop does."""
        return self._loop.drain()

    def turn(self, batch: list[tuple[e.Event, "Future[int]"]]) -> None:
        """One cycle."""
        began_ns = time.thread_time_ns()
        self._loop.turn(batch)
        self._taken_ns.append(time.thread_time_ns() - began_ns)

    def cost(self, events: int) -> SelfCost:
        """So far, for so many submissions and ends."""
        spent_s = (time.thread_time_ns() - self._began_ns) / 1e9
        return SelfCost(
            cycle_ms=summary(taken_ns * SECOND_MS / 1e9 for taken_ns in self._taken_ns),
            cpu_s=spent_s,
            events_per_s=events / spent_s if spent_s else None,
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )
