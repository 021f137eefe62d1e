"""Rules for what NVML and DCGM measure of a GPU: memory, links, temperature, power, and whether it answers."""

from typing import Any, Final

from ganger.check_api.rule import DAY_S, HOUR_S, Repeat, Rule
from ganger.model.node_health.fault import Severity

_RESET_GPU, _REBOOT_NODE = "drain the node and reset the GPU", "drain the node and reboot it"
_DCGM, _NVML, _GPUD, _OWN = "DCGM health watches", "NVML", "gpud", "ganger"


def _row(code: str, severity: Severity, meaning: str, action: str = "", *, source: str = _OWN, **columns: Any) -> Rule:
    date = "2026-07-06" if source == _DCGM else "2026-08-22"
    return Rule(
        table="gpu", code=code, severity=severity, meaning=meaning, action=action, source=source, date=date, **columns
    )


_ECC, _LINK, _LOST, _PCIE, _SLOW = (
    "gpu_ecc_uncorrectable",
    "nvlink_error",
    "gpu_fallen_off_bus",
    "pcie_fatal_error",
    "straggler_or_slowdown",
)
GPU_RULES: Final[tuple[Rule, ...]] = (
    _row(
        *("ecc_uncorrected", Severity.RESET_DEVICE, "uncorrectable ECC errors since the driver was loaded", _RESET_GPU),
        limit=0,
        failure_class=_ECC,
        source=_DCGM,
    ),
    _row("ecc_corrected", Severity.NOTE, "high rate of corrected ECC errors", limit=100, per_s=HOUR_S),
    _row("remap_pending", Severity.NOTE, "row of memory that a reset replaces", source=_NVML),
    _row(
        *("remap_failed", Severity.REPLACE, "row of memory that cannot be replaced", "replace the GPU"),
        failure_class=_ECC,
        source=_DCGM,
    ),
    _row("remap_many", Severity.NOTE, "number of rows replaced after uncorrectable errors", limit=511, source=_DCGM),
    _row(
        *("nvlink_down", Severity.RESET_DEVICE, "NVLink that is down", _RESET_GPU),
        hold_s=20,
        failure_class=_LINK,
        source=_DCGM,
    ),
    _row(
        *("nvlink_replay", Severity.NOTE, "NVLink packets sent again (DCGM: fails at once)", _RESET_GPU),
        limit=0,
        repeat=Repeat(3, DAY_S, Severity.RESET_DEVICE),
        failure_class=_LINK,
        source=_DCGM,
    ),
    _row(
        *("nvlink_recovery", Severity.RESET_DEVICE, "NVLink that was trained again", _RESET_GPU),
        limit=0,
        failure_class=_LINK,
        source=_DCGM,
    ),
    _row(
        *("nvlink_crc", Severity.RESET_DEVICE, "rate of CRC errors of NVLinks", _RESET_GPU),
        limit=100,
        per_s=1,
        failure_class=_LINK,
        source=_DCGM,
    ),
    _row(
        *("aer_fatal", Severity.REBOOT, "fatal PCIe error", _REBOOT_NODE),
        failure_class=_PCIE,
        source="Linux PCIe AER",
    ),
    _row("aer_nonfatal", Severity.NOTE, "uncorrected PCIe error that is not fatal", source="Linux PCIe AER"),
    _row(
        *(
            "pcie_width",
            Severity.REBOOT,
            "PCIe link with fewer lanes than it has",
            "reboot the node, then reseat the GPU",
        ),
        hold_s=60,
        failure_class=_PCIE,
        source=_NVML,
    ),
    _row("pcie_generation", Severity.NOTE, "PCIe link under load below its generation", hold_s=60, source=_NVML),
    _row(
        *("pcie_replay", Severity.NOTE, "rate of PCIe packets sent again, in parts of what the link may have"),
        limit=1,
        per_s=60,
        source=_DCGM,
    ),
    _row(
        *("hw_thermal_slowdown", Severity.RESTART_JOB, "clocks lowered by heat, in 6 of 10 min", "check the cooling"),
        limit=0.6,
        failure_class=_SLOW,
        source=_GPUD,
    ),
    _row(
        *("hw_power_brake", Severity.RESTART_JOB, "clocks lowered by the power supply, in 6 of 10 min"),
        "check the power supply",
        limit=0.6,
        failure_class=_SLOW,
        source=_GPUD,
    ),
    _row(
        *("hw_slowdown", Severity.RESTART_JOB, "clocks lowered by hardware, in 6 of 10 min", "check cooling and power"),
        limit=0.6,
        failure_class=_SLOW,
        source=_GPUD,
    ),
    _row("sw_thermal_slowdown", Severity.NOTE, "clocks lowered by the driver for heat, in 6 of 10 min", limit=0.6),
    _row("temperature_margin", Severity.NOTE, "degrees to the slowdown temperature", limit=2, hold_s=60, source=_DCGM),
    _row(
        *("gpu_missing", Severity.REBOOT, "GPU that the driver does not list any more", _REBOOT_NODE),
        hold_s=60,
        failure_class=_LOST,
    ),
    _row(
        *("gpu_lost", Severity.REBOOT, "GPU that answers no question of the driver", _REBOOT_NODE),
        hold_s=20,
        failure_class=_LOST,
    ),
    _row("gpu_unread", Severity.NOTE, "attributes of a GPU that are not answered in time", hold_s=60),
    _row(
        *("nvml_unread", Severity.REBOOT, "NVML that does not answer in time", _REBOOT_NODE),
        hold_s=60,
        failure_class="gpu_driver_timeout",
    ),
)
