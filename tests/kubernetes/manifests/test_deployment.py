"""Output of `ganger install` on a real cluster: its Deployment runs, unprivileged, with its own permissions.

Its image is made as the Containerfile says. There is no registry, so it is loaded into the nodes, and the default image
of jobs is that of the test cluster; everything else is as printed.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.manifests.prometheus import scraping
from tools.controlled import OWN, alone, install, printed
from tools.testcluster import BASE_IMAGE, Cluster
from tools.testcluster.programs.controller_image import CONTROLLER_IMAGE, make_controller_image
from tools.testcluster.waiting import until

SPACE = "deployed"
CONTROLLER = "app.kubernetes.io/component=controller"
LEADER = "ganger.dev/leads=true"


@pytest.fixture(scope="module")
def deployed(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Install the controller, and create a namespace for jobs."""
    archive = tmp_path_factory.mktemp("image") / "controller.tar"
    make_controller_image(archive)
    real_cluster.load_image(archive)
    archive.unlink()
    with alone(real_cluster):
        objects = printed("--image", CONTROLLER_IMAGE)
        (deployment,) = (created for created in objects if created["kind"] == "Deployment")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        container["args"].append(f"--image={BASE_IMAGE}")
        install(real_cluster, objects)
        real_cluster.kubectl("create", "namespace", SPACE)
        real_cluster.kubectl("--namespace", OWN, "rollout", "status", "deployment/ganger-controller", "--timeout=180s")
        yield real_cluster
        real_cluster.kubectl("--namespace", OWN, "delete", "deployment", "ganger-controller", "--cascade=foreground")
        real_cluster.kubectl("--namespace", OWN, "delete", "service", "ganger")
        real_cluster.kubectl("delete", "namespace", SPACE, "--wait=false")
        real_cluster.kubectl("delete", "queue", "root", "default", "--ignore-not-found")  # with its status


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
    (leader,) = _pods(deployed, LEADER)
    assert len(_pods(deployed, CONTROLLER)) == 2
    deployed.kubectl("--namespace", OWN, "delete", leader)  # its address, its key and its certificate are deleted, too
    until(lambda: len(_pods(deployed, LEADER)) == 1 and leader not in _pods(deployed, LEADER), "the standby to lead")
    for pod in deployed.kubectl("--namespace", SPACE, "get", "pods", "-o", "name").split():
        deployed.kubectl("--namespace", SPACE, "exec", pod, "--", "touch", "/ganger/work/go")
    until(lambda: _status(deployed).get("phase") == "Succeeded", "the gang to be told ended")
    assert _status(deployed)["generation"] == 1


def test_prometheus_scrapes_the_controller_with_its_service_account(deployed: Cluster, tmp_path: Path) -> None:
    account, figure = f"--serviceaccount={SPACE}:prometheus", "sum(ganger_watch_silence_seconds)"
    deployed.kubectl("--namespace", SPACE, "create", "serviceaccount", "prometheus")
    token = deployed.kubectl("--namespace", SPACE, "create", "token", "prometheus").strip()
    try:
        with scraping(deployed, token, tmp_path) as prometheus:
            until(lambda: [health for health, _ in prometheus.targets()] == ["down"], "a scrape to be refused")
            assert "403 Forbidden" in prometheus.targets()[0][1]
            assert prometheus.value(figure) is None
            deployed.kubectl("create", "clusterrolebinding", "prometheus", "--clusterrole=ganger-metrics", account)
            until(lambda: prometheus.targets() == [("up", "")], "a scrape to succeed")
            until(lambda: prometheus.value(figure) is not None, "a figure of the controller")
    finally:
        deployed.kubectl("delete", "clusterrolebinding", "prometheus", "--ignore-not-found")


def _pods(on: Cluster, selector: str) -> list[str]:
    return on.kubectl("--namespace", OWN, "get", "pods", "-l", selector, "-o", "name").split()


def _status(on: Cluster) -> Any:
    actual = on.kubectl("--namespace", SPACE, "get", "gangjob", "pair", "-o", "json")
    return json.loads(actual).get("status", {})
