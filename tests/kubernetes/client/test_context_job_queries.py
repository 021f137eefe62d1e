"""`ganger --context` on one job, an element, a listing: on the fake API server, with a controller or without."""

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ganger.gang_jobs import object_names
from tests.kubernetes.client.served_controller import ServedController, served
from tools.testcluster.waiting import until

NOT_PERMITTED = "run: x\npod: {spec: {hostNetwork: true}}"


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedController]:
    with served(tmp_path_factory.mktemp("cluster")) as actual:
        actual.let_in("bob")
        actual.let_in("eve", asks=False)
        actual.let_in("seer", "list")
        yield actual


def record(result: Any) -> Any:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def array(system: ServedController) -> str:
    """Submit an array of which two elements run and others wait."""
    actual = system.ganger("submit", "--array", "0-9%2", "--gpu", "8", "--name", "sweep", "--", "x")
    name = actual.stdout.strip()
    until(lambda: len(system.names("pods")) == 2, f"pods of {name}: {actual.stderr}")
    return name


def test_attempts_are_shown_to_the_owner(system: ServedController, array: str) -> None:
    element = f"{array}[0]"
    actual = record(system.ganger("get", element, "-o", "json"))
    assert (actual["row"]["id"], actual["row"]["array"]) == (element, array)
    assert [item["generation"] for item in actual["attempts"]] == [1]
    assert actual["ledger"]["total_ms"] >= 0
    output = system.ganger("get", element).stdout
    assert "ATTEMPT" in output
    assert f"next: ganger --context fakeapi logs '{element}'" in output
    assert record(system.ganger("get", element, "-o", "json", caller="seer"))["attempts"]
    result = system.ganger("get", element, caller="bob")
    assert (result.returncode, "bob may not" in result.stderr) == (4, True), result

    # A whole job has its object, which every user of the namespace may read.
    for caller, reason in (("bob", "only its owner and users"), ("eve", "you may not query the controller")):
        actual = record(system.ganger("get", array, "-o", "json", caller=caller))
        assert (actual["row"]["user"], reason in actual["unavailable"]["detail"]) == ("ada", True)
        result = system.ganger("get", array, caller=caller)
        assert result.returncode == 0, result
        assert "attempts are not available" in result.stdout
    assert "unavailable" not in record(system.ganger("get", array, "-o", "json"))


def test_without_a_controller_the_object_is_what_there_is(system: ServedController, array: str) -> None:
    system.controller_is_away = True
    try:
        result = system.ganger("get", array)
        assert result.returncode == 0, result
        assert "attempts are not available: the controller does not respond" in result.stdout
        assert "no more is known: the controller does not respond" in system.ganger("explain", array).stdout
        assert system.ganger("ls", array).returncode == 5
    finally:
        system.controller_is_away = False


def test_elements(system: ServedController, array: str) -> None:
    rows = record(system.ganger("ls", array, "-o", "json"))
    assert [row["id"] for row in rows] == [f"{array}[{index}]" for index in range(10)]
    assert [row["state"] for row in rows] == ["starting"] * 2 + ["pending"] * 8
    assert len(record(system.ganger("ls", array, "--state", "pending", "-o", "json"))) == 8
    for arguments, code, output in (
        (["ls", array, "--user", "ada"], 2, "--user selects jobs"),
        (["logs", array, "--follow"], 4, f"'{array}[9]'"),
        (["logs", f"{array}[10]"], 3, "has no element 10"),
        (["stop", f"{array}[0]"], 4, "cannot be stopped by itself"),
        (["suspend", f"{array}[0]"], 4, "cannot be changed by itself"),
        (["wait", f"{array}[0]", "--timeout", "1s"], 124, "has not ended within 1s: ganger --context fakeapi get"),
        (["priority", f"{array}[0]", "high"], 4, "by itself"),
        (["logs", array, "--all", "--rank", "1"], 2, "are mutually exclusive"),
        (["logs", f"{array}[0]", "--stacks"], 3, "no stacks of"),
    ):
        result = system.ganger(*arguments)
        assert (result.returncode, output in result.stderr) == (code, True), result


