"""Pods of jobs on a real cluster: in a namespace that enforces `restricted`, and beside another scheduler's pods."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tools.controlled import OVER, Controlled, controlled
from tools.testcluster import BASE_IMAGE, Cluster
from tools.testcluster.waiting import until

ENFORCE = "pod-security.kubernetes.io/enforce"


@pytest.fixture(scope="module")
def system(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    """Run a controller, with a namespace for jobs that accepts restricted pods alone."""
    with controlled(real_cluster, tmp_path_factory.mktemp("controller")) as system:
        system.on.kubectl("label", "namespace", system.namespace, f"{ENFORCE}=restricted")
        yield system


def test_a_restricted_namespace_runs_the_pods_of_a_job(system: Controlled) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        system.kubectl("run", "root", f"--image={BASE_IMAGE}", "--dry-run=server")
    run = "id -u; touch here /ganger/work/there $HOME/too && cat /proc/self/status | grep CapEff"
    system.submit("restricted", nodes=2, run=run)
    status = system.wait("restricted", *OVER)
    assert status["phase"] == "Succeeded", status
    for pod in system.pods("restricted"):
        lines = system.kubectl("logs", pod).splitlines()
        assert any(line.endswith(" 65532") for line in lines), lines
        assert any(line.endswith("CapEff:\t0000000000000000") for line in lines), lines


def test_another_scheduler_preempts_no_single_pod_of_a_gang(system: Controlled) -> None:
    eager = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": f"eager-{id(system)}"}}
    _apply(system, eager | {"value": 999_999_999})
    try:
        system.submit("whole", nodes=2, run="sleep 600", resources={"cpu": 1})
        system.wait("whole", "Running")
        nodes = json.loads(system.on.kubectl("get", "nodes", "-o", "json"))["items"]
        most = max(int(node["status"]["allocatable"]["cpu"]) for node in nodes)
        container = {
            "name": "c",
            "image": BASE_IMAGE,
            "resources": {"requests": {"cpu": str(most)}},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
        own = {"runAsNonRoot": True, "runAsUser": 1, "seccompProfile": {"type": "RuntimeDefault"}}
        pod = {"priorityClassName": eager["metadata"]["name"], "securityContext": own, "containers": [container]}  # type: ignore[index]
        _apply(system, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "eager"}, "spec": pod})
        until(lambda: "No preemption victims" in _unscheduled(system), "kube-scheduler to look for victims")
        status = system.status("whole")
        assert (status["phase"], status["generation"]) == ("Running", 1)
    finally:
        system.kubectl("delete", "pod", "eager", "--ignore-not-found", "--wait=false")
        system.kubectl("delete", "gangjob", "whole", "--ignore-not-found")
        system.on.kubectl("delete", "priorityclass", eager["metadata"]["name"])  # type: ignore[index]


def _apply(system: Controlled, manifest: Any) -> None:
    system.on.kubectl("--namespace", system.namespace, "apply", "-f", "-", input=json.dumps(manifest))


def _unscheduled(system: Controlled) -> str:
    """Return what kube-scheduler says of the eager pod."""
    pod = json.loads(system.kubectl("get", "pod", "eager", "-o", "json"))
    conditions = pod["status"].get("conditions", ())
    return next((item["message"] for item in conditions if item["type"] == "PodScheduled"), "")
