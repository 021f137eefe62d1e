"""The cycle after one event where one user has submitted 100,000 equal gangs, far more than 1,000 nodes can take.

All of them starve, the first gets a reserved start, and all others are refused in every cycle: a cycle that looked at
each of them would cost what waits. 200 events like those of `cycle_next`; beside it with a fourth of the gangs, so that
it shows where the costs grow with them. Processor time of the core alone.
"""

import statistics

from bench.fleet import GPUS, ORIGIN, Fleet
from bench.measure import Figure, median
from ganger.model import event as e
from ganger.model.job import GpuRequest, Job, JobSpec, Limits, Resources
from ganger.model.units import DAY_MS, HOUR_MS
from ganger.policies import dynamic

NODES = 1_000
GANGS = 100_000
EVENTS = 200
BAR_S = 0.05
GROWTH = 2.0


class Equal(Fleet):
    """Everybody asks for the same."""

    def submit(self) -> None:
        """One more gang waits."""
        spec = JobSpec(
            queue="q00",
            nodes=2,
            resources=Resources(gpu=GpuRequest(count=GPUS)),
            limits=Limits(time_ms=DAY_MS),
            run=("train",),
        )
        self.step(e.Submitted(job=Job(id=f"j{self.submitted}", user="u", spec=spec, origin=ORIGIN)))
        self.submitted += 1


def run() -> list[Figure]:
    few, many = _samples(GANGS // 4), _samples(GANGS)
    p99, times = sorted(many)[EVENTS * 99 // 100], statistics.median(many) / statistics.median(few)
    return [
        Figure(name="cycle_equal_p99", unit="s", samples=tuple(many), value=p99, op="<", bar=BAR_S),
        median("cycle_equal", "s", many),
        Figure(name="cycle_equal_growth", unit="times", samples=(times,), value=times, op="<", bar=GROWTH),
    ]


def _samples(gangs: int) -> list[float]:
    fleet = Equal(dynamic, nodes=NODES, gangs=gangs, queues=1)
    fleet.fill()
    fleet.decide(fleet.round())
    fleet.now_ms += HOUR_MS
    fleet.decide(fleet.round())
    return [fleet.next_s() for _ in range(EVENTS)]
