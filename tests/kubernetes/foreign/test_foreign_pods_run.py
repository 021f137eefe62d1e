"""Foreign pods on a real cluster: a batch Job and an upstream PodGroup run where ganger binds them.

It skips where there is no cluster.
"""

import asyncio
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from ganger.backends.kubernetes.foreign.gang_kinds import GangKind, Owner
from ganger.backends.kubernetes.foreign.gang_owners import GangOwners, SuspendTarget
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.objects import Key
from ganger.kubeapi.resources import Resource
from tools.controlled import Controlled, controlled
from tools.testcluster import BASE_IMAGE, Cluster
from tools.testcluster.waiting import until


@pytest.fixture(scope="module")
def system(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    with controlled(real_cluster, tmp_path_factory.mktemp("controller")) as system:
        yield system


def create(system: Controlled, kind: str, version: str, name: str, spec: dict[str, Any]) -> None:
    about = {"name": name, "namespace": system.namespace}
    system.on.kubectl(
        "apply", "-f", "-", input=json.dumps({"apiVersion": version, "kind": kind, "metadata": about, "spec": spec})
    )


def pod_spec(**more: Any) -> dict[str, Any]:
    needs = {"requests": {"cpu": "50m"}}
    container = {"name": "c", "image": BASE_IMAGE, "command": ["true"], "resources": needs}
    return {"schedulerName": "ganger", "restartPolicy": "Never", "containers": [container], **more}


def phases(system: Controlled, *names: str) -> list[str]:
    actual = json.loads(system.kubectl("get", "pods", "-o", "json"))["items"]
    return [pod["status"]["phase"] for pod in actual if pod["metadata"]["name"] in names]


def test_a_batch_job_runs_to_its_end(system: Controlled) -> None:
    create(system, "Job", "batch/v1", "sums", {"completions": 3, "parallelism": 3, "template": {"spec": pod_spec()}})
    system.kubectl("wait", "--for=condition=Complete", "job/sums", "--timeout=60s")
    assert system.kubectl("get", "job", "sums", "-o", "jsonpath={.status.succeeded}") == "3"


def test_a_pod_group_runs_when_all_of_it_is_there(system: Controlled) -> None:
    create(system, "PodGroup", "scheduling.k8s.io/v1alpha2", "duo", {"schedulingPolicy": {"gang": {"minCount": 2}}})
    of_group = pod_spec(schedulingGroup={"podGroupName": "duo"})
    create(system, "Pod", "v1", "duo-0", of_group)
    until(lambda: "1 of at least 2 pods" in system.kubectl("get", "pod", "duo-0", "-o", "json"), "why duo-0 waits")
    assert phases(system, "duo-0") == ["Pending"]
    create(system, "Pod", "v1", "duo-1", of_group)
    until(lambda: phases(system, "duo-0", "duo-1") == ["Succeeded"] * 2, "both to run")


def test_an_owner_of_a_version_without_the_field_is_not_suspended(real_cluster: Cluster) -> None:
    group, plural = f"test-{os.getpid()}.example.com", "trainings"
    names = {"plural": plural, "kind": "Training"}
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "names": names, "scope": "Namespaced", "versions": [version]},
    }
    training = {"apiVersion": f"{group}/v1", "kind": "Training", "metadata": {"name": "t"}, "spec": {"size": 2}}
    kind = GangKind(name="Training", resource=Resource(group, "v1", plural, Owner), suspend="suspend")

    async def suspend() -> bool:
        access = Credentials.from_kubeconfig([real_cluster.kubeconfig])
        async with ApiClient(access, PROGRAM) as api:
            return await GangOwners(api, lambda: True, {}).suspend(SuspendTarget(kind, Key("default", "t")))

    real_cluster.kubectl("apply", "-f", "-", input=json.dumps(definition))
    try:
        real_cluster.kubectl("wait", "--for=condition=Established", f"crd/{plural}.{group}")
        real_cluster.kubectl("apply", "--namespace=default", "-f", "-", input=json.dumps(training))
        assert not asyncio.run(suspend())
        left = json.loads(real_cluster.kubectl("get", f"{plural}.{group}", "t", "--namespace=default", "-o", "json"))
        assert "labels" not in left["metadata"]
    finally:
        real_cluster.kubectl("delete", f"crd/{plural}.{group}")
