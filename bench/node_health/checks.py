"""Checks of nodes on samples with injected faults among noise: recall, precision, and time for one sample.

Each node of 8 GPUs is sampled for 40 min and has one fault of one kind, or none. All have noise: floods of corrected
PCIe errors, ports that are down for 20 s, corrected ECC errors, power caps, single time-outs, a driver that is loaded
again, a clock that jumps, processes killed by their own memory limit. A fault is found if it is reported with its code,
its device and at least its severity. A report graver than a note is right if it belongs to the fault of its node.
"""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from bench.measure import Figure, median
from ganger import registry
from ganger.check_api.rule_tables import OWN_RULES
from ganger.check_api.run_checks import ChecksState, run_checks
from ganger.model.node_health.fault import Fault, Severity
from ganger.model.node_health.node_sample import (
    ConditionSample,
    GpuSample,
    HostSample,
    KernelLine,
    MountSample,
    NodeSample,
    PortSample,
    ProbeSample,
)

NODES_PER_KIND: Final = 3
SAMPLES: Final = 240
STEP_MS: Final = 10_000
RECALL_BAR: Final = 0.98
PRECISION_BAR: Final = 0.95
COST_BAR_US: Final = 10_000.0
"""A thousandth of a core at one sample every 10 s."""

Change = Callable[[NodeSample, int], NodeSample]
"""A fault, put into the sample that is so many samples after its beginning."""
_COUNTERS: Final = {
    code.partition(".")[0]: 0 for code, rule in OWN_RULES.table("nic").items() if rule.limit is not None
}
_GPU: Final = 5
"""The GPU that is at fault."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: its code, its device, the severity that it must have, and how it shows."""

    code: str
    device: str
    severity: Severity
    change: Change


