"""Telemetry of nodes and jobs, now and over a while."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Figures in equal steps of a while, oldest first; null where nothing was measured.

    Attributes:
        from_ms, step_ms: Beginning of the first step, and length of each.
        busy_permille: Of a node's CPUs, or of a GPU's time.
        memory_bytes: In use.
        power_mw, temperature_c: Of a GPU.
        received_bytes_s, sent_bytes_s: Bytes per second, over all network ports of a node.
    """

    from_ms: int
    step_ms: int
    busy_permille: tuple[int | None, ...]
    memory_bytes: tuple[int | None, ...]
    power_mw: tuple[int | None, ...] = ()
    temperature_c: tuple[int | None, ...] = ()
    received_bytes_s: tuple[int | None, ...] = ()
    sent_bytes_s: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTelemetry:
    """A GPU in the newest sample of its node; null is "not measured".

    Attributes:
        device: Index on its node, as ranks have it; null for a GPU that is not the node's to give, and on Kubernetes
            for one that no pod of a job has.
        uuid: The driver's, which joins it to metrics of other programs.
        job: The job that holds it.
        pods: Pods to which the kubelet gave it, as NAMESPACE/NAME: without a job, they are of another scheduler.
        is_lost: The driver gives no figure of it any more.
    """

    device: int | None
    uuid: str
    name: str
    job: str | None
    pods: tuple[str, ...]
    is_lost: bool
    busy_permille: int | None
    memory_used_bytes: int | None
    memory_bytes: int | None
    power_mw: int | None
    power_limit_mw: int | None
    temperature_c: int | None
    sm_mhz: int | None
    history: History


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTelemetry:
    """The newest sample of a node by its agent; null is "not measured".

    Attributes:
        at_ms: Unix ms of the sample; null: there is none yet.
        is_silent: The agent has sent nothing for three intervals.
        unread: Sources that did not answer in time.
    """

    node: str
    at_ms: int | None
    is_silent: bool
    unread: tuple[str, ...] = ()
    cpu_milli: int | None = None
    cpu_total_milli: int | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    received_bytes_s: int | None = None
    sent_bytes_s: int | None = None
    history: History
    gpus: tuple[GpuTelemetry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTelemetry:
    """The work of a rank's devices since the attempt began.

    Attributes:
        devices: Indices of its devices on the node.
        duty_permille: Mean share of the time in which its devices were busy; null without devices or a history.
        busy_permille: The same in each step of the while.
        memory_used_bytes, power_mw: Of all its devices, now.
        temperature_c: Of the hottest.
    """

    rank: int
    node: str
    devices: tuple[int, ...]
    duty_permille: int | None
    busy_permille: tuple[int | None, ...]
    memory_used_bytes: int | None
    power_mw: int | None
    temperature_c: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUsage:
    """The usage of the devices of each rank of a running job.

    Attributes:
        from_ms, step_ms: The while: since the attempt began, at most as long as was asked for.
        duty_permille: Mean over all ranks.
        imbalance_permille: How far the least busy rank is below the mean, as a part of the mean; 0: all are alike.
    """

    job: str
    generation: int
    from_ms: int
    step_ms: int
    duty_permille: int | None
    imbalance_permille: int | None
    ranks: tuple[RankTelemetry, ...]
