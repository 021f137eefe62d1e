"""The lighthouse of replica groups on two real kubelets, with a stand-in for the program of torchft."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ganger.backends.kubernetes.runtime.lighthouse_pods import PORT
from tools.controlled import ROOT_PODS, Controlled, controlled
from tools.testcluster import Cluster
from tools.testcluster.waiting import until

pytestmark = pytest.mark.long
ANSWERS = """#!/usr/bin/env python3
import socket, sys

host, _, port = sys.argv[sys.argv.index("--bind") + 1].rpartition(":")
with socket.create_server((host, int(port))) as server:
    while True:
        server.accept()[0].close()
"""
REPORTS = "import os, time; print('lighthouse', os.environ['TORCHFT_LIGHTHOUSE'], flush=True); time.sleep(600)"


@pytest.fixture(scope="module")
def system(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    with controlled(real_cluster, tmp_path_factory.mktemp("controller")) as system, system.policy(pods=ROOT_PODS):
        yield system


def lend_tools(system: Controlled, name: str, folder: Path, **programs: str) -> None:
    """Have the pods of jobs mount a folder with a Python and these programs, as one that a cluster shares."""
    folder.chmod(0o755)
    for program, text in {"python3": '#!/bin/sh\nexec /usr/bin/python3 "$@"\n', **programs}.items():
        (folder / program).write_text(text)
        (folder / program).chmod(0o755)
    system.lend(name, folder)


def submit(system: Controlled, name: str) -> None:
    run = ["/tools/python3", "-c", REPORTS]
    system.submit(name, run=run, nodes=1, replica_groups=2, volumes=[{"name": name, "path": "/tools"}])


def items(system: Controlled, plural: str, selector: str) -> list[Any]:
    found: list[Any] = json.loads(system.kubectl("get", plural, "-l", selector, "-o", "json"))["items"]
    return found


def answering(system: Controlled, name: str) -> Any:
    """Return the pod of a job's lighthouse once it answers, and the Service leads to it alone."""

    def find() -> Any:
        running = [
            pod
            for pod in items(system, "pods", f"ganger.dev/lighthouse={name}")
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]
        slices = items(system, "endpointslices", f"ganger.dev/lighthouse={name}")
        addresses = [address for part in slices for end in part.get("endpoints") or () for address in end["addresses"]]
        return running[0] if running and addresses == [running[0]["status"]["podIP"]] else None

    until(lambda: find() is not None, "the Service to lead to the lighthouse", lambda: system.kubectl("get", "pods"))
    pod = find()
    until(lambda: _answers(pod["status"]["podIP"]), "the lighthouse to answer")
    return pod


def _answers(address: str) -> bool:
    try:
        socket.create_connection((address, PORT), timeout=5).close()
    except OSError:
        return False
    return True


def test_it_is_replaced_at_its_address_and_goes_with_its_job(system: Controlled, tmp_path: Path) -> None:
    lend_tools(system, "groups", tmp_path, torchft_lighthouse=ANSWERS)
    submit(system, "groups")
    first = answering(system, "groups")
    address = f"http://{first['metadata']['name']}.{system.namespace}.svc:{PORT}"
    until(
        lambda: [address in system.kubectl("logs", name) for name in system.pods("groups")] == [True] * 2,
        "both groups to report the address",
    )
    ranks = {pod["metadata"]["uid"] for pod in system.pods("groups").values()}
    system.kubectl("delete", "pod", first["metadata"]["name"])
    second = answering(system, "groups")
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    # The next controller finds it, and creates no other one.
    system.end(kill=True)
    system.start()
    assert answering(system, "groups")["metadata"]["uid"] == second["metadata"]["uid"]
    assert {pod["metadata"]["uid"] for pod in system.pods("groups").values()} == ranks
    system.kubectl("delete", "gangjob", "groups")
    kinds = "pods,services"
    until(lambda: not items(system, kinds, "ganger.dev/lighthouse=groups"), "the lighthouse to be gone")


def test_the_object_says_that_its_image_has_none(system: Controlled, tmp_path: Path) -> None:
    lend_tools(system, "without", tmp_path)
    submit(system, "without")

    def problems() -> list[str]:
        conditions = system.status("without").get("conditions", ())
        return [item["message"] for item in conditions if item["type"] == "LighthouseUnavailable"]

    until(lambda: any("/tools/torchft_lighthouse" in text for text in problems()), "the condition", lambda: system.log)
    assert "env: {TORCHFT_LIGHTHOUSE: " in problems()[0]
    until(lambda: system.status("without").get("message", "").startswith("2 running"), "the groups to run")
    system.kubectl("delete", "gangjob", "without")