def _healthy(node: str, number: int, rng: random.Random) -> NodeSample:
    gpus = tuple(
        GpuSample(
            index=index,
            uuid=f"GPU-{index}",
            name="H100",
            bus_id=f"0000:{index + 1:02x}:00",
            utilisation_percent=rng.choice((0, 90, 99)),
            memory_used_bytes=60 << 30,
            power_mw=600_000,
            temperature_c=rng.randrange(45, 75),
            slowdown_c=87,
            sm_mhz=1700,
            slowdown_reasons=rng.choice((0, 0x1, 0x4)),
            ecc_corrected=number // 50,
            ecc_uncorrected=0,
            remapped_uncorrected=0,
            is_remap_pending=False,
            has_remap_failed=False,
            nvlinks=(True,) * 18,
            nvlink_replays=0,
            nvlink_recoveries=0,
            nvlink_crc=number * 3,
            pcie_generation=5,
            max_pcie_generation=5,
            pcie_width=16,
            max_pcie_width=16,
            pcie_replays=number // 10,
        )
        for index in range(8)
    )
    counters = {name: number // 20 if name in ("port_xmit_discards", "port_rcv_errors") else 0 for name in _COUNTERS}
    ports = tuple(PortSample(device=f"mlx5_{port}", port=1, rate_gbps=400, counters=counters) for port in range(8))
    mounts = (
        MountSample(path="/", kind="ext4", source="/dev/nvme0n1p2", stat_ms=1, free_bytes=50, total_bytes=100),
        MountSample(path="/home", kind="nfs4", source="filer:/home", stat_ms=2, free_bytes=9, total_bytes=100),
    )
    names = ("kubelet", "containerd", "registry docker.io", "dns")
    return NodeSample(
        node=node,
        at_ms=1_700_000_000_000 + number * STEP_MS,
        host=HostSample(clock_offset_ms=rng.randrange(-30, 30)),
        gpus=gpus,
        ports=ports,
        mounts=mounts,
        probes=tuple(ProbeSample(name=name, took_ms=rng.randrange(1, 300)) for name in names),
    )


_NOISE_LINES: Final = (
    "nvidia 0000:02:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    "Memory cgroup out of memory: Killed process 88123 (python3) total-vm:141220884kB",
    "NVRM: Xid (PCI:0000:02:00): 63, Row Remapper: New row marked for remapping",
    "nfs: server filer not responding, still trying",
    "NVRM: Xid (PCI:0000:02:00): 43, pid=88, name=python, Ch 00000018",
    "perf: interrupt took too long (2507 > 2500), lowering kernel.perf_event_max_sample_rate to 79750",
)


def _with_noise(sample: NodeSample, number: int, noise: int) -> NodeSample:
    """Return a sample with the noise of this time; noise: the sample at which this node's begins."""
    lines = (_NOISE_LINES[0],) * 40 if number % 7 == 0 else ()
    after = number - noise
    if after == 1:
        lines = (*lines, *_NOISE_LINES)
    if after == 3:
        lines = (*lines, "nfs: server filer OK")
    if 5 <= after < 7:
        port = replace(sample.ports[6], is_up=False, rate_gbps=0)
        sample = replace(sample, ports=(*sample.ports[:6], port, *sample.ports[7:]))
    if after == 12:
        sample = replace(sample, gpus=(), unread=("nvml",))
    if 20 <= after < 23:
        sample = replace(sample, gpus=())
    if after >= 23:  # the driver was loaded again
        totals = dict.fromkeys(("ecc_corrected", "nvlink_crc", "pcie_replays"), 0)
        sample = replace(sample, gpus=tuple(replace(gpu, **totals) for gpu in sample.gpus))
    if after >= 30:
        sample = replace(sample, at_ms=sample.at_ms + 7_200_000)
    if after == 35:
        sample = replace(sample, probes=tuple(replace(probe, took_ms=None) for probe in sample.probes))
    return _with_lines(sample, *lines)


def _with_lines(sample: NodeSample, *texts: str) -> NodeSample:
    lines = tuple(KernelLine(seq=place, at_ms=sample.at_ms, text=text) for place, text in enumerate(texts))
    return replace(sample, lines=(*sample.lines, *lines))


def _line(text: str) -> Change:
    return lambda sample, after: _with_lines(sample, text) if after == 0 else sample


def _gpu(**changes: Any) -> Change:
    def change(sample: NodeSample, after: int) -> NodeSample:
        values = {name: value(after) if callable(value) else value for name, value in changes.items()}
        return replace(sample, gpus=tuple(replace(gpu, **values) if gpu.index == _GPU else gpu for gpu in sample.gpus))

    return change


def _port(**changes: Any) -> Change:
    def change(sample: NodeSample, after: int) -> NodeSample:
        port = sample.ports[2]
        values = {name: value(after) if callable(value) else value for name, value in changes.items()}
        own = {name: value for name, value in values.items() if name in ("is_up", "rate_gbps")}
        totals = {name: value for name, value in values.items() if name not in own}
        port = replace(port, **own, counters=port.counters | totals)
        return replace(sample, ports=(*sample.ports[:2], port, *sample.ports[3:]))

    return change


def _part(name: str, *values: Any) -> Change:
    return lambda sample, _after: replace(sample, **{name: (*getattr(sample, name), *values)})


def _root(**changes: Any) -> Change:
    return lambda sample, _after: replace(sample, mounts=(replace(sample.mounts[0], **changes), *sample.mounts[1:]))


def _probe(name: str) -> Change:
    return lambda sample, _after: replace(
        sample,
        probes=tuple(replace(probe, took_ms=None) if probe.name == name else probe for probe in sample.probes),
    )


_DEVICE, _PORT = f"GPU-{_GPU}", "mlx5_2/1"
_XID: Final = f"NVRM: Xid (PCI:0000:{_GPU + 1:02x}:00): "
_NOTE, _JOB, _RESET, _REBOOT, _REPLACE = Severity
KINDS: Final = (
    Kind("xid_79", _DEVICE, _REBOOT, _line(f"{_XID}79, pid=7, name=fit, GPU has fallen off the bus.")),
    Kind("xid_79", _DEVICE, _REBOOT, _line(f"NVRM: GPU 0000:{_GPU + 1:02x}:00.0: GPU has fallen off the bus.")),
    Kind("xid_48", _DEVICE, _RESET, _line(f"{_XID}48, pid=7, name=python, DBE")),
    Kind("xid_64", _DEVICE, _REPLACE, _line(f"{_XID}64, Row Remapper: row remap failed")),
    Kind("xid_74", _DEVICE, _RESET, _line(f"{_XID}74, pid=7, NVLink: fatal error detected on link 3(0x0)")),
    Kind("xid_119", _DEVICE, _RESET, _line(f"{_XID}119, pid=9, Timeout after 45s of waiting for RPC response")),
    Kind("xid_149_fatal", _DEVICE, _RESET, _line(f"{_XID}149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x0)")),
    Kind(
        *("xid_31", _DEVICE, _RESET),
        lambda sample, after: _with_lines(sample, f"{_XID}31, pid=7, MMU Fault") if after in {0, 60} else sample,
    ),
    Kind(
        "sxid_23001", "nvidia-nvswitch1", _REBOOT, _line("nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): 23001, Fatal, x")
    ),
    Kind("aer_fatal", "0000:40:01", _REBOOT, _line("pcieport 0000:40:01.1: AER: Uncorrected (Fatal) error received")),
    Kind("ecc_uncorrected", _DEVICE, _RESET, _gpu(ecc_uncorrected=2)),
    Kind("remap_failed", _DEVICE, _REPLACE, _gpu(has_remap_failed=True)),
    Kind("nvlink_down", _DEVICE, _RESET, _gpu(nvlinks=(True,) * 17 + (False,))),
    Kind("nvlink_crc", _DEVICE, _RESET, _gpu(nvlink_crc=lambda after: 10**6 + 5000 * after)),
    Kind("nvlink_recovery", _DEVICE, _RESET, _gpu(nvlink_recoveries=1)),
    Kind("pcie_width", _DEVICE, _REBOOT, _gpu(pcie_width=8)),
    Kind("hw_thermal_slowdown", _DEVICE, _JOB, _gpu(slowdown_reasons=0x48)),
    Kind("hw_power_brake", _DEVICE, _JOB, _gpu(slowdown_reasons=0x88)),
    Kind(
        "gpu_lost",
        _DEVICE,
        _REBOOT,
        _gpu(
            **dict.fromkeys(("utilisation_percent", "memory_used_bytes", "power_mw", "temperature_c", "sm_mhz")),
            unread=("power",),
        ),
    ),
    Kind(
        "gpu_missing",
        _DEVICE,
        _REBOOT,
        lambda one, _after: replace(one, gpus=tuple(gpu for gpu in one.gpus if gpu.index != _GPU)),
    ),
    Kind("nvml_unread", "", _REBOOT, lambda one, _after: replace(one, gpus=(), unread=("nvml",))),
    Kind("port_down", _PORT, _RESET, _port(is_up=False)),
    Kind("port_flap", _PORT, _RESET, _port(is_up=lambda after: after % 10 > 3)),
    Kind("symbol_error", _PORT, _RESET, _port(symbol_error=lambda after: 30 * (after + 1))),
    Kind("link_downed", _PORT, _RESET, _port(link_downed=lambda after: 1 + after // 10)),
    Kind("disk_full", "/", _JOB, _root(free_bytes=0)),
    Kind("read_only", "/", _REBOOT, _root(is_read_only=True)),
    Kind("nvme_dead", "nvme1", _REPLACE, _line("nvme nvme1: Disabling device after reset failure: -19")),
    Kind("soft_lockup", "", _JOB, _line("watchdog: BUG: soft lockup - CPU#11 stuck for 22s! [python3:4711]")),
    Kind("oom_host", "", _JOB, _line("Out of memory: Killed process 30771 (python3) total-vm:268112400kB")),
    Kind("service_failed", "kubelet", _RESET, _probe("kubelet")),
    Kind("external_failed", "dns", _NOTE, _probe("dns")),
    Kind(
        "KernelDeadlock",
        "",
        _REBOOT,
        _part("conditions", ConditionSample(source="npd", name="KernelDeadlock", is_bad=True)),
    ),
    Kind("server_not_responding", "filer-z", _NOTE, _line("nfs: server filer-z not responding, still trying")),
)
NOISE_CODES: Final = {"xid_43"}
"""Codes of the noise that are graver than a note, and right: a fault of a program."""


def stream(node: str, kind: Kind | None, rng: random.Random) -> Iterator[NodeSample]:
    """Iterate over the samples of one node."""
    start, noise = rng.randrange(60, 90), rng.randrange(5, 150)
    for number in range(SAMPLES):
        sample = _with_noise(_healthy(node, number, rng), number, noise)
        yield kind.change(sample, number - start) if kind and number >= start else sample


def judge(kind: Kind | None, faults: list[Fault]) -> tuple[bool, list[Fault]]:
    """Return whether the fault was found, and the reports that are wrong."""
    is_found = kind is None or any(
        (fault.code, fault.device) == (kind.code, kind.device) and fault.severity >= kind.severity for fault in faults
    )
    right = NOISE_CODES | ({kind.code} if kind else set())
    return is_found, [fault for fault in faults if fault.severity > Severity.NOTE and fault.code not in right]


def run() -> list[Figure]:
    checks, rng = registry.checks(), random.Random(29)
    cases = [*KINDS, None, None] * NODES_PER_KIND
    found, reports, wrong, costs_us = 0, 0, 0, []
    for number, kind in enumerate(cases):
        state, faults, spent_s = ChecksState(), list[Fault](), 0.0
        for sample in list(stream(f"n{number}", kind, rng)):
            started = time.thread_time()
            state, new = run_checks(state, sample, checks, OWN_RULES)
            spent_s += time.thread_time() - started
            faults += new
        is_found, mistakes = judge(kind, faults)
        found += is_found and kind is not None
        reports += sum(fault.severity > Severity.NOTE for fault in faults)
        wrong += len(mistakes)
        costs_us.append(spent_s / SAMPLES * 1e6)
        if not is_found and kind is not None:
            print(f"not found on n{number}: {kind.code}")
        for fault in mistakes:
            print(f"wrong on n{number} ({kind.code if kind else 'healthy'}): {fault.code}: {fault.sentence}")
    injected = sum(kind is not None for kind in cases)
    recall, precision = found / injected, 1 - wrong / reports
    print(f"{len(cases)} nodes, {len(KINDS)} kinds, {SAMPLES} samples each")
    print(f"{found} of {injected} faults found, {wrong} of {reports} reports wrong")
    return [
        Figure(name="checks_recall", unit="share", samples=(recall,), value=recall, op=">=", bar=RECALL_BAR),
        Figure(
            name="checks_precision", unit="share", samples=(precision,), value=precision, op=">=", bar=PRECISION_BAR
        ),
        median("checks_us_per_sample", "us", costs_us, under=COST_BAR_US),
    ]
