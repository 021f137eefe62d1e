"""The driver of checks: each fault once, holds, shadow mode, checks that fail, clocks that jump, bounded state."""

import pickle
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from ganger import registry
from ganger.check_api.check_interface import Finding
from ganger.check_api.rule import Rule, RuleBook
from ganger.check_api.rule_tables import OWN_RULES
from ganger.check_api.run_checks import MAX_FINDINGS, ChecksState, replay_checks, run_checks
from ganger.model.node_health.fault import Fault, Severity
from ganger.model.node_health.node_sample import KernelLine, NodeSample, PortSample
from tests.checks.samples import PORT, codes, faults, gpus, sample

NOTE, JOB, RESET, REBOOT, REPLACE = Severity
BAD = gpus(ecc_uncorrected={3: 1})
FAULT = ("ecc_uncorrected", "GPU-3", RESET)


def test_a_fault_that_had_gone_is_reported_again() -> None:
    samples = [sample(number, gpus=BAD if number in {0, 1, 20, 60} else gpus()) for number in range(70)]
    assert codes(samples) == [FAULT, FAULT], "200 s later it had not gone, 400 s later it had"


def test_faults_that_last_are_known() -> None:
    state, checks = ChecksState(), registry.checks()
    for number in range(3):
        state, _ = run_checks(state, sample(number, gpus=BAD), checks, OWN_RULES)
    assert [(fault.code, fault.at_ms) for fault in state.lasting] == [("ecc_uncorrected", sample(0).at_ms)]
    for number in range(3, 40):
        state, _ = run_checks(state, sample(number), checks, OWN_RULES)
    assert state.lasting == ()


def test_an_event_is_reported_at_once_whatever_its_rule_says() -> None:
    row = replace(OWN_RULES.table("xid")["62"], hold_s=60)
    book = replace(OWN_RULES, rows={**OWN_RULES.rows, "xid": {"62": row}})
    assert codes([sample(0, "NVRM: Xid (PCI:0000:03:00): 62")], book) == [("xid_62", "GPU-2", RESET)]


def test_a_fault_that_becomes_graver_is_reported_again() -> None:
    rules = {code: replace(rule) for code, rule in OWN_RULES.table("gpu").items()}
    graver = RuleBook(
        {**OWN_RULES.rows, "gpu": rules | {"ecc_uncorrected": replace(rules["ecc_uncorrected"], severity=REPLACE)}}
    )
    state, checks = ChecksState(), registry.checks()
    severities = []
    for number, book in enumerate((OWN_RULES, OWN_RULES, graver, graver, OWN_RULES)):
        state, found = run_checks(state, sample(number, gpus=BAD), checks, book)
        severities += [fault.severity for fault in found]
    assert severities == [RESET, REPLACE]


def test_shadow_mode_of_a_check_and_of_a_row() -> None:
    row = replace(OWN_RULES.table("gpu")["ecc_uncorrected"], is_shadow=True)
    by_row = replace(OWN_RULES, rows={**OWN_RULES.rows, "gpu": {**OWN_RULES.table("gpu"), row.code: row}})
    for book in (replace(OWN_RULES, shadow_checks=("ecc",)), by_row):
        (fault,) = faults([sample(0, gpus=BAD)], book)
        assert (fault.code, fault.is_shadow) == ("ecc_uncorrected", True)
        state, _ = run_checks(ChecksState(), sample(0, gpus=BAD), registry.checks(), book)
        _, (again,) = run_checks(state, sample(1, gpus=BAD), registry.checks(), OWN_RULES)
        assert not again.is_shadow, "a rule that is taken out of shadow mode acts on what lasts"


def broken(state: Any, _sample: NodeSample, _rules: RuleBook) -> tuple[Any, tuple[Finding, ...]]:
    raise ZeroDivisionError(f"{state}\x00\n" * 100)


