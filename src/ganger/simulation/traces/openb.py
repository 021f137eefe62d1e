"""openb: nodes and pods of Alibaba's heterogeneous, shared GPU cluster (cluster-trace-gpu-v2023), times in seconds.

Pods are single: each is on one node. `num_gpu` is 0 to 8; `gpu_milli` says which share of one GPU where it is 1, and
1000 where it is more. A pod runs from `scheduled_time` to `deletion_time`; one that was never scheduled has no
duration. `memory_mib` is MiB; `gpu_spec` is types joined by `|`. `qos` and `pod_phase` stay as they are: a pod that was
`Running` when the trace ended has run longer than it says.
"""

from typing import Final

from ganger.model.cluster import Node
from ganger.model.units import DEVICE_MILLI, MIB_BYTES, SECOND_MS
from ganger.simulation.traces.record_checks import each_job, each_node, gpu_types, submitted_ms
from ganger.simulation.traces.trace import Flaw, RecordedJob
from ganger.simulation.traces.trace_format import Format
from ganger.simulation.traces.trace_row import Broken, Row


def pod(row: Row) -> RecordedJob:
    """One pod."""
    started_ms = row.rounded_or_none("started", SECOND_MS)
    submitted_ms, deleted_ms = row.rounded("submitted", SECOND_MS), row.rounded("deleted", SECOND_MS)
    if started_ms is not None and not submitted_ms <= started_ms <= deleted_ms:
        raise Broken(Flaw.CONTRADICTION, f"made, scheduled, deleted at {submitted_ms}, {started_ms}, {deleted_ms} ms")
    if deleted_ms < submitted_ms:
        raise Broken(Flaw.CONTRADICTION, f"made and deleted at {submitted_ms}, {deleted_ms} ms")
    gpus, gpu_milli = _gpus(row)
    return RecordedJob(
        name=row.needed("name"),
        submitted_ms=submitted_ms,
        duration_ms=None if started_ms is None else deleted_ms - started_ms,
        gpus=gpus,
        gpu_milli=gpu_milli,
        nodes=1,
        cpu_milli=row.whole("cpu"),
        memory_bytes=row.whole("memory", unit=MIB_BYTES),
        gpu_types=gpu_types(row.text("types")) if gpus or gpu_milli else (),
        started_ms=started_ms,
        extra=row.extra(),
        line=row.line,
    )


def _gpus(row: Row) -> tuple[int, int | None]:
    gpus, milli = row.whole("gpus"), row.whole("milli")
    if gpus == 1 and 0 < milli < DEVICE_MILLI:
        return 0, milli
    if milli != (DEVICE_MILLI if gpus else 0):
        raise Broken(Flaw.CONTRADICTION, f"num_gpu {gpus} with gpu_milli {milli}")
    return gpus, None


def node(row: Row) -> Node:
    """One node; `model` is empty, and `gpu` 0, where it has no GPUs."""
    gpus, gpu_type = row.whole("gpus"), row.text("type").lower()
    if bool(gpus) != bool(gpu_type):
        raise Broken(Flaw.CONTRADICTION, f"{gpus} GPUs of model {gpu_type!r}")
    cpu_milli, memory_bytes = row.whole("cpu"), row.whole("memory", unit=MIB_BYTES)
    return Node(name=row.needed("name"), gpus=gpus, gpu_type=gpu_type, cpu_milli=cpu_milli, memory_bytes=memory_bytes)


PODS: Final = Format(
    name="openb",
    doc="pods of Alibaba's cluster-trace-gpu-v2023",
    columns=(
        {
            "name": "name",
            "cpu": "cpu_milli",
            "memory": "memory_mib",
            "gpus": "num_gpu",
            "milli": "gpu_milli",
            "types": "gpu_spec",
            "submitted": "creation_time",
            "deleted": "deletion_time",
            "started": "scheduled_time",
        },
    ),
    record=pod,
    watch=each_job,
    at_ms=submitted_ms,
)
NODES: Final = Format(
    name="openb",
    doc="nodes of Alibaba's cluster-trace-gpu-v2023",
    columns=({"name": "sn", "cpu": "cpu_milli", "memory": "memory_mib", "gpus": "gpu", "type": "model"},),
    record=node,
    watch=each_node,
    at_ms=lambda _: 0,
)
