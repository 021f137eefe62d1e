"""What the ranks on this machine use of it: processors and memory out of /proc, GPUs through NVML.

Called by `backend` when somebody looks, and at no other time. One look at /proc is for all ranks of all jobs. Processor
time is a rate over the time since the look before; when that is too long ago, a second look follows the first.
"""

import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ganger.backends.local import machine_processes
from ganger.backends.local.job_files import JobFiles
from ganger.launcher_server.launcher_process import Process
from ganger.model.cluster import Node
from ganger.ports import GpuUsage, RankUsage, UsageSample

FRESH_S: Final = 0.5
"""Who asks again within this time gets the same answer."""
STALE_S: Final = 15.0
"""A look as old as this is none to compare with."""
FIRST_SPAN_S: Final = 0.25
_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_RANKS: Final = (b"GANGER_RANK", b"OMPI_COMM_WORLD_RANK", b"PMI_RANK", b"RANK")
"""As in `train.launcher_environment`: what tells a process its rank, whoever started it."""

Task = tuple[str, str, int, int | None]
"""(gang, node, generation, rank); no rank where a process has none, as mpirun has."""


@dataclass(slots=True)
class _Look:
    """at_s: on the monotonic clock; ticks: processor time so far, by process; members: processes, by task; pages: of
    memory, by process."""

    at_s: float
    ticks: dict[Process, int] = field(default_factory=dict)
    members: dict[Task, list[Process]] = field(default_factory=dict)
    pages: dict[Process, int] = field(default_factory=dict)


class UsageSampler:
    """Measures what the jobs of one state directory use. Safe from any thread."""

    def __init__(self, layout: JobFiles, nodes: Mapping[str, Node]) -> None:
        self._layout, self._nodes = layout, nodes
        self._lock = threading.Lock()
        self._last: _Look | None = None
        self._use: UsageSample | None = None
        self._gpus = _Gpus()

    def measure_usage(self) -> UsageSample:
        """What is used now."""
        with self._lock:
            now_s = time.monotonic()
            if self._use is not None and self._last is not None and now_s - self._last.at_s < FRESH_S:
                return self._use
            if self._last is None or now_s - self._last.at_s > STALE_S:
                self._last = self._look()
                time.sleep(FIRST_SPAN_S)
            look, before = self._look(), self._last
            self._last = look
            self._use = UsageSample(
                at_ms=time.time_ns() // 1_000_000,
                ranks=tuple(_rank_use(task, of, look, before) for task, of in look.members.items()),
                gpus=tuple(self._gpus.read(self._nodes)),
            )
            return self._use

    def _look(self) -> _Look:
        look = _Look(time.monotonic())
        for place, pid, environment in machine_processes.members():
            key = self._layout.task_of(place.parent)
            found = _measured(pid) if key is not None and place.name.isdecimal() else None
            if key is None or found is None:
                continue
            process, ticks, pages = found
            look.members.setdefault((*key, int(place.name), _rank(environment)), []).append(process)
            look.ticks[process], look.pages[process] = ticks, pages
        return look


def _rank_use(task: Task, members: list[Process], now: _Look, before: _Look) -> RankUsage:
    gang, node, generation, rank = task
    # One that is new since counts from nothing: it began in between.
    ticks = sum(now.ticks[process] - before.ticks.get(process, 0) for process in members)
    span_s = max(now.at_s - before.at_s, 0.001)
    return RankUsage(
        gang=gang,
        node=node,
        generation=generation,
        rank=rank,
        cpu_milli=round(1000 * ticks / _TICKS_A_SECOND / span_s),
        memory_bytes=_PAGE_BYTES * sum(now.pages[process] for process in members),
        processes=len(members),
    )


def _measured(pid: int) -> tuple[Process, int, int] | None:
    """The process, its processor time so far in ticks and its resident memory in pages (proc(5)); None when it has
    ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    if not fields or fields[0] in (b"Z", b"X"):
        return None
    return Process(pid, int(fields[19])), int(fields[11]) + int(fields[12]), int(fields[21])


def _rank(environment: list[bytes]) -> int | None:
    found = dict(entry.split(b"=", 1) for entry in environment if entry.startswith(_RANKS) and b"=" in entry)
    return next((int(found[name]) for name in _RANKS if found.get(name, b"").isdigit()), None)


class _Gpus:
    """NVML, loaded when a node has GPUs to ask, and then kept: to begin anew takes a second on some machines."""

    def __init__(self) -> None:
        self._nvml: Any = None

    def read(self, nodes: Mapping[str, Node]) -> Iterator[GpuUsage]:
        """Every device of these nodes that is a GPU and answers."""
        if not any(node.device_ids for node in nodes.values()):
            return
        import pynvml

        try:
            if self._nvml is None:
                pynvml.nvmlInit()
                self._nvml = pynvml
        except pynvml.NVMLError:
            return
        for node in nodes.values():
            for device, index in enumerate(node.device_ids):
                try:
                    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
                    busy = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
                except pynvml.NVMLError:  # one that has fallen off the bus must not hide the others
                    continue
                yield GpuUsage(node.name, device, int(busy), int(memory.used), int(memory.total))
