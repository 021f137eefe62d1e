"""The scheduling cycle after one event, with 100,000 equal pending gangs of one user on 1,000 nodes.

All of them starve, the first gets a reserved start, and all others are refused in every cycle: a cycle that examined
each gang would cost time in proportion to their number. 200 events like those of `cycle_next`; repeated with a fourth
of the gangs to show what grows with them. CPU time of the core alone.
"""

import statistics

from bench.measure import Figure, median
from bench.scheduler.fleet import GPUS, ORIGIN, Fleet
from ganger.model import event as e
from ganger.model.job import GpuRequest, Job, JobSpec, Resources
from ganger.model.job_sections.retry_spec import Limits
from ganger.model.units import DAY_MS, HOUR_MS
from ganger.policies import dynamic

NODES = 1_000
GANGS = 100_000
EVENTS = 200
BAR_S = 0.05
GROWTH = 2.0


class Equal(Fleet):
    """A fleet whose gangs all ask for the same."""

    def submit(self) -> None:
        """Submit one more gang."""
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
    quarter, all_gangs = _samples(GANGS // 4), _samples(GANGS)
    p99, times = sorted(all_gangs)[EVENTS * 99 // 100], statistics.median(all_gangs) / statistics.median(quarter)
    return [
        Figure(name="cycle_equal_p99", unit="s", samples=tuple(all_gangs), value=p99, op="<", bar=BAR_S),
        median("cycle_equal", "s", all_gangs),
        Figure(name="cycle_equal_growth", unit="times", samples=(times,), value=times, op="<", bar=GROWTH),
    ]


def _samples(gangs: int) -> list[float]:
    fleet = Equal(dynamic, nodes=NODES, gangs=gangs, queues=1)
    fleet.fill()
    fleet.decide(fleet.cycle())
    fleet.now_ms += HOUR_MS
    fleet.decide(fleet.cycle())
    return [fleet.next_s() for _ in range(EVENTS)]
