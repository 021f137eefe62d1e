"""Metrics of the server's own work: duration of cycles, their decisions, pending gangs by reason.

Nothing here costs more than an addition until the metrics are scraped.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ganger.core.explain.unmet_demand import MORE_NODES_HELP
from ganger.core.nodes.largest_gangs import largest_gangs
from ganger.core.state.gang import class_text
from ganger.core.state.state import State
from ganger.model.decision import Decision
from ganger.ports import Metric

BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
NO_REASON: Final = "not_evaluated"
"""Label of pending gangs that no cycle has looked at yet."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations of cycles.

    counts: for each of BOUNDS_S the cycles up to that bound, and one more for longer ones.
    total_s: sum of all durations.
    """

    counts: tuple[int, ...]
    total_s: float


class CycleMetrics:
    """Metrics of scheduling cycles."""

    def __init__(self) -> None:
        """Begin without a cycle."""
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._total_s = 0.0
        self._decided: Counter[str] = Counter()

    def observe(self, seconds: float, decisions: Iterable[Decision]) -> None:
        """Count a cycle and its decisions."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._total_s += seconds
        self._decided.update(decision.kind for decision in decisions)

    def histogram(self) -> Histogram:
        """Return the durations of all cycles so far."""
        return Histogram(tuple(self._counts), self._total_s)

    def decisions(self) -> Metric:
        """Return the number of decisions of each kind."""
        return Metric.by_label(
            "ganger_decisions", "Decisions of scheduling cycles.", "counter", "kind", dict(self._decided)
        )


def state_metrics(state: State) -> Iterable[Metric]:
    """Yield the metrics of a state: gangs by state, pending gangs by reason."""
    states = Counter(str(gang.state) for gang in state.gangs.values() if not gang.is_head)
    pending, unmet = Counter[str](), Counter[str]()
    for key, gangs in state.pending.classes.items():
        reason = state.pending.reasons.get(class_text(key))
        pending[str(reason.code) if reason else NO_REASON] += len(gangs)
        if reason is not None and reason.code in MORE_NODES_HELP:
            for part in key[3].parts:
                unmet[_form(part.gpu_type or "", part.gpus)] += len(gangs) * part.nodes
    yield Metric.by_label("ganger_gangs", "Live gangs, by state.", "gauge", "state", dict(states))
    yield Metric.by_label("ganger_pending_gangs", "Pending gangs, by reason.", "gauge", "reason", dict(pending))
    text = "Nodes of pending gangs that wait for nodes and not for quota, by TYPE:GPUS of each: unmet demand."
    yield Metric.by_label("ganger_unmet_nodes", text, "gauge", "form", dict(unmet))
    now, defragmented = {}, {}
    for largest in largest_gangs(state.nodes):
        form = _form(largest.gpu_type, largest.gpus) + (f" {largest.level}" if largest.level else "")
        now[form], defragmented[form] = largest.nodes, largest.nodes_defragmented
    text = "Nodes of the largest gang that fits (TYPE:GPUS of each node, whole in one domain of LEVEL)"
    yield Metric.by_label("ganger_largest_gang_nodes", f"{text} now.", "gauge", "form", now)
    yield Metric.by_label(
        "ganger_largest_gang_nodes_defragmented", f"{text} if free GPUs were together.", "gauge", "form", defragmented
    )


def _form(gpu_type: str, gpus: int) -> str:
    """Return what a node has, as a label: `h100:8`, `gpu:8` of any type, `cpu` without GPUs."""
    return f"{gpu_type or 'gpu'}:{gpus}" if gpus else "cpu"
