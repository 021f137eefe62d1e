"""One measurement of a node, as its agent takes it: the input of checks, of telemetry and of its history.

Counters are totals since the driver or the machine started; who compares two samples must expect that they go back.
None is "not measured here", which is different from 0: no driver, no permission, or not within the time-out.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One GPU, by NVML; profiling fields by DCGM where its exporter runs.

    Attributes:
        index: The driver's number.
        uuid: `GPU-...`, which joins it to jobs and to metrics of others.
        bus_id: PCI address in the words of the kernel: 0000:3b:00.
        processes: Process ids on it.
        unread: Attributes that did not answer within the time-out; all of them: the GPU is lost to its driver.
        utilisation_percent, memory_percent: Share of the last sampling period with work, and with memory traffic.
        memory_used_bytes, memory_bytes: Of its memory, used and total.
        power_mw, power_limit_mw: Drawn, and the limit in force.
        temperature_c, slowdown_c: Of the GPU, and where its clocks are lowered.
        memory_temperature_c: Of its memory.
        sm_mhz, max_sm_mhz: Clock of its processors, and the highest that it supports.
        slowdown_reasons: Bits of why the clocks are below that, as NVML has them.
        ecc_corrected, ecc_uncorrected: Errors since the driver loaded.
        remapped_corrected, remapped_uncorrected: Rows of memory that were replaced, over its life.
        is_remap_pending, has_remap_failed: A reset will replace a row; no spare row is left.
        nvlinks: For each link whether it is up, in order.
        nvlink_replays, nvlink_recoveries, nvlink_crc: Errors over all links.
        pcie_generation, pcie_width, max_pcie_generation, max_pcie_width: Of its link now, and at best.
        pcie_replays: Packets sent again.
        sm_active_permille, tensor_active_permille, dram_active_permille: Profiling fields.
        pods: Pods to which the kubelet gave it, as NAMESPACE/NAME; several where a device plugin shares it.
    """

    index: int
    uuid: str = ""
    name: str = ""
    bus_id: str = ""
    processes: tuple[int, ...] = ()
    unread: tuple[str, ...] = ()
    utilisation_percent: int | None = None
    memory_percent: int | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    power_mw: int | None = None
    power_limit_mw: int | None = None
    temperature_c: int | None = None
    slowdown_c: int | None = None
    memory_temperature_c: int | None = None
    sm_mhz: int | None = None
    max_sm_mhz: int | None = None
    slowdown_reasons: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    remapped_corrected: int | None = None
    remapped_uncorrected: int | None = None
    is_remap_pending: bool | None = None
    has_remap_failed: bool | None = None
    nvlinks: tuple[bool, ...] = ()
    nvlink_replays: int | None = None
    nvlink_recoveries: int | None = None
    nvlink_crc: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    max_pcie_generation: int | None = None
    max_pcie_width: int | None = None
    pcie_replays: int | None = None
    sm_active_permille: int | None = None
    tensor_active_permille: int | None = None
    dram_active_permille: int | None = None
    pods: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PortSample:
    """One port of a network adapter, or one network interface.

    Attributes:
        device: mlx5_0, or eth0.
        port: Its number, 0 for an interface.
        layer: infiniband or ethernet.
        is_up: Whether it is active and its link is up.
        rate_gbps: Of its link; 0 if unknown.
        counters: By their names in sysfs: link_downed, symbol_error, carrier_changes.
    """

    device: str
    port: int = 0
    layer: str = "ethernet"
    is_up: bool = True
    rate_gbps: int = 0
    counters: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MountSample:
    """One mounted file system.

    Attributes:
        path, kind, source: As in /proc/mounts.
        is_read_only: As it is mounted now.
        stat_ms: How long it took to look at it; None if it did not answer within the time-out.
        free_bytes, total_bytes, free_inodes: None if it did not answer, or counts none.
    """

    path: str
    kind: str = ""
    source: str = ""
    is_read_only: bool = False
    stat_ms: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    free_inodes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """The machine without its devices.

    Attributes:
        cpu_milli, cpu_total_milli: Used since the previous sample, and there.
        memory_available_bytes, memory_bytes: Free for new work without swapping, and there.
        cpu_pressure_permille, memory_pressure_permille, io_pressure_permille: Of the last 10 s, the share in which some
            task waited for it (PSI).
        booted_at_ms: Unix ms of its last boot.
        clock_offset_ms: Of its clock to the server's.
    """

    cpu_milli: int | None = None
    cpu_total_milli: int | None = None
    memory_available_bytes: int | None = None
    memory_bytes: int | None = None
    cpu_pressure_permille: int | None = None
    memory_pressure_permille: int | None = None
    io_pressure_permille: int | None = None
    booted_at_ms: int | None = None
    clock_offset_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLine:
    """One line of the kernel's log.

    Attributes:
        seq: Its number since boot, by which a line that is read twice is known.
        at_ms: Unix ms.
    """

    seq: int
    at_ms: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSample:
    """One look at a service that the node depends on.

    Attributes:
        name: registry, dns, storage, hub, kubelet or containerd, and after a blank which one.
        took_ms: None if it did not answer within the time-out.
        error: One sentence, empty if it answered as it should.
    """

    name: str
    took_ms: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionSample:
    """A finding of another program: a condition of node-problem-detector, the health of DCGM or gpud.

    Attributes:
        source: The program.
        name: KernelDeadlock, ReadonlyFilesystem, ...
        device: What it is about, empty for the node.
    """

    source: str
    name: str
    is_bad: bool
    message: str = ""
    device: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSample:
    """A node at one moment.

    Attributes:
        at_ms: Unix ms, by its own clock.
        lines: Of the kernel's log since the previous sample.
        lines_lost: How many of them were overwritten before they were read.
        unread: Sources that did not answer within the time-out, such as nvml: that is a fault by itself.
    """

    node: str
    at_ms: int
    host: HostSample
    gpus: tuple[GpuSample, ...] = ()
    ports: tuple[PortSample, ...] = ()
    mounts: tuple[MountSample, ...] = ()
    probes: tuple[ProbeSample, ...] = ()
    conditions: tuple[ConditionSample, ...] = ()
    lines: tuple[KernelLine, ...] = ()
    lines_lost: int = 0
    unread: tuple[str, ...] = ()
