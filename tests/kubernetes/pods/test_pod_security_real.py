"""Pods of jobs on a real cluster: in a namespace that enforces `restricted`, and beside another scheduler's pods."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ganger.controller.jobs.git_pods import LABEL
from ganger.gang_jobs.code_archive import MAX_BYTES
from tests.kubernetes.jobs.served_repository import commit, served
from tools.controlled import OVER, OWN, Controlled, controlled
from tools.testcluster import BASE_IMAGE, Cluster
from tools.testcluster.programs import binaries
from tools.testcluster.waiting import until

ENFORCE = "pod-security.kubernetes.io/enforce"
RUNTIME = {"metadata": {"name": "plain"}, "handler": "runc"}
IPC_LOCK = 14
"""Number of the capability."""
NODE_PROCESSES = 8
"""A pod by itself has fewer, its node more."""


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


POD: dict[str, Any] = {
    "metadata": {"annotations": {"example.org/rail": "0"}},
    "shm": "8Mi",
    "spec": {
        "securityContext": {"runAsUser": 1000},
        "volumes": [{"name": "settings", "configMap": {"name": "settings"}}],
        "initContainers": [
            {
                "name": "prepare",
                "image": BASE_IMAGE,
                "command": ["sh", "-c", "echo prepared > /work/file"],
                "volumeMounts": [{"name": "work", "mountPath": "/work"}],
            }
        ],
    },
    "container": {
        "env": [{"name": "NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}],
        "volumeMounts": [{"name": "settings", "mountPath": "/settings", "readOnly": True}],
    },
}


def test_the_section_pod_of_a_job_works_in_a_restricted_namespace(system: Controlled) -> None:
    system.kubectl("create", "configmap", "settings", "--from-literal=color=green")
    run = "id -u; cat /settings/color file; echo $NODE_IP; df -k /dev/shm | tail -1"
    with system.policy(pods={"references": ["ConfigMap/settings"]}):
        system.submit("section", run=run, pod=POD)
        system.submit("beyond", run="true", pod={"spec": {"hostNetwork": True}})
        status = system.wait("section", *OVER)
        assert status["phase"] == "Succeeded", status
        assert "pod.spec.hostNetwork: it is beyond restricted" in system.wait("beyond", "Rejected")["message"]
    (pod,) = system.pods("section")
    output = system.kubectl("logs", pod)
    assert [word for word in ("1000", "green", "prepared", "8192") if word not in output] == [], output
    annotations = json.loads(system.kubectl("get", "pod", pod, "-o", "json"))["metadata"]["annotations"]
    assert annotations["example.org/rail"] == "0"


PRIVILEGED: dict[str, Any] = {
    "metadata": {"labels": {"team": "nlp"}},
    "spec": {
        "imagePullSecrets": [{"name": "registry"}],
        "hostNetwork": True,
        "hostIPC": True,
        "hostPID": True,
        "serviceAccountName": "trainer",
        "automountServiceAccountToken": True,
        "priorityClassName": "system-cluster-critical",
        "runtimeClassName": "plain",
        "tolerations": [{"key": "slow", "operator": "Exists"}],
        "dnsConfig": {"searches": ["example.org"]},
        "hostAliases": [{"ip": "192.0.2.7", "hostnames": ["files.example.org"]}],
        "securityContext": {"runAsUser": 0, "supplementalGroups": [2000]},
        "volumes": [{"name": "disk", "hostPath": {"path": "/var/tmp"}}],
    },
    "container": {
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "envFrom": [{"configMapRef": {"name": "variables"}}],
        "volumeMounts": [
            {"mountPath": "/data", "subPath": "train", "readOnly": True},
            {"name": "disk", "mountPath": "/nvme"},
        ],
    },
}
PRIVILEGED_REFERENCES = [
    *("Secret/registry", "ServiceAccount/trainer", "PriorityClass/system-cluster-critical", "RuntimeClass/plain"),
    *("ConfigMap/variables", "hostPath/var/tmp"),
]
PRINTS = """
echo groups $(id -G); echo caps $(grep CapEff /proc/self/status); echo color $COLOR; echo gpus $NVIDIA_VISIBLE_DEVICES
cat /data/name; touch /data/new 2>&1; ls -d /nvme; grep search /etc/resolv.conf; grep files /etc/hosts
ls /var/run/secrets/kubernetes.io/serviceaccount/token; echo pids $(ls -d /proc/[0-9]* | wc -l)
"""


def test_each_field_of_the_section_works_where_all_are_permitted(system: Controlled, tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "name").write_text("the directory train\n")
    system.lend("data", tmp_path)
    system.kubectl("create", "configmap", "variables", "--from-literal=COLOR=green")
    system.kubectl("create", "secret", "generic", "registry")
    system.kubectl("create", "serviceaccount", "trainer")
    _apply(system, {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", **RUNTIME})
    system.on.kubectl("label", "namespace", system.namespace, f"{ENFORCE}=privileged", "--overwrite")
    try:
        with system.policy(pods={"security": "privileged", "references": PRIVILEGED_REFERENCES, "volumes": ["*"]}):
            system.submit("all", run=PRINTS, pod=PRIVILEGED, volumes=[{"name": "data", "path": "/data"}])
            status = system.wait("all", *OVER)
        assert status["phase"] == "Succeeded", status
        ((name, pod),) = system.pods("all").items()
        output = system.kubectl("logs", name)
    finally:
        system.on.kubectl("label", "namespace", system.namespace, f"{ENFORCE}=restricted", "--overwrite")
        system.on.kubectl("delete", "runtimeclass", "plain")
    expected = (
        *("2000", "color green", "gpus void", "the directory train", "Read-only file system", "/nvme", "example.org"),
        *("192.0.2.7", "serviceaccount/token"),
    )
    assert [text for text in expected if text not in output] == [], output
    (caps,) = [line.rpartition(":")[2].strip() for line in output.splitlines() if " caps " in line]
    assert int(caps, 16) >> IPC_LOCK & 1, output
    (pids,) = [int(line.split()[-1]) for line in output.splitlines() if " pids " in line]
    assert pids > NODE_PROCESSES, "it sees those of its node"
    assert pod["status"]["podIP"] == pod["status"]["hostIP"]
    assert (pod["spec"]["priority"], pod["metadata"]["labels"]["team"]) == (2_000_000_000, "nlp")


FORBIDDEN: dict[str, dict[str, Any]] = {
    "volumes": {"volumes": [{"name": "private", "path": "/data"}]},
    "secrets": {"secrets": ["PRIVATE"]},
    "labels": {"labels": {"private": "yes"}},
    "tolerations": {"placement": {"tolerations": ["private"]}},
}


def test_a_job_that_names_what_it_may_not_is_refused_on_its_object(system: Controlled) -> None:
    keys = {key: ["public"] for key in FORBIDDEN}
    with system.policy(pods=keys):
        for key, spec in FORBIDDEN.items():
            system.submit(f"forbidden-{key}", nodes=2, run="true", **spec)
        for key in FORBIDDEN:
            status = system.wait(f"forbidden-{key}", "Rejected")
            assert (status["reason"], f"pods.{key}" in status["message"]) == ("not_permitted", True), status
            (condition,) = status["conditions"]
            assert (condition["type"], condition["status"], condition["reason"]) == (
                "Accepted",
                "False",
                "NotPermitted",
            )
            assert not system.pods(f"forbidden-{key}")
    until(lambda: system.status("forbidden-labels")["phase"] in OVER, "the default policy to permit the label")


def test_the_code_of_a_job_is_fetched_by_a_restricted_pod(system: Controlled, tmp_path: Path) -> None:
    repository = tmp_path / "served" / "tool"
    repository.mkdir(parents=True)
    (repository / "say").write_text("#!/bin/sh\necho from the repository\n")
    (repository / "say").chmod(0o755)
    fetched = commit(repository, "all of it")
    large = tmp_path / "served" / "large"
    shutil.copytree(repository, large)
    (large / "weights").write_bytes(os.urandom(2 * MAX_BYTES))
    commit(large, "with more than an object holds")
    command = ["get", "pods", "-n", OWN, "-l", LABEL, "-w", "-o", "jsonpath={.metadata.name} {.status.phase}{'\\n'}"]
    seen = tmp_path / "seen"
    with served(repository.parent, system.on.address) as url, seen.open("wb") as output:
        kubectl = [binaries.program("kubectl"), f"--kubeconfig={system.on.kubeconfig}"]
        watching = subprocess.Popen([*kubectl, *command], stdout=output)
        try:
            system.submit("refused", run="./say", code={"git": f"{url}/tool"})
            assert "pods.git_hosts" in system.wait("refused", "Rejected")["message"], "an address is reserved"
            assert seen.read_text() == ""
            with system.policy(pods={"git_hosts": ["198.18.*"]}):
                system.submit("code", run="./say", code={"git": f"{url}/tool"})
                status = system.wait("code", *OVER)
                system.submit("large", nodes=2, run="./say; wc -c < weights", code={"git": f"{url}/large"})
                # It is permitted too now, and has a pod of its own.
                assert system.wait("refused", *OVER)["phase"] == "Succeeded"
                until(lambda: "Running" in seen.read_text(), "the pod to have been seen")
                assert system.wait("large", *OVER)["codeLocation"] == "store"
        finally:
            watching.terminate()
            watching.wait()
    assert status["phase"] == "Succeeded", status
    (pod,) = system.pods("code")
    assert "from the repository" in system.kubectl("logs", pod)
    for pod in system.pods("large"):
        assert f"{2 * MAX_BYTES}" in system.kubectl("logs", pod)
    assert system.client.job(f"code.{system.namespace}")["git_commit"] == fetched
    assert system.on.kubectl("--namespace", OWN, "get", "pods", "-l", LABEL, "-o", "name") == ""


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