def test_logs_of_an_element(system: ServedController, array: str) -> None:
    for pod in system.names("pods"):
        system.logs[pod] = "".join(
            f"2026-01-01T00:00:0{position}.5Z [{position}] line {position} of {pod}\n" for position in range(3)
        )
    actual = record(system.ganger("logs", f"{array}[1]", "--all", "-o", "json"))
    assert [line["text"] for line in actual] == [f"line {position} of {array}-e1-1-0" for position in range(3)]
    for arguments, ranks in (
        (["--rank", "1-2"], [1, 2]),
        (["--all", "--grep", "line [02]"], [0, 2]),
        (["--all", "--since", "2026-01-01T00:00:01Z", "--tail", "1"], [2]),
        (["--all", "--until", "2026-01-01T00:00:01Z"], [0]),
        (["--node", "nowhere"], []),
        (["--role", "worker"], [0, 1, 2]),
    ):
        actual = record(system.ganger("logs", f"{array}[1]", *arguments, "-o", "json"))
        assert [line["rank"] for line in actual] == ranks, arguments
    whole = system.ganger("logs", array, "--rank", "1", "--grep", "line").stdout
    assert whole == "".join(f"{index}  r1 | line 1 of {array}-e{index}-1-0\n" for index in (0, 1)), (
        "eight wait for nodes"
    )
    output = system.ganger("logs", f"{array}[0]", "--timestamps").stdout
    assert output.endswith(f" line 0 of {array}-e0-1-0\n")
    assert output.startswith("20")


def test_logs_that_went_with_their_pods_are_no_empty_answer(system: ServedController) -> None:
    ended = {"phase": "Succeeded", "generation": 2}
    spec = {"user": "ada", "run": "true", "suspend": True}
    named = {"metadata": {"name": "cleaned", "namespace": "default"}, "spec": spec, "status": ended}
    system.does(lambda: system.api.put({"apiVersion": "ganger.dev/v1alpha1", "kind": "GangJob", **named}))
    for arguments, attempt in (([], 2), (["-f"], 2), (["--attempt", "1"], 1)):
        result = system.ganger("logs", "cleaned", *arguments)
        assert (result.returncode, f"no pod is left of attempt {attempt} of cleaned" in result.stderr) == (4, True), (
            result
        )
    system.does(lambda: system.api.delete("gangjobs", "cleaned"))


def test_a_command_beside_a_rank_of_an_element(system: ServedController, array: str, tmp_path: Path) -> None:
    """The arguments are kubectl's; a program that prints them stands for it."""
    printer = tmp_path / "kubectl"
    printer.write_text('#!/bin/sh\necho "$@"\n')
    printer.chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    output = system.ganger_process("exec", f"{array}[1]", "--", "nvidia-smi", PATH=path)
    assert output.returncode == 0, output
    assert f" {array}-e1-1-0 " in output.stdout
    result = system.ganger("exec", f"{array}[7]", "--", "true", PATH=path)
    assert (result.returncode, "is pending: a command needs a running rank" in result.stderr) == (4, True), result
    result = system.ganger("exec", array, "--", "true", PATH=path)
    assert (result.returncode, "is an array" in result.stderr) == (4, True), result


def test_an_array_is_waited_for(system: ServedController, array: str) -> None:
    """Its nodes are taken, and the wait ends after its timeout."""
    assert array
    arguments = (
        "run",
        "--array",
        "0-3",
        "--gpu",
        "8",
        "--queue-time",
        "1s",
        "--nodes",
        "2",
        "--name",
        "waits",
        "--",
        "x",
    )
    result = system.ganger(*arguments)
    assert result.returncode == 1, result
    assert "elements: ganger --context fakeapi ls waits-" in result.stderr
    assert "✗ waits-" in result.stderr


def test_why_a_job_waits(system: ServedController, array: str) -> None:
    name = system.ganger("submit", "--gpu", "8", "--nodes", "2", "--name", "wide", "--", "x").stdout.strip()
    system.wait(name, "Pending")
    output = system.ganger("explain", name).stdout
    assert output.startswith(f"{name}  pending")
    assert "position 1 of" in output or "position 2 of" in output
    explanation = record(system.ganger("explain", name, "-o", "json"))
    assert (explanation["state"], explanation["job"], explanation["position"] is None) == ("pending", name, False)
    explanation = record(system.ganger("explain", f"{name}.default", "-o", "json", caller="eve"))
    assert (explanation["state"], explanation["position"]) == ("pending", None)
    assert system.ganger("stop", name).returncode == 0
    system.wait(name, "Stopped")


