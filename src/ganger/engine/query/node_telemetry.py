"""Telemetry of nodes and of the devices of running jobs, from what agents measure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

from ganger.core.state.state import State
from ganger.engine.gpu_metrics import gpu_metrics
from ganger.engine.query.live_usage import RUNS, rank_devices
from ganger.errors import RequestError
from ganger.model.cluster import Node
from ganger.model.job import shell_quoted_id
from ganger.model.node_health.node_figures import Figures, GpuSamples, GpuWork
from ganger.model.node_health.node_sample import GpuSample, NodeSample
from ganger.model.views.telemetry_views import GpuTelemetry, History, JobUsage, NodeTelemetry, RankTelemetry
from ganger.ports import Metric

MACHINE: Final = ""
"""Key of the figures of a node itself, beside those of its GPUs by UUID."""
STEP_MS: Final = 10_000
"""Interval of samples: a history has no finer steps."""
SILENT_MS: Final = 3 * STEP_MS
MAX_POINTS: Final = 1_000
MAX_SPAN_MS: Final = 30 * 86_400_000
DEFAULT_SPAN_MS: Final = 3_600_000
DEFAULT_POINTS: Final = 30

_NO_DEVICE: Final = -1

Series = Sequence[Figures | None]
Histories = Mapping[str, Mapping[str, Series]]
"""By node, and there for the node itself and each GPU."""


class Agents(Protocol):
    """The agents of all nodes. Safe from any thread.

    are_devices_fixed: a device of a node is always the same GPU; else only of jobs that run is it known which it is.
    """

    are_devices_fixed: bool

    def samples(self) -> Mapping[str, NodeSample]:
        """Return the newest sample of each node that has any."""

    def figures(self, node: str) -> Figures:
        """Return the newest figures of a node itself."""

    def age_ms(self, node: str) -> int:
        """Return how long ago the newest sample of a node came."""

    def devices(self, node: Node) -> Mapping[int, int]:
        """Return the driver's index of each device of a node, as far as it is known."""

    def histories(self, nodes: Sequence[str], since_ms: int, until_ms: int, points: int) -> Histories:
        """Return the figures of nodes and their GPUs in equal steps of a while."""

    def gpu_work(self, nodes: Sequence[str], since_ms: int, until_ms: int) -> Mapping[str, GpuWork]:
        """Return the recorded work of the GPUs of nodes in a while."""


