"""Rules for SXid errors, which the driver of an NVSwitch writes into the kernel's log."""

from typing import Final

from ganger.check_api.rule import Rule
from ganger.model.node_health.fault import Severity

_PORT = "drain the node and reset the GPUs on the port"
_FABRIC = "drain the node and reboot it"
_CORRECTED: Final = (
    11012,
    11021,
    11022,
    11023,
    12021,
    12023,
    15008,
    15011,
    *range(19049, 19072, 2),
    24001,
    24002,
    24003,
)
_OF_PORT: Final = (
    *(11001, 11009, 11013, 11018, 11019, 11020, 12001, 12002, 12022, *range(12024, 12028), 12030, 12031, 12032),
    *(14017, 15001, 15006, 15009, 15010, 15012, 15013, 22012, *range(24004, 24008)),
)
_UNCORRECTED: Final = (19047, *range(19048, 19071, 2))


def _rows(codes: tuple[int | str, ...], severity: Severity, meaning: str, action: str = "") -> tuple[Rule, ...]:
    return tuple(
        Rule(
            table="sxid",
            code=str(code),
            meaning=meaning,
            severity=severity,
            action=action,
            failure_class="nvlink_error" if severity else "benign_noise",
            source="NVIDIA fabric manager user guide",
            date="2025-10-29",
        )
        for code in codes
    )


SXID_RULES: Final[tuple[Rule, ...]] = (
    *_rows((10003,), Severity.NOTE, "unhandled interrupt of the switch"),
    *_rows((10004, 10005), Severity.NOTE, "start or end of a thermal event of the switch"),
    *_rows(_CORRECTED, Severity.NOTE, "corrected single-bit ECC error of the switch"),
    *_rows((20001,), Severity.NOTE, "NVLink packet sent again"),
    *_rows((20009, 20012, 22013), Severity.NOTE, "recovered error of an NVLink port"),
    *_rows((11004, 12028, 19084), Severity.REBOOT, "switch error that stalls traffic", _FABRIC),
    *_rows(_OF_PORT, Severity.RESET_DEVICE, "fatal error of a switch port", _PORT),
    *_rows(_UNCORRECTED, Severity.RESET_DEVICE, "double-bit ECC error of a switch port", _PORT),
    *_rows((20034,), Severity.RESET_DEVICE, "link training fault of a switch port", _PORT),
    *_rows((12020, 22003, 22011, *range(23001, 23018)), Severity.REBOOT, "fatal error of the whole switch", _FABRIC),
    *_rows(("fatal",), Severity.RESET_DEVICE, "switch error of another number that is called fatal", _PORT),
    *_rows(("nonfatal",), Severity.NOTE, "switch error of another number that is called non-fatal"),
)
