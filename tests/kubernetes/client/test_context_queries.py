"""`ganger --context` against the fake API server and a controller behind it: commands and their output."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.client.served_controller import ServedController, served
from tools.fakeapi import Fault
from tools.testcluster.waiting import until


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedController]:
    with served(tmp_path_factory.mktemp("cluster")) as actual:
        yield actual


def record(result: Any) -> Any:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


SMALL = ("--gpu", "8", "--nodes", "1")


def test_a_dry_run_says_what_would_happen_and_makes_nothing(system: ServedController, tmp_path: Path) -> None:
    before = system.names()
    actual = record(system.ganger("run", "--dry-run", "-o", "json", *SMALL, "--", "python3", "train.py"))
    assert (actual["starts_now"], actual["nodes"]) == (True, ["n0"])
    assert actual["environment"]["GANGER_RANK"] == "0"
    (tmp_path / "job.yaml").write_text("name: wide\nrun: ./train\nnodes: 3\nresources: {gpu: 8}\n")
    result = system.ganger("submit", "--dry-run", "-f", str(tmp_path / "job.yaml"))
    assert result.returncode == 0, result
    assert "needs 3 nodes with 8 free nvidia.com/gpu: only 2 nodes in the cluster could hold it" in result.stdout
    fits = system.ganger("fit", "-f", str(tmp_path / "job.yaml"), "--gpu", "4")
    assert "wide does not fit now: needs 3 nodes with 4 free nvidia.com/gpu: only 2 nodes" in fits.stdout, fits
    (tmp_path / "job.yaml").write_text("name: narrow\nrun: ./train\nresources: {gpu: 8}\n")
    fits = system.ganger("fit", "-f", str(tmp_path / "job.yaml"))
    assert fits.stdout == "narrow fits: 1x8 gpu would start now on n0\n", fits
    assert system.names() == before


def test_a_dry_run_keeps_to_the_highest_priority_of_users_but_not_for_administrators(system: ServedController) -> None:
    calm = {"apiVersion": "ganger.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "calm"}}
    system.does(lambda: system.api.put(calm | {"spec": {"user_limits": {"priority": 5}}}))
    system.let_in("chief", "administer")

    def dry_run(caller: str, priority: int) -> Any:
        asked = ("--dry-run", "-o", "json", "--queue", "calm", "--priority", str(priority), "--", "true")
        return system.ganger("run", *asked, caller=caller)

    until(lambda: dry_run("ada", 5).returncode == 0, "the queue to be in force")
    refused = dry_run("ada", 6)
    assert refused.returncode == 2, refused
    assert "a user may ask for priority 5 at most in queue calm, and this is 6" in refused.stderr
    assert record(dry_run("chief", 6))["spec"]["priority"] == 6


def test_a_dry_run_requires_the_right_to_query(system: ServedController) -> None:
    """The program itself ends with the exit code, and takes the user from KUBECONFIG."""
    system.let_in("eve", asks=False)
    result = system.ganger_process("run", "--dry-run", "--", "true", caller="eve")
    assert (result.returncode, "--role=ganger-caller" in result.stderr) == (4, True), result


def test_a_file_of_several_jobs_is_made_whole_or_not_at_all(system: ServedController, tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text("name: train\nrun: sleep 9\nafter: [{job: prepare}]\n---\nname: prepare\nrun: sleep 9\n")
    before = set(system.names())
    result = system.ganger("submit", "-f", str(path), "--cpu", "1")
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.split()
    assert (first[:8], second[:6]) == ("prepare-", "train-")
    assert set(system.names()) - before == {first, second}
    system.wait(first, "Starting")
    assert f"{first}.default" in system.wait(second, "Pending")["message"]

    # By its submitted name, too.
    third = system.ganger("submit", "--after", "prepare:ended", "--", "true").stdout.strip()
    assert f"{first}.default" in system.wait(third, "Pending")["message"]
    assert system.ganger("stop", first).returncode == 0
    system.wait(first, "Stopped")
    for arguments, output in (
        (("--after", "nobody"), "there is no job nobody in namespace default"),
        (("--after", first), "was stopped, so it will never have succeeded"),
    ):
        result = system.ganger("submit", *arguments, "--", "true")
        assert (result.returncode, output in result.stderr) == (2, True), result
    result = system.ganger("run", "-f", str(path))
    assert (result.returncode, "submit -f" in result.stderr) == (2, True), result


def test_what_was_made_is_taken_back_when_the_next_is_refused(system: ServedController, tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text("name: one\nrun: sleep 9\n---\nname: two\nrun: sleep 9\n")
    before = system.names()
    create = {"verb": "create", "resource": "gangjobs", "status": 403, "message": "exceeded quota"}
    # Each is validated first: what is rejected then was never created.
    for skip in (1, 3):
        rule = system.does(lambda skip=skip: system.api.inject(Fault(skip=skip, **create)))
        result = system.ganger("submit", "-f", str(path))
        assert (result.returncode, "exceeded quota" in result.stderr, rule.struck) == (4, True, 1), result
        assert system.names() == before
    assert "no job of the file was created" in result.stderr
    system.does(lambda: system.api.inject(Fault(skip=3, **create)))
    system.does(lambda: system.api.inject(Fault(verb="delete", resource="gangjobs", status=403)))
    result = system.ganger("submit", "-f", str(path))
    [remaining] = set(system.names()) - set(before)
    assert result.returncode == 4
    assert f"{remaining} of the same file could not be deleted again" in result.stderr
    assert f"next: ganger --context fakeapi stop {remaining}" in result.stderr


CHANGES = (
    (["node", "cordon", "n1"], "n1 is cordoned", "nodes", "cordon n1"),
    (["node", "uncordon", "n1"], "n1 is ready", "nodes", "uncordon n1"),
    (["node", "drain", "n1"], "n1 is cordoned", "nodes", "cordon n1"),
    (["queue", "set", "mine", "--gpus", "8"], "set mine, child of root", "queues", "edit queue.ganger.dev mine"),
    (["queue", "delete", "mine"], "deleted mine", "queues", "delete queue.ganger.dev mine"),
    (["secret", "set", "KEY"], "set KEY", "secrets", "-n default edit secret ganger-secrets"),
    (["secret", "delete", "KEY"], "deleted KEY", "secrets", "-n default edit secret ganger-secrets"),
)


def test_nodes_queues_and_secrets_are_changed_as_objects(system: ServedController) -> None:
    """A change that the API server forbids names the kubectl command that an administrator would type."""
    system.let_in("seer", "list")
    for arguments, output, resource, typed in CHANGES:
        faults = [
            Fault(verb=verb, resource=resource, status=403, message="it is forbidden")
            for verb in ("create", "patch", "delete")
        ]
        rules = [system.does(lambda fault=fault: system.api.inject(fault)) for fault in faults]
        refused = system.ganger(*arguments, caller="seer", stdin="value")
        assert (refused.returncode, f"next: kubectl --context fakeapi {typed}\n" in refused.stderr) == (4, True), (
            refused
        )
        system.does(lambda rules=rules: [system.api.server.faults.remove(rule) for rule in rules])
        result = system.ganger(*arguments, caller="seer", stdin="value")
        assert (result.returncode, result.stdout.startswith(output)) == (0, True), result
    node = system.does(lambda: system.api.get("nodes", "n1"))
    assert node["spec"]["unschedulable"]
    system.ganger("node", "uncordon", "n1", caller="seer")


def test_a_controller_in_another_namespace_is_asked_there(tmp_path: Path) -> None:
    with served(tmp_path, "ml-platform") as system:
        assert system.ganger("fit", GANGER_CONTROLLER_NAMESPACE="ml-platform").returncode == 0
        result = system.ganger("fit")
        assert (result.returncode, "export GANGER_CONTROLLER_NAMESPACE=NAMESPACE" in result.stderr) == (5, True), result
