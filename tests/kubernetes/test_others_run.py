"""Foreign pods on a real cluster: a batch Job and an upstream PodGroup run where ganger binds them.

It skips where there is no cluster.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tools.controlled import Controlled, controlled
from tools.testcluster import BASE_IMAGE, Cluster
from tools.testcluster.waiting import until


@pytest.fixture(scope="module")
def its(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    with controlled(real_cluster, tmp_path_factory.mktemp("controller")) as its:
        yield its


def made(its: Controlled, kind: str, version: str, name: str, spec: dict[str, Any]) -> None:
    about = {"name": name, "namespace": its.namespace}
    its.on.kubectl(
        "apply", "-f", "-", input=json.dumps({"apiVersion": version, "kind": kind, "metadata": about, "spec": spec})
    )


def pod_spec(**more: Any) -> dict[str, Any]:
    needs = {"requests": {"cpu": "50m"}}
    container = {"name": "c", "image": BASE_IMAGE, "command": ["true"], "resources": needs}
    return {"schedulerName": "ganger", "restartPolicy": "Never", "containers": [container], **more}


def phases(its: Controlled, *names: str) -> list[str]:
    found = json.loads(its.kubectl("get", "pods", "-o", "json"))["items"]
    return [pod["status"]["phase"] for pod in found if pod["metadata"]["name"] in names]


def test_a_batch_job_runs_to_its_end(its: Controlled) -> None:
    made(its, "Job", "batch/v1", "sums", {"completions": 3, "parallelism": 3, "template": {"spec": pod_spec()}})
    its.kubectl("wait", "--for=condition=Complete", "job/sums", "--timeout=60s")


def test_a_pod_group_runs_when_all_of_it_is_there(its: Controlled) -> None:
    made(its, "PodGroup", "scheduling.k8s.io/v1alpha2", "duo", {"schedulingPolicy": {"gang": {"minCount": 2}}})
    of_group = pod_spec(schedulingGroup={"podGroupName": "duo"})
    made(its, "Pod", "v1", "duo-0", of_group)
    until(lambda: "1 of at least 2 pods" in its.kubectl("get", "pod", "duo-0", "-o", "json"), "why duo-0 waits")
    assert phases(its, "duo-0") == ["Pending"]
    made(its, "Pod", "v1", "duo-1", of_group)
    until(lambda: phases(its, "duo-0", "duo-1") == ["Succeeded"] * 2, "both to run")
