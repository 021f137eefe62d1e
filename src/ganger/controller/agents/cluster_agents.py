"""The agents of a cluster's nodes, by what they have sent: the newest sample of each, its figures and their last hour.

What the API server knows of a node is added to its sample: the conditions that other programs report.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Final

from ganger.agent.history.sample_figures import FigureReader
from ganger.agent.node_message import NodeMessage
from ganger.backends.kubernetes.nodes.node_inventory import slots_of
from ganger.controller.agents.recent_history import RecentHistory
from ganger.core.state.state import State
from ganger.engine.query.live_usage import RUNS
from ganger.engine.query.node_telemetry import MACHINE, SILENT_MS, Histories
from ganger.kubeapi import objects
from ganger.kubeapi.objects import Key
from ganger.model.cluster import Node
from ganger.model.node_health.node_figures import Figures, GpuWork
from ganger.model.node_health.node_sample import ConditionSample, NodeSample
from ganger.ports import GpuUsage, RanksUsage, RankUsage, UsageSample
from ganger.server.job_activity import JobActivity
from ganger.server.machine_health import SampleChecks

KUBELET_CONDITIONS: Final = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
"""Conditions of the kubelet and of the network, by which the cluster itself acts."""
_SOURCE: Final = "node-problem-detector"


@dataclass(slots=True)
class _Agent:
    """The agent of one node.

    at_s: when its newest sample came, by the monotonic clock.
    """

    sample: NodeSample
    at_s: float
    figures: Mapping[str, Figures] = field(default_factory=dict)
    reader: FigureReader = field(default_factory=FigureReader)
    history: RecentHistory = field(default_factory=RecentHistory)


class ClusterAgents:
    """The agents of all nodes of a cluster: `engine.query.node_telemetry.Agents`. Safe from any thread.

    Args:
        nodes: live view of the nodes, and
        pods: of the pods.
        now_ms: the controller's clock.
        checks: check each sample, on the one thread that calls `take`, and
        activity: looks there what it shows of jobs.
    """

    are_devices_fixed = False

    def __init__(
        self,
        nodes: Mapping[Key, objects.Node],
        pods: Mapping[Key, objects.Pod],
        now_ms: Callable[[], int],
        checks: SampleChecks,
        activity: JobActivity,
    ) -> None:
        self._nodes, self._pods, self._now_ms = nodes, pods, now_ms
        self._checks, self._activity = checks, activity
        self._agents: dict[str, _Agent] = {}
        self._lock = threading.Lock()

    def has_node(self, name: str) -> bool:
        """Return whether the cluster has a node of that name."""
        return Key("", name) in self._nodes

    def take(self, name: str, message: NodeMessage) -> None:
        """Take the newest sample of a node of the cluster."""
        now_ms, at_s = self._now_ms(), time.monotonic()
        host = replace(message.sample.host, clock_offset_ms=message.sent_ms - now_ms)
        conditions = conditions_of(self._nodes[Key("", name)])
        sample = replace(message.sample, node=name, host=host, conditions=conditions)
        with self._lock:
            agent = self._agents.get(name)
            if agent is None:
                self._forget_nodes()
                agent = self._agents[name] = _Agent(sample, at_s)
            agent.sample, agent.at_s = replace(sample, lines=()), at_s
            agent.figures = agent.reader.read(sample, at_s)
            agent.history.add(now_ms, agent.figures)
        self._checks.take(sample)
        self._activity.take([(sample, self._slots(name))])

    def samples(self) -> Mapping[str, NodeSample]:
        """Return the newest sample of each node that has any, without the lines of its kernel's log."""
        with self._lock:
            return {name: agent.sample for name, agent in self._agents.items() if self.has_node(name)}

    def figures(self, node: str) -> Figures:
        """Return the newest figures of a node itself."""
        agent = self._agents.get(node)
        return Figures() if agent is None else agent.figures.get(MACHINE, Figures())

    def age_ms(self, node: str) -> int:
        """Return how long ago the newest sample of a node came."""
        agent = self._agents.get(node)
        return SILENT_MS + 1 if agent is None else round(1000 * (time.monotonic() - agent.at_s))

    def histories(self, nodes: Sequence[str], since_ms: int, until_ms: int, points: int) -> Histories:
        """Return the figures of nodes and their GPUs in equal steps of a while, of which the last hour is known."""
        series = {}
        for name in nodes:
            with self._lock:  # of one at a time: samples come meanwhile
                if (agent := self._agents.get(name)) is not None:
                    series[name] = agent.history.series(since_ms, until_ms, points)
        return series

    def gpu_work(self, nodes: Sequence[str], since_ms: int, until_ms: int) -> Mapping[str, GpuWork]:
        """Return the work of the GPUs of nodes in a while, of which the last hour is known."""
        found = {}
        for name in nodes:
            with self._lock:
                agent = self._agents.get(name)
                found[name] = GpuWork() if agent is None else agent.history.gpu_work(since_ms, until_ms)
        return found

    def devices(self, node: Node) -> Mapping[int, int]:
        """Return the driver's index of each device slot in use, by which pod the kubelet gave the GPU.

        The core gives slots to pods, and the kubelet chooses the GPUs: in a pod, both are in ascending order.
        """
        return self._slots(node.name)

    def _slots(self, node: str) -> Mapping[int, int]:
        agent = self._agents.get(node)
        gpus_of: dict[str, list[int]] = {}
        for gpu in agent.sample.gpus if agent is not None else ():
            for pod in gpu.pods:
                gpus_of.setdefault(pod, []).append(gpu.index)
        devices: dict[int, int] = {}
        for pod, indices in gpus_of.items():
            namespace, _, name = pod.partition("/")
            found = self._pods.get(Key(namespace, name))
            slots = slots_of(found) if found is not None else ()
            if len(slots) == len(indices):
                devices |= zip(sorted(slots), sorted(indices), strict=True)
        return devices

    def usage(self, view: Callable[[], AbstractContextManager[State]], of_ranks: RanksUsage) -> UsageSample:
        """Return the usage of the ranks that run, by their launchers, and of the GPUs in pods, by the agents."""
        with view() as state:
            shares = [
                (gang.id, gang.attempt.generation, share)
                for gang in state.gangs.values()
                if gang.attempt.start is not None and gang.state in RUNS
                for share in gang.attempt.start.shares
            ]
        ranks = list[RankUsage]()
        for gang_id, generation, share in shares:
            known = {use.rank: use for use in of_ranks(gang_id, share.node, generation)}
            ranks += [
                known.get(rank, RankUsage(gang_id, share.node, generation, rank, None, None, None))
                for rank in share.ranks
            ]
        gpus = [
            GpuUsage(name, device, gpu.utilisation_percent, gpu.memory_used_bytes, gpu.memory_bytes)
            for name, sample in self.samples().items()
            for device, index in self._slots(name).items()
            for gpu in sample.gpus
            if gpu.index == index and gpu.utilisation_percent is not None
            if gpu.memory_used_bytes is not None and gpu.memory_bytes is not None
        ]
        return UsageSample(self._now_ms(), tuple(ranks), tuple(gpus))

    def _forget_nodes(self) -> None:
        """Forget the agents of nodes that have left the cluster."""
        for name in [name for name in self._agents if not self.has_node(name)]:
            del self._agents[name]
            self._checks.forget(name)
            self._activity.forget(name)


def conditions_of(node: objects.Node) -> tuple[ConditionSample, ...]:
    """Return what other programs report about a node."""
    return tuple(
        ConditionSample(
            source=_SOURCE, name=condition.type, is_bad=condition.status == "True", message=condition.message
        )
        for condition in node.status.conditions
        if condition.type not in KUBELET_CONDITIONS
    )
