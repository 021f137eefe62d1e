"""What a run cost: node-hours by their prices, and what an hour of a GPU came to that was of use. Pure.

Called by `simulation.run` and `simulation.from_log.replay_days`. A node is paid for from the first submission to the
last end while it is there, whether jobs run on it or not, spares too; one that is lost is not paid for until it is
back."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ganger.model.cluster import Node
from ganger.model.units import DEVICE_MILLI, HOUR_MS
from ganger.simulation.metrics.run_history import History
from ganger.simulation.metrics.timeline import first_ms, last_ms

Gone = tuple[str, int, int]
"""A node, and from when until when it was not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """In the currency of the prices. node_hours, by_gpu_type: of nodes by their GPUs' type; finished_gpu_hours: work of
    the jobs that came to their end; per_gpu_hour: what one such hour came to, None where there is none."""

    total: float
    node_hours: float
    by_gpu_type: dict[str, float]
    finished_gpu_hours: float
    per_gpu_hour: float | None


def cost(jobs: Sequence[History], nodes: Sequence[Node], prices: Mapping[str, Fraction], gone: Iterable[Gone]) -> Cost:
    """`prices`: of an hour of a node, by the type of its GPUs."""
    begins_ms, ends_ms = first_ms(jobs), last_ms(jobs)
    there_ms = {node.name: ends_ms - begins_ms for node in nodes}
    for name, from_ms, until_ms in gone:
        if name in there_ms:
            there_ms[name] -= max(0, min(until_ms, ends_ms) - max(from_ms, begins_ms))
    by_type = Counter[str]()
    for node in nodes:
        by_type[node.gpu_type] += there_ms[node.name]
    total = sum((ms * prices[kind] for kind, ms in by_type.items()), Fraction()) / HOUR_MS
    finished = sum(job.gpu_milli * job.duration_ms for job in jobs if job.ended_ms is not None)
    gpu_hours = Fraction(finished, DEVICE_MILLI * HOUR_MS)
    return Cost(
        total=float(total),
        node_hours=by_type.total() / HOUR_MS,
        by_gpu_type={kind: float(ms * prices[kind] / HOUR_MS) for kind, ms in by_type.items()},
        finished_gpu_hours=float(gpu_hours),
        per_gpu_hour=float(total / gpu_hours) if gpu_hours else None,
    )
