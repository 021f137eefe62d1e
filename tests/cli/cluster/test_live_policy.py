"""`ganger policy` at a real server: show, diff, dry-run, apply, reject and roll back."""

from pathlib import Path

import pytest

from tests.cli.live import Live, live, place

__all__ = ["live", "place"]


@pytest.fixture
def version(live: Live) -> int:
    """Restore the default policy and return its version."""
    live("policy", "apply", "--version", "0")
    current: int = live.json("policy")["version"]
    return current


def test_the_printed_policy_applied_again_changes_nothing(live: Live, version: int) -> None:
    shown = live("policy")
    assert "half_life: 7d" in shown.out
    Path("policy.yaml").write_text(shown.out)
    assert "no changes" in live("policy", "diff", "policy.yaml").out
    assert f"no changes: version {version}" in live("policy", "apply", "policy.yaml").out
    assert live.json("policy")["version"] == version


def test_policy_diff_dry_run_apply_and_rollback(live: Live, version: int) -> None:
    Path("policy.yaml").write_text("half_life: 3d\nqueues: {research: {weight: 3}}\n")
    for command in ("diff", "dry-run"):
        answer = live.json("policy", command, "policy.yaml")
        assert {"path": "half_life", "before": "7d", "after": "3d"} in answer["changes"]
        assert live.json("policy")["version"] == version, "nothing changed"
    assert "no pending job changes its position" in live("policy", "dry-run", "policy.yaml").out
    result = live("policy", "apply", "policy.yaml", "--note", "for the deadline")
    assert result.code == 0, result.err
    assert f"version {version + 1} is in force" in result.out
    assert "half_life" in result.out
    assert "research" in live("queue").out
    live("queue", "set", "research", "--weight", "5")
    rows = live.json("policy", "history")
    assert [row["version"] for row in rows[:2]] == [version + 2, version + 1]
    assert rows[0]["changes"] == [{"path": "queues.research.weight", "before": 3, "after": 5}]
    assert "for the deadline" in live("policy", "history").out
    live("policy", "apply", "--version", str(version + 1))
    assert live.json("queue")[-1]["weight"] == 3
    assert "weight: 5" in live("policy", "--version", str(version + 2)).out


def test_a_guarantee_beyond_the_cluster_is_a_warning(live: Live, version: int) -> None:
    Path("policy.yaml").write_text("queues: {a: {nominal: {gpus: 64}}}\n")
    expected = "warning: queue a is guaranteed 64 GPUs, and all nodes have 8; the document is valid nevertheless\n"
    for command in ("diff", "dry-run", "apply", "apply"):
        result = live("policy", command, "policy.yaml")
        assert (result.code, result.err) == (0, expected), command
    assert live("policy").err == expected
    assert live.json("policy")["warnings"][0]["capacity"] == 8
    Path("policy.yaml").write_text("queues: {a: {nominal: {gpus: 8}}}\n")
    assert live("policy", "apply", "policy.yaml").err == ""


def test_errors_of_a_document_have_their_position(live: Live, version: int) -> None:
    Path("policy.yaml").write_text("half_life: 3x\nqueues:\n  a: {parent: b}\n")
    result = live("policy", "apply", "policy.yaml")
    assert result.code != 0
    assert "policy.yaml:1:12: half_life: '3x'" in result.err
    assert "policy.yaml:3:15: queues.a.parent: there is no queue b" in result.err
    assert "ganger policy diff FILE" in result.err
    assert live.json("policy")["version"] == version


def test_stranded_jobs_are_listed(live: Live, version: int) -> None:
    live("queue", "set", "old")
    job = live.submit("--queue", "old", "--", "sleep", "600")
    live.until(job, "running")
    Path("policy.yaml").write_text("half_life: 3d\n")
    assert f"{job} (running): queue old is gone" in live("policy", "diff", "policy.yaml").err
    result = live("policy", "apply", "policy.yaml")
    assert result.code != 0
    assert f"{job} (running, queue old): queue old is gone" in result.err
    assert "--force" in result.err
    assert live("policy", "apply", "policy.yaml", "--force").code == 0
    assert live.place.client.job(job)["row"]["queue"] == "root"
    live("stop", job)
    live.until(job, "stopped")


WRONG = {
    "no file and no version": (("diff",), "give either a FILE"),
    "a file and a version": (("diff", "policy.yaml", "--version", "0"), "give either a FILE"),
    "a file that is not there": (("apply", "nothing.yaml"), "cannot read nothing.yaml: No such file"),
    "a directory": (("apply", "."), "cannot read .: Is a directory"),
    "no text": (("apply", "bytes.yaml"), "bytes.yaml is not UTF-8"),
    "a version that is not there": (("apply", "--version", "9999"), "no version 9999"),
    "no version in force": (("apply", "--version", "0", "--if-version", "9999"), "not 9999"),
    "an empty file": (("apply", "empty.yaml"), "the file is empty"),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_documents_and_options(live: Live, version: int, name: str) -> None:
    args, expected = WRONG[name]
    Path("bytes.yaml").write_bytes(b"\xff\xfe")
    Path("empty.yaml").write_text("")
    result = live("policy", *args)
    assert result.code != 0
    assert expected in result.err, result.err
    assert live.json("policy")["version"] == version


def test_the_node_time_of_a_period_is_limited_and_shown(live: Live, version: int) -> None:
    """A job that uses all of it runs, and the next waits until enough of the period has passed."""
    live("queue", "set", "monthly", "--max-node-hours-used", "4/30d")
    assert "node_time_used:\n        limit: 4h\n        per: 30d" in live("policy").out
    assert live("queue").out.rstrip().endswith("4 node-hours in 30d")
    refused = live("submit", "--queue", "monthly", "true")
    assert "one user may use 4 node-hours in 30d in queue monthly, so the job must say how long" in refused.err
    first, second = (live.submit("--queue", "monthly", "--time", "4h", "--", "sleep", "600") for _ in range(2))
    live.until(first, "running")
    assert live("fit", "--queue", "monthly", "--time", "1h").out.count(
        "in 30d in queue monthly: 0 used, 4 for running jobs, 0 left"
    )
    live("stop", first)
    live.until(first, "stopped")
    explanation = live.json("explain", second)
    assert explanation["reason"]["code"] == "user_node_time_used"
    assert explanation["earliest_ms"] == explanation["reason"]["until_ms"]
    assert explanation["earliest_ms"] % 86_400_000 == 0, "its day leaves the period at midnight"
    assert "enough of the period has passed by" in live("explain", second).out
    live("queue", "set", "monthly", "--max-node-hours-used", "none")
    live.until(second, "running")
    live("stop", second)
