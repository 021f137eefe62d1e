"""`ganger --context` on one job, an element, a listing: on the fake API server, with a controller or without."""

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ganger.backends.kubernetes import object_names
from tests.kubernetes.served import Served, served
from tools.testcluster.waiting import until


@pytest.fixture(scope="module")
def its(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("cluster")) as found:
        found.let_in("bob")
        found.let_in("eve", asks=False)
        found.let_in("seer", sees_all=True)
        yield found


def record(ran: Any) -> Any:
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def array(its: Served) -> str:
    """Submit an array of which two elements run and others wait."""
    found = its.ganger("submit", "--array", "0-9%2", "--gpu", "8", "--name", "sweep", "--", "x")
    name = found.stdout.strip()
    until(lambda: len(its.names("pods")) == 2, f"pods of {name}: {found.stderr}")
    return name


def test_attempts_are_told_to_whoever_it_is_of(its: Served, array: str) -> None:
    element = f"{array}[0]"
    found = record(its.ganger("get", element, "-o", "json"))
    assert (found["row"]["id"], found["row"]["array"]) == (element, array)
    assert [each["generation"] for each in found["attempts"]] == [1]
    assert found["ledger"]["total_ms"] >= 0
    said = its.ganger("get", element).stdout
    assert "ATTEMPT" in said
    assert f"next: ganger --context fakeapi logs '{element}'" in said
    assert record(its.ganger("get", element, "-o", "json", who="seer"))["attempts"]
    ran = its.ganger("get", element, who="bob")
    assert (ran.returncode, "bob may not" in ran.stderr) == (4, True), ran

    # A whole job has its object, which every user of the namespace may read.
    for who, why in (("bob", "only its owner and users"), ("eve", "you may not query the controller")):
        found = record(its.ganger("get", array, "-o", "json", who=who))
        assert (found["row"]["user"], "attempts" in found, why in found["unavailable"]["detail"]) == (
            "ada",
            False,
            True,
        )
        ran = its.ganger("get", array, who=who)
        assert ran.returncode == 0, ran
        assert "attempts are not available" in ran.stdout
    assert "unavailable" not in record(its.ganger("get", array, "-o", "json"))


def test_without_a_controller_the_object_is_what_there_is(its: Served, array: str) -> None:
    its.controller_is_away = True
    try:
        ran = its.ganger("get", array)
        assert ran.returncode == 0, ran
        assert "attempts are not shown: the controller does not respond" in ran.stdout
        assert f"default/{array} of ada: running" in its.ganger("explain", array).stdout
        assert its.ganger("ls", array).returncode == 5
    finally:
        its.controller_is_away = False


def test_elements(its: Served, array: str) -> None:
    rows = record(its.ganger("ls", array, "-o", "json"))
    assert [row["id"] for row in rows] == [f"{array}[{index}]" for index in range(10)]
    assert [row["state"] for row in rows] == ["starting"] * 2 + ["pending"] * 8
    assert len(record(its.ganger("ls", array, "--state", "pending", "-o", "json"))) == 8
    for words, code, said in (
        (["ls", array, "--user", "ada"], 2, "--user goes with a list of jobs"),
        (["logs", array], 4, f"'{array}[9]'"),
        (["logs", f"{array}[10]"], 3, "has no element 10"),
        (["stop", f"{array}[0]"], 4, "cannot be stopped by itself"),
        (["suspend", f"{array}[0]"], 4, "cannot be suspended by itself"),
        (["wait", f"{array}[0]"], 4, "cannot be waited for by itself"),
        (["priority", f"{array}[0]", "high"], 4, "by itself"),
        (["logs", array, "--all", "--rank", "1"], 2, "are mutually exclusive"),
        (["logs", array, "--stacks"], 2, "stacks are not brought from pods"),
    ):
        ran = its.ganger(*words)
        assert (ran.returncode, said in ran.stderr) == (code, True), ran


def test_logs_of_an_element(its: Served, array: str) -> None:
    for pod in its.names("pods"):
        its.logs[pod] = "".join(f"2026-01-01T00:00:0{at}.5Z [{at}] line {at} of {pod}\n" for at in range(3))
    found = record(its.ganger("logs", f"{array}[1]", "--all", "-o", "json"))
    assert [line["text"] for line in found] == [f"line {at} of {array}-e1-1-0" for at in range(3)]
    for words, ranks in (
        (["--rank", "1-2"], [1, 2]),
        (["--all", "--grep", "line [02]"], [0, 2]),
        (["--all", "--since", "2026-01-01T00:00:01Z", "--tail", "1"], [2]),
        (["--all", "--until", "2026-01-01T00:00:01Z"], [0]),
        (["--node", "nowhere"], []),
        (["--role", "worker"], [0, 1, 2]),
    ):
        found = record(its.ganger("logs", f"{array}[1]", *words, "-o", "json"))
        assert [line["rank"] for line in found] == ranks, words
    said = its.ganger("logs", f"{array}[0]", "--timestamps").stdout
    assert said.endswith(f" line 0 of {array}-e0-1-0\n")
    assert said.startswith("20")


def test_a_command_beside_a_rank_of_an_element(its: Served, array: str, tmp_path: Path) -> None:
    """The arguments are kubectl's; a program that prints them stands for it."""
    printer = tmp_path / "kubectl"
    printer.write_text('#!/bin/sh\necho "$@"\n')
    printer.chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    said = its.ganger("exec", f"{array}[1]", "--", "nvidia-smi", PATH=path)
    assert said.returncode == 0, said
    assert f" {array}-e1-1-0 " in said.stdout
    ran = its.ganger("exec", f"{array}[7]", "--", "true", PATH=path)
    assert (ran.returncode, "is pending: a command needs a running rank" in ran.stderr) == (4, True), ran
    ran = its.ganger("exec", array, "--", "true", PATH=path)
    assert (ran.returncode, "is an array" in ran.stderr) == (4, True), ran


