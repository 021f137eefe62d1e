"""A job on a broken node: its rule moves it away, and all commands show which rule; through the command line."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.badinput.yard import Yard, wait_for

pytestmark = pytest.mark.long

BREAKS = """\
import os, pathlib, sys, time
if "/n1/" in os.environ["GANGER_TASK_DIR"]:
    print("NVRM: Xid 48: uncorrectable ECC error", file=sys.stderr, flush=True)
    raise SystemExit(1)
print("all is well", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.05)
"""
JOB = """\
name: moves
run: [python, breaks.py]
retry:
  backoff: 0
  rules: [{log: "uncorrectable (ECC|DRAM)", cause: rank_failed, do: exclude_node}]
"""
WROTE = "wrote 'NVRM: Xid 48: uncorrectable ECC error'"


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    with Yard(tmp_path) as yard:
        yard.put("breaks.py", BREAKS)
        yard.put("job.yaml", JOB)
        yard.fine("server", "start", "--topology", "topology.yaml")
        yield yard


def test_job_moves_away_from_a_broken_node(yard: Yard) -> None:
    job = yard.fine("submit", "-f", "job.yaml")
    wait_for(lambda: "all is well" in yard.fine("logs", job), "the second attempt writes")
    row = json.loads(yard.fine("get", job, "-o", "json"))
    assert [attempt["nodes"] for attempt in row["attempts"]] == [["n1"], ["n2"]]
    sentence = (
        f"rank 0 on n1 exited with code 1 after it {WROTE}; a fault of the machine, not of the program; retry.rules[0] "
    )
    sentence += f"says exclude_node: rank 0 on n1 {WROTE}"
    assert row["attempts"][0]["sentence"] == sentence
    assert sentence in yard.fine("events", job)
    assert "n1 is excluded by retry.rules[0]" in yard.fine("explain", job)
    # The match is in the event log: the server decides the same without the job's own log.
    for log in yard.home.jobs.glob(f"{job}/nodes/*/1/*.log"):
        log.unlink()
    yard.fine("server", "stop")
    yard.fine("server", "start")
    assert "n1 is excluded by retry.rules[0]" in yard.fine("explain", job)
    yard.put("go", "")
    assert yard.ganger("wait", job).code == 0


def test_job_is_pending_without_another_node(yard: Yard) -> None:
    yard.fine("node", "cordon", "n2")
    job = yard.fine("submit", "-f", "job.yaml")
    wait_for(lambda: "retry.rules exclude n1" in yard.fine("explain", job), "it waits without n1")
    explanation = json.loads(yard.fine("explain", job, "-o", "json"))
    assert explanation["reason"]["code"] == "excluded"
    assert f"ganger clone {job}" in explanation["reason"]["remedy"]
    yard.fine("node", "uncordon", "n2")
    yard.put("go", "")
    assert yard.ganger("wait", job).code == 0


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ('{log: "(?=ECC)", do: fail}', "no look-around"),
        ('{log: "ECC(", do: fail}', "is not a regular expression"),
        ("{log: ECC, do: ignore}", "'ignore' is not something to do: write retry, fail or exclude_node"),
        ("{log: ECC, cause: oom, do: fail}", "'oom' is not a cause of a failure"),
        ("{do: fail}", "it fits everything: write log, cause or both"),
    ],
)
def test_invalid_rule(yard: Yard, rule: str, expected: str) -> None:
    yard.put("bad.yaml", f"run: 'true'\nretry:\n  rules: [{rule}]\n")
    yard.ganger("submit", "-f", "bad.yaml").refuses(2, expected, "")
    assert "bad.yaml:3:" in yard.ganger("submit", "-f", "bad.yaml").err
