"""Queues, nodes, explanations, events, logs, and the server."""

import json
import os
import re
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from ganger.cli.exit_codes import USAGE
from ganger.model.queue import Amount, UserLimits
from ganger.model.views.queue_views import IdleNow
from ganger.settings import Home
from tests.cli.conftest import Shell
from tests.cli.world import REASON, T0, WIDE, World, ended, job, line, node, queue

TREE = {"root": None, "ai": "root", "default": "root", "nlp": "ai", "cv": "ai"}
"""Queue -> parent, in the order of the server: parents first."""


def put(world: World) -> Any:
    return [body for method, _, body in world.requests if method == "PUT"][-1]


def test_queues(shell: Shell, world: World) -> None:
    world.queues["nlp"] = queue("nlp", nominal=asdict(Amount(gpus=8)), user_limits=asdict(UserLimits(gpus=4)))
    *_, last = shell("queue").out.splitlines()
    assert last.split()[:3] == ["nlp", "1", "3/8"]
    assert last.endswith("4 GPUs")
    assert [row["name"] for row in json.loads(shell("queue", "-o", "json").out)] == ["default", "nlp"]


def test_idle_jobs_are_named_below_the_queues(shell: Shell, world: World) -> None:
    now_ms = time.time_ns() // 1_000_000
    idle = IdleNow(job="nb-1", since_ms=now_ms - 1_500_000, until_ms=now_ms + 300_500, action="stop")
    world.queues["nlp"] = queue("nlp", idle=(idle,))
    *_, last = shell("queue").out.splitlines()
    assert re.fullmatch(
        r"nb-1 in queue nlp: no activity since [^(]* \(25m ago\): it will be stopped at [^(]* \(in \d+m[^)]*\)", last
    )
    assert json.loads(shell("queue", "-o", "json").out)[1]["idle"] == [asdict(idle)]
    world.jobs["bert-7f3"] = replace(job(), idle=idle)
    assert re.search(r"\n  idle +no activity since ", shell("get", "bert-7f3").out)


def test_queue_set_sends_values_in_the_server_s_units(shell: Shell, world: World) -> None:
    flags = (
        "--parent root --weight 3 --gpus 8 --gpus H100:4 --gpus a100:2 --cpu 0.5 --memory 1Gi --extended rdma/hca:8 "
        "--borrow-gpus 2 --borrow-gpus h100:0 --borrow-cpu 2 --borrow-memory 0 --lend-gpus 3 --lend-cpu 1 "
        "--lend-memory 1Ki --lend-extended x.io/fpga:1 --max-gpus-per-user 4 --max-jobs-per-user 2 "
        "--max-pending-per-user 9 --max-time 8h --max-queue-time 1d --max-node-hours 128 "
        "--max-node-hours-used 0.5/30d --max-priority high"
    )
    assert shell("queue", "set", "nlp", *flags.split()).code == 0
    assert put(world) == {
        "parent": "root",
        "weight": 3,
        "nominal": {
            "gpus": 8,
            "gpu_types": {"h100": 4, "a100": 2},
            "cpu_milli": 500,
            "memory_bytes": 1 << 30,
            "extended": {"rdma/hca": 8},
        },
        "borrowing": {"gpus": 2, "gpu_types": {"h100": 0}, "cpu_milli": 2_000, "memory_bytes": 0},
        "lending": {"gpus": 3, "cpu_milli": 1_000, "memory_bytes": 1 << 10, "extended": {"x.io/fpga": 1}},
        "user_limits": {
            "gpus": 4,
            "jobs": 2,
            "pending": 9,
            "time_ms": 28_800_000,
            "queue_time_ms": 86_400_000,
            "node_ms": 460_800_000,
            "node_time_used": {"limit_ms": 1_800_000, "per_ms": 2_592_000_000},
            "priority": 100,
        },
    }


def test_the_highest_priority(shell: Shell, world: World) -> None:
    world.queues["nlp"] = queue("nlp", user_limits=asdict(UserLimits(priority=-5)))
    assert shell("queue").out.splitlines()[-1].endswith("priority up to -5")
    for text, number in (("-100", -100), ("1000", 1000), ("normal", 0), ("none", None)):
        assert shell("queue", "set", "nlp", f"--max-priority={text}").code == 0
        assert put(world)["user_limits"]["priority"] == number
    for text in ("1001", "-1001", "urgent", "", "1.5", "99999999999999999999"):
        result = shell("queue", "set", "nlp", f"--max-priority={text}")
        assert (result.code, "is not a priority: write low" in result.err) == (2, True), text


