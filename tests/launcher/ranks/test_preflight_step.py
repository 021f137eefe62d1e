"""The test of nodes that the launcher runs before the ranks, and what it makes of the results."""

import json
from typing import Any

import pytest

from ganger.launcher.health.preflight_results import MAX_BYTES, MAX_FINDINGS, MAX_SENTENCE, parse_results
from ganger.train.preflight.node_results import RESULT_FILE
from tests.launcher.harness import SH, Server, Task

FINDING = {"code": "hbm", "gpu": 1, "sentence": "GPU 1: memory bandwidth is 1000 GB/s", "is_bad": True}
RESULT = {"node": 1, "performance_milli": 345, "findings": [FINDING]}
WRITE = f"echo '{json.dumps({'nodes': [RESULT]})}' > $GANGER_TASK_DIR/{RESULT_FILE}"


def run_tested(task: Task, script: str, timeout_s: int = 60, **fields: Any) -> None:
    """Run a rank in stage 1, after a barrier, as the server plans it, with a test of nodes."""
    preflight = {"argv": [*SH, script], "environment": {"PLACE": "7"}, "timeout_s": timeout_s}
    ranks = [{"rank": 0, "environment": {}, "stage": 1}]
    task.run([*SH, "touch started"], ranks=ranks, stages=2, preflight=preflight, **fields)


def starts(task: Task, server: Server) -> None:
    """Let the rank start, and wait for its end."""
    server.wait("ready", stage=0)
    server.send("proceed", generation=1, stage=0, agents={})
    server.wait("finished")
    assert (task.work / "started").exists()


def test_ranks_start_after_a_test_that_passes(task: Task, server: Server) -> None:
    run_tested(task, "test -e prepared && echo place $PLACE", setup="touch prepared")
    starts(task, server)
    assert task.texts("o", "preflight.log") == ["place 7"]
    assert "preflight" not in server.kinds()


def test_a_bad_node_is_reported_and_no_rank_starts(task: Task, server: Server) -> None:
    run_tested(task, f"{WRITE}; exit 3")
    assert server.wait("preflight")["nodes"] == [RESULT]
    server.stop(1, cause="preflight_failed")
    server.wait("cleared")
    assert server.kinds() == ["preflight", "cleared"]
    assert not (task.work / "started").exists()
    assert not task.file(RESULT_FILE).exists()


def test_results_without_a_bad_node_are_reported_too(task: Task, server: Server) -> None:
    run_tested(task, WRITE)
    assert server.wait("preflight")["nodes"] == [RESULT]
    starts(task, server)


def test_a_job_that_tests_nodes_reports_its_results(task: Task, server: Server) -> None:
    task.run([*SH, f"{WRITE}; exit 3"])
    assert server.wait("preflight")["nodes"] == [RESULT]
    server.wait("rank_failed")
    assert server.kinds().index("preflight") < server.kinds().index("rank_failed")


@pytest.mark.parametrize("script", ["exit 1", "exit 2", "kill -9 $$", "sleep 600"])
def test_a_test_that_fails_or_does_not_end_keeps_no_job_from_starting(script: str, task: Task, server: Server) -> None:
    run_tested(task, script, timeout_s=1 if "sleep" in script else 60)
    starts(task, server)
    assert "the test of nodes" in task.own_log()


def test_a_program_that_does_not_exist_keeps_no_job_from_starting(task: Task, server: Server) -> None:
    preflight = {"argv": ["/nowhere/python3"], "environment": {}, "timeout_s": 60}
    ranks = [{"rank": 0, "environment": {}, "stage": 1}]
    task.run([*SH, "touch started"], ranks=ranks, stages=2, preflight=preflight)
    starts(task, server)
    assert "there is no program /nowhere/python3" in task.own_log()


def test_a_stop_ends_a_test(task: Task, server: Server) -> None:
    run_tested(task, "echo $$ > pid; exec sleep 600")
    task.pid_in("pid")
    server.stop(1)
    server.wait("cleared")
    assert server.kinds() == ["cleared"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        "null",
        '{"nodes": []}',
        '{"nodes": {}}',
        '{"nodes": [1]}',
        json.dumps({"nodes": [RESULT | {"node": -1}]}),
        json.dumps({"nodes": [RESULT | {"node": True}]}),
        json.dumps({"nodes": [RESULT | {"performance_milli": 1001}]}),
        json.dumps({"nodes": [RESULT | {"performance_milli": float("nan")}]}),
        json.dumps({"nodes": [RESULT | {"findings": None}]}),
        json.dumps({"nodes": [RESULT | {"findings": [FINDING | {"code": "HBM"}]}]}),
        json.dumps({"nodes": [RESULT | {"findings": [FINDING | {"gpu": "1"}]}]}),
        json.dumps({"nodes": [RESULT | {"findings": [FINDING | {"is_bad": 1}]}]}),
        "[" * 100_000,
        " " * (MAX_BYTES + 1),
    ],
)
def test_results_that_are_none_are_refused(content: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        parse_results(content.encode())


def test_results_fit_into_a_message() -> None:
    long = RESULT | {"findings": [FINDING | {"sentence": "\ud800" * 100_000, "code": "x" * 1000}]}
    (result,) = parse_results(json.dumps({"nodes": [long]}).encode())
    assert [len(one["sentence"]) for one in result["findings"]] == [MAX_SENTENCE]
    many = [RESULT | {"node": node, "findings": [FINDING] * 6} for node in range(1024)]
    results = parse_results(json.dumps({"nodes": many}).encode())
    assert len(results) == 1024
    assert len(results[0]["findings"]) == MAX_FINDINGS
    assert len(json.dumps(results)) < MAX_BYTES


@pytest.mark.parametrize("write", ["echo '{' >", f"head -c {MAX_BYTES + 1} /dev/zero >", "mkfifo"])
def test_a_damaged_or_huge_file_or_a_pipe_costs_nothing(write: str, task: Task, server: Server) -> None:
    run_tested(task, f"{write} $GANGER_TASK_DIR/{RESULT_FILE}")
    starts(task, server)
    assert "preflight" not in server.kinds()
    assert "the results of the test of nodes are left out" in task.own_log()
