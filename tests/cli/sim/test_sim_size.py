"""`ganger sim size`: the fewest nodes that keep a wait, against a run of each number of nodes."""

import json
from pathlib import Path

import pytest

from ganger.simulation.trace_replay import simulate_trace
from ganger.simulation.traces.read_trace import read_jobs
from tests.cli.conftest import Shell
from tests.simulator.test_trace_replay import cluster, run

JOBS = "name,submitted_ms,duration_ms,gpus\n" + "".join(
    f"j{at},{at * 20_000},{60_000 + at * 7_000 % 90_000},{(1, 4, 8, 16, 2)[at % 5]}\n" for at in range(30)
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS)
    return path


@pytest.mark.long
def test_the_fewest_nodes_are_those_of_single_runs(shell: Shell, trace: Path) -> None:
    asked = ("sim", "size", str(trace), "--policy", "easy", "--gpus-per-node", "8", "--wait-p99", "30s")
    result = json.loads(shell(*asked, "-o", "json").out)
    jobs = read_jobs(trace)
    waits = {n: simulate_trace(run(jobs, cluster(n, 8), "easy")).card.queueing_ms.p99 for n in range(2, 10)}
    assert result["nodes"] == min(nodes for nodes, wait_ms in waits.items() if wait_ms <= 30_000)
    assert result["least"] == 2
    assert {probe["nodes"]: probe["wait_p99_ms"] for probe in result["probes"]}.items() <= waits.items()
    said = shell(*asked)
    assert said.code == 0
    for probe in result["probes"]:
        outcome = "keeps it" if probe["keeps_target"] else "misses it"
        assert any(f" {probe['nodes']} nodes " in line and outcome in line for line in said.out.splitlines())
    assert f"{result['nodes']} nodes x 8 GPUs, policy easy: p99 wait " in said.out
    assert f"; {result['nodes'] - 1} miss it, p99 wait " in said.out


def test_the_largest_job_bounds_the_number_from_below(shell: Shell, trace: Path) -> None:
    said = shell("sim", "size", str(trace), "--wait-p99", "9h")
    assert "2 nodes x 8 GPUs, policy dynamic: " in said.out
    assert "; the largest job needs as many" in said.out
    refused = shell("sim", "size", str(trace), "--wait-p99", "9h", "--max-nodes", "1")
    assert refused.code == 1
    assert "the largest job needs 2 nodes, and at most 1 are allowed" in refused.err
    assert "next: --max-nodes 2" in refused.err


def test_without_a_number_that_keeps_the_target_the_exit_code_is_1(shell: Shell, trace: Path, tmp_path: Path) -> None:
    """A limit of 8 GPUs at a time: no number of nodes starts the jobs of 16."""
    limited = tmp_path / "policy.yaml"
    limited.write_text("queues:\n  default: {user_limits: {gpus: 8}}\n")
    said = shell("sim", "size", str(trace), "--wait-p99", "1m", "--document", str(limited))
    assert said.code == 1, said
    assert "nodes miss the target, on which all jobs could run at once" in " ".join(said.err.split())
    assert "not all jobs end  misses it" in said.out
    said = shell("sim", "size", str(trace), "--wait-p99", "1s", "--max-nodes", "2")
    assert said.code == 1
    assert "2 nodes miss the target" in said.err
    assert "next: --max-nodes 4" in said.err


def test_what_cannot_be_sized_is_refused(shell: Shell, trace: Path) -> None:
    for words, what in (
        ((), "Missing option '--wait-p99'"),
        (("--wait-p99", "soon"), "'soon' is not a duration"),
        (("--wait-p99", "1h", "--policy", "best"), "there is no queue order best"),
        (("--wait-p99", "1h", "--gpus", "3", "--gpu-type", "k80", "--recorded-on", "k80"), "need each other"),
    ):
        refused = shell("sim", "size", str(trace), *words)
        assert refused.code == 2
        assert what in " ".join(refused.err.split())
    trace.write_text("name,submitted_ms,duration_ms,gpus,nodes\na,0,1000,32,2\n")
    refused = shell("sim", "size", str(trace), "--wait-p99", "1h")
    assert refused.code == 2
    assert "can be run on such nodes, however many" in " ".join(refused.err.split())


def test_runs_that_contradict_the_search_are_reported(shell: Shell, trace: Path) -> None:
    """On four nodes the widest job starts at once, and all others wait for the fourth node for an hour."""
    jobs = ((0, 5, 8), (0, 60, 24), (2, 10, 8), (3, 2, 8), (3, 5, 4), (4, 10, 8))
    rows = (f"j{at},{begin * 60_000},{lasts * 60_000},{gpus}\n" for at, (begin, lasts, gpus) in enumerate(jobs))
    trace.write_text("name,submitted_ms,duration_ms,gpus\n" + "".join(rows))
    asked = ("sim", "size", str(trace), "--policy", "first_fit", "--wait-p99", "16m")
    said = shell(*asked)
    assert said.code == 0
    assert "3 nodes x 8 GPUs, policy first_fit: p99 wait 15m 00s; the largest job needs as many" in said.out
    assert "not monotone: jobs wait longer on 4 nodes than on 3\n" in said.out