def test_node_hours_of_a_period(shell: Shell, world: World) -> None:
    used = {"limit_ms": 460_800_000, "per_ms": 43_200_000}
    world.queues["nlp"] = queue("nlp", user_limits=asdict(UserLimits()) | {"node_time_used": used})
    assert shell("queue").out.splitlines()[-1].endswith("128 node-hours in 12h")
    assert shell("queue", "set", "nlp", "--max-node-hours-used", "none").code == 0
    assert put(world)["user_limits"]["node_time_used"] is None
    for text in ("128", "128/", "/30d", "-1/30d", "128/30m", "128/9d1h", "128/1000d", "many/30d", "nan/30d"):
        result = shell("queue", "set", "nlp", "--max-node-hours-used", text)
        assert (result.code, "write 128/30d" in result.err) == (2, True), text


def test_queue_set_keeps_other_values_and_none_removes_one(shell: Shell, world: World) -> None:
    nominal = Amount(gpus=8, cpu_milli=1000, gpu_types={"h100": 4, "a100": 2}, extended={"rdma/hca": 8, "x/y": 1})
    world.queues["nlp"] = queue("nlp", parent="ai", weight=5, nominal=asdict(nominal))
    shell(
        "queue", "set", "nlp", "--cpu", "none", "--lend-gpus", "0", "--gpus", "h100:none", "--extended", "rdma/hca:none"
    )
    body = put(world)
    assert (body["parent"], body["weight"]) == ("ai", 5)
    assert body["nominal"] == {
        "gpus": 8,
        "cpu_milli": None,
        "memory_bytes": None,
        "gpu_types": {"a100": 2},
        "extended": {"x/y": 1},
    }
    assert body["lending"]["gpus"] == 0


def test_an_invalid_value_names_its_flag(shell: Shell, world: World) -> None:
    result = shell("queue", "set", "nlp", "--gpus", "many")
    assert result.code == 2
    assert "'--gpus': 'many' is not a whole number" in result.err
    assert "next: ganger queue set --help" in result.err
    for flag, text, expected in (
        ("--weight", "0", "from 1 to 1000"),
        ("--gpus", ":4", "has no GPU type"),
        ("--extended", "hca:4", "rdma/hca:8"),
    ):
        result = shell("queue", "set", "nlp", flag, text)
        assert (result.code, expected in result.err) == (2, True)


@pytest.mark.parametrize(
    ("args", "flag"),
    [
        *[(f"queue set nlp {flag} 0", flag) for flag in ("--max-time", "--max-queue-time", "--default-time")],
        *[(f"submit {flag} 0s true", flag) for flag in ("--time", "--time-min", "--queue-time", "--checkpoint-every")],
        ("fit --time 0", "--time"),
        ("token create ci --expires 0", "--expires"),
        ("node maintain n1 --from now --for 0.0001s", "--for"),
    ],
)
def test_zero_durations_are_rejected(shell: Shell, world: World, args: str, flag: str) -> None:
    result = shell(*args.split())
    assert result.code == USAGE
    assert re.search(rf"'{flag}': '[0.s1]+' is not a positive duration: write 90s", result.err)
    assert not world.requests


def test_queues_are_listed_as_a_tree(shell: Shell, world: World) -> None:
    world.queues = {name: queue(name, parent=parent) for name, parent in TREE.items()}
    rows = shell("queue").out.splitlines()[1:]
    assert [row.partition(" 1 ")[0].rstrip() for row in rows] == ["root", "  ai", "    nlp", "    cv", "  default"]
    rows = shell("top", "queues", "--once").out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["root", "ai", "nlp", "cv", "default"]
    assert shell("queue", "set", "nlp", "--weight", "2").out.startswith("set nlp, child of ai\n")


def test_delete_queue(shell: Shell, world: World) -> None:
    world.queues["nlp"] = queue("nlp")
    assert shell("queue", "delete", "nlp").out == "deleted nlp\n"
    assert "nlp" not in world.queues


def test_node_list_ends_with_the_usage(shell: Shell, world: World) -> None:
    result = shell("node")
    assert result.out.endswith("\n2 of 4 GPUs used (50%)\n")
    n2 = next(line for line in result.out.splitlines() if line.startswith("n2"))
    assert n2.split() == ["n2", "r1", "ready", "h100", "2/2", "0.5/8", "0/64Gi", "cv-11"]
    assert len(json.loads(shell("node", "-o", "json").out)) == 2