def test_where_the_time_of_a_start_went_is_in_explain(system: ServedController) -> None:
    name = system.ganger("submit", "--cpu", "1", "--name", "pulls", "--", "x").stdout.strip()
    system.wait(name, "Starting", "Running")
    assert "start-up" not in system.ganger("explain", name).stdout
    startup = {"attempt": 1, "node": "n1", "seconds": 45, "preparationSeconds": 2, "initSeconds": 0, "imageSeconds": 43}

    def report() -> None:
        job: Any = system.api.get("gangjobs", name)
        system.api.put(job | {"status": job["status"] | {"startup": startup}})

    system.does(report)
    text = "  start-up of attempt 1: 45s on n1 (volumes and network 2s, image 43s)\n"
    assert text in system.ganger("explain", name).stdout
    assert record(system.ganger("explain", name, "-o", "json"))["startup"] == startup
    assert record(system.ganger("explain", name, "-o", "json", caller="eve"))["startup"] == startup
    assert system.ganger("stop", name).returncode == 0
    system.wait(name, "Stopped")


def test_the_claim_that_a_job_lacks_is_in_explain(system: ServedController) -> None:
    spec = {"user": "ada", "run": "true", "volumes": [{"name": "data", "path": "/data"}]}
    named = {"metadata": {"name": "lacking", "namespace": "default"}, "spec": spec}
    system.does(lambda: system.api.put({"apiVersion": "ganger.dev/v1alpha1", "kind": "GangJob", **named}))
    system.wait("lacking", "Rejected")
    output = system.ganger("explain", "lacking").stdout
    assert "there is no PersistentVolumeClaim data in the namespace default" in " ".join(output.split())
    assert "there is no PersistentVolumeClaim data in the namespace default" in output
    assert (
        "checked again when queues, policy or claims change; to give it up: ganger --context fakeapi delete" in output
    )
    assert "no more is known" not in output
    assert "attempts are not available" not in system.ganger("get", "lacking").stdout
    (row,) = [row for row in record(system.ganger("ls", "-o", "json")) if row["id"] == "lacking"]
    assert (row["state"], row["ended_ms"]) == ("pending", None), "it is submitted as soon as the claim is there"
    assert row["sentence"].startswith("volumes: there is no PersistentVolumeClaim data")
    for command in (["stop"], ["suspend"], ["priority"]):
        result = system.ganger(*command, "lacking", *(["high"] if command == ["priority"] else []))
        assert (result.returncode, "has ended" in result.stderr) == (4, False), result
        assert "lacking was rejected; it is checked again" in result.stderr
        assert "to give it up: ganger --context fakeapi delete lacking" in result.stderr
    system.does(lambda: system.api.delete("gangjobs", "lacking"))


def test_options_of_kueue_and_queues_that_do_not_exist_name_what_to_type(system: ServedController) -> None:
    for option, meant in (("--nominal-quota", "--gpus 8"), ("--cohort", "--parent QUEUE")):
        result = system.ganger("queue", "set", "mine", option, "4")
        assert (result.returncode, f"has no option {option}: use {meant}" in result.stderr) == (2, True), result
    result = system.ganger("queue", "delete", "nothing")
    assert (result.returncode, "next: ganger --context fakeapi queue\n" in result.stderr) == (3, True), result


