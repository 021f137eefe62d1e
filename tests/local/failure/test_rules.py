"""Failures of jobs with `retry.rules`, reported by real launchers: the rule that decides, and the matching log."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ganger.backends.local.job_files import JobFiles
from ganger.backends.local.machine_place import LocalRecords
from ganger.launcher_server.retry_rules import search_logs
from ganger.model.decision import Cause
from ganger.model.event import Failed
from ganger.model.evidence import RuleMatch
from ganger.model.job_sections.retry_spec import Retry, Rule
from tests.local.world import Server, make_job, make_start, make_stop, python

pytestmark = pytest.mark.serial

Serve = Callable[..., Server]
ECC = "NVRM: Xid 48: uncorrectable ECC error"
PRINTS = f"""
import os, pathlib, sys, time
rank = os.environ["GANGER_RANK"]
log = pathlib.Path(os.environ["GANGER_TASK_DIR"]).parents[1] / "n2" / "1" / "rank-3.log"
if rank == "3":
    print("all is well", flush=True)
    print("{ECC}", file=sys.stderr, flush=True)
while rank == "0" and not (log.exists() and "well" in log.read_text() and "ECC" in log.read_text()):
    time.sleep(0.01)
if rank == "0":
    print("a" * 100_000, flush=True)
    raise SystemExit(7)
time.sleep(600)
"""


def failed(serve: Serve, directory: Path, *rules: Rule, run: tuple[str, ...] = ()) -> RuleMatch | None:
    """Return the rule match of a failure of rank 0 on n1, while rank 3 on n2 printed the line."""
    server = serve().open()
    job = make_job(directory, run or python(PRINTS), nodes=2, retry=Retry(rules=rules))
    start = make_start(job)
    server.backend.start(start, job)
    failure = server.wait("failed")
    server.backend.stop(make_stop(start, Cause.RANK_FAILED), job)
    server.wait("cleared", 2)
    kinds = [event.kind for event in server.events if getattr(event, "gang", None) == job.id]
    assert kinds.index("failed") < kinds.index("cleared")
    assert kinds.count("failed") == 1
    assert (failure.node, failure.rank, failure.exit_code) == ("n1", 0, 7)
    return failure.match


def test_the_line_may_be_of_another_rank(serve: Serve, tmp_path: Path) -> None:
    match = failed(serve, tmp_path, Rule(log="uncorrectable ECC", do="exclude_node"))
    assert match == RuleMatch(rule=0, do="exclude_node", node="n2", rank=3, line=ECC)


def test_patterns_do_not_backtrack_exponentially(serve: Serve, tmp_path: Path) -> None:
    rules = (Rule(log="(a|a)*(a+)+$!", do="fail"), Rule(log="^all is (well|fine)$", do="retry"))
    match = failed(serve, tmp_path, *rules)
    assert match == RuleMatch(rule=1, do="retry", node="n2", rank=3, line="all is well")


@pytest.mark.parametrize(
    ("rules", "decides"),
    [
        ((Rule(log="ECC", cause="start_failed", do="fail"), Rule(cause="rank_failed", do="retry")), 1),
        ((Rule(cause="rank_failed", do="retry"), Rule(log="ECC", do="fail")), 0),
        ((Rule(log="never", do="retry"), Rule(cause="rank_failed", do="fail"), Rule(log="ECC", do="retry")), 1),
        ((Rule(log="never", do="fail"), Rule(cause="node_lost", do="fail")), None),
    ],
    ids=["another cause", "before", "none", "nothing fits"],
)
def test_by_cause(serve: Serve, tmp_path: Path, rules: tuple[Rule, ...], decides: int | None) -> None:
    expected = None if decides is None else RuleMatch(rule=decides, do=rules[decides].do, node="n1")
    assert failed(serve, tmp_path, *rules) == expected


def test_output_of_the_setup_command_counts(serve: Serve, tmp_path: Path) -> None:
    server = serve().open()
    rules = (Rule(log="No space left", cause="start_failed", do="exclude_node"),)
    job = make_job(tmp_path, "true", nodes=1, setup="echo No space left; exit 3", retry=Retry(rules=rules))
    server.backend.start(make_start(job, nodes=1), job)
    failure = server.wait("failed")
    assert failure.match == RuleMatch(rule=0, do="exclude_node", node="n1", rank=None, line="No space left")
    server.backend.stop(make_stop(make_start(job, nodes=1), Cause.START_FAILED), job)
    server.wait("cleared")


def test_a_long_log_is_read_from_its_end(serve: Serve, tmp_path: Path) -> None:
    code = f"""
import sys
for _ in range(300_000):
    print("x" * 80)
print("{ECC}")
raise SystemExit(7)
"""
    server = serve().open()
    job = make_job(tmp_path, python(code), nodes=1, nproc_per_node=1, retry=Retry(rules=(Rule(log="ECC", do="fail"),)))
    start = make_start(job, nodes=1)
    server.backend.start(start, job)
    failure = server.wait("failed")
    assert failure.match == RuleMatch(rule=0, do="fail", node="n1", rank=0, line=ECC)
    server.backend.stop(make_stop(start, Cause.RANK_FAILED), job)
    server.wait("cleared")


def test_a_search_may_end_after_each_line(tmp_path: Path) -> None:
    files = JobFiles(home=tmp_path, socket=tmp_path / "s", launcher=tmp_path / "l")
    log = files.jobs / "job-1" / "nodes" / "n1" / "1" / "rank-0.log"
    log.parent.mkdir(parents=True)
    log.write_text("1 o second\n2 o first\n")
    failure = Failed(gang="job-1", generation=1, node="n1", cause=Cause.RANK_FAILED, rank=0)
    retry = Retry(rules=(Rule(log="first", do="fail"), Rule(log="second", do="retry")))
    assert search_logs(LocalRecords(files), retry, failure, lambda: True) == {1: ("n1", 0, "second")}
    assert search_logs(LocalRecords(files), retry, failure, lambda: False)[0] == ("n1", 0, "first")


def test_a_rule_that_this_version_cannot_read_matches_nothing(tmp_path: Path) -> None:
    files = JobFiles(home=tmp_path, socket=tmp_path / "s", launcher=tmp_path / "l")
    log = files.jobs / "job-1" / "nodes" / "n1" / "1" / "rank-0.log"
    log.parent.mkdir(parents=True)
    log.write_text("1 o second\n")
    failure = Failed(gang="job-1", generation=1, node="n1", cause=Cause.RANK_FAILED, rank=0)
    rules = Rule(log="(", do="fail"), Rule(log="second", do="retry")
    assert search_logs(LocalRecords(files), Retry(rules=rules), failure, lambda: False) == {1: ("n1", 0, "second")}
    assert search_logs(LocalRecords(files), Retry(rules=rules[:1]), failure, lambda: False) == {}