def test_an_array_is_waited_for(its: Served, array: str) -> None:
    """Its nodes are taken, and the wait ends after its timeout."""
    assert array
    words = ("run", "--array", "0-3", "--gpu", "8", "--queue-time", "1s", "--nodes", "2", "--name", "waits", "--", "x")
    ran = its.ganger(*words)
    assert ran.returncode == 1, ran
    assert "elements: ganger --context fakeapi ls waits-" in ran.stderr
    assert ran.stderr.splitlines()[-1].startswith("✗ waits-")


def test_why_a_job_waits(its: Served, array: str) -> None:
    name = its.ganger("submit", "--gpu", "8", "--nodes", "2", "--name", "wide", "--", "x").stdout.strip()
    its.wait(name, "Pending")
    said = its.ganger("explain", name).stdout
    assert said.startswith(f"{name}  pending")
    assert "position 1 of" in said or "position 2 of" in said
    told = record(its.ganger("explain", name, "-o", "json"))
    assert (told["state"], told["explanation"]["job"]) == ("pending", name)
    told = record(its.ganger("explain", f"{name}.default", "-o", "json", who="eve"))
    assert (told["state"], told["explanation"]) == ("pending", None)
    assert its.ganger("stop", name).returncode == 0
    its.wait(name, "Stopped")


def test_a_listing_is_of_what_is_asked_for(its: Served, array: str) -> None:
    other = its.ganger("submit", "--queue", "default", "--cpu", "999", "--name", "other", "--", "x", who="bob")
    name = other.stdout.strip()
    assert name, other.stderr
    its.wait(name, "Refused")
    for words, there in (
        (["--user", "bob"], [name]),
        (["--user", "nobody"], []),
        (["--state", "running"], [array]),
        (["--queue", "default", "--user", "bob", "--all"], [name]),
        (["--queue", "other"], []),
        (["--label", "team=nlp"], []),
        (["--until", "2000-01-01"], []),
    ):
        assert [row["id"] for row in record(its.ganger("ls", *words, "-o", "json"))] == there, words
    assert "no job fits" in its.ganger("ls", "--user", "nobody").stdout


def test_a_report_is_of_ones_own_jobs_or_of_all(its: Served, array: str) -> None:
    found = record(its.ganger("report", "--user", "ada", "-o", "json"))
    assert found["jobs"]["starting"] == 2
    assert record(its.ganger("report", "-o", "json", who="seer"))["jobs"]["starting"] == 2
    for who, words in (("ada", []), ("bob", ["--user", "ada"])):
        ran = its.ganger("report", *words, who=who)
        assert (ran.returncode, f"report --user {who}" in ran.stderr) == (4, True), ran


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["retry", "x"], "submit -f"),
        (["events"], "kubectl describe gangjob"),
        (["delete", "x"], "kubectl delete gangjob"),
        (["top", "jobs"], "kubectl top pod"),
        (["top", "nodes"], "ganger --context NAME node"),
        (["init"], "leave --context out"),
        (["sim", "run"], "leave --context out"),
    ],
)
def test_what_goes_another_way_says_which(its: Served, words: list[str], says: str) -> None:
    ran = its.ganger(*words)
    assert (ran.returncode, says in ran.stderr) == (2, True), ran


async def report_a_step(its: Served, gang: str, node: str) -> None:
    """Report what the launcher of rank 0 reports once its ranks run and report steps."""
    secrets = [each for each in its.api.objects("secrets") if each["metadata"]["labels"].get(object_names.JOB) in gang]
    token = base64.b64decode(secrets[0]["data"]["token"]).decode()
    port = await its.its.backend.listener.open("127.0.0.1", 0, None)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    about = {"v": 2, "gang": gang, "node": node, "generation": 1}
    hello = {"type": "hello", "token": token, "pid": 1, "start_ticks": 1, "generations": [1], "address": "127.0.0.1"}
    progressed = {"type": "progressed", "step": 7, "metrics": {"loss": 2.5}, "milestone": True}
    for message in (hello, {"type": "started", "n": 1, "pids": {"0": [2, 2]}}, {**progressed, "n": 2}):
        writer.write(json.dumps(about | message).encode() + b"\n")
    while json.loads(await reader.readline()).get("n") != 2:
        pass  # until the controller has recorded both
    writer.close()
    await writer.wait_closed()


def test_a_job_that_reports_steps(its: Served, array: str) -> None:
    its.ganger("stop", array)
    name = its.ganger("submit", "--gpu", "8", "--name", "steps", "--", "x").stdout.strip()
    until(lambda: its.status(name).get("nodes") and name in "".join(its.names("pods")), f"{name} to be placed")
    its.awaits(report_a_step(its, f"{name}.default", its.status(name)["nodes"][0]))
    its.wait(name, "Running")
    ran = its.ganger("get", name)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "progress   step 7  loss 2.5" in ran.stdout
    progress = record(its.ganger("get", name, "-o", "json"))["progress"]
    assert {**progress, "t": 0} == {"step": 7, "metrics": {"loss": 2.5}, "t": 0, "phase": None}
    assert type(progress["t"]) is int
