"""The tables of signatures: their classes, their sources, and that numbers decide only where a table has them."""

import re
from datetime import date

import pytest

from ganger.core.failure.failure_classes import CLASSES
from ganger.core.failure.log_line import parse_log_line
from ganger.core.failure.log_signatures.signature_table import SIGNATURES, SignatureSearch


def test_rows_are_complete() -> None:
    for row in SIGNATURES:
        names = {row.failure_class, *(row.numbers or {}).values()} - {""}
        assert names
        assert names <= CLASSES.keys(), row.pattern.pattern
        assert row.source
        assert date.fromisoformat(f"{row.date}-01")


def test_no_pattern_has_a_digit_of_its_own() -> None:
    """Texts that differ only in numbers share their rows; a number that decides is in a table."""
    in_braces_or_class = re.compile(r"\{[\d,]*\}|\\d|\[[^\]]*\]")
    assert [
        row.pattern.pattern for row in SIGNATURES if re.search(r"\d", in_braces_or_class.sub("", row.pattern.pattern))
    ] == []


@pytest.mark.parametrize(
    ("text", "failure_class"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 48, pid=7, name=python, DBE", "gpu_ecc_uncorrectable"),
        ("NVRM: Xid (PCI:0000:3b:00): 74, pid=7, name=python, NVLink", "nvlink_error"),
        ("NVRM: Xid (PCI:0000:3b:00): 45, pid=7, name=python, Ch 1", "benign_noise"),
        ("NVRM: Xid (0000:3b:00): 13, Graphics Exception", "gpu_sw_exception_xid13_31"),
        ("nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", "nvlink_error"),
        ("nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): 11012, Non-fatal, Link 30", "benign_noise"),
        ("OSError: [Errno 116] Stale file handle", "shared_storage_error"),
        ("OSError: [Errno 24] Too many open files", "os_resource_limit"),
        ("exitcode  : -11 (pid: 7)", "process_segfault"),
        ("exitcode  : -9 (pid: 7)", "host_oom_or_external_kill"),
        ("Process 12 got signal: 15", "preempted_or_sigterm"),
        ("Process 12 got signal: 2", "user_cancelled"),
        ("HTTP 503 for url", "external_service_error"),
        ("HTTP 403 for url", "permission_denied"),
    ],
)
def test_numbers_decide_by_their_tables(text: str, failure_class: str) -> None:
    search = SignatureSearch()
    search.find(re.sub(r"\d+", "1", text))  # a text that differs only in numbers was seen before
    match = search.find(text)
    assert match is not None
    assert match.failure_class.name == failure_class


@pytest.mark.parametrize(
    ("raw", "text", "rank", "node"),
    [
        ("[rank5]: KeyError: 'lr'", "KeyError: 'lr'", 5, ""),
        ("[1,27]<stderr>:Aborted", "Aborted", 27, ""),
        ("3: Traceback", "Traceback", 3, ""),
        ("knot-0  | Killed", "Killed", None, "knot-0"),
        ("[pod/fit-worker-1/pytorch] Killed", "Killed", None, "fit-worker-1"),
        ("Dec 09 08:13:51 rowan-b2 kernel: NVRM: x", "NVRM: x", None, "rowan-b2"),
        ("[  312.004417] NVRM: x", "NVRM: x", None, ""),
        ("1751361731000 e Killed", "Killed", None, ""),
        ("2024-01-01T00:00:00.1Z stderr F Killed", "Killed", None, ""),
        ("\x1b[31m[rank7]: Killed\x1b[0m", "Killed", 7, ""),
        ("a\x00b\x07c", "a b c", None, ""),
    ],
)
def test_prefixes(raw: str, text: str, rank: int | None, node: str) -> None:
    line = parse_log_line(raw)
    assert (line.text, line.rank, line.node) == (text, rank, node)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("2025-02-11 20:07:31 x", "2025-02-11T20:07:32 x"),
        ("Feb 11 20:07:31 n1 kernel: x", "2025-02-11 20:07:32 x"),
        ("[rank6]:[E211 20:07:31.6 x", "[E211 20:07:32.6 x"),
        ("W0131 23:59:59.4 7 x", "W0201 00:00:00.4 7 x"),
    ],
)
def test_times_of_one_year_are_compared(earlier: str, later: str) -> None:
    times = [parse_log_line(text).find_time_s() for text in (earlier, later)]
    assert None not in times
    assert times[0] < times[1]  # type: ignore[operator]