def test_a_listing_is_of_what_is_asked_for(system: ServedController, array: str, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(f"{NOT_PERMITTED}\nname: other\n")
    other = system.ganger("submit", "--queue", "default", "-f", str(tmp_path / "other.yaml"), caller="bob")
    name = other.stdout.strip()
    assert name, other.stderr
    system.wait(name, "Rejected")
    [row] = record(system.ganger("ls", "--user", "bob", "-o", "json"))
    assert (row["state"], row["sentence"].startswith("rejected: ")) == ("failed", True)
    for arguments, listed in (
        (["--user", "bob"], [name]),
        (["--state", "failed", "--user", "bob"], [name]),
        (["--user", "nobody"], []),
        (["--state", "running"], [array]),
        (["--queue", "default", "--user", "bob", "--all"], [name]),
        (["--queue", "other"], []),
        (["--label", "team=nlp"], []),
        (["--until", "2000-01-01"], []),
    ):
        assert [row["id"] for row in record(system.ganger("ls", *arguments, "-o", "json"))] == listed, arguments
    assert "no matching jobs" in system.ganger("ls", "--user", "nobody").stdout


def test_a_report_is_of_ones_own_jobs_or_of_all(system: ServedController, array: str) -> None:
    actual = record(system.ganger("report", "--user", "ada", "-o", "json"))
    assert actual["jobs"]["starting"] == 2
    assert record(system.ganger("report", "-o", "json", caller="seer"))["jobs"]["starting"] == 2
    for caller, arguments in (("ada", []), ("bob", ["--user", "ada"])):
        result = system.ganger("report", *arguments, caller=caller)
        assert (result.returncode, f"report --user {caller}" in result.stderr) == (4, True), result


def test_events_are_those_of_ones_own_jobs_or_of_all(system: ServedController, array: str) -> None:
    events = record(system.ganger("events", array, "-o", "json"))
    assert (events[0]["kind"], events[0]["job"]) == ("submitted", array)
    assert {event["kind"] for event in record(system.ganger("events", "-o", "json", caller="seer"))} >= {"submitted"}
    for caller, arguments in (("ada", []), ("bob", [array])):
        result = system.ganger("events", *arguments, caller=caller)
        assert (result.returncode, f"{caller} may not" in result.stderr) == (4, True), result


def test_whoami_names_the_user_and_the_queues_or_why_not(system: ServedController) -> None:
    assert "default" in {row["name"] for row in record(system.ganger("whoami", "-o", "json", caller="seer"))["queues"]}
    output = system.ganger("whoami").stdout
    assert output.startswith("user      ada\ncluster   context fakeapi, namespace default\n")
    assert "queues    not available: the answer is about jobs of all namespaces" in output


def test_a_job_that_is_rejected_has_ended(system: ServedController, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text(f"{NOT_PERMITTED}\nname: wrong\n")
    result = system.ganger("run", "-f", str(tmp_path / "wrong.yaml"), caller="bob")
    assert result.returncode == 1, result
    assert "failed after" in result.stderr
    assert ": rejected: " in result.stderr
    name = record(system.ganger("ls", "--user", "bob", "-o", "json"))[0]["id"]
    assert system.ganger("delete", name, caller="bob").stdout == f"deleted {name}\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["node", "fail", "n0"], "ganger --context fakeapi node drain n0"),
        (["node", "maintenance"], "ganger --context fakeapi node drain NODE"),
        (["policy", "apply", "--version", "1", "--force"], "kubectl get queues,schedulingpolicies"),
        (["server", "status"], "kubectl -n ganger-system get deployment ganger-controller"),
        (["token", "ls"], "kubectl create token NAME"),
        (["init"], "ganger init ..."),
        (["sim", "run", "--from-log"], "ganger sim ..."),
    ],
)
def test_what_goes_another_way_says_which(system: ServedController, arguments: list[str], says: str) -> None:
    result = system.ganger(*arguments)
    assert (result.returncode, says in result.stderr) == (2, True), result


async def send_messages(system: ServedController, port: int, gang: str, node: str, *messages: dict[str, Any]) -> None:
    """Send messages as the launcher of rank 0 does, which is started, until the controller has recorded the last."""
    secrets = [
        item for item in system.api.objects("secrets") if item["metadata"]["labels"].get(object_names.JOB) in gang
    ]
    token = base64.b64decode(secrets[0]["data"]["token-1-0"]).decode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    about = {"v": 2, "gang": gang, "node": node, "generation": 1}
    hello = {"type": "hello", "token": token, "pid": 1, "start_ticks": 1, "generations": [1], "address": "127.0.0.1"}
    for number, message in enumerate((hello, {"type": "started", "pids": {"0": [2, 2]}}, *messages)):
        numbered = {} if message["type"] in ("hello", "metrics_kept") else {"n": number}
        writer.write(json.dumps(about | message | numbered).encode() + b"\n")
    while json.loads(await reader.readline()).get("n") != len(messages) + 1:
        pass
    writer.close()
    await writer.wait_closed()


@pytest.fixture(scope="module")
def port(system: ServedController) -> int:
    """Return the port for launchers."""
    opened: int = system.awaits(system.controlled.backend.listener.open("127.0.0.1", 0, None))
    return opened


