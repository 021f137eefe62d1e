"""Output of `ganger install` on a real cluster: its Deployment runs, unprivileged, with its own permissions.

There is no registry, so the image is that of the test cluster, and Python and ganger are mounted from this machine.
Everything else is as printed.
"""

import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ganger
from tools.controlled import OWN, alone, install, printed
from tools.testcluster import BASE_IMAGE, Cluster
from tools.testcluster.waiting import until

SPACE = "deployed"
CONTROLLER = "app.kubernetes.io/component=controller"
LIBRARIES = "/opt/libraries"
MOUNTED = {
    "/opt/python": sys.base_prefix,
    "/opt/packages": sysconfig.get_path("purelib"),
    "/opt/ganger": str(Path(ganger.__file__).parents[1]),
    # Of the image's Debian, too: the image leaves out what C++ wheels need.
    LIBRARIES: "/usr/lib/x86_64-linux-gnu",
}


@pytest.fixture(scope="module")
def deployed(real_cluster: Cluster) -> Iterator[Cluster]:
    """Install the controller, and create a namespace for jobs."""
    with alone(real_cluster):
        objects = printed("--image", BASE_IMAGE)
        for created in objects:
            _from_here(created)
        install(real_cluster, objects)
        real_cluster.kubectl("create", "namespace", SPACE)
        real_cluster.kubectl("--namespace", OWN, "rollout", "status", "deployment/ganger-controller", "--timeout=180s")
        yield real_cluster
        real_cluster.kubectl("--namespace", OWN, "delete", "deployment", "ganger-controller", "--cascade=foreground")
        real_cluster.kubectl("delete", "namespace", SPACE, "--wait=false")
        real_cluster.kubectl("delete", "queue", "root", "default", "--ignore-not-found")  # with its status


def _from_here(created: Any) -> None:
    """Mount Python and ganger from this machine, which the strictest Pod Security level forbids."""
    if created["kind"] == "Namespace":
        del created["metadata"]["labels"]
    if created["kind"] == "Deployment":
        pod = created["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        container["command"] = ["/opt/python/bin/python3", "-P", "-m", "ganger.controller"]
        container["args"].append(f"--image={BASE_IMAGE}")
        container["env"] += [
            {"name": "PYTHONPATH", "value": "/opt/ganger:/opt/packages"},
            {"name": "LD_LIBRARY_PATH", "value": "/opt/python/lib"},
            {"name": "LD_PRELOAD", "value": f"{LIBRARIES}/libstdc++.so.6"},
        ]
        for at, (inside, here) in enumerate(MOUNTED.items()):
            pod["volumes"].append({"name": f"here-{at}", "hostPath": {"path": here}})
            container["volumeMounts"].append({"name": f"here-{at}", "mountPath": inside, "readOnly": True})


def test_the_deployment_leads_runs_a_gang_and_may_be_replaced_meanwhile(deployed: Cluster) -> None:
    waits = "until test -e /ganger/work/go; do sleep 0.2; done"
    job = {
        "apiVersion": "ganger.dev/v1alpha1",
        "kind": "GangJob",
        "metadata": {"name": "pair", "namespace": SPACE},
        "spec": {"user": "admin", "nodes": 2, "run": waits, "resources": {"cpu": "100m"}},
    }
    deployed.kubectl("apply", "-f", "-", input=json.dumps(job))
    until(lambda: _status(deployed).get("phase") == "Running", "the gang to run")
    before = deployed.kubectl("--namespace", OWN, "get", "pods", "-l", CONTROLLER, "-o", "name")
    deployed.kubectl(
        "--namespace", OWN, "delete", *before.split()
    )  # its address, its key and its certificate are deleted, too
    for pod in deployed.kubectl("--namespace", SPACE, "get", "pods", "-o", "name").split():
        deployed.kubectl("--namespace", SPACE, "exec", pod, "--", "touch", "/ganger/work/go")
    until(lambda: _status(deployed).get("phase") == "Succeeded", "the gang to be told ended")
    assert _status(deployed)["generation"] == 1


def _status(on: Cluster) -> Any:
    actual = on.kubectl("--namespace", SPACE, "get", "gangjob", "pair", "-o", "json")
    return json.loads(actual).get("status", {})
