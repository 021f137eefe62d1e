"""The audit of `kill_server` sees what it is there to see: each planted fault is found, and nothing else is."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.faults.audit import AcceptedJob, Findings, check_logs, check_witnesses

SOUND = "begin 17\nsaid 0\nsaid 1\nsaid 2\n"
LOG = "1 e line 0\n2 O li\n3 o ne 1\n4 o line 2\n"


@pytest.fixture
def accepted(tmp_path: Path) -> AcceptedJob:
    """Return a job that ended well, with three lines."""
    out = tmp_path / "steady-1"
    out.mkdir()
    (out / "1.0").write_text(SOUND)
    log = tmp_path / "job" / "nodes" / "n1" / "1" / "rank-0.log"
    log.parent.mkdir(parents=True)
    log.write_text(LOG)
    return AcceptedJob("steady-1-abcd", "steady-1", "steady", 3, 1, out)


def found(accepted: AcceptedJob) -> Findings:
    findings = Findings()
    check_witnesses(accepted, findings)
    check_logs(accepted, accepted.out.parent / "job", findings)
    return findings


def test_nothing_is_found_where_nothing_is_wrong(accepted: AcceptedJob) -> None:
    assert found(accepted).details == []


@pytest.mark.parametrize(
    ("sort", "file", "fault"),
    [
        ("doubled", "book", lambda text: text.replace("begin 17\n", "begin 17\nbegin 18\n")),
        ("doubled", "book", lambda text: text + "taken rank-0\n"),
        ("leaked", "book", lambda text: text + "taken device-n1-3\n"),
        ("lines_lost", "book", lambda text: text.replace("said 2\n", "")),
        ("lines_lost", "log", lambda text: text.replace("4 o line 2\n", "")),
        ("lines_lost", "log", lambda text: text + "5 o line 2\n"),
        ("lines_lost", "log", lambda text: text.replace("3 o ne 1\n4 o line 2\n", "3 o ne 2\n4 o line 1\n")),
        ("lines_lost", "log", lambda text: text + "5 e ganger: 9 bytes of output were lost here: no room\n"),
        ("lines_lost", "log", lambda text: text.replace("4 o", "4")),
    ],
)
def test_a_planted_fault_is_found(sort: str, file: str, fault: Callable[[str], str], accepted: AcceptedJob) -> None:
    path = accepted.out / "1.0" if file == "book" else next(accepted.out.parent.glob("job/nodes/n1/1/rank-0.log"))
    path.write_text(fault(path.read_text()))
    assert getattr(found(accepted), sort) > 0
