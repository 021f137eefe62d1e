"""The rule tables: complete rows, one table for severities and for the classes of the diagnosis, and its figures."""

import re
from collections import Counter
from datetime import date
from pathlib import Path

import pytest

from ganger.check_api.rule import ANY
from ganger.check_api.rule_tables import OWN_RULES, RULES
from ganger.core.failure.failure_classes import CLASSES, NOISE_CLASS, Depth, Origin
from ganger.core.failure.log_signatures.gpu_signatures import SXID_NOTES, XID_CLASSES
from ganger.model.node_health.fault import Severity

ROOT = Path(__file__).parents[2]
NOTED = {"121", "171", "172"}
"""Xid that are notes although their class is a fault: details of a fault that has a line of its own."""


def test_rows_are_complete_and_keys_are_unique() -> None:
    keys = Counter((rule.table, rule.code) for rule in RULES)
    assert [key for key, amount in keys.items() if amount > 1] == []
    for rule in RULES:
        assert rule.meaning, rule
        assert rule.source, rule
        assert date.fromisoformat(rule.date), rule
        assert not rule.failure_class or rule.failure_class in CLASSES, rule
        assert rule.severity is Severity.NOTE or rule.action, rule
        assert rule.repeat is None or rule.repeat.severity > rule.severity, rule
        assert not rule.meaning.endswith("."), rule
        assert not rule.action.endswith("."), rule


@pytest.mark.parametrize("code", [code for code in OWN_RULES.table("xid") if code.isdigit()])
def test_severity_and_class_of_an_xid_agree(code: str) -> None:
    row = OWN_RULES.table("xid")[code]
    failure_class = CLASSES[row.failure_class]
    is_noise = row.failure_class == NOISE_CLASS
    assert is_noise == (row.severity is Severity.NOTE) or row.code in NOTED
    if row.severity >= Severity.RESET_DEVICE:
        assert failure_class.origin is Origin.INFRASTRUCTURE
        assert failure_class.depth is Depth.FACT


def test_the_diagnosis_and_the_checks_have_the_same_xid() -> None:
    assert {str(number) for number in XID_CLASSES} == {code for code in OWN_RULES.table("xid") if code.isdigit()}
    assert all(OWN_RULES.table("sxid")[str(number)].severity is Severity.NOTE for number in SXID_NOTES)


def xid_numbers(text: str) -> set[int]:
    """Return the numbers in the first column of the reference's table of Xid."""
    numbers: set[int] = set()
    for cell in re.findall(r"^\| ([\d, -]+) \|", text, re.MULTILINE):
        for part in cell.split(","):
            first, _, last = part.strip().partition("-")
            numbers.update(range(int(first), int(last or first) + 1))
    return numbers


REFERENCE = ROOT.parent / "shared" / "reference" / "reliability.md"


@pytest.mark.skipif(not REFERENCE.exists(), reason="../shared/reference is not there")
def test_every_xid_of_the_reference_has_a_row() -> None:
    text = REFERENCE.read_text(encoding="utf-8").partition("### Xid")[2].partition("### SXid")[0]
    numbers = xid_numbers(text)
    assert len(numbers) > 80
    assert sorted(numbers - XID_CLASSES.keys()) == []


@pytest.mark.parametrize(
    ("table", "code", "limit", "per_s", "hold_s"),
    [
        ("nic", "symbol_error", 120, 3600, 0),
        ("nic", "symbol_error.burst", 10, 1, 0),
        ("nic", "link_error_recovery", 5, 60, 0),
        ("nic", "port_rcv_errors", 10, 1, 0),
        ("nic", "local_ack_timeout_err", 1, 1, 0),
        ("nic", "port_xmit_discards", 100, 1, 0),
        ("nic", "roce_slow_restart", 10, 1, 0),
        ("nic", "carrier_changes", 2, 0, 0),
        ("nic", "port_down", None, 0, 240),
        ("nic", "port_flap", 25, 0, 0),
        ("gpu", "nvlink_crc", 100, 1, 0),
        ("gpu", "ecc_uncorrected", 0, 0, 0),
        ("gpu", "remap_many", 511, 0, 0),
        ("gpu", "hw_thermal_slowdown", 0.6, 0, 0),
    ],
)
def test_limits_are_those_of_their_sources(table: str, code: str, limit: float | None, per_s: int, hold_s: int) -> None:
    rule = OWN_RULES.table(table)[code]
    assert (rule.limit, rule.per_s, rule.hold_s) == (limit, per_s, hold_s)


def test_a_code_without_a_row_gets_that_of_any_other() -> None:
    assert OWN_RULES.find("xid", "149 fatal 9", "149 fatal") is OWN_RULES.table("xid")["149 fatal"]
    assert OWN_RULES.find("xid", "998") is OWN_RULES.table("xid")[ANY]
    assert OWN_RULES.find("host", "998") is None
