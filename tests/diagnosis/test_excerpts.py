"""The cause class of labelled excerpts of logs, and of errors of users that speak of hardware."""

import json
from pathlib import Path

import pytest

from bench.attribution.diagnose_classes import ACCURACY_BAR, OWN, SHARED, Diagnosed, diagnose_excerpts
from ganger.core.failure.failure_classes import CLASSES
from ganger.diagnosis.diagnose_logs import diagnose_logs

USER_ERRORS = (
    ["ValueError: uncorrectable ECC error is not a valid choice for --inject"],
    ["AssertionError: NVLink topology requires a world size divisible by 8, got 12"],
    [
        '  File "/w/fault.py", line 3, in <module>',
        '    raise KeyError("Xid 79: GPU has fallen off the bus")',
        "KeyError: 'Xid 79'",
    ],
    ["TypeError: connect() missing 1 required positional argument: 'nvswitch'"],
    ["usage: train.py [-h]", "train.py: error: argument --nccl-timeout: invalid int value: 'x'"],
    ["ValueError: node n1 is down in hosts.yaml"],
    ["pydantic_core.ValidationError: 1 validation error for Config", "infiniband: link down is not a boolean"],
)
"""Lines of errors of users in which words of hardware occur."""


def wrong(diagnosed: list[Diagnosed]) -> list[str]:
    return [f"{one.name}: {one.found.name}" for one in diagnosed if not one.is_right]


def test_own_excerpts() -> None:
    diagnosed = list(diagnose_excerpts(OWN))
    assert wrong(diagnosed) == []
    assert {one.label for one in diagnosed} == CLASSES.keys()


@pytest.mark.skipif(not SHARED.exists(), reason="../shared/failure_logs is not there")
def test_shared_excerpts() -> None:
    diagnosed = list(diagnose_excerpts(SHARED))
    assert 1 - len(wrong(diagnosed)) / len(diagnosed) >= ACCURACY_BAR, wrong(diagnosed)
    assert [one.name for one in diagnosed if one.blames_machine] == []


@pytest.mark.skipif(not SHARED.exists(), reason="../shared/failure_logs is not there")
def test_classes_are_those_of_the_labels() -> None:
    labels = json.loads(SHARED.with_name("labels.json").read_text())
    classes = {name: {"origin": one.origin.value, "retry": one.retry.value} for name, one in CLASSES.items()}
    assert classes == labels


@pytest.mark.parametrize("lines", USER_ERRORS, ids=lambda lines: lines[-1][:40])
def test_an_error_of_a_user_is_no_fault_of_a_machine(lines: list[str], tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("\n".join(["step 1 loss 2.0", *lines, ""]))
    found = diagnose_logs(log).diagnosis.failure_class
    assert found.name == "python_error_user"
