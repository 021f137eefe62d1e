"""`ganger --context` against the fake API server and a controller behind it: commands and their output."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.served import Served, served
from tools.fakeapi import Fault


@pytest.fixture(scope="module")
def its(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("cluster")) as found:
        yield found


def record(ran: Any) -> Any:
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


SMALL = ("--gpu", "8", "--nodes", "1")


def test_a_dry_run_says_what_would_happen_and_makes_nothing(its: Served, tmp_path: Path) -> None:
    before = its.names()
    found = record(its.ganger("run", "--dry-run", "-o", "json", *SMALL, "--", "python3", "train.py"))
    assert (found["starts_now"], found["nodes"]) == (True, ["n0"])
    assert found["environment"]["GANGER_RANK"] == "0"
    (tmp_path / "job.yaml").write_text("name: wide\nrun: ./train\nnodes: 3\nresources: {gpu: 8}\n")
    ran = its.ganger("submit", "--dry-run", "-f", str(tmp_path / "job.yaml"))
    assert ran.returncode == 2, ran
    assert "there are 2" in ran.stderr
    fits = its.ganger("fit", "-f", str(tmp_path / "job.yaml"), "--gpu", "4")
    assert fits.returncode == 2, fits
    (tmp_path / "job.yaml").write_text("name: narrow\nrun: ./train\nresources: {gpu: 8}\n")
    fits = its.ganger("fit", "-f", str(tmp_path / "job.yaml"))
    assert fits.stdout == "narrow fits: 1x8 gpu would start now on n0\n", fits
    assert its.names() == before


def test_a_dry_run_is_of_whoever_may_ask(its: Served) -> None:
    its.let_in("eve", asks=False)
    ran = its.ganger("run", "--dry-run", "--", "true", who="eve")
    assert (ran.returncode, "--role=ganger-asker" in ran.stderr) == (4, True), ran


def test_a_file_of_several_jobs_is_made_whole_or_not_at_all(its: Served, tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text("name: train\nrun: sleep 9\nafter: [{job: prepare}]\n---\nname: prepare\nrun: sleep 9\n")
    before = set(its.names())
    ran = its.ganger("submit", "-f", str(path), "--cpu", "1")
    assert ran.returncode == 0, ran.stderr
    first, second = ran.stdout.split()
    assert (first[:8], second[:6]) == ("prepare-", "train-")
    assert set(its.names()) - before == {first, second}
    its.wait(first, "Starting")
    assert f"{first}.default" in its.wait(second, "Pending")["message"]

    # By its submitted name, too.
    third = its.ganger("submit", "--after", "prepare:ended", "--", "true").stdout.strip()
    assert f"{first}.default" in its.wait(third, "Pending")["message"]
    assert its.ganger("stop", first).returncode == 0
    its.wait(first, "Stopped")
    for words, said in (
        (("--after", "nobody"), "there is no job nobody in namespace default"),
        (("--after", first), "was stopped, so it will never have succeeded"),
    ):
        ran = its.ganger("submit", *words, "--", "true")
        assert (ran.returncode, said in ran.stderr) == (2, True), ran
    ran = its.ganger("run", "-f", str(path))
    assert (ran.returncode, "submit -f" in ran.stderr) == (2, True), ran


def test_what_was_made_is_taken_back_when_the_next_is_refused(its: Served, tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text("name: one\nrun: sleep 9\n---\nname: two\nrun: sleep 9\n")
    before = its.names()
    create = {"verb": "create", "resource": "gangjobs", "status": 403, "message": "exceeded quota"}
    # Each is validated first: what is rejected then was never created.
    for skip in (1, 3):
        rule = its.does(lambda skip=skip: its.api.inject(Fault(skip=skip, **create)))
        ran = its.ganger("submit", "-f", str(path))
        assert (ran.returncode, "exceeded quota" in ran.stderr, rule.struck) == (4, True, 1), ran
        assert its.names() == before
    assert "no job of the file was created" in ran.stderr
    its.does(lambda: its.api.inject(Fault(skip=3, **create)))
    its.does(lambda: its.api.inject(Fault(verb="delete", resource="gangjobs", status=403)))
    ran = its.ganger("submit", "-f", str(path))
    [left] = set(its.names()) - set(before)
    assert ran.returncode == 4
    assert f"{left} of the same file could not be deleted again" in ran.stderr
    assert f"next: ganger --context fakeapi stop {left}" in ran.stderr


def test_what_changes_nothing_says_who_changes_it(its: Served) -> None:
    its.let_in("seer", sees_all=True)
    for words, typed in (
        (["node", "cordon", "n0"], "kubectl --context fakeapi cordon n0"),
        (["node", "uncordon", "n0"], "kubectl --context fakeapi uncordon n0"),
        (["node", "drain", "n0"], "kubectl --context fakeapi drain n0"),
        (["queue", "set", "mine", "--gpus", "8"], "kubectl --context fakeapi edit queue.ganger.dev mine"),
        (["queue", "delete", "mine"], "kubectl --context fakeapi delete queue.ganger.dev mine"),
    ):
        ran = its.ganger(*words, who="seer")
        assert (ran.returncode, f"next: {typed}\n" in ran.stderr) == (4, True), ran


def test_a_controller_in_another_namespace_is_asked_there(tmp_path: Path) -> None:
    with served(tmp_path, "ml-platform") as its:
        assert its.ganger("fit", GANGER_CONTROLLER_NAMESPACE="ml-platform").returncode == 0
        ran = its.ganger("fit")
        assert (ran.returncode, "export GANGER_CONTROLLER_NAMESPACE=NAMESPACE" in ran.stderr) == (5, True), ran
