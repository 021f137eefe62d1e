"""Rules for Xid errors, which the NVIDIA driver writes into the kernel's log.

Severities follow the actions of NVIDIA's catalogue. Monitoring programs disagree with it in part (63: a warning in
DCGM, a bad node at Azure; 92: a bad node at Azure; 94: a warning in DCGM; 109 and 136: a warning in gpud): a site can
replace a row. The class is that of failures of jobs: the diagnosis of logs reads it from here.

What a program can cause by itself is in shadow mode: a job that fails again and again must not make a node suspect. A
site that takes them for signs of the hardware, the same Xid on one GPU alone, puts `shadow = false` into its rows.
"""

from typing import Final

from ganger.check_api.rule import ANY, DAY_S, Repeat, Rule
from ganger.model.node_health.fault import Severity

_NOTE, _JOB, _RESET, _REBOOT, _REPLACE = Severity
_NOISE, _BUS, _ECC, _LINK, _DRIVER, _EXCEPTION, _PCIE = (
    "benign_noise",
    "gpu_fallen_off_bus",
    "gpu_ecc_uncorrectable",
    "nvlink_error",
    "gpu_driver_timeout",
    "gpu_sw_exception_xid13_31",
    "pcie_fatal_error",
)
_SOURCE, _DATE = "NVIDIA Xid catalogue", "2025-10-29"
_SAME_GPU: Final = Repeat(2, DAY_S, _RESET, is_alone=True)
_NVLINK5_FATAL, _NVLINK5_NONFATAL = (
    tuple(f"{number} {status}" for number in range(144, 151)) for status in ("fatal", "nonfatal")
)
_SECOND: Final = Repeat(2, 7 * DAY_S, _REPLACE)


def _rows(
    numbers: tuple[int | str, ...],
    severity: Severity,
    failure_class: str,
    meaning: str,
    action: str = "",
    *,
    repeat: Repeat | None = None,
) -> tuple[Rule, ...]:
    return tuple(
        Rule(
            table="xid",
            code=str(number),
            meaning=meaning,
            severity=severity,
            action=action,
            failure_class=failure_class,
            source=_SOURCE,
            date=_DATE,
            repeat=repeat,
            is_shadow=failure_class == _EXCEPTION,
        )
        for number in numbers
    )


_RESTART, _RESET_GPU, _IDLE = "restart the job", "drain the node and reset the GPU", "reset the GPU when it is idle"
_REBOOT_NODE, _SUPPORT = "drain the node and reboot it", "run the vendor's diagnostics and replace the part"