def test_a_check_that_fails_is_a_note_and_ends_no_other() -> None:
    checks = {"broken": SimpleNamespace(NAME="broken", INITIAL_STATE=None, check=broken), **registry.checks()}
    found = list(replay_checks([sample(0, gpus=BAD), sample(1, gpus=BAD)], checks, OWN_RULES))
    assert [(fault.check, fault.code, fault.severity) for fault in found] == [
        ("ecc", "ecc_uncorrected", RESET),
        ("broken", "check_failed", NOTE),
    ]
    assert found[1].sentence.startswith("the check broken failed: ZeroDivisionError: None")
    assert len(found[1].sentence) < 500


def test_a_clock_that_jumps_is_no_time_that_passed() -> None:
    down = (replace(PORT, is_up=False), replace(PORT, device="mlx5_1"))
    for jump_ms in (3_600_000, 86_400_000, -86_400_000, 10**15, -(10**12)):
        before = [sample(0), sample(1), sample(2, ports=down), sample(3, ports=down)]
        after = [replace(sample(number, ports=down), at_ms=sample(number).at_ms + jump_ms) for number in range(4, 20)]
        assert codes([*before, *after]) == [], jump_ms
        later = [replace(sample(number, ports=down), at_ms=sample(number).at_ms + jump_ms) for number in range(20, 40)]
        assert codes([*before, *after, *later]) == [("port_down", "mlx5_0/1", RESET)]


def test_samples_that_are_five_minutes_apart_are_followed() -> None:
    samples = [sample(number, gpus=BAD if number > 3 else gpus(), step_ms=300_000) for number in range(12)]
    assert codes(samples) == [FAULT]


def test_each_node_of_a_stream_has_its_own_faults() -> None:
    streams = [replace(sample(number, gpus=BAD), node=node) for number in range(3) for node in ("n1", "n2")]
    assert [fault.node for fault in faults(streams)] == ["n1", "n2"]


def test_many_findings_of_one_check_are_cut_and_the_gravest_stay() -> None:
    lines = [f"NVRM: Xid (PCI:{number:04x}:03:00): 13, pid=2" for number in range(300)]
    found = faults([sample(0, *lines, "NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off the bus.")])
    assert len(found) == MAX_FINDINGS + 1
    assert [fault.code for fault in (found[0], found[-1])] == ["xid_79", "too_many_findings"]
    assert found[-1].sentence == "237 more findings in one sample are not listed"


def test_the_state_is_bounded_whatever_lines_contain() -> None:
    state, checks, sizes = ChecksState(), registry.checks(), dict[int, int]()
    for number in range(160):
        lines = tuple(
            KernelLine(seq=place, at_ms=0, text=text.format(number * 9 + place))
            for place in range(9)
            for text in (
                "NVRM: Xid (PCI:{0:04x}:03:00): 31, pid={0}",
                "nfs: server filer-{0} not responding, still trying",
                "EXT4-fs (sd{0}): Remounting filesystem read-only",
            )
        )
        ports = tuple(PortSample(device=f"veth{number}-{port}", port=1, counters={}) for port in range(6))
        changed = sample(number, gpus=(), ports=ports, lines=lines)
        state, _ = run_checks(state, changed, checks, OWN_RULES)
        if number in {120, 159}:
            sizes[number] = len(pickle.dumps(state))
    assert sizes[159] < 1.05 * sizes[120] < 1_000_000


def test_evidence_and_devices_are_short_and_printable() -> None:
    line = "\x1b[31m\x00\ufffd NVRM: Xid (PCI:0000:03:00): 79, pid=1, " + "\x07A" * 500_000
    (fault,) = faults([sample(0, line)])
    assert fault.code == "xid_79"
    assert all(text.isprintable() and len(text) < 400 for text in (fault.sentence, fault.device, *fault.evidence))


def test_times_of_a_line_are_those_of_the_line() -> None:
    state = sample(0, lines=(KernelLine(seq=1, at_ms=4711, text="NVRM: Xid (PCI:0000:03:00): 62"),))
    found: list[Fault] = faults([state])
    assert [fault.at_ms for fault in found] == [4711]


def test_a_rule_that_is_not_in_the_book_is_not_applied() -> None:
    assert codes([sample(0, "NVRM: Xid (PCI:0000:03:00): 79", gpus=BAD)], RuleBook()) == []
    assert Rule(table="nic", code="a b", meaning="", severity=NOTE).fault_code == "a_b"
