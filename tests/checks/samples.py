"""Samples of a healthy node of 8 GPUs, changed in what a test is about, and the faults in a list of them."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ganger import registry
from ganger.check_api.rule import RuleBook
from ganger.check_api.rule_tables import OWN_RULES
from ganger.check_api.run_checks import replay_checks
from ganger.model.node_health.fault import Fault, Severity
from ganger.model.node_health.node_sample import (
    GpuSample,
    HostSample,
    KernelLine,
    MountSample,
    NodeSample,
    PortSample,
    ProbeSample,
)

START_MS = 1_700_000_000_000
STEP_MS = 10_000
COUNTERS = {code.partition(".")[0]: 7 for code, rule in OWN_RULES.table("nic").items() if rule.limit is not None}
GPU = GpuSample(
    index=0,
    name="NVIDIA H100 80GB HBM3",
    utilisation_percent=95,
    memory_used_bytes=40 << 30,
    memory_bytes=80 << 30,
    power_mw=600_000,
    temperature_c=60,
    slowdown_c=87,
    sm_mhz=1755,
    slowdown_reasons=0x4,
    ecc_corrected=3,
    ecc_uncorrected=0,
    remapped_uncorrected=1,
    is_remap_pending=False,
    has_remap_failed=False,
    nvlinks=(True,) * 18,
    nvlink_replays=0,
    nvlink_recoveries=0,
    nvlink_crc=0,
    pcie_generation=5,
    max_pcie_generation=5,
    pcie_width=16,
    max_pcie_width=16,
    pcie_replays=0,
)
PORT = PortSample(device="mlx5_0", port=1, layer="infiniband", rate_gbps=400, counters=dict(COUNTERS))
MOUNTS = (
    MountSample(
        path="/", kind="ext4", source="/dev/nvme0n1p2", stat_ms=1, free_bytes=60, total_bytes=100, free_inodes=10**6
    ),
    MountSample(
        path="/mnt/image",
        kind="squashfs",
        source="/dev/loop1",
        stat_ms=1,
        free_bytes=0,
        total_bytes=9,
        is_read_only=True,
    ),
    MountSample(path="/home", kind="nfs4", source="filer:/home", stat_ms=3, free_bytes=10, total_bytes=100),
)
PROBES = tuple(ProbeSample(name=name, took_ms=20) for name in ("kubelet", "containerd", "registry docker.io", "dns"))


def gpus(amount: int = 8, **changes: Mapping[int, Any]) -> tuple[GpuSample, ...]:
    """Return GPUs; changes: for an attribute its values by index of the GPU."""
    return tuple(
        replace(
            GPU,
            index=number,
            uuid=f"GPU-{number}",
            bus_id=f"0000:{number + 1:02x}:00",
            **{name: values[number] for name, values in changes.items() if number in values},
        )
        for number in range(amount)
    )


def sample(number: int = 0, *lines: str, step_ms: int = STEP_MS, **changes: Any) -> NodeSample:
    """Return the sample of that number, of a healthy node but for the changes."""
    at_ms = START_MS + number * step_ms
    parts: dict[str, Any] = {
        "host": HostSample(clock_offset_ms=2),
        "gpus": gpus(),
        "ports": (PORT, replace(PORT, device="mlx5_1")),
        "mounts": MOUNTS,
        "probes": PROBES,
        "lines": tuple(KernelLine(seq=place, at_ms=at_ms + place, text=text) for place, text in enumerate(lines)),
    }
    return NodeSample(node="n1", at_ms=at_ms, **(parts | changes))


def faults(samples: Iterable[NodeSample], rules: RuleBook = OWN_RULES) -> list[Fault]:
    return list(replay_checks(samples, registry.checks(), rules))


def codes(samples: Iterable[NodeSample], rules: RuleBook = OWN_RULES) -> list[tuple[str, str, Severity]]:
    """Return code, device and severity of each fault."""
    return [(fault.code, fault.device, fault.severity) for fault in faults(samples, rules)]
