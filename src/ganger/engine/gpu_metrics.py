"""Metrics of GPUs, named as a DCGM exporter names them, with the job that holds each.

A board or an alert that was written for DCGM reads them without a change; where an exporter runs too, its metrics are
joined by UUID. (Names and units: dcgm-exporter, etc/default-counters.csv.)
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ganger.model.node_health.node_sample import GpuSample
from ganger.ports import Metric

LABELS: Final = ("gpu", "UUID", "modelName", "Hostname", "job")
_MIB_BYTES: Final = 1 << 20

Value = Callable[[GpuSample], float | None]


def _free_mib(gpu: GpuSample) -> float | None:
    if gpu.memory_bytes is None or gpu.memory_used_bytes is None:
        return None
    return (gpu.memory_bytes - gpu.memory_used_bytes) // _MIB_BYTES


METRICS: Final[tuple[tuple[str, str, Value], ...]] = (
    ("DCGM_FI_DEV_GPU_UTIL", "Time with work, in percent.", lambda gpu: gpu.utilisation_percent),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "Time with memory traffic, in percent.", lambda gpu: gpu.memory_percent),
    (
        "DCGM_FI_DEV_FB_USED",
        "Memory in use, in MiB.",
        lambda gpu: None if gpu.memory_used_bytes is None else gpu.memory_used_bytes // _MIB_BYTES,
    ),
    ("DCGM_FI_DEV_FB_FREE", "Free memory, in MiB.", _free_mib),
    (
        "DCGM_FI_DEV_POWER_USAGE",
        "Power drawn, in W.",
        lambda gpu: None if gpu.power_mw is None else gpu.power_mw / 1000,
    ),
    ("DCGM_FI_DEV_GPU_TEMP", "Temperature, in C.", lambda gpu: gpu.temperature_c),
    ("DCGM_FI_DEV_MEMORY_TEMP", "Temperature of the memory, in C.", lambda gpu: gpu.memory_temperature_c),
    ("DCGM_FI_DEV_SM_CLOCK", "Clock of the processors, in MHz.", lambda gpu: gpu.sm_mhz),
    ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "Corrected errors of the memory.", lambda gpu: gpu.ecc_corrected),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "Uncorrected errors of the memory.", lambda gpu: gpu.ecc_uncorrected),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "Packets on PCIe that were sent again.", lambda gpu: gpu.pcie_replays),
)
"""Name, help and value. All are gauges: Prometheus gives counters another name, and these go back with the driver."""


def gpu_metrics(gpus: Iterable[tuple[str, GpuSample, str]]) -> Iterator[Metric]:
    """Yield the metrics of GPUs, each with its node and its job, empty for none."""
    rows: list[tuple[tuple[str, ...], GpuSample]] = [
        ((str(gpu.index), gpu.uuid, gpu.name, node, job), gpu) for node, gpu, job in gpus if gpu.uuid
    ]
    yield Metric(
        "ganger_gpu_info", "1 for each GPU, with its job.", "gauge", LABELS, {labels: 1.0 for labels, _ in rows}
    )
    for name, text, value in METRICS:
        values = {labels: figure for labels, gpu in rows if (figure := value(gpu)) is not None}
        yield Metric(name, text, "gauge", LABELS, values)
