"""Rules for network ports: their state, the counters of sysfs, and lines of their driver.

A row of a counter has its name in sysfs; with a dot and a word behind it, it is a further limit of the same counter.
"""

from typing import Any, Final

from ganger.check_api.rule import HOUR_S, Repeat, Rule
from ganger.model.node_health.fault import Severity

_CABLE = "drain the node and check port, cable and switch"
_MONITOR, _GPUD, _OWN = "NVSentinel NIC health monitor", "gpud", "ganger"


def _row(code: str, severity: Severity, meaning: str, *, source: str = _MONITOR, **columns: Any) -> Rule:
    return Rule(
        table="nic",
        code=code,
        severity=severity,
        meaning=meaning,
        action=_CABLE if severity or "repeat" in columns else "",
        failure_class="nccl_network_error",
        source=source,
        date="2026-08-22",
        **columns,
    )


NIC_RULES: Final[tuple[Rule, ...]] = (
    _row("port_down", Severity.RESET_DEVICE, "port that is down for over 4 min", hold_s=240, source=_GPUD),
    _row(
        *("port_flap", Severity.NOTE, "port that was down for 25 s or more, and came back"),
        limit=25,
        repeat=Repeat(3, 12 * HOUR_S, Severity.RESET_DEVICE),
        source=_GPUD,
    ),
    _row("port_rate", Severity.NOTE, "port that is slower than it was", hold_s=60, source=_GPUD),
    # A planned restart of a switch raises it on a whole rack: once is a note.
    _row(
        *("link_downed", Severity.NOTE, "link that went down (NVSentinel: fatal at once)"),
        limit=0,
        repeat=Repeat(2, 300, Severity.RESET_DEVICE),
    ),
    _row("excessive_buffer_overrun_errors", Severity.RESET_DEVICE, "buffer overruns", limit=0),
    _row("local_link_integrity_errors", Severity.RESET_DEVICE, "link errors beyond what the port corrects", limit=0),
    _row("rnr_nak_retry_err", Severity.RESET_DEVICE, "receivers not ready until retries ended", limit=0),
    _row("symbol_error", Severity.RESET_DEVICE, "symbol errors above the bit error rate", limit=120, per_s=HOUR_S),
    _row("symbol_error.burst", Severity.NOTE, "burst of symbol errors", limit=10, per_s=1),
    _row("link_error_recovery", Severity.NOTE, "recoveries of the link", limit=5, per_s=60),
    _row("port_rcv_errors", Severity.NOTE, "received packets with errors", limit=10, per_s=1),
    _row("local_ack_timeout_err", Severity.NOTE, "acknowledgements that did not come", limit=1, per_s=1),
    _row("port_xmit_discards", Severity.NOTE, "packets discarded before they were sent", limit=100, per_s=1),
    _row("roce_slow_restart", Severity.NOTE, "slow restarts of RoCE", limit=10, per_s=1),
    _row("carrier_changes", Severity.NOTE, "changes of the carrier between two samples", limit=2),
    _row(
        *("driver_error", Severity.NOTE, "error that the driver of the adapter writes"),
        repeat=Repeat(3, HOUR_S, Severity.RESET_DEVICE),
    ),
    _row("slot_power", Severity.NOTE, "insufficient power on the PCIe slot of the adapter", source=_OWN),
)