class TelemetryService:
    """Answers about telemetry. Without agents it has none."""

    def __init__(
        self,
        view: Callable[[], AbstractContextManager[State]],
        now_ms: Callable[[], int],
        live_id: Callable[[str], str],
    ) -> None:
        self._view, self._now_ms, self._live_id = view, now_ms, live_id
        self._agents: Agents | None = None

    def attach(self, agents: Agents) -> None:
        """Answer from these agents from now on."""
        self._agents = agents

    def nodes(self, span_ms: int, points: int) -> list[NodeTelemetry]:
        """Return the telemetry of every node of which there is a sample, in topology order."""
        samples = self._agents.samples() if self._agents is not None else {}
        with self._view() as state:
            listed = [node for node in state.nodes.listing.nodes if node.name in samples]
        return self._telemetry(listed, samples, span_ms, points)

    def node(self, name: str, span_ms: int, points: int) -> NodeTelemetry:
        """Return the telemetry of a node. Raise RequestError (no_such_node, 404)."""
        samples = self._agents.samples() if self._agents is not None else {}
        with self._view() as state:
            number = state.nodes.index.get(name)
            if number is None:
                raise RequestError("no_such_node", f"there is no node {name}", "ganger node", 404)
            node = next(node for node in state.nodes.listing.nodes if node.name == name)
        return self._telemetry([node], samples, span_ms, points)[0]

    def job(self, text: str, span_ms: int, points: int) -> JobUsage:
        """Return how busy the devices of a running job are. Raise RequestError (already_ended, not_running; 409)."""
        name = self._live_id(text)
        with self._view() as state:
            gang = state.gangs.get(name)
            if gang is None or gang.attempt.start is None or gang.state not in RUNS:
                message = f"{name} does not run: its devices are measured while it does"
                raise RequestError("not_running", message, f"ganger explain {shell_quoted_id(name)}", 409)
            attempt, shares = gang.attempt, gang.attempt.start.shares
            nodes = {node.name: node for node in state.nodes.listing.nodes if node.name in gang.nodes}
        now_ms = self._now_ms()
        from_ms = max(attempt.began_ms, now_ms - span_ms)
        points = _possible_points(now_ms - from_ms, points)
        samples = self._agents.samples() if self._agents is not None else {}
        devices_of = {name: self._devices(node) for name, node in nodes.items()}
        histories = self._histories(tuple(nodes), from_ms, max(now_ms, from_ms + STEP_MS), points)
        ranks = []
        for share in shares:
            series = histories.get(share.node, {})
            for rank in share.ranks:
                devices = rank_devices(share, rank)
                gpus = _gpus_of(devices_of.get(share.node, {}), devices, samples.get(share.node))
                ranks.append(_rank(rank, share.node, devices, gpus, _busy_steps(gpus, series, points)))
        duties = [rank.duty_permille for rank in ranks if rank.duty_permille is not None]
        mean = sum(duties) / len(duties) if duties else 0.0
        return JobUsage(
            job=name,
            generation=attempt.generation,
            from_ms=from_ms,
            step_ms=max(STEP_MS, (now_ms - from_ms) // points),
            duty_permille=round(mean) if duties else None,
            imbalance_permille=round(1000 * (mean - min(duties)) / mean) if mean else None,
            ranks=tuple(sorted(ranks, key=lambda rank: rank.rank)),
        )

    @property
    def are_devices_fixed(self) -> bool:
        """True if it is known of ended jobs too which GPUs they had."""
        return self._agents is not None and self._agents.are_devices_fixed

    def device_work(self, since_ms: int, until_ms: int) -> tuple[dict[tuple[str, int], GpuSamples], str]:
        """Return the recorded work of each device of each node in a while, and why nothing is recorded, if so.

        The GPU of a device is the one that it has now.
        """
        if self._agents is None:
            return {}, "this server has no agent that samples its GPUs"
        newest = self._agents.samples()
        with self._view() as state:
            nodes = [node for node in state.nodes.listing.nodes if node.name in newest]
        work = self._agents.gpu_work([node.name for node in nodes], since_ms, until_ms)
        found: dict[tuple[str, int], GpuSamples] = {}
        for node in nodes:
            uuids = {gpu.index: gpu.uuid for gpu in newest[node.name].gpus}
            for device, index in self._agents.devices(node).items():
                samples = work[node.name].samples.get(uuids.get(index, ""))
                if samples is not None and samples.times_ms:
                    found[node.name, device] = samples
        problem = next((item.problem for item in work.values() if item.problem), "no agent has sampled a GPU yet")
        return found, "" if found else problem

    def metrics(self) -> Iterable[Metric]:
        """Yield the figures of every GPU by the names that DCGM has for them, and of which job each is."""
        samples = self._agents.samples() if self._agents is not None else {}
        if not any(sample.gpus for sample in samples.values()):
            return
        with self._view() as state:
            holders = _holders(state)
            nodes = [node for node in state.nodes.listing.nodes if node.name in samples]
        devices_of = {node.name: _by_index(self._devices(node)) for node in nodes}
        yield from gpu_metrics(
            (node.name, gpu, holders.get((node.name, devices_of[node.name].get(gpu.index, _NO_DEVICE)), ""))
            for node in nodes
            for gpu in samples[node.name].gpus
        )

    def _devices(self, node: Node) -> Mapping[int, int]:
        return self._agents.devices(node) if self._agents is not None else {}

    def _histories(self, nodes: Sequence[str], since_ms: int, until_ms: int, points: int) -> Histories:
        return self._agents.histories(nodes, since_ms, until_ms, points) if self._agents is not None else {}

    def _telemetry(
        self, nodes: Sequence[Node], samples: Mapping[str, NodeSample], span_ms: int, points: int
    ) -> list[NodeTelemetry]:
        now_ms, points = self._now_ms(), _possible_points(span_ms, points)
        since_ms, step_ms = now_ms - span_ms, max(STEP_MS, span_ms // points)
        histories = self._histories([node.name for node in nodes], since_ms, now_ms, points)
        with self._view() as state:
            holders = _holders(state)
        views = []
        for node in nodes:
            series = histories.get(node.name, {})

            def history(key: str, series: Mapping[str, Series] = series) -> History:
                return _history(series.get(key, ()), since_ms, step_ms, is_node=key == MACHINE)

            sample = samples.get(node.name)
            if sample is None or self._agents is None:
                views.append(NodeTelemetry(node=node.name, at_ms=None, is_silent=True, history=history(MACHINE)))
            else:
                views.append(_node(node, sample, self._agents, holders, history))
        return views


def _possible_points(span_ms: int, points: int) -> int:
    """Return how many steps a while has, of those that are asked for."""
    return min(points, max(1, span_ms // STEP_MS))


def _node(
    node: Node,
    sample: NodeSample,
    agents: Agents,
    holders: Mapping[tuple[str, int], str],
    history: Callable[[str], History],
) -> NodeTelemetry:
    figures = agents.figures(node.name)
    devices = _by_index(agents.devices(node))
    return NodeTelemetry(
        node=node.name,
        at_ms=sample.at_ms,
        is_silent=agents.age_ms(node.name) > SILENT_MS,
        unread=sample.unread,
        cpu_milli=sample.host.cpu_milli,
        cpu_total_milli=sample.host.cpu_total_milli,
        memory_used_bytes=figures.memory_bytes,
        memory_bytes=sample.host.memory_bytes,
        received_bytes_s=figures.received_bytes_s,
        sent_bytes_s=figures.sent_bytes_s,
        history=history(MACHINE),
        gpus=tuple(
            _gpu(gpu, device, holders.get((node.name, _NO_DEVICE if device is None else device)), history)
            for gpu in sample.gpus
            for device in [devices.get(gpu.index)]
        ),
    )


def _gpu(gpu: GpuSample, device: int | None, job: str | None, history: Callable[[str], History]) -> GpuTelemetry:
    return GpuTelemetry(
        device=device,
        uuid=gpu.uuid,
        name=gpu.name,
        job=job,
        pods=gpu.pods,
        is_lost=is_lost(gpu),
        busy_permille=None if gpu.utilisation_percent is None else 10 * gpu.utilisation_percent,
        memory_used_bytes=gpu.memory_used_bytes,
        memory_bytes=gpu.memory_bytes,
        power_mw=gpu.power_mw,
        power_limit_mw=gpu.power_limit_mw,
        temperature_c=gpu.temperature_c,
        sm_mhz=gpu.sm_mhz,
        history=history(gpu.uuid or "-"),
    )


def is_lost(gpu: GpuSample) -> bool:
    """Detect a GPU of which the driver does not even report its memory."""
    return gpu.memory_bytes is None and bool(gpu.unread)


def _by_index(devices: Mapping[int, int]) -> dict[int, int]:
    """Return the devices by the driver's index."""
    return {index: device for device, index in devices.items()}


def _gpus_of(indices_of: Mapping[int, int], devices: tuple[int, ...], sample: NodeSample | None) -> list[GpuSample]:
    indices = {indices_of[device] for device in devices if device in indices_of}
    return [gpu for gpu in sample.gpus if gpu.index in indices] if sample is not None else []


def _busy_steps(gpus: Sequence[GpuSample], series: Mapping[str, Series], points: int) -> tuple[int | None, ...]:
    """Return the mean of the GPUs in each step."""
    of_gpus = [series.get(gpu.uuid, ()) for gpu in gpus]
    return tuple(
        _mean([of_gpu[step] for of_gpu in of_gpus if len(of_gpu) > step], "busy_permille") for step in range(points)
    )


def _rank(
    rank: int, node: str, devices: tuple[int, ...], gpus: Sequence[GpuSample], steps: tuple[int | None, ...]
) -> RankTelemetry:
    measured = [step for step in steps if step is not None]
    return RankTelemetry(
        rank=rank,
        node=node,
        devices=devices,
        duty_permille=round(sum(measured) / len(measured)) if measured else None,
        busy_permille=steps,
        memory_used_bytes=_sum([gpu.memory_used_bytes for gpu in gpus]),
        power_mw=_sum([gpu.power_mw for gpu in gpus]),
        temperature_c=max((gpu.temperature_c for gpu in gpus if gpu.temperature_c is not None), default=None),
    )


def _history(series: Series, since_ms: int, step_ms: int, *, is_node: bool) -> History:
    def values(name: str) -> tuple[int | None, ...]:
        return tuple(None if step is None else getattr(step, name) for step in series)

    names = ("received_bytes_s", "sent_bytes_s") if is_node else ("power_mw", "temperature_c")
    return History(
        from_ms=since_ms,
        step_ms=step_ms,
        busy_permille=values("busy_permille"),
        memory_bytes=values("memory_bytes"),
        **{name: values(name) for name in names},
    )


def _holders(state: State) -> dict[tuple[str, int], str]:
    """Return the job of each device that is held."""
    return {
        (share.node, device): gang.id
        for gang in state.gangs.values()
        if gang.attempt.start is not None and gang.state in RUNS
        for share in gang.attempt.start.shares
        for device in share.devices
    }


def _mean(figures: Sequence[Figures | None], name: str) -> int | None:
    values = [value for item in figures if item is not None and (value := getattr(item, name)) is not None]
    return round(sum(values) / len(values)) if values else None


def _sum(values: Sequence[int | None]) -> int | None:
    measured = [value for value in values if value is not None]
    return sum(measured) if measured else None
