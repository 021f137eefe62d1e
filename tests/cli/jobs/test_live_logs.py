"""Log filters by rank, role, node, attempt, text and time, on real processes."""

import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli.live import Live, live, place
from tests.rest.serving import ServerHome

__all__ = ["live", "place"]

SCRIPT = """
echo "attempt $GANGER_ATTEMPT rank $GANGER_RANK role $GANGER_ROLE node $GANGER_NODE_RANK"
echo "loss 0.$GANGER_RANK"
echo "note $GANGER_RANK" >&2
echo same
[ "$GANGER_ATTEMPT" = 2 ] || exit 7
sleep 0.2
echo "late $GANGER_RANK"
"""
SPEC = """\
name: parts
nodes: 2
nproc_per_node: 2
resources: {cpu: 1}
run: sh say.sh
retry: {max: 1, backoff: 10ms..10ms}
roles: {ps: {count: 1, run: sh say.sh, resources: {cpu: 1}}}
"""
LINES = 5


@pytest.fixture(scope="module")
def parts(place: ServerHome, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Run a job of five ranks on two nodes, which fails once, and return its id."""
    directory = tmp_path_factory.mktemp("parts")
    (directory / "say.sh").write_text(SCRIPT)
    sent = {"directory": str(directory), "spec_text": SPEC, "filename": "job.yaml"}
    name: str = place.client.submit(sent | {"environment": {"PATH": "/usr/bin:/bin"}})["row"]["id"]
    ended = place.until(name, "succeeded", "failed")["row"]
    assert (ended["state"], ended["generation"]) == ("succeeded", 2)
    return name


def logs(live: Live, *args: str) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = live.json("logs", "parts", *args)
    return lines


def ranks(lines: list[dict[str, Any]]) -> set[int]:
    return {line["rank"] for line in lines}


def iso_time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def test_default_is_rank_0_and_stderr_of_all(live: Live, parts: str) -> None:
    shown = logs(live)
    assert {(line["rank"], line["text"]) for line in shown if line["rank"]} == {(r, f"note {r}") for r in (1, 2, 3, 4)}
    assert len(shown) == LINES + 4
    assert {line["generation"] for line in shown} == {2}


def test_ranks(live: Live, parts: str) -> None:
    everything = logs(live, "--all")
    assert len(everything) == 5 * LINES
    assert logs(live, "--rank", "all") == everything
    for text, expected in (("0,last", {0, 4}), ("1-2", {1, 2}), ("3", {3})):
        assert logs(live, "--rank", text) == [line for line in everything if line["rank"] in expected]
    out = live("logs", parts, "--rank", "0,last").out.splitlines()
    assert {line.split(" | ")[0] for line in out} == {"r0", "r4"}
    assert "r0 | same  (x5)" in live("logs", parts, "--all").out.splitlines()


def test_roles_and_nodes(live: Live, parts: str) -> None:
    everything = logs(live, "--all")
    first = [line for line in everything if line["text"].startswith("attempt")]
    for role in ("worker", "ps"):
        expected = {line["rank"] for line in first if f"role {role} " in line["text"]}
        assert ranks(logs(live, "--role", role)) == expected
    for index, node in enumerate(live.json("get", parts)["row"]["nodes"]):
        on_node = {line["rank"] for line in first if line["text"].endswith(f"node {index}")}
        assert logs(live, "--node", node) == [line for line in everything if line["rank"] in on_node]
        assert ranks(logs(live, "--node", node, "--role", "worker")) == on_node - {4}


def test_attempts(live: Live, parts: str) -> None:
    first = logs(live, "--all", "--attempt", "1")
    assert {line["generation"] for line in first} == {1}
    assert not any(line["text"].startswith("late") for line in first)
    assert logs(live, "--all", "--attempt", "2") == logs(live, "--all")


def test_text_and_time(live: Live, parts: str) -> None:
    everything = logs(live, "--all")
    for pattern in ("lo[sx]s", "^late [0-2]$", "nothing of the kind"):
        matches = logs(live, "--all", "--grep", pattern)
        assert matches == [line for line in everything if re.search(pattern, line["text"])]
    middle = min(line["t"] for line in everything if line["text"].startswith("late"))
    after, before = (
        logs(live, "--all", "--since", iso_time(middle)),
        logs(live, "--all", "--until", iso_time(middle - 1)),
    )
    assert after == [line for line in everything if line["t"] >= middle]
    assert before == [line for line in everything if line["t"] < middle]
    assert len(after) + len(before) == len(everything)
    assert logs(live, "--all", "--since", "now+1hour") == []
    assert (
        logs(live, "--all", "--grep", "late", "--tail", "2")
        == [line for line in everything if "late" in line["text"]][-2:]
    )


def test_following_applies_the_same_filters(live: Live, parts: str) -> None:
    result = live("logs", parts, "-f", "--all", "--grep", "loss", "--role", "worker")
    assert result.code == 0
    assert sorted(result.out.splitlines()) == [f"r{rank} | loss 0.{rank}" for rank in range(4)]


@pytest.mark.long
def test_many_equal_lines_at_once(live: Live, tmp_path: Path) -> None:
    """Two ranks write megabytes of one line: each line is counted once, while following and after the end."""
    written = 40_000
    path = tmp_path / "equal.py"
    path.write_text(f"for _ in range({written}): print('loss 2.5 of a rank that has gone astray')\n")
    job = live.submit("--name", "equal", "--nproc-per-node", "2", "--cpu", "1", "--", sys.executable, str(path))
    commands = [live.shell.start("logs", job, "--all", "-f"), None]
    live.until(job, "succeeded")
    commands[1] = live.shell.start("logs", job, "--all")
    for command in commands:
        out, err = command.communicate(timeout=120)
        assert command.returncode == 0, err
        counts = [int(count or 1) for count in re.findall(rb"astray(?:  \(x(\d)\))?\n", out)]
        assert sum(counts) == 2 * written


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--rank", "9"], 3, "ranks 0 to 4, and no rank 9"),
        (["--rank", "one"], 2, "is not a list of ranks: write 0, 0,3-5, last or all"),
        (["--role", "chief"], 3, "has the roles worker and ps, and no role chief"),
        (["--node", "n9"], 3, "there is no node n9"),
        (["--attempt", "3"], 3, "attempts 1 to 2, and no attempt 3"),
        (["--attempt", "0"], 2, "'--attempt'"),
        (["--grep", "("], 2, "is not a regular expression"),
        (["--since", "soon"], 2, "is not a time"),
        (["--tial", "3"], 2, "'--tail'"),
    ],
)
def test_unknown_ranks_roles_nodes_and_attempts(
    live: Live, parts: str, args: list[str], code: int, message: str
) -> None:
    result = live("logs", parts, *args)
    assert (result.code, result.out) == (code, "")
    assert message in result.err
    assert "next: " in result.err


def test_an_unknown_job_names_the_nearest(live: Live, parts: str) -> None:
    result = live("logs", "prats")
    assert (result.code, result.err) == (3, "error: there is no job prats\n  next: did you mean parts?\n")


def test_stacks_are_grouped_by_ranks(live: Live, parts: str) -> None:
    assert live("logs", "parts", "--stacks").err.startswith("error: no stacks of parts-")
    for rank, node in ((0, "n1"), (1, "n1"), (2, "n2"), (3, "n2")):
        line, state = (31, "S") if rank == 2 else (40, "T" if rank == 3 else "R")
        thread = {"name": "MainThread", "frames": [["reduce", "/lib/net.py", line], ["<module>", "/train.py", 7]]}
        process = {"pid": 1, "state": state, "source": "py-spy", "kernel_function": "futex_wait", "threads": [thread]}
        written = {"rank": rank, "at_ms": 1_700_000_000_000, "processes": [process]}
        path = live.place.home.path / "jobs" / parts / "nodes" / node / "1" / f"rank-{rank}.stacks"
        path.write_text(json.dumps(written))
    result = live("logs", "parts", "--stacks").out.splitlines()
    assert result[0].startswith(f"{parts}, attempt 1: stacks of its ranks at ")
    assert result[1:] == [
        "",
        "rank 2 on n2: asleep in futex_wait",
        "    reduce (/lib/net.py:31)",
        "    <module> (/train.py:7)",
        "",
        "rank 3 on n2: stopped in futex_wait",
        "    reduce (/lib/net.py:40)",
        "    <module> (/train.py:7)",
        "",
        "ranks 0-1 on n1: running",
        "    reduce (/lib/net.py:40)",
        "    <module> (/train.py:7)",
    ]
    assert live.json("logs", "parts", "--stacks", "--attempt", "1") == live.place.client.stacks(parts)
    assert "attempt 2 of" in live("logs", "parts", "--stacks", "--attempt", "2").err
    assert "--stacks can only be combined with --attempt" in live("logs", "parts", "--stacks", "--tail", "3").err
