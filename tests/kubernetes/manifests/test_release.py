"""A release of the Helm chart on a real cluster: installed, upgraded and rolled back while gangs run.

The image is made as the Containerfile says, and loaded into the nodes. Other tests may have installed ganger there
before: the release takes their objects over.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.chart import helm, write_chart
from tools.controlled import GANGER, OWN, alone, install, printed
from tools.testcluster import BASE_IMAGE, Cluster, Unavailable
from tools.testcluster.programs.controller_image import CONTROLLER_IMAGE, make_controller_image
from tools.testcluster.waiting import until

SPACE = "released"
GANGS = 3
RELEASE = "ganger"


class Release:
    """The chart and the cluster that it is installed on."""

    def __init__(self, cluster: Cluster, program: str, chart: Path) -> None:
        self.cluster, self._program, self._chart = cluster, program, chart
        repository, _, tag = CONTROLLER_IMAGE.rpartition(":")
        self._values = ("--set-string", f"image.repository={repository},image.tag={tag}")
        self._values += ("--set", f"controller.args={{--image={BASE_IMAGE}}}")

    def install(self) -> None:
        self._helm("install", RELEASE, str(self._chart), "--create-namespace", "--take-ownership", *self._values)

    def upgrade(self, *values: str) -> None:
        self._helm("upgrade", RELEASE, str(self._chart), *self._values, *(f"--set={value}" for value in values))

    def roll_back(self) -> None:
        self._helm("rollback", RELEASE, "1")

    def history(self) -> list[str]:
        command = [self._program, "history", RELEASE, "--namespace", OWN, "--output", "json"]
        command += ["--kubeconfig", str(self.cluster.kubeconfig)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True)
        return [revision["status"] for revision in json.loads(answer.stdout)]

    def submit(self, name: str, run: str) -> None:
        job = {
            "apiVersion": "ganger.dev/v1alpha1",
            "kind": "GangJob",
            "metadata": {"name": name, "namespace": SPACE},
            "spec": {"user": "admin", "nodes": 2, "run": run, "resources": {"cpu": "10m"}},
        }
        self.cluster.kubectl("create", "-f", "-", input=json.dumps(job))

    def get(self, kind: str) -> dict[str, dict[str, Any]]:
        listed = json.loads(self.cluster.kubectl("--namespace", SPACE, "get", kind, "-o", "json"))
        return {item["metadata"]["name"]: item for item in listed["items"]}

    def faults(self) -> list[dict[str, Any]]:
        """Return what `ganger doctor` finds."""
        context = self.cluster.kubectl("config", "current-context").strip()
        command = [str(GANGER), "--context", context, "doctor", "-o", "json"]
        environment = os.environ | {"KUBECONFIG": str(self.cluster.kubeconfig)}
        answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return [check for check in json.loads(answer.stdout) if not check["ok"]]

    def phases(self) -> dict[str, str]:
        return {name: job.get("status", {}).get("phase", "") for name, job in self.get("gangjobs").items()}

    def _helm(self, *words: str) -> None:
        force = () if words[0] == "rollback" else ("--force-conflicts",)
        command = [self._program, *words, *force, "--namespace", OWN, "--kubeconfig", str(self.cluster.kubeconfig)]
        answer = subprocess.run([*command, "--wait", "--timeout=120s"], capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr


@pytest.fixture(scope="module")
def release(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """Make the image and the chart, and a namespace for jobs."""
    try:
        program = helm.require_program()
    except Unavailable as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("release")
    make_controller_image(folder / "controller.tar")
    real_cluster.load_image(folder / "controller.tar")
    (folder / "controller.tar").unlink()
    with alone(real_cluster):
        real_cluster.kubectl("create", "namespace", SPACE)
        yield Release(real_cluster, program, write_chart(folder))
        real_cluster.kubectl("--namespace", OWN, "delete", "deployment", "ganger-controller", "--ignore-not-found")
        real_cluster.kubectl("--namespace", OWN, "delete", "service", "ganger", "--ignore-not-found")
        real_cluster.kubectl("--namespace", OWN, "delete", "secret", "--selector=owner=helm")
        real_cluster.kubectl("delete", "namespace", SPACE, "--wait=false")
        real_cluster.kubectl("delete", "queue", "root", "default", "--ignore-not-found")  # with its status
        install(real_cluster, printed("--outside"))


def test_gangs_run_on_while_the_release_is_upgraded_and_rolled_back(release: Release) -> None:
    began = time.monotonic()
    release.install()
    release.submit("first", "hostname")
    until(lambda: release.phases()["first"] == "Succeeded", "the first job to be finished")
    print(f"from the chart to the first finished job: {time.monotonic() - began:.1f} s")
    missing = ["gpus", "store"]  # the nodes have no GPUs, and the release names no store
    assert [fault for fault in release.faults() if fault["name"] not in missing] == []
    for number in range(GANGS):
        release.submit(f"long-{number}", "sleep 3600")
    until(lambda: list(release.phases().values()).count("Running") == GANGS, "the gangs to run")
    pods = {name: pod["metadata"]["uid"] for name, pod in release.get("pods").items() if name.startswith("long-")}
    assert len(pods) == 2 * GANGS
    release.upgrade("controller.resources.limits.memory=1Gi", "networkPolicy.gitExcept={10.0.0.0/8}")
    release.submit("after-upgrade", "hostname")
    until(lambda: release.phases()["after-upgrade"] == "Succeeded", "a job after the upgrade to be finished")
    release.roll_back()
    release.submit("after-rollback", "hostname")
    until(lambda: release.phases()["after-rollback"] == "Succeeded", "a job after the rollback to be finished")
    assert release.history() == ["superseded", "superseded", "deployed"]
    jobs = {name: job["status"] for name, job in release.get("gangjobs").items() if name.startswith("long-")}
    assert {(status["phase"], status["generation"]) for status in jobs.values()} == {("Running", 1)}
    now = {name: pod["metadata"]["uid"] for name, pod in release.get("pods").items() if name in pods}
    assert now == pods
