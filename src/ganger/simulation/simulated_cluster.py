"""The cluster that a run takes place on: its nodes, when they fail, and what they cost."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ganger.backends.simulator.virtual_cluster import BEGIN_MS, VirtualCluster
from ganger.model.cluster import Node
from ganger.model.units import DEVICE_MILLI
from ganger.simulation.metrics.cost import Cost, cost
from ganger.simulation.metrics.goodput import CheckpointCosts
from ganger.simulation.metrics.goodput_forecast import Forecast, forecast, observed_failures
from ganger.simulation.metrics.run_history import Interval, JobHistory
from ganger.simulation.metrics.scorecard import Scorecard, score
from ganger.simulation.node_outages import Outage

Prices = Mapping[str, Fraction]
"""Price of an hour of a node, by the type of its GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCluster:
    """Nodes with their outages and prices, and the figures of a run on them.

    nodes: all nodes, spares included
    levels: topology levels that the nodes' domains belong to, outermost first
    begin_ms: Unix time at which the run begins
    outages: outages of these nodes, in ms after `begin_ms`
    prices: None if the run has no cost
    """

    nodes: tuple[Node, ...]
    levels: tuple[str, ...]
    begin_ms: int = BEGIN_MS
    outages: tuple[Outage, ...] = ()
    prices: Prices | None = None

    def schedule_outages(self, virtual_cluster: VirtualCluster) -> None:
        """Make the virtual cluster lose and restore its nodes as the outages say."""
        for outage in self.outages:
            virtual_cluster.lose(outage.from_ms, outage.node, outage.known_ms - outage.from_ms)
            virtual_cluster.restore(outage.until_ms, outage.node)

    def failed_ms(self) -> dict[tuple[str, int], int]:
        """Return when each node failed, by its name and the time at which the failure became known."""
        return {
            (outage.node, self.begin_ms + outage.known_ms): self.begin_ms + outage.from_ms for outage in self.outages
        }

    def scorecard(self, jobs: Sequence[JobHistory]) -> Scorecard:
        """Return the scorecard of a run, every tenant being entitled to the same."""
        return score(jobs, self._capacity(), dict.fromkeys((job.tenant for job in jobs), 1))

    def cost(self, jobs: Sequence[JobHistory]) -> Cost | None:
        """Return the cost of a run; None without prices."""
        if self.prices is None:
            return None
        absences = (
            (outage.node, self.begin_ms + outage.from_ms, self.begin_ms + outage.until_ms) for outage in self.outages
        )
        return cost(jobs, self.nodes, self.prices, absences)

    def forecast(self, jobs: Sequence[JobHistory], costs: CheckpointCosts) -> Forecast | None:
        """Return the closed-form forecast for the failure rate until the last job ended; None without outages."""
        if not self.outages:
            return None
        ended_ms = max((job.ended_ms - self.begin_ms for job in jobs if job.ended_ms is not None), default=0)
        failures = observed_failures(self.outages, len(self.nodes), ended_ms)
        gpus = sum(node.gpus for node in self.nodes)
        return forecast(jobs, failures, costs, gpus * DEVICE_MILLI * ended_ms)

    def _capacity(self) -> list[Interval]:
        """Return (from when, thousandths of healthy GPUs) in order; a node counts until its loss is known."""
        milli = {node.name: node.gpus * DEVICE_MILLI for node in self.nodes}
        changes = Counter({self.begin_ms: sum(milli.values())})
        for outage in self.outages:
            changes[self.begin_ms + outage.known_ms] -= milli[outage.node]
            changes[self.begin_ms + outage.until_ms] += milli[outage.node]
        healthy, capacity = 0, []
        for changed_ms in sorted(changes):
            healthy += changes[changed_ms]
            capacity.append((changed_ms, healthy))
        return capacity
