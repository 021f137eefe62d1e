"""What this machine has to offer: CPUs, memory, and those of its GPUs that nobody else uses.

Called by `wiring` when a server starts, which hands the machine to `topology`. GPUs are asked of the driver through
NVML; a machine without one simply has none.
"""

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from ganger.backends.local import machine_processes
from ganger.model.cluster import gpu_type

_DRIVERS: Final = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""What is there when a driver is, of Linux itself and of Linux under Windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """This machine. gpus: the driver's numbers of the GPUs on offer, all of type `gpu_type`; gpu_memory_bytes: what
    each of them has at the least; unavailable: the others, with the reason as the end of a sentence; cpu_milli: what
    this process may run on."""

    cpu_milli: int
    memory_bytes: int
    gpus: tuple[int, ...] = ()
    gpu_type: str = ""
    gpu_memory_bytes: int = 0
    unavailable: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as the driver shows it. memory_bytes: 0 where it does not tell; pids: processes that compute on it; error:
    why the driver cannot tell more."""

    index: int
    name: str = ""
    memory_bytes: int = 0
    mig: bool = False
    pids: tuple[int, ...] = ()
    error: str = ""


MEMORY_NOTE: Final = "memory is accounted, not enforced: a rank that takes more than it asked for is not stopped"
"""Said by `ganger doctor` and once in the server's log, until memory limits are enforced by cgroup."""


def machine(jobs: Path) -> Machine:
    """This machine as it is now. jobs: the directory of this server's jobs, whose ranks are no strangers on a GPU."""
    gpus = read_gpus()
    ours = [pid for place, pid in machine_processes.marked() if place.is_relative_to(jobs)] if gpus else []
    offered, gpu_type, unavailable = offer(gpus, tuple(ours))
    return Machine(
        cpu_milli=1000 * len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        gpus=offered,
        gpu_type=gpu_type,
        gpu_memory_bytes=min((gpu.memory_bytes for gpu in gpus if gpu.index in offered), default=0),
        unavailable=unavailable,
    )


def offer(gpus: tuple[Gpu, ...], ours: tuple[int, ...]) -> tuple[tuple[int, ...], str, dict[int, str]]:
    """Which GPUs are on offer, their type, and why the others are not. A node has one type: the most frequent one, the
    one of the lowest index among equals. ours: processes of this server's own jobs."""
    types = Counter(gpu_type(gpu.name) for gpu in gpus if not gpu.error)
    chosen = max(types, key=lambda name: types[name], default="")
    unavailable = {gpu.index: why for gpu in gpus if (why := _unavailable(gpu, chosen, ours))}
    return tuple(gpu.index for gpu in gpus if gpu.index not in unavailable), chosen, unavailable


def read_gpus() -> tuple[Gpu, ...]:
    """Every GPU of the machine, as the driver numbers them; none without a driver."""
    if not any(path.exists() for path in _DRIVERS):
        return ()
    import pynvml  # slow to load, and of no use elsewhere

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(_gpu(index) for index in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _gpu(index: int) -> Gpu:
    import pynvml

    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        found: Any = pynvml.nvmlDeviceGetName(handle)
    except pynvml.NVMLError as error:  # one that has fallen off the bus must not hide the others
        return Gpu(index=index, error=str(error))
    mig = False
    with suppress(pynvml.NVMLError):  # most types do not know the question
        mig = pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    memory_bytes = 0
    with suppress(pynvml.NVMLError):
        memory_bytes = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    pids: tuple[int, ...] = ()
    with suppress(pynvml.NVMLError):
        pids = tuple(process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    name = found if isinstance(found, str) else found.decode()
    return Gpu(index=index, name=name, memory_bytes=memory_bytes, mig=mig, pids=pids)


def _unavailable(gpu: Gpu, chosen: str, ours: tuple[int, ...]) -> str:
    if gpu.error:
        return f"does not answer: {gpu.error}"
    if gpu_type(gpu.name) != chosen:
        return f"is a {gpu.name}, and this node offers its {chosen}s"
    if gpu.mig:
        return "is split by MIG, which ganger does not use yet"
    if strangers := [pid for pid in gpu.pids if _is_stranger(pid, ours)]:
        return f"is used by process {strangers[0]}, which is not ganger's"
    return ""


def _is_stranger(pid: int, ours: tuple[int, ...]) -> bool:
    """Whether somebody else computes there. Inside a container the driver gives the host's numbers, which tell nothing
    here: while jobs of ours run, such a process may well be theirs."""
    return pid not in ours and not (ours and not Path(f"/proc/{pid}").exists())
