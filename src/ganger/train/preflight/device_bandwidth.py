"""Measurement of this node's memory and GPUs, a process of its own: a GPU that hangs takes no other with it.

`python -m ganger.train.preflight.device_bandwidth FIRST` measures the GPUs from number FIRST on, and prints a line of
JSON before and after each one, so that its parent knows which one hangs. All that needs a GPU is here.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

BUFFER_BYTES = 1 << 30
"""Of GPU memory; more than any cache. A GPU with less than twice that free gets an eighth of what is free."""
HOST_BYTES = 256 << 20
"""Of host memory: beyond the caches of a CPU, and pinned in a fraction of a second."""
REPEATS = 5
COPIES = 4
"""Copies between two time stamps."""


def main(argv: list[str]) -> int:
    """Measure, and return the exit code."""
    first = int(argv[0])
    torch = import_module("torch")
    if first == 0:
        emit(host=host_memory_gbps(torch))
    count, reason = cuda_devices(torch)
    emit(count=count, reason=reason)
    for device in range(first, count):
        emit(begin=device)
        try:
            gpu_type, figures = measure_gpu(torch, device)
        except (RuntimeError, AssertionError) as error:  # torch raises the latter where CUDA cannot be initialized
            emit(device=device, error=_first_line(error))
        else:
            emit(device=device, type=gpu_type, figures=figures)
    return 0


def cuda_devices(torch: Any) -> tuple[int, str]:
    """Return the number of GPUs, and of none the reason."""
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return 0, "this torch is built without CUDA"
    count = torch.cuda.device_count()
    return count, "" if count else "no CUDA device is visible"


def measure_gpu(torch: Any, device: int) -> tuple[str, dict[str, float]]:
    """Initialize CUDA on a GPU, and return its type and its figures. Raise RuntimeError if it does not work."""
    torch.cuda.set_device(device)
    gpu_type = torch.cuda.get_device_name(device)
    free_bytes = torch.cuda.mem_get_info(device)[0]
    size = BUFFER_BYTES if free_bytes > 2 * BUFFER_BYTES else free_bytes // 8
    source = torch.full((size,), 7, dtype=torch.uint8, device=f"cuda:{device}")
    target = torch.empty_like(source)
    # A copy reads and writes each byte.
    figures = {"hbm": best_gbps(_cuda_timer(torch), lambda: target.copy_(source), 2 * size)}
    if int(target[-1]) != 7:
        message = "a copy within its memory gave another result"
        raise RuntimeError(message)
    part = source[: min(size, HOST_BYTES)]
    host = torch.empty(part.numel(), dtype=torch.uint8, pin_memory=True)
    timer = _cuda_timer(torch)
    figures["pcie_to_host"] = best_gbps(timer, lambda: host.copy_(part, non_blocking=True), part.numel())
    figures["pcie_to_device"] = best_gbps(timer, lambda: part.copy_(host, non_blocking=True), part.numel())
    return gpu_type, figures


def host_memory_gbps(torch: Any) -> float:
    """Return the bandwidth of copies within the host's memory by one process."""
    source = torch.full((HOST_BYTES,), 7, dtype=torch.uint8)
    target = torch.empty_like(source)
    return best_gbps(wall_time_s, lambda: target.copy_(source), 2 * HOST_BYTES)


def best_gbps(timer: Callable[[Callable[[], object]], float], copy: Callable[[], object], size: int) -> float:
    """Return the best of several repeats in 10^9 bytes a second, after one that warms up."""
    copy()
    took_s = min(timer(copy) for _ in range(REPEATS))
    return COPIES * size / took_s / 1e9 if took_s > 0 else float("nan")


def wall_time_s(copy: Callable[[], object]) -> float:
    """Return the time of several copies."""
    begin_s = time.perf_counter()
    for _ in range(COPIES):
        copy()
    return time.perf_counter() - begin_s


def _cuda_timer(torch: Any) -> Callable[[Callable[[], object]], float]:
    """Return a timer by CUDA events: that of the host would count the launches of the copies as well."""

    def time_s(copy: Callable[[], object]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(COPIES):
            copy()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    return time_s


def emit(**fields: object) -> None:
    """Print one line for the parent."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
