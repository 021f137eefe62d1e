"""The formats of openb: nodes and pods of Alibaba's shared GPU cluster (cluster-trace-gpu-v2023), times in seconds.

Pods are single: each is on one node. `num_gpu` is 0 to 8; `gpu_milli` is the share of one GPU if it is 1, and 1000 if
it is more. A pod runs from `scheduled_time` to `deletion_time`; one that was never scheduled has no duration.
`memory_mib` is MiB; `gpu_spec` is types joined by `|`. `qos` and `pod_phase` are kept as text: a pod that was `Running`
when the trace ended ran longer than recorded.

Lists for placement alone have only the first five columns, `name` to `gpu_milli`. Their pods may have any type of GPU,
were all submitted at time 0, and have no duration.
"""

from typing import Final

from ganger.model.cluster import Node
from ganger.model.units import DEVICE_MILLI, MIB_BYTES, SECOND_MS
from ganger.simulation.traces.record_checks import gpu_types, new_job_check, new_node_check, submitted_ms
from ganger.simulation.traces.trace import Flaw, RecordedJob
from ganger.simulation.traces.trace_format import Format
from ganger.simulation.traces.trace_row import BadRow, Row


def pod(row: Row) -> RecordedJob:
    """Return the pod of a row."""
    started_ms = row.rounded_or_none("started", SECOND_MS)
    submitted_ms = row.rounded("submitted", SECOND_MS) if row.has("submitted") else 0
    deleted_ms = row.rounded("deleted", SECOND_MS) if row.has("deleted") else None
    _check_order(submitted_ms, started_ms, deleted_ms)
    gpus, gpu_milli = _gpus(row)
    return RecordedJob(
        name=row.required("name"),
        submitted_ms=submitted_ms,
        duration_ms=None if started_ms is None or deleted_ms is None else deleted_ms - started_ms,
        gpus=gpus,
        gpu_milli=gpu_milli,
        nodes=1,
        cpu_milli=row.integer("cpu"),
        memory_bytes=row.integer("memory", unit=MIB_BYTES),
        gpu_types=gpu_types(row.text("types")) if gpus or gpu_milli else (),
        started_ms=started_ms,
        extra=row.extra(),
        line=row.line,
    )


def _check_order(submitted_ms: int, started_ms: int | None, deleted_ms: int | None) -> None:
    """Raise BadRow if a pod was scheduled or deleted too early."""
    known_ms = {"made": submitted_ms, "scheduled": started_ms, "deleted": deleted_ms}
    times_ms = {name: time_ms for name, time_ms in known_ms.items() if time_ms is not None}
    if [*times_ms.values()] != sorted(times_ms.values()):
        raise BadRow(Flaw.CONTRADICTION, f"{' and '.join(times_ms)} at {', '.join(map(str, times_ms.values()))} ms")


def _gpus(row: Row) -> tuple[int, int | None]:
    gpus, milli = row.integer("gpus"), row.integer("milli")
    if gpus == 1 and 0 < milli < DEVICE_MILLI:
        return 0, milli
    if milli != (DEVICE_MILLI if gpus else 0):
        raise BadRow(Flaw.CONTRADICTION, f"num_gpu {gpus} with gpu_milli {milli}")
    return gpus, None


def node(row: Row) -> Node:
    """Return the node of a row; `model` is empty, and `gpu` 0, if it has no GPUs."""
    gpus, gpu_type = row.integer("gpus"), row.text("type").lower()
    if bool(gpus) != bool(gpu_type):
        raise BadRow(Flaw.CONTRADICTION, f"{gpus} GPUs of model {gpu_type!r}")
    cpu_milli, memory_bytes = row.integer("cpu"), row.integer("memory", unit=MIB_BYTES)
    return Node(name=row.required("name"), gpus=gpus, gpu_type=gpu_type, cpu_milli=cpu_milli, memory_bytes=memory_bytes)


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
    optional=frozenset({"types", "submitted", "deleted", "started"}),
    record=pod,
    new_check=new_job_check,
    time_of=submitted_ms,
)
NODES: Final = Format(
    name="openb",
    doc="nodes of Alibaba's cluster-trace-gpu-v2023",
    columns=({"name": "sn", "cpu": "cpu_milli", "memory": "memory_mib", "gpus": "gpu", "type": "model"},),
    record=node,
    new_check=new_node_check,
    time_of=lambda _: 0,
)
