"""The queues of a trace under a policy document: each job is in its own, and none is moved without a word."""

import csv
from pathlib import Path

import pytest

from tests.cli.conftest import Shell

DOCUMENT = "queues:\n  research: {}\n  vision: {}\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Return a trace of ten jobs in each of two queues, of which a node holds one at a time, and one in none."""
    rows = [f"{queue}-{number},{number},600000,8,{queue}" for number in range(10) for queue in ("research", "vc1")]
    path = tmp_path / "jobs.csv"
    path.write_text("\n".join(["name,submitted_ms,duration_ms,gpus,queue", *rows, "last,9,600000,8,", ""]))
    return path


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(DOCUMENT)
    return path


def ended(shell: Shell, trace: Path, *words: str) -> set[str]:
    """Return the queues of the trace whose jobs have ended."""
    out = trace.with_name("out.csv")
    ran = shell("sim", "run", str(trace), "--nodes", "1", "--jobs-out", str(out), *words)
    assert ran.code == 0, ran.err
    return {row["queue"] for row in csv.DictReader(out.read_text().splitlines()) if row["jct_ms"]}


def test_each_job_is_in_its_queue_of_the_document(shell: Shell, trace: Path, document: Path) -> None:
    mapped = ("--document", str(document), "--map-queue", "vc1=vision")
    assert ended(shell, trace, *mapped) == {"research", "vc1", ""}
    nothing = "{nominal: {gpus: 0}, borrowing: {gpus: 0}}"
    document.write_text(f"queues:\n  research: {nothing}\n  vision: {{}}\n")
    assert ended(shell, trace, *mapped) == {"vc1", ""}
    document.write_text(f"queues:\n  research: {{}}\n  vision: {nothing}\n")
    assert ended(shell, trace, *mapped) == {"research", ""}
    assert ended(shell, trace, *mapped[:3], "vc1=research") == {"research", "vc1", ""}


@pytest.mark.parametrize(
    ("words", "message", "remedy"),
    [
        ((), "in queues that DOCUMENT does not have: vc1 (10)", "--map-queue vc1=QUEUE, or --map-queue '*=QUEUE'"),
        (("--map-queue", "vc1=vison"), "DOCUMENT has no queue vison", "name one of default, research, root, vision"),
        (("--map-queue", "vc2=vision"), "no job of TRACE is in a queue vc2", "its queues are research, vc1"),
        (("--map-queue", "vision"), "--map-queue vision is not FROM=TO", "--map-queue vc1=research"),
    ],
)
@pytest.mark.parametrize(
    "command", [("run", "--nodes", "1"), ("compare", "--nodes", "1"), ("size", "--wait-p99", "9h")]
)
def test_a_queue_that_the_document_lacks_is_refused(
    shell: Shell,
    trace: Path,
    document: Path,
    command: tuple[str, ...],
    words: tuple[str, ...],
    message: str,
    remedy: str,
) -> None:
    name, *others = command
    refused = shell("sim", name, str(trace), *others, "--document", str(document), *words)
    assert refused.code == 2
    text = " ".join(refused.err.split())
    assert message.replace("DOCUMENT", str(document)).replace("TRACE", str(trace)) in text
    assert remedy in text


def test_all_others_are_mapped_at_once(shell: Shell, trace: Path, document: Path) -> None:
    ran = shell("sim", "run", str(trace), "--nodes", "1", "--document", str(document), "--map-queue", "*=vision")
    assert ran.code == 0, ran.err


def test_queues_without_a_document_are_refused(shell: Shell, trace: Path) -> None:
    refused = shell("sim", "run", str(trace), "--nodes", "1", "--map-queue", "vc1=default")
    assert refused.code == 2
    assert "--map-queue needs --document, which has the queues" in refused.err
