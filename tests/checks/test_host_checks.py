"""Measurements of ports, disks, mounts, services and clock, and the faults that they stand for."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from ganger.model.node_health.fault import Severity
from ganger.model.node_health.node_sample import ConditionSample, HostSample, MountSample, NodeSample, ProbeSample
from tests.checks.samples import COUNTERS, MOUNTS, PORT, PROBES, codes, sample

NOTE, JOB, RESET, REBOOT, REPLACE = Severity
NO_GPUS: dict[str, Any] = {"gpus": ()}


def port_samples(states: str) -> list[NodeSample]:
    """Return samples of a port: u up, d down, - not listed."""
    ports = {"u": (PORT,), "d": (replace(PORT, is_up=False, rate_gbps=0),), "-": ()}
    return [sample(number, gpus=(), ports=ports[state]) for number, state in enumerate(states)]


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ("u" + "d" * 24 + "u" * 60, [NOTE]),
        ("u" + "d" * 30 + "u" * 60, [RESET, NOTE]),
        ("u" + "-" * 30, [RESET]),
        ("d" * 60, []),
        ("ud" * 30, []),
        ("udduuu" * 20, []),
        ("u" + "ddduuu" * 2 + "u" * 40, [NOTE]),
        ("u" + "ddduuu" * 3, [NOTE, RESET]),
        ("u" + ("ddd" + "u" * 60) * 3, [NOTE, NOTE, RESET]),
    ],
    ids=["4 min", "over 4 min", "gone", "never up", "10 s", "20 s", "two flaps", "three flaps", "three slow flaps"],
)
def test_a_port_that_is_down(states: str, expected: list[Severity]) -> None:
    assert [severity for _, _, severity in codes(port_samples(states))] == expected


def grown(counter: str, *growths: int, step_ms: int = 10_000) -> Iterable[NodeSample]:
    total = COUNTERS[counter]
    for number, growth in enumerate((0, *growths)):
        total += growth
        port = replace(PORT, counters=COUNTERS | {counter: total})
        yield sample(number, gpus=(), ports=(port,), step_ms=step_ms)


@pytest.mark.parametrize(
    ("counter", "harmless", "harmful", "severity"),
    [
        ("excessive_buffer_overrun_errors", 0, 1, RESET),
        ("local_link_integrity_errors", 0, 1, RESET),
        ("rnr_nak_retry_err", 0, 1, RESET),
        ("link_error_recovery", 5, 6, NOTE),
        ("port_rcv_errors", 100, 101, NOTE),
        ("local_ack_timeout_err", 10, 11, NOTE),
        ("port_xmit_discards", 1000, 1001, NOTE),
        ("roce_slow_restart", 100, 101, NOTE),
        ("carrier_changes", 2, 3, NOTE),
        ("link_downed", 0, 1, NOTE),
    ],
)
def test_a_counter_of_a_port(counter: str, harmless: int, harmful: int, severity: Severity) -> None:
    assert codes(grown(counter, harmless, 0)) == []
    assert codes(grown(counter, harmful)) == [(counter, "mlx5_0/1", severity)]
    assert codes(grown(counter, -5, 0)) == []


def test_symbol_errors_count_by_the_hour_and_in_bursts() -> None:
    assert codes(grown("symbol_error", *[3] * 40)) == []
    assert codes(grown("symbol_error", *[3] * 41)) == [("symbol_error", "mlx5_0/1", RESET)]
    assert codes(grown("symbol_error", 101)) == [("symbol_error.burst", "mlx5_0/1", NOTE)]
    assert codes(grown("symbol_error", *[1, 0, 0] * 200)) == [], "120 an hour, for 100 min"


def test_a_link_that_goes_down_twice_in_five_minutes() -> None:
    assert codes(grown("link_downed", 1, *[0] * 20, 1)) == [
        ("link_downed", "mlx5_0/1", level) for level in (NOTE, RESET)
    ]
    assert codes(grown("link_downed", 1, *[0] * 40, 1)) == [("link_downed", "mlx5_0/1", NOTE)] * 2


def test_a_port_that_is_slower_than_before() -> None:
    slow = replace(PORT, rate_gbps=200)
    samples = [sample(number, gpus=(), ports=(slow if number else PORT,)) for number in range(10)]
    assert codes(samples) == [("port_rate", "mlx5_0/1", NOTE)]


MOUNT = replace(MOUNTS[0], path="/data", source="/dev/nvme2n1")


@pytest.mark.parametrize(
    ("mount", "expected"),
    [
        (replace(MOUNT, free_bytes=4), [("disk_filling", "/data", NOTE)]),
        (replace(MOUNT, free_bytes=0), [("disk_full", "/data", JOB)]),
        (replace(MOUNT, free_inodes=10), [("inodes_out", "/data", JOB)]),
        (replace(MOUNT, is_read_only=True), [("read_only", "/data", REBOOT)]),
        (MountSample(path="/data", kind="xfs", source="/dev/nvme2n1"), [("mount_unread", "/data", REBOOT)]),
        (MountSample(path="/data", kind="lustre", source="10.0.0.1@o2ib:/fs"), [("shared_unread", "/data", JOB)]),
        (replace(MOUNT, kind="nfs", stat_ms=7000), [("shared_slow", "/data", NOTE)]),
        (replace(MOUNT, kind="nfs", free_bytes=0), []),
        (replace(MOUNT, free_inodes=None), []),
    ],
)
def test_a_mount(mount: MountSample, expected: list[tuple[str, str, Severity]]) -> None:
    samples = [sample(number, gpus=(), mounts=(*MOUNTS, mount if number else MOUNT)) for number in range(20)]
    assert codes(samples) == expected


def test_a_mount_that_is_read_only_from_the_start_is_meant_so() -> None:
    mount = replace(MOUNT, is_read_only=True)
    assert codes(sample(number, gpus=(), mounts=(mount,)) for number in range(9)) == []


def test_a_file_server_that_does_not_respond() -> None:
    bad, good = "nfs: server filer-b not responding, still trying", "nfs: server filer-b OK"
    short = [sample(0, bad, **NO_GPUS), sample(4, good, **NO_GPUS), *(sample(n, **NO_GPUS) for n in range(5, 20))]
    assert codes(short) == []
    long = [sample(0, bad, **NO_GPUS), *(sample(number, **NO_GPUS) for number in range(1, 60))]
    assert codes(long) == [("server_not_responding", "filer-b", NOTE)]
    lost = "Lustre: fs-OST0001-osc-ff: Connection to fs-OST0001 (at 10.0.0.1@o2ib) was lost; in progress operations"
    back = "Lustre: fs-OST0001-osc-ff: Connection restored to fs-OST0001 (at 10.0.0.1@o2ib)"
    assert codes([sample(0, lost, back, **NO_GPUS), *(sample(n, **NO_GPUS) for n in range(1, 20))]) == []
    assert codes([sample(0, lost, **NO_GPUS), *(sample(n, **NO_GPUS) for n in range(1, 20))]) == [
        ("server_not_responding", "fs-OST0001", NOTE)
    ]


@pytest.mark.parametrize(
    ("probe", "expected"),
    [
        (ProbeSample(name="kubelet", error="connection refused"), [("service_failed", "kubelet", RESET)]),
        (ProbeSample(name="containerd"), [("service_failed", "containerd", RESET)]),
        (ProbeSample(name="registry docker.io", error="HTTP 503"), [("external_failed", "registry docker.io", NOTE)]),
        (ProbeSample(name="dns", took_ms=9000), [("probe_slow", "dns", NOTE)]),
    ],
)
def test_a_service(probe: ProbeSample, expected: list[tuple[str, str, Severity]]) -> None:
    probes = tuple(probe if probe.name == other.name else other for other in PROBES)
    assert codes(sample(number, gpus=(), probes=probes) for number in range(20)) == expected
    assert codes([sample(0, gpus=(), probes=probes), *(sample(n, gpus=()) for n in range(1, 20))]) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"host": HostSample(clock_offset_ms=-4000)}, [("clock_skew", "", NOTE)]),
        ({"host": HostSample(clock_offset_ms=900)}, []),
        ({"unread": ("kubelet pod resources",)}, [("source_unread", "kubelet pod resources", NOTE)]),
        (
            {"conditions": (ConditionSample(source="npd", name="KernelDeadlock", is_bad=True, message="docker hung"),)},
            [("KernelDeadlock", "", REBOOT)],
        ),
        (
            {"conditions": (ConditionSample(source="dcgm", name="Thermal", is_bad=True, device="GPU-3"),)},
            [("Thermal", "GPU-3", NOTE)],
        ),
        ({"conditions": (ConditionSample(source="npd", name="KernelDeadlock", is_bad=False),)}, []),
    ],
)
def test_clock_sources_and_conditions(changes: dict[str, Any], expected: list[tuple[str, str, Severity]]) -> None:
    assert codes(sample(number, gpus=(), **changes) for number in range(20)) == expected
