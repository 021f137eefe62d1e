"""Rules for conditions that other programs report: node-problem-detector, DCGM, gpud."""

from typing import Final

from ganger.check_api.rule import ANY, Rule
from ganger.model.node_health.fault import Severity

_NPD = "node-problem-detector"


def _row(code: str, severity: Severity, meaning: str, action: str = "", source: str = _NPD) -> Rule:
    return Rule(
        table="condition",
        code=code,
        severity=severity,
        meaning=meaning,
        action=action,
        source=source,
        date="2026-08-22",
        hold_s=60,
    )


CONDITION_RULES: Final[tuple[Rule, ...]] = (
    _row("KernelDeadlock", Severity.REBOOT, "deadlock in the kernel", "drain the node and reboot it"),
    _row("ReadonlyFilesystem", Severity.REBOOT, "file system that became read-only", "drain the node and reboot it"),
    _row("FrequentKubeletRestart", Severity.NOTE, "kubelet that restarts often"),
    _row("FrequentContainerdRestart", Severity.NOTE, "containerd that restarts often"),
    _row("FrequentDockerRestart", Severity.NOTE, "docker that restarts often"),
    _row("CorruptDockerOverlay2", Severity.REBOOT, "corrupt images of docker", "clear the images of docker"),
    _row(ANY, Severity.NOTE, "condition of another program", source="ganger"),
)