def test_nodes_have_a_column_per_topology_level(shell: Shell, world: World) -> None:
    for name in world.nodes:
        world.nodes[name] = node(name, domains={"spine": "s1", "nvlink_domain": ""})
    head, *rows = shell("node").out.splitlines()
    assert head.split("  ")[:1] == ["NODE"]
    assert "SPINE  NVLINK DOMAIN  STATE" in head
    assert rows[0].split()[1:4] == ["s1", "-", "ready"]


def test_usage_by_foreign_pods_is_shown(world: World, shell: Shell) -> None:
    world.nodes["n1"] = node("n1", gpus=8, gpus_free=5, gpus_foreign=3)
    world.nodes["n2"] = node("n2", gpus=8, gpus_free=6, gpus_foreign=1, gangs=("cv-11",))
    _, first, second, _, last = shell("node").out.splitlines()
    assert first.endswith("foreign pods (3 GPUs)")
    assert second.endswith("cv-11, foreign pods (1 GPU)")
    assert last == "5 of 16 GPUs used (31%), 4 of them by foreign pods"


def test_reason_of_an_unready_node_is_shown(world: World, shell: Shell) -> None:
    world.nodes["n1"] = node("n1", state="unready", unready="not ready since 10:02:11 UTC (Kubelet stopped)")
    result = shell("node").out
    assert "unready" in result
    assert "n1: not ready since 10:02:11 UTC (Kubelet stopped)" in result.splitlines()


def test_fail_return_and_preempt_nodes(shell: Shell, world: World) -> None:
    assert shell("node", "fail", "n2").out == "n2 is lost\n"
    assert shell("node", "return", "n2").out == "n2 is ready\n"
    assert shell("node", "preempt", "n2", "--in", "90s").out == "n2 is preempted in 1m 30s and empty\n"
    assert world.requests[-1][2] == {"notice_ms": 90_000}


def test_cordon(shell: Shell, world: World) -> None:
    assert shell("node", "cordon", "n2", "--reason", "fan").out == "n2 is cordoned; it still runs cv-11\n"
    assert world.requests[-1][2] == {"cordoned": True, "reason": "fan"}
    assert shell("node", "uncordon", "n2").out == "n2 is ready\n"


def test_drain(shell: Shell, world: World) -> None:
    assert shell("node", "drain", "n2", "--reason", "fan").out == "n2 is cordoned and still runs cv-11\n"
    assert world.requests[-1][2] == {"reason": "fan"}
    assert shell("node", "drain", "n2", "--wait").out == "n2 is cordoned and empty\n"
    assert json.loads(shell("node", "drain", "n1", "-o", "json").out)[0]["gangs"] == []


def test_explain(shell: Shell, world: World) -> None:
    world.add(job("bert-7f3", spec=WIDE, state="pending", nodes=(), started_ms=None, reason=REASON))
    out = shell("explain", "bert").out
    first, second, third, *rest = out.splitlines()
    assert first == "bert-7f3  pending for 3m 00s"
    assert second == f"  {REASON.sentence}"
    assert third == "    r1: 1 of 2 nodes have 2 GPUs; cv-11 (ends in at most 12m 00s)"
    assert "  position 2 of 5 in its queue" in rest
    assert "  try: --nodes 1   1 of the 2 nodes would start now" in rest
    assert rest.index("  next: ask for fewer nodes") < rest.index("  position 2 of 5 in its queue")
    assert rest[-1] == "  order dynamic: 103 points   ganger explain bert-7f3 --factors"
    assert "    priority        +100  its priority is 100" in shell("explain", "bert", "--factors").out.splitlines()
    assert json.loads(shell("explain", "bert", "-o", "json").out)["position"] == 2


def test_events_of_all_jobs_and_of_one(shell: Shell, world: World) -> None:
    world.add(job())
    for i in range(5):
        world.happen("progressed", "bert-7f3" if i % 2 else "other-1", f"step {i}")
    lines = shell("events").out.splitlines()
    assert [line.split("  ")[-1].strip() for line in lines[1:]] == [f"step {i}" for i in range(5)]
    assert [row["seq"] for row in json.loads(shell("events", "bert", "-o", "json").out)] == [2, 4]
    assert [row["seq"] for row in json.loads(shell("events", "--after", "3", "-o", "json").out)] == [4, 5]


