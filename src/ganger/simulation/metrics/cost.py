"""The cost of a run: node-hours by their prices, and the price of an hour of useful GPU time.

A node is paid for from the first submission to the last end while it is up, whether jobs run on it or not, spares
included; a node that is lost is not paid for until it is back.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ganger.model.cluster import Node
from ganger.model.units import DEVICE_MILLI, HOUR_MS
from ganger.simulation.metrics.run_history import JobHistory
from ganger.simulation.metrics.timeline import first_ms, last_ms

Absence = tuple[str, int, int]
"""(node, from when, until when) of a node that is down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Amounts in the currency of the prices.

    by_gpu_type: cost of nodes, by the type of their GPUs
    finished_gpu_hours: work of the jobs that ended well
    per_gpu_hour: cost of one such hour; None if there is none
    """

    total: float
    node_hours: float
    by_gpu_type: dict[str, float]
    finished_gpu_hours: float
    per_gpu_hour: float | None


def cost(
    jobs: Sequence[JobHistory], nodes: Sequence[Node], prices: Mapping[str, Fraction], absences: Iterable[Absence]
) -> Cost:
    """Return the cost of a run. `prices`: of an hour of a node, by the type of its GPUs."""
    begin_ms, end_ms = first_ms(jobs), last_ms(jobs)
    up_ms = {node.name: end_ms - begin_ms for node in nodes}
    for name, from_ms, until_ms in absences:
        if name in up_ms:
            up_ms[name] -= max(0, min(until_ms, end_ms) - max(from_ms, begin_ms))
    ms_by_type = Counter[str]()
    for node in nodes:
        ms_by_type[node.gpu_type] += up_ms[node.name]
    total = sum((ms * prices[gpu_type] for gpu_type, ms in ms_by_type.items()), Fraction()) / HOUR_MS
    finished = sum(job.gpu_milli * job.duration_ms for job in jobs if job.ended_ms is not None)
    gpu_hours = Fraction(finished, DEVICE_MILLI * HOUR_MS)
    return Cost(
        total=float(total),
        node_hours=ms_by_type.total() / HOUR_MS,
        by_gpu_type={gpu_type: float(ms * prices[gpu_type] / HOUR_MS) for gpu_type, ms in ms_by_type.items()},
        finished_gpu_hours=float(gpu_hours),
        per_gpu_hour=float(total / gpu_hours) if gpu_hours else None,
    )
