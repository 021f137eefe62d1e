"""The capacity of this machine: CPUs, memory, and the GPUs that no other program uses.

GPUs are read from the driver through NVML; a machine without a driver has none.
"""

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from ganger.agent.sampling.gpu_source import GpuDriver, GpuDriverError
from ganger.backends.local import machine_processes
from ganger.model.cluster import gpu_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """This machine.

    cpu_milli: the CPUs on which this process may run.
    gpus: driver indices of the available GPUs, all of type `gpu_type`.
    gpu_memory_bytes: the minimum memory of these GPUs.
    unavailable: the other GPUs, with the reason as the end of a sentence.
    """

    cpu_milli: int
    memory_bytes: int
    gpus: tuple[int, ...] = ()
    gpu_type: str = ""
    gpu_memory_bytes: int = 0
    unavailable: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as reported by the driver.

    memory_bytes: 0 if unknown.
    pids: processes that compute on it.
    error: why the driver cannot report more.
    """

    index: int
    name: str = ""
    memory_bytes: int = 0
    mig: bool = False
    pids: tuple[int, ...] = ()
    error: str = ""


MEMORY_NOTE: Final = "memory limits are not enforced: a rank that uses more than it requested is not stopped"
"""Shown by `ganger doctor` and once in the server's log, until memory limits are enforced by cgroup."""


def machine(jobs: Path, nvml_library: Path | None = None) -> Machine:
    """Return this machine as it is now.

    jobs: directory of this server's jobs, whose ranks may use GPUs.
    nvml_library: the driver's; None: the one that is installed, if any.
    """
    gpus = read_gpus(nvml_library)
    own_pids = (
        [pid for directory, pid in machine_processes.rank_processes() if directory.is_relative_to(jobs)] if gpus else []
    )
    offered, gpu_type, unavailable = available_gpus(gpus, tuple(own_pids))
    return Machine(
        cpu_milli=1000 * len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        gpus=offered,
        gpu_type=gpu_type,
        gpu_memory_bytes=min((gpu.memory_bytes for gpu in gpus if gpu.index in offered), default=0),
        unavailable=unavailable,
    )


def available_gpus(gpus: tuple[Gpu, ...], own_pids: tuple[int, ...]) -> tuple[tuple[int, ...], str, dict[int, str]]:
    """Return the available GPUs, their type, and why the others are unavailable.

    A node has one GPU type: the most frequent one, among equals that of the lowest index.
    """
    types = Counter(gpu_type(gpu.name) for gpu in gpus if not gpu.error)
    node_type = max(types, key=lambda name: types[name], default="")
    unavailable = {gpu.index: reason for gpu in gpus if (reason := _unavailable_reason(gpu, node_type, own_pids))}
    return tuple(gpu.index for gpu in gpus if gpu.index not in unavailable), node_type, unavailable


def read_gpus(nvml_library: Path | None = None) -> tuple[Gpu, ...]:
    """Return every GPU of the machine in the driver's order; none without a driver."""
    driver = GpuDriver(nvml_library)
    try:
        return tuple(_gpu(driver.open(), index) for index in range(driver.count()))
    except GpuDriverError:
        return ()
    finally:
        driver.close()


def _gpu(pynvml: Any, index: int) -> Gpu:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        raw_name: Any = pynvml.nvmlDeviceGetName(handle)
    except pynvml.NVMLError as error:  # a GPU that fell off the bus must not hide the others
        return Gpu(index=index, error=str(error))
    mig = False
    with suppress(pynvml.NVMLError):  # not supported by most types
        mig = pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    memory_bytes = 0
    with suppress(pynvml.NVMLError):
        memory_bytes = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    pids: tuple[int, ...] = ()
    with suppress(pynvml.NVMLError):
        pids = tuple(process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    name = raw_name if isinstance(raw_name, str) else raw_name.decode()
    return Gpu(index=index, name=name, memory_bytes=memory_bytes, mig=mig, pids=pids)


def _unavailable_reason(gpu: Gpu, node_type: str, own_pids: tuple[int, ...]) -> str:
    if gpu.error:
        return f"does not respond: {gpu.error}"
    if gpu_type(gpu.name) != node_type:
        return f"is a {gpu.name}, and this node uses its {node_type}s"
    if gpu.mig:
        return "is partitioned by MIG, which ganger does not support yet"
    if foreign := [pid for pid in gpu.pids if _is_foreign(pid, own_pids)]:
        return f"is used by process {foreign[0]}, which is not ganger's"
    return ""


def _is_foreign(pid: int, own_pids: tuple[int, ...]) -> bool:
    """Detect a process of another program.

    In a container the driver reports pids of the host, which cannot be compared: while jobs of this server run, such a
    process may well be theirs.
    """
    return pid not in own_pids and not (own_pids and not Path(f"/proc/{pid}").exists())
