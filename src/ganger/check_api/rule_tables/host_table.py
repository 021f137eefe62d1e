"""Rules for the machine: disks, shared storage, the kernel, services, and the clock."""

from typing import Any, Final

from ganger.check_api.rule import HOUR_S, Repeat, Rule
from ganger.model.node_health.fault import Severity

_NPD, _KERNEL, _OWN = "node-problem-detector", "Linux kernel messages", "ganger"
_REBOOT_NODE, _DISK = "drain the node and reboot it", "drain the node and replace the disk"
_LOCAL, _SHARED = "local_disk_failure", "shared_storage_error"


def _row(code: str, severity: Severity, meaning: str, action: str = "", *, source: str = _OWN, **columns: Any) -> Rule:
    return Rule(
        table="host",
        code=code,
        severity=severity,
        meaning=meaning,
        action=action,
        source=source,
        date="2026-08-22",
        **columns,
    )


HOST_RULES: Final[tuple[Rule, ...]] = (
    _row("disk_filling", Severity.NOTE, "percent of a file system in use", limit=95, hold_s=60),
    _row(
        *("disk_full", Severity.RESTART_JOB, "percent of a file system in use", "free some space on it"),
        limit=99,
        hold_s=60,
        failure_class="disk_full",
    ),
    _row(
        *("inodes_out", Severity.RESTART_JOB, "free inodes of a file system", "delete files on it"),
        limit=1000,
        hold_s=60,
        failure_class="disk_full",
    ),
    _row(
        *("read_only", Severity.REBOOT, "file system that the kernel made read-only", _REBOOT_NODE),
        failure_class=_LOCAL,
        source=_NPD,
    ),
    _row(
        *("mount_unread", Severity.REBOOT, "local file system that does not answer in time", _REBOOT_NODE),
        hold_s=60,
        failure_class=_LOCAL,
    ),
    _row(
        *("nvme_timeout", Severity.NOTE, "time-out of an NVMe disk", _DISK),
        repeat=Repeat(3, HOUR_S, Severity.REPLACE),
        failure_class=_LOCAL,
        source=_KERNEL,
    ),
    _row(
        "nvme_dead",
        Severity.REPLACE,
        "NVMe disk that a reset did not bring back",
        _DISK,
        failure_class=_LOCAL,
        source=_KERNEL,
    ),
    _row(
        *("io_error", Severity.NOTE, "I/O error of a disk", _DISK),
        repeat=Repeat(10, HOUR_S, Severity.REPLACE),
        failure_class=_LOCAL,
        source=_KERNEL,
    ),
    _row(
        "server_not_responding",
        Severity.NOTE,
        "file server that does not respond",
        hold_s=60,
        failure_class=_SHARED,
        source=_KERNEL,
    ),
    _row(
        *("shared_unread", Severity.RESTART_JOB, "shared file system that does not answer in time"),
        "check its server, then mount it again",
        hold_s=60,
        failure_class=_SHARED,
    ),
    _row("shared_slow", Severity.NOTE, "milliseconds for one stat of a shared file system", limit=5000, hold_s=60),
    _row(
        *("soft_lockup", Severity.RESTART_JOB, "CPU that is stuck in the kernel", _REBOOT_NODE),
        repeat=Repeat(3, 600, Severity.REBOOT),
        source=_NPD,
    ),
    _row("hard_lockup", Severity.REBOOT, "CPU that answers no interrupt", _REBOOT_NODE, source=_KERNEL),
    _row(
        "rcu_stall",
        Severity.NOTE,
        "stall of the kernel's RCU",
        _REBOOT_NODE,
        repeat=Repeat(3, 600, Severity.REBOOT),
        source=_KERNEL,
    ),
    # Hung tasks are mostly those of a file server that does not respond: rebooting every client would not help.
    _row("hung_task", Severity.NOTE, "task that is blocked in the kernel", source=_NPD),
    _row("kernel_oops", Severity.REBOOT, "error in the kernel itself", _REBOOT_NODE, source=_NPD),
    _row(
        "memory_uncorrected",
        Severity.REPLACE,
        "uncorrected error of main memory",
        "replace the memory module",
        source=_KERNEL,
    ),
    _row(
        *("oom_host", Severity.RESTART_JOB, "process killed because the machine is out of memory"),
        "set memory limits for what else runs on the node",
        failure_class="host_oom_killed",
        source=_KERNEL,
    ),
    _row("lines_lost", Severity.NOTE, "lines of the kernel's log that were overwritten before they were read"),
    _row(
        "service_failed",
        Severity.RESET_DEVICE,
        "service of the node that fails",
        "drain the node and restart the service",
        hold_s=60,
    ),
    _row(
        "external_failed",
        Severity.NOTE,
        "service outside the node that fails",
        hold_s=60,
        failure_class="external_service_error",
    ),
    _row("probe_slow", Severity.NOTE, "milliseconds until a service answers", limit=5000, hold_s=60),
    _row("source_unread", Severity.NOTE, "source of measurements that does not answer in time", hold_s=60),
    _row(
        "clock_skew",
        Severity.NOTE,
        "milliseconds between the clock of the node and that of the server",
        limit=1000,
        hold_s=60,
    ),
)
