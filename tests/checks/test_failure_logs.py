"""Kernel lines of the labelled failure logs: the class of the gravest fault is that of the label."""

import json
from pathlib import Path
from typing import Any

import pytest

from ganger.check_api.rule_tables import RULES
from ganger.core.failure.log_line import parse_log_line
from ganger.model.node_health.fault import Fault, Severity
from tests.checks.samples import faults, sample

SHARED = Path(__file__).parents[3] / "shared" / "failure_logs" / "failure_logs.jsonl"
KERNEL_LABELS = {
    "gpu_fallen_off_bus",
    "gpu_ecc_uncorrectable",
    "nvlink_error",
    "gpu_sw_exception_xid13_31",
    "gpu_driver_timeout",
    "pcie_fatal_error",
    "local_disk_failure",
    "shared_storage_error",
    "host_oom_killed",
    "benign_noise",
}
OF_CONTAINER = {"host-oom-01"}
"""The job's own memory limit: no fault of the node."""
FURTHER = {"xid13-109-01", "xid31-cascade-01", "pcie-fatal-xid79-01"}
"""Excerpts whose gravest fault follows from the labelled one."""
CLASSES = {rule.fault_code: rule.failure_class for rule in RULES}
KERNEL = ("NVRM", "AER", "nfs: ", "oom-kill", "nvme", "Remounting", "mlx5_core", "SXid", "Killed process")


def excerpts() -> list[dict[str, Any]]:
    if not SHARED.exists():
        return []
    rows = map(json.loads, SHARED.read_text(encoding="utf-8").splitlines())
    return [
        row for row in rows if row["label"] in KERNEL_LABELS and any(word in "".join(row["lines"]) for word in KERNEL)
    ]


def class_of(fault: Fault) -> str:
    return CLASSES.get(fault.code, "")


@pytest.mark.skipif(not SHARED.exists(), reason="../shared/failure_logs is not there")
@pytest.mark.parametrize("row", excerpts(), ids=lambda row: row["id"])
def test_an_excerpt_of_the_kernel(row: dict[str, Any]) -> None:
    lines = [parse_log_line(line).text for line in row["lines"]]
    found = faults([sample(0), sample(1, *lines), *map(sample, range(2, 12))])
    if row["label"] == "benign_noise" or row["id"] in OF_CONTAINER:
        assert [fault.severity for fault in found if fault.severity > Severity.NOTE] == []
        return
    gravest_first = sorted(found, key=lambda fault: -fault.severity)
    classes = [name for fault in gravest_first if (name := class_of(fault))]
    assert row["label"] in (classes if row["id"] in FURTHER else classes[:1])