def test_a_job_that_reports_steps(system: ServedController, array: str, port: int) -> None:
    system.ganger("stop", array)
    name = system.ganger("submit", "--gpu", "8", "--name", "steps", "--", "x").stdout.strip()
    until(lambda: system.status(name).get("nodes") and name in "".join(system.names("pods")), f"{name} to be placed")
    gang, [node] = f"{name}.default", system.status(name)["nodes"]
    metrics = {"type": "metrics_kept", "values": {"loss": [0, 7, 2.5, 6, 2.25, 5, None]}, "left_out": 0}
    progressed = {"type": "progressed", "step": 7, "metrics": {"loss": 2.5}, "milestone": True}
    system.awaits(send_messages(system, port, gang, node, metrics, progressed))
    system.wait(name, "Running")
    result = system.ganger("get", name)
    assert (result.returncode, result.stderr) == (0, "")
    assert "progress   step 7  loss 2.5" in result.stdout
    progress = record(system.ganger("get", name, "-o", "json"))["progress"]
    assert {**progress, "t": 0} == {"step": 7, "metrics": {"loss": 2.5}, "t": 0, "phase": None}
    assert type(progress["t"]) is int
    assert "metrics    loss 2.5 at step 7, min 2.25 at step 6" in result.stdout, "also of an attempt that runs"

    over = ({"type": "finished"}, {"type": "cleared", "killed": [], "grace_ms": 0})
    system.awaits(send_messages(system, port, gang, node, *over))
    system.wait(name, "Succeeded")
    value = {"name": "loss", "lastStep": 7, "last": 2.5, "minStep": 6, "min": 2.25, "maxStep": 5}
    assert system.status(name)["metrics"] == {"values": [value], "leftOut": 0}
    assert "loss 2.5" in system.ganger("ls", "-o", "wide").stdout
    assert "metrics    loss 2.5 at step 7, min 2.25 at step 6" in system.ganger("get", name).stdout
    [metric] = record(system.ganger("metrics", name, "-o", "json"))["metrics"]
    assert (metric["min"], metric["points"]) == (2.25, None)
    result = system.ganger("metrics", name, "loss")
    assert (result.returncode, "curves are not kept in a cluster" in result.stderr) == (2, True), result


def test_a_pod_of_others_waits_until_kubelets_count_the_gang_no_more(system: ServedController, port: int) -> None:
    """A kubelet counts a launcher's pod until it is over, and nobody creates a bare pod again that it rejects."""
    over = ({"type": "finished"}, {"type": "cleared", "killed": [], "grace_ms": 0})
    node_of: dict[str, str] = {}
    for _ in range(2):
        name = system.ganger("submit", "--gpu", "8", "--name", "full", "--", "x").stdout.strip()
        until(lambda name=name: system.status(name).get("nodes") and name in "".join(system.names("pods")), "it runs")
        (node_of[name],) = system.status(name)["nodes"]
    for name, node in node_of.items():
        system.awaits(send_messages(system, port, f"{name}.default", node, *over))
        system.wait(name, "Succeeded")
    free, counted = node_of.values()

    def end_pods(node: str) -> None:
        for pod in [pod for pod in system.api.objects("pods") if pod["spec"].get("nodeName") == node]:
            system.api.put(pod | {"status": pod["status"] | {"phase": "Succeeded"}})

    system.does(lambda: end_pods(free))
    needs = {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}
    for name in ("bare-0", "bare-1"):
        body = {"metadata": {"name": name, "namespace": "default"}, "spec": {"schedulerName": "ganger", **needs}}
        system.does(lambda body=body: system.api.put({"apiVersion": "v1", "kind": "Pod", **body}))

    def nodes() -> list[str]:
        pods = (system.does(lambda name=name: system.api.get("pods", name)) or {} for name in ("bare-0", "bare-1"))
        return sorted(filter(None, (pod["spec"].get("nodeName", "") for pod in pods)))

    until(lambda: sum("bare-" in gang for gang in system.controlled.loop.copy().gangs) == 2, "both to be placed")
    until(nodes, "one to be bound")
    assert nodes() == [free]
    system.does(lambda: end_pods(counted))
    until(lambda: nodes() == sorted([free, counted]), "the other to be bound")