XID_RULES: Final[tuple[Rule, ...]] = (
    *_rows((8,), _JOB, _EXCEPTION, "GPU stopped processing", _RESTART),
    *_rows((11, 25, 32, 80), _JOB, _EXCEPTION, "corrupted push buffer or data sent to the GPU", _RESTART),
    *_rows((13,), _JOB, _EXCEPTION, "exception of a graphics or streaming multiprocessor", _RESTART, repeat=_SAME_GPU),
    *_rows((31,), _JOB, _EXCEPTION, "MMU page fault", _RESTART, repeat=_SAME_GPU),
    *_rows((37, 38, 66, 67), _NOTE, _NOISE, "driver firmware error or illegal access by the driver"),
    *_rows(
        (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), _JOB, _EXCEPTION, "copy engine exception", _RESTART
    ),
    *_rows((43,), _JOB, _EXCEPTION, "GPU stopped processing by a fault of the program", _RESTART),
    *_rows((44,), _JOB, _EXCEPTION, "fault during a context switch", _RESTART),
    *_rows((45,), _NOTE, _NOISE, "clean-up after an earlier error"),
    *_rows((46,), _RESET, _DRIVER, "GPU time-out", _RESET_GPU),
    *_rows((48,), _RESET, _ECC, "double-bit ECC error", _RESET_GPU),
    *_rows((54,), _REPLACE, _DRIVER, "auxiliary power not connected", "check the power cables of the GPU"),
    *_rows(
        (60, 68, 69, 82, 83, 84, 86, 88, 89), _JOB, _EXCEPTION, "video, JPEG or optical flow engine exception", _RESTART
    ),
    *_rows((*range(96, 106), 139, 142), _JOB, _EXCEPTION, "video, JPEG or optical flow engine exception", _RESTART),
    *_rows((62,), _RESET, _DRIVER, "internal micro-controller halt", _RESET_GPU),
    *_rows((63,), _NOTE, _NOISE, "row remapping or page retirement recorded", _IDLE),
    *_rows((64,), _REPLACE, _ECC, "row remapping or page retirement failed", _SUPPORT),
    *_rows((74,), _RESET, _LINK, "NVLink error", _RESET_GPU, repeat=_SECOND),
    *_rows((78,), _JOB, _DRIVER, "vGPU start error", "update the vGPU software"),
    *_rows((79,), _REBOOT, _BUS, "GPU has fallen off the bus", _REBOOT_NODE, repeat=_SECOND),
    *_rows((92,), _NOTE, _NOISE, "high rate of single-bit ECC errors"),
    *_rows((93,), _NOTE, _NOISE, "InfoROM wear"),
    *_rows((94,), _JOB, _ECC, "contained memory error", f"{_RESTART}, and {_IDLE}"),
    *_rows((95,), _RESET, _ECC, "uncontained memory error", _RESET_GPU),
    *_rows((108, 137), _JOB, _EXCEPTION, "remote translation or NVLink privilege error", _RESTART),
    *_rows((109,), _RESET, _DRIVER, "context switch time-out", _RESET_GPU),
    *_rows((110,), _RESET, _DRIVER, "security fault", _RESET_GPU),
    *_rows((119,), _RESET, _DRIVER, "GSP RPC time-out", _RESET_GPU, repeat=Repeat(2, DAY_S, _REBOOT)),
    *_rows((120,), _RESET, _DRIVER, "GSP error", _RESET_GPU, repeat=Repeat(2, DAY_S, _REBOOT)),
    *_rows((121,), _NOTE, _NOISE, "C2C link error"),
    *_rows((136,), _RESET, _LINK, "NVLink training failed", _RESET_GPU),
    *_rows((140,), _RESET, _ECC, "unrecovered ECC error", _RESET_GPU),
    *_rows((141,), _NOTE, _NOISE, "reserved number"),
    *_rows((143,), _REBOOT, _DRIVER, "GPU initialisation error", _REBOOT_NODE),
    # NVLink 5: the unit writes Fatal or Nonfatal, and a sub-code; "149 fatal 4" is a row for one sub-code.
    *_rows(tuple(range(144, 151)), _RESET, _LINK, "NVLink 5 error without a severity", _RESET_GPU),
    *_rows(_NVLINK5_FATAL, _RESET, _LINK, "fatal NVLink 5 error", _RESET_GPU, repeat=_SECOND),
    *_rows(_NVLINK5_NONFATAL, _NOTE, "", "NVLink 5 error that was recovered from"),
    *_rows((151,), _JOB, _DRIVER, "key rotation error", "restart the virtual machine"),
    *_rows((154,), _NOTE, _NOISE, "changed recovery action of the GPU"),
    *_rows(("154 none",), _NOTE, "", "GPU that needs no recovery action any more"),
    *_rows(("154 reset",), _RESET, "", "GPU that needs a reset", _RESET_GPU),
    *_rows(("154 reboot",), _REBOOT, "", "GPU that needs a reboot of its node", _REBOOT_NODE),
    *_rows(
        ("154 drain",), _RESET, "", "GPU that must be drained", "drain the node, and reset the GPU where it asks for it"
    ),
    *_rows((155,), _RESET, _LINK, "NVLink software error", _RESET_GPU),
    *_rows((156,), _RESET, _ECC, "retirement of a resource", _RESET_GPU),
    *_rows((157,), _REPLACE, _ECC, "failed retirement of a resource", _SUPPORT),
    *_rows((158,), _RESET, _DRIVER, "fatal GPU time-out", _RESET_GPU),
    *_rows((160, 161), _NOTE, _NOISE, "retirement of a channel"),
    *_rows((162, 163, 164, 165), _NOTE, _NOISE, "power smoothing event"),
    *_rows((167,), _REBOOT, _PCIE, "fatal PCIe time-out", _REBOOT_NODE),
    *_rows((168,), _NOTE, _NOISE, "reduced memory capacity"),
    *_rows((169, 170), _NOTE, _NOISE, "event of the security or interrupt unit"),
    *_rows((171, 172), _NOTE, _ECC, "detail of an uncorrectable memory error, which has a line of its own"),
    *_rows((ANY,), _NOTE, "", "unknown Xid"),
)
