"""`ganger policy` at a real server: shown, compared, tried, applied, refused, and gone back to."""

from pathlib import Path

import pytest

from tests.cli.live import Live, live, place

__all__ = ["live", "place"]


@pytest.fixture
def version(live: Live) -> int:
    """The version in force before the test: what nobody set, again."""
    live("policy", "apply", "--version", "0")
    found: int = live.told("policy")["version"]
    return found


def test_what_it_prints_is_a_document_that_changes_nothing(live: Live, version: int) -> None:
    shown = live("policy")
    assert "half_life: 7d" in shown.out
    Path("policy.yaml").write_text(shown.out)
    assert "nothing changes" in live("policy", "diff", "policy.yaml").out
    assert f"nothing to change: version {version}" in live("policy", "apply", "policy.yaml").out
    assert live.told("policy")["version"] == version


def test_a_document_is_compared_tried_applied_and_taken_back(live: Live, version: int) -> None:
    Path("policy.yaml").write_text("half_life: 3d\nqueues: {research: {weight: 3}}\n")
    for command in ("diff", "dry-run"):
        told = live.told("policy", command, "policy.yaml")
        assert {"path": "half_life", "before": "7d", "after": "3d"} in told["changes"]
        assert live.told("policy")["version"] == version, "nothing changed"
    assert "every waiting job keeps its place" in live("policy", "dry-run", "policy.yaml").out
    said = live("policy", "apply", "policy.yaml", "--note", "for the deadline")
    assert said.code == 0, said.err
    assert f"version {version + 1} is in force" in said.out
    assert "half_life" in said.out
    assert "research" in live("queue").out
    live("queue", "set", "research", "--weight", "5")
    rows = live.told("policy", "history")
    assert [row["version"] for row in rows[:2]] == [version + 2, version + 1]
    assert rows[0]["changes"] == [{"path": "queues.research.weight", "before": 3, "after": 5}]
    assert "for the deadline" in live("policy", "history").out
    live("policy", "apply", "--version", str(version + 1))
    assert live.told("queue")[-1]["weight"] == 3
    assert "weight: 5" in live("policy", "--version", str(version + 2)).out


def test_a_guarantee_beyond_the_cluster_is_told_and_holds(live: Live, version: int) -> None:
    Path("policy.yaml").write_text("queues: {a: {nominal: {gpus: 64}}}\n")
    says = "warning: queue a is guaranteed 64 GPUs, and all nodes have 8; it holds all the same\n"
    for command in ("diff", "dry-run", "apply", "apply"):
        said = live("policy", command, "policy.yaml")
        assert (said.code, said.err) == (0, says), command
    assert live("policy").err == says
    assert live.told("policy")["warnings"][0]["there"] == 8
    Path("policy.yaml").write_text("queues: {a: {nominal: {gpus: 8}}}\n")
    assert live("policy", "apply", "policy.yaml").err == ""


def test_what_is_wrong_is_told_with_its_place(live: Live, version: int) -> None:
    Path("policy.yaml").write_text("half_life: 3x\nqueues:\n  a: {parent: b}\n")
    said = live("policy", "apply", "policy.yaml")
    assert said.code != 0
    assert "policy.yaml:1:12: half_life: '3x'" in said.err
    assert "policy.yaml:3:15: queues.a.parent: there is no queue b" in said.err
    assert "ganger policy diff FILE" in said.err
    assert live.told("policy")["version"] == version


def test_jobs_that_it_would_strand_are_named(live: Live, version: int) -> None:
    live("queue", "set", "old")
    job = live.submit("--queue", "old", "--", "sleep", "600")
    live.until(job, "running")
    Path("policy.yaml").write_text("half_life: 3d\n")
    assert f"{job} (running): queue old is gone" in live("policy", "diff", "policy.yaml").err
    said = live("policy", "apply", "policy.yaml")
    assert said.code != 0
    assert f"{job} (running, queue old): queue old is gone" in said.err
    assert "--force" in said.err
    assert live("policy", "apply", "policy.yaml", "--force").code == 0
    assert live.place.client.job(job)["row"]["queue"] == "root"
    live("stop", job)
    live.until(job, "stopped")


WRONG = {
    "no file and no version": (("diff",), "name a FILE"),
    "a file and a version": (("diff", "policy.yaml", "--version", "0"), "name a FILE"),
    "a file that is not there": (("apply", "nothing.yaml"), "cannot read nothing.yaml: No such file"),
    "a directory": (("apply", "."), "cannot read .: Is a directory"),
    "no text": (("apply", "bytes.yaml"), "bytes.yaml is not UTF-8"),
    "a version that is not there": (("apply", "--version", "9999"), "no version 9999"),
    "no version in force": (("apply", "--version", "0", "--if-version", "9999"), "not 9999"),
    "an empty file": (("apply", "empty.yaml"), "the file is empty"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_is_refused(live: Live, version: int, name: str) -> None:
    words, says = WRONG[name]
    Path("bytes.yaml").write_bytes(b"\xff\xfe")
    Path("empty.yaml").write_text("")
    said = live("policy", *words)
    assert said.code != 0
    assert says in said.err, said.err
    assert live.told("policy")["version"] == version
