"""Measurements of GPUs, and the faults that they stand for."""

from dataclasses import replace
from typing import Any

import pytest

from ganger.model.node_health.fault import Severity
from tests.checks.samples import GPU, codes, faults, gpus, sample

NOTE, JOB, RESET, REBOOT, REPLACE = Severity


@pytest.mark.parametrize(
    ("attribute", "value", "code", "severity"),
    [
        ("ecc_uncorrected", 1, "ecc_uncorrected", RESET),
        ("is_remap_pending", True, "remap_pending", NOTE),
        ("has_remap_failed", True, "remap_failed", REPLACE),
        ("remapped_uncorrected", 512, "remap_many", NOTE),
        ("pcie_width", 8, "pcie_width", REBOOT),
        ("pcie_generation", 3, "pcie_generation", NOTE),
        ("temperature_c", 85, "temperature_margin", NOTE),
    ],
)
def test_a_state_is_reported_once_while_it_lasts(attribute: str, value: Any, code: str, severity: Severity) -> None:
    bad = gpus(**{attribute: {3: value}})
    samples = [sample(number, gpus=bad if number >= 2 else gpus()) for number in range(40)]
    assert codes(samples) == [(code, "GPU-3", severity)]


@pytest.mark.parametrize(
    ("attribute", "growths", "code", "severities"),
    [
        ("nvlink_recoveries", (1,), "nvlink_recovery", [RESET]),
        ("nvlink_replays", (1,), "nvlink_replay", [NOTE]),
        ("nvlink_replays", (1, 0, 0, 1, 0, 0, 1), "nvlink_replay", [NOTE, RESET]),
        ("nvlink_crc", (999,), "", []),
        ("nvlink_crc", (1001,), "nvlink_crc", [RESET]),
        ("pcie_replays", (1,), "", []),
        ("pcie_replays", (40,), "pcie_replay", [NOTE]),
        ("ecc_corrected", (100,), "", []),
        ("ecc_corrected", (50, 0, 51), "ecc_corrected", [NOTE]),
    ],
)
def test_a_total_that_grows(attribute: str, growths: tuple[int, ...], code: str, severities: list[Severity]) -> None:
    total, totals = 5, [5]
    for growth in growths:
        total += growth
        totals.append(total)
    samples = [sample(number, gpus=gpus(**{attribute: {3: value}})) for number, value in enumerate(totals)]
    assert codes(samples) == [(code, "GPU-3", severity) for severity in severities]


def test_a_total_that_goes_back_is_a_driver_that_was_loaded_again() -> None:
    names = ("nvlink_recoveries", "nvlink_replays", "nvlink_crc", "pcie_replays", "ecc_corrected")
    samples = [
        sample(number, gpus=gpus(**{name: {3: 10**6 if number < 3 else 0} for name in names})) for number in range(6)
    ]
    assert codes(samples) == []


def test_the_width_of_an_idle_link_counts_and_its_generation_does_not() -> None:
    idle = gpus(utilisation_percent=dict.fromkeys(range(8), 0), pcie_generation=dict.fromkeys(range(8), 1))
    assert codes(sample(number, gpus=idle) for number in range(20)) == []


def test_a_link_that_goes_down() -> None:
    links = tuple(number not in (4, 7) for number in range(18))
    samples = [sample(number, gpus=gpus(nvlinks={3: links} if number else {})) for number in range(40)]
    (fault,) = faults(samples)
    assert (fault.code, fault.device, fault.severity) == ("nvlink_down", "GPU-3", RESET)
    assert fault.sentence == "GPU 3: NVLinks 4, 7 are down; 16 are up; drain the node and reset the GPU"


def test_fewer_links_than_equal_gpus_from_the_start() -> None:
    samples = [sample(number, gpus=gpus(nvlinks={3: (True,) * 17 + (False,)})) for number in range(5)]
    assert codes(samples) == [("nvlink_down", "GPU-3", RESET)]
    pairs = gpus(nvlinks=dict.fromkeys(range(8), (True, False, True)))
    assert codes(sample(number, gpus=pairs) for number in range(5)) == []


@pytest.mark.parametrize(
    ("reasons", "code", "severity"),
    [
        (0x48, "hw_thermal_slowdown", JOB),
        (0x88, "hw_power_brake", JOB),
        (0x08, "hw_slowdown", JOB),
        (0x20, "sw_thermal_slowdown", NOTE),
    ],
)
def test_clocks_lowered_in_six_of_ten_minutes(reasons: int, code: str, severity: Severity) -> None:
    slow, fast = gpus(slowdown_reasons={3: reasons}), gpus()
    five = [sample(number, gpus=slow if number < 24 else fast) for number in range(120)]
    assert codes(five) == []
    six = [sample(number, gpus=slow if number % 12 < 7 else fast) for number in range(120)]
    assert codes(six) == [(code, "GPU-3", severity)]


def test_a_power_cap_is_no_fault() -> None:
    assert codes(sample(number, gpus=gpus(slowdown_reasons={3: 0x4 | 0x2 | 0x1})) for number in range(120)) == []


def test_a_gpu_that_the_driver_does_not_list_any_more() -> None:
    samples = [sample(number, gpus=gpus(8 if number < 2 else 7)) for number in range(40)]
    assert codes(samples) == [("gpu_missing", "GPU-7", REBOOT)]
    reload = [sample(number, gpus=() if number in (3, 4, 5) else gpus()) for number in range(40)]
    assert codes(reload) == [], "a driver is loaded again in less than a minute"


def test_a_gpu_that_does_not_answer() -> None:
    silent = replace(GPU, index=3, uuid="GPU-3", unread=("power",), power_mw=None)
    lost = replace(silent, utilisation_percent=None, memory_used_bytes=None, temperature_c=None, sm_mhz=None)
    for gpu, code, severity in ((silent, "gpu_unread", NOTE), (lost, "gpu_lost", REBOOT)):
        samples = [sample(number, gpus=(*gpus(3), gpu)) for number in range(40)]
        assert codes(samples) == [(code, "GPU-3", severity)]
        assert codes([sample(0, gpus=(*gpus(3), gpu)), *map(sample, range(1, 9))]) == [], "one time-out is none"


def test_a_driver_that_does_not_answer_is_one_fault() -> None:
    samples = [sample(0), *(sample(number, gpus=(), unread=("nvml",)) for number in range(1, 40))]
    assert codes(samples) == [("nvml_unread", "", REBOOT)]
