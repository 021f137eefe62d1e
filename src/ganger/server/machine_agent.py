"""The agent of the server's own machine, as that of each of its nodes: there are several where they are virtual.

Each node gets the GPUs that are its own, and all that is of the machine.
"""

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ganger.agent.node_agent import NodeAgent
from ganger.agent.sampling.sampling_roots import SamplingRoots
from ganger.engine.loop import Loop
from ganger.engine.query.node_telemetry import MACHINE, Histories
from ganger.engine.service import Service
from ganger.model.cluster import Node
from ganger.model.node_health.node_figures import Figures, GpuWork
from ganger.model.node_health.node_sample import NodeSample
from ganger.server.job_activity import JobActivity
from ganger.server.machine_health import SampleChecks, placed_faults, rules_in_force
from ganger.settings import Home, read_agent_settings


class MachineAgent:
    """The agent, and the nodes that its machine stands for. Safe from any thread."""

    are_devices_fixed = True

    def __init__(self, agent: NodeAgent, nodes: Callable[[], Sequence[Node]]) -> None:
        self._agent, self._nodes = agent, nodes

    def samples(self) -> Mapping[str, NodeSample]:
        """Return the newest sample of each node."""
        newest = self._agent.ring.newest()
        return {node.name: node_sample(newest, node) for node in self._nodes()} if newest is not None else {}

    def figures(self, node: str) -> Figures:
        """Return the newest figures of a node itself."""
        return self._agent.figures().get(MACHINE, Figures())

    def age_ms(self, node: str) -> int:
        """Return how long ago the newest sample came."""
        return self._agent.ring.age_ms()

    def devices(self, node: Node) -> Mapping[int, int]:
        """Return the driver's index of each device of a node."""
        return dict(enumerate(node.device_ids))

    def histories(self, nodes: Sequence[str], since_ms: int, until_ms: int, points: int) -> Histories:
        """Return the figures of nodes and of all GPUs of the machine in equal steps of a while."""
        history = self._agent.history(since_ms, until_ms, points)
        return dict.fromkeys(nodes, history)

    def gpu_work(self, nodes: Sequence[str], since_ms: int, until_ms: int) -> Mapping[str, GpuWork]:
        """Return the recorded work of all GPUs of the machine in a while, for each node."""
        return dict.fromkeys(nodes, self._agent.gpu_work(since_ms, until_ms))


def node_sample(sample: NodeSample, node: Node) -> NodeSample:
    """Return the sample of a machine as that of one of its nodes: without GPUs of others, and lines about those."""
    gpus = tuple(gpu for gpu in sample.gpus if gpu.index in node.device_ids)
    foreign = tuple(gpu.bus_id for gpu in sample.gpus if gpu.bus_id and gpu.index not in node.device_ids)
    lines = tuple(line for line in sample.lines if not any(bus_id in line.text for bus_id in foreign))
    return replace(sample, node=node.name, gpus=gpus, lines=lines)


def sampling_roots(home: Home) -> SamplingRoots:
    """Return where this machine is sampled, by the settings file. Raise SettingsError when it is invalid."""
    settings = read_agent_settings(home)
    paths = {name: Path(value) for name, value in settings.items() if name not in ("dcgm_exporter", "rules")}
    return SamplingRoots(**paths, dcgm_exporter=settings.get("dcgm_exporter"))


@contextmanager
def sampling_machine(home: Home, loop: Loop, service: Service) -> Iterator[None]:
    """Sample and check this machine for the duration of the context, and answer requests. Raise SettingsError."""

    def nodes() -> Sequence[Node]:
        with loop.view() as state:
            return state.nodes.listing.nodes

    checks = SampleChecks(loop, rules_in_force(home), lambda faults: placed_faults(faults, nodes()))
    usage = service.live_usage
    activity = JobActivity(loop, usage.of_ranks, usage.sessions)
    usage.attach(activity.idle_job)

    def take(sample: NodeSample) -> None:
        checks.take(sample)
        activity.take([(node_sample(sample, node), dict(enumerate(node.device_ids))) for node in nodes()])

    agent = NodeAgent(socket.gethostname(), sampling_roots(home), home.telemetry, take)
    service.telemetry.attach(MachineAgent(agent, nodes))
    with agent.running():
        yield