def test_following_events_prints_one_object_per_line(shell: Shell, world: World) -> None:
    world.add(job())
    world.happen("started", "other-1", "other-1 runs")
    world.happen("started", "bert-7f3", "bert-7f3 runs")
    process = shell.start("events", "bert", "-f", "-o", "json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["seq"] == 2
    world.happen("finished", "bert-7f3", "bert-7f3 finished")
    assert json.loads(process.stdout.readline())["seq"] == 3
    process.terminate()
    process.communicate()


def test_logs_of_an_ended_job(shell: Shell, world: World) -> None:
    world.add(ended(job(spec=WIDE)))
    world.say("bert-7f3", *(line("ready", rank=r) for r in range(4)), line("oops", rank=2, stream="e", t=T0 + 1))
    result = shell("logs", "bert")
    assert result.out == "r0 | ready  (x4)\nr2 | oops\n"
    assert result.err == ""
    rows = json.loads(shell("logs", "bert", "-o", "json").out)
    assert [row["rank"] for row in rows] == [0, 1, 2, 3, 2]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("--rank 0,3-5,last --attempt 2 --tail 7", {"rank": "0,3-5,last", "attempt": "2", "tail": "7"}),
        ("--all --grep lo[sg]s --role ps --node n1", {"rank": "all", "grep": "lo[sg]s", "role": "ps", "node": "n1"}),
        (
            "--since 2026-11-21T12:00:00Z --until 2026-11-21T12:00:01.5Z",
            {"since": "1795262400000", "until": "1795262401500"},
        ),
    ],
)
def test_log_options_become_query_parameters(shell: Shell, world: World, args: str, expected: dict[str, str]) -> None:
    world.add(ended(job()))
    assert shell("logs", "bert", *args.split()).code == 0
    path, _, query = world.requests[-1][1].partition("?")
    assert (path, dict(parse_qsl(query))) == ("/jobs/bert-7f3/logs", expected), "of the job that the name stands for"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--rank 0,first", "is not a list of ranks: write 0, 0,3-5, last or all"),
        ("--rank 3 --all", "--all and --rank 3 are mutually exclusive"),
        ("--grep (", "is not a regular expression"),
        ("--since yesterdayish", "is not a time: write 2026-11-21"),
    ],
)
def test_invalid_log_options(shell: Shell, args: str, message: str) -> None:
    result = shell("logs", "bert", *args.split())
    assert result.code == 2
    assert message in result.err


def test_timestamps(shell: Shell, world: World) -> None:
    world.add(ended(job()))
    world.say("bert-7f3", line("hello"))
    timestamp, text = shell("logs", "bert", "--timestamps").out.split()
    assert (timestamp[:4], timestamp[10], text) == ("2026", "T", "hello")


def test_following_an_ended_job_prints_its_output_and_exits(shell: Shell, world: World) -> None:
    world.add(ended(job()))
    world.say("bert-7f3", line("hello"))
    result = shell("logs", "bert", "-f")
    assert (result.code, result.out, result.err) == (0, "hello\n", "")


def test_server_status(shell: Shell, world: World) -> None:
    out = shell("server", "status").out
    assert "health   ok\n" in out
    assert "jobs     2 running, 1 pending\n" in out
    assert json.loads(shell("server", "status", "-o", "json").out)["pid"] == 4242


@pytest.mark.parametrize("url", [None, "http://127.0.0.1:7878"])
def test_server_status_shows_where_it_listens(shell: Shell, world: World, url: str | None) -> None:
    home = Home(Path(os.environ["GANGER_HOME"]))
    record = json.loads(home.server_file.read_text()) | {"url": url, "fingerprint": None}
    home.server_file.write_text(json.dumps(record))
    out = shell("server", "status").out
    assert f"address  {url or 'none over TCP'}\n" in out
    assert json.loads(shell("server", "status", "-o", "json").out)["url"] == url


def test_status_does_not_start_a_server(shell: Shell) -> None:
    result = shell("server", "status")
    assert result.code == 5
    assert "next: ganger server start" in result.err
    assert shell("server", "stop").out.startswith("no server is running for ")
    assert shell("server", "logs").code == 3


def test_a_running_server_rejects_a_topology(shell: Shell, world: World) -> None:
    Path("two nodes.yaml").write_text("nodes: []\n")
    result = shell("server", "start", "--topology", "two nodes.yaml")
    assert result.code == 4
    assert "next: ganger server stop && ganger server start --topology 'two nodes.yaml'" in result.err
    assert not (Path(os.environ["GANGER_HOME"]) / "topology.yaml").exists()


@pytest.mark.parametrize("args", [["ls"], ["get", "x"], ["logs", "x"], ["run", "true"], ["node"], ["wait", "x"]])
def test_a_server_that_cannot_start_is_5(
    shell: Shell, args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GANGER_HOME", str(tmp_path / "file" / "home"))
    result = shell(*args)
    assert result.code == 5
    assert result.err.startswith("error: ")
    assert "next: " in result.err
