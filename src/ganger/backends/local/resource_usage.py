"""Resource usage of the ranks on this machine: CPU and memory from /proc, GPUs through NVML.

Measured only on demand, by one scan of /proc for all ranks of all jobs. CPU usage is a rate since the previous scan;
if that is too old, two scans are made.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from ganger.agent.sampling.bounded_call import UnansweredError
from ganger.agent.sampling.gpu_source import GpuDriver, GpuDriverError, GpuSource
from ganger.backends.local import machine_processes
from ganger.backends.local.job_files import JobFiles
from ganger.launcher_server.launcher_process import Process
from ganger.model.cluster import Node
from ganger.ports import GpuUsage, RankUsage, UsageSample

CACHE_S: Final = 0.5
"""A request within this time gets the previous result."""
STALE_S: Final = 15.0
"""A scan that is older is not used for a rate."""
MIN_SPAN_S: Final = 0.25
GPU_TIMEOUT_S: Final = 4.0
_RANKS: Final = (b"GANGER_RANK", b"OMPI_COMM_WORLD_RANK", b"PMI_RANK", b"RANK")
"""Variables with a process's rank, as in `train.launcher_environment`."""

Task = tuple[str, str, int, int | None]
"""(gang, node, generation, rank); the rank is None for processes without one, such as mpirun."""


@dataclass(slots=True)
class _Scan:
    """One scan of /proc.

    at_s: monotonic clock.
    cpu_s: CPU time so far, by process.
    members: processes, by task.
    memory_bytes: by process.
    """

    at_s: float
    cpu_s: dict[Process, float] = field(default_factory=dict)
    members: dict[Task, list[Process]] = field(default_factory=dict)
    memory_bytes: dict[Process, int] = field(default_factory=dict)


class UsageSampler:
    """Measures the usage of the jobs in one state directory. Thread-safe."""

    def __init__(self, files: JobFiles, nodes: Mapping[str, Node], nvml_library: Path | None) -> None:
        self._files, self._nodes = files, nodes
        self._lock = threading.Lock()
        self._last: _Scan | None = None
        self._use: UsageSample | None = None
        self._gpus = _Gpus(nvml_library)

    def measure_usage(self) -> UsageSample:
        """Return the current usage."""
        with self._lock:
            now_s = time.monotonic()
            if self._use is not None and self._last is not None and now_s - self._last.at_s < CACHE_S:
                return self._use
            if self._last is None or now_s - self._last.at_s > STALE_S:
                self._last = self._scan()
                time.sleep(MIN_SPAN_S)
            scan, previous = self._scan(), self._last
            self._last = scan
            self._use = UsageSample(
                at_ms=time.time_ns() // 1_000_000,
                ranks=tuple(_rank_use(task, processes, scan, previous) for task, processes in scan.members.items()),
                gpus=tuple(self._gpus.read(self._nodes)),
            )
            return self._use

    def _scan(self) -> _Scan:
        scan = _Scan(time.monotonic())
        for directory, pid, environment in machine_processes.rank_environments():
            key = self._files.task_of(directory.parent)
            measurement = _measure(pid) if key is not None and directory.name.isdecimal() else None
            if key is None or measurement is None:
                continue
            process, cpu_s, memory_bytes = measurement
            scan.members.setdefault((*key, int(directory.name), _rank(environment)), []).append(process)
            scan.cpu_s[process], scan.memory_bytes[process] = cpu_s, memory_bytes
        return scan


def _rank_use(task: Task, members: list[Process], scan: _Scan, previous: _Scan) -> RankUsage:
    gang, node, generation, rank = task
    # A process that is new since the previous scan counts from 0.
    cpu_s = sum(scan.cpu_s[process] - previous.cpu_s.get(process, 0) for process in members)
    span_s = max(scan.at_s - previous.at_s, 0.001)
    return RankUsage(
        gang=gang,
        node=node,
        generation=generation,
        rank=rank,
        cpu_milli=round(1000 * cpu_s / span_s),
        memory_bytes=sum(scan.memory_bytes[process] for process in members),
        processes=len(members),
    )


def _measure(pid: int) -> tuple[Process, float, int] | None:
    """Return a process with its CPU seconds and its memory in bytes; None if it has ended.

    Memory that processes share counts once among them (PSS): the workers of a loader share most of theirs.
    """
    process = machine_processes.identify(pid)
    if process is None:
        return None
    try:
        measured = psutil.Process(pid)
        times = measured.cpu_times()
        try:
            memory_bytes = measured.memory_full_info().pss
        except (psutil.AccessDenied, AttributeError, OSError):  # of another user, or of a kernel without smaps
            memory_bytes = measured.memory_info().rss
    except psutil.Error:
        return None
    return process, times.user + times.system, memory_bytes


def _rank(environment: list[bytes]) -> int | None:
    variables = dict(entry.split(b"=", 1) for entry in environment if entry.startswith(_RANKS) and b"=" in entry)
    return next((int(variables[name]) for name in _RANKS if variables.get(name, b"").isdigit()), None)


class _Gpus:
    """GPUs through the driver. One that hangs has no usage, and holds no request longer than the time-out."""

    def __init__(self, nvml_library: Path | None) -> None:
        self._source = GpuSource(GpuDriver(nvml_library))

    def read(self, nodes: Mapping[str, Node]) -> Iterator[GpuUsage]:
        """Yield the usage of every GPU of these nodes that responds."""
        if not any(node.device_ids for node in nodes.values()):
            return
        self._source.begin()
        try:
            samples = {gpu.index: gpu for gpu in self._source.result(time.monotonic() + GPU_TIMEOUT_S)}
        except (UnansweredError, GpuDriverError):
            return
        for node in nodes.values():
            for device, index in enumerate(node.device_ids):
                gpu = samples.get(index)
                if gpu is None or gpu.utilisation_percent is None or gpu.memory_used_bytes is None:
                    continue  # a GPU that fell off the bus must not hide the others
                yield GpuUsage(node.name, device, gpu.utilisation_percent, gpu.memory_used_bytes, gpu.memory_bytes or 0)
