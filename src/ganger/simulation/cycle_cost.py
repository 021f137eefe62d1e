"""The processor time of scheduling cycles in a simulation.

These figures belong to the machine, not to the run: the log, which is equal each time, has none of them.
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
    """Processor time and memory that a simulation took.

    cycle_ms: processor time of a scheduling cycle
    cpu_s: processor time of all cycles and of the virtual cluster
    events_per_s: submissions and ends per second of processor time
    peak_bytes: peak resident memory of the process so far
    """

    cycle_ms: Summary
    cpu_s: float
    events_per_s: float | None
    peak_bytes: int


class TimedLoop:
    """A scheduling loop that measures each of its cycles."""

    def __init__(self, loop: Loop) -> None:
        self._loop, self._taken_ns, self._began_ns = loop, array("q"), time.thread_time_ns()

    @property
    def next_wake_ms(self) -> int | None:
        """Time at which the loop wants to run again."""
        return self._loop.next_wake_ms

    def drain(self) -> list[tuple[e.Event, "Future[int]"]]:
        """Return the events that were posted since the last cycle."""
        return self._loop.drain()

    def run_cycle(self, batch: list[tuple[e.Event, "Future[int]"]]) -> None:
        """Run and measure one scheduling cycle."""
        began_ns = time.thread_time_ns()
        self._loop.run_cycle(batch)
        self._taken_ns.append(time.thread_time_ns() - began_ns)

    def cost(self, events: int) -> SelfCost:
        """Return the cost so far; `events`: number of submissions and ends."""
        cpu_s = (time.thread_time_ns() - self._began_ns) / 1e9
        return SelfCost(
            cycle_ms=summary(taken_ns * SECOND_MS / 1e9 for taken_ns in self._taken_ns),
            cpu_s=cpu_s,
            events_per_s=events / cpu_s if cpu_s else None,
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )
