"""Pods of a generation: their requests, and that Kubernetes accepts them."""

from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest

from ganger.gang_jobs import object_names
from ganger.gang_jobs.pod_template import PodSettings, build_pods
from ganger.kubeapi.objects import Key
from ganger.model.decision import NodeShare, Start
from ganger.model.job import Job, Origin
from ganger.model.policy import BASELINE, POD_SECURITY
from ganger.model.units import GIB_BYTES
from ganger.spec import spec_from_dict

GPU_RESOURCES_BY_NODE = {"n1": "nvidia.com/gpu", "n2": "amd.com/gpu"}
SETTING = PodSettings(launcher="launcher-1", identity="bert-ganger", image="python:3.13-slim")


def pods_of(
    spec: dict[str, Any], *shares: NodeShare, gang: str = "bert.team", settings: PodSettings = SETTING
) -> list[Any]:
    start = Start(gang=gang, generation=3, shares=shares, host="n1", port=29500)
    job = Job(id=gang, user="ada", spec=spec_from_dict({"run": "x", **spec}, "a test"), origin=Origin(directory="/"))
    return build_pods(start, job, "u-1", settings, GPU_RESOURCES_BY_NODE)


def needs(pod: Any) -> Any:
    return pod["spec"]["containers"][0]["resources"]


@pytest.mark.parametrize("version", ["1.35", "1.36", "1.37"])
def test_kubernetes_takes_them(version: str) -> None:
    spec = {
        "nodes": 2,
        "image": "registry.example.org/team/train:1",
        "resources": {"gpu": 8, "cpu": 4, "memory": "64Gi"},
        "placement": {"tolerations": ["spot", "team=nlp", "*"]},
        "volumes": [{"name": "data", "path": "/data"}],
        "labels": {"team": "nlp"},
    }
    for pod in pods_of(spec, NodeShare("n1", tuple(range(8)), tuple(range(8))), NodeShare("n2", (8,), tuple(range(8)))):
        kubernetes_validate.validate(pod, version, strict=True)


def test_no_autoscaler_moves_a_pod_of_a_running_gang() -> None:
    (pod,) = pods_of({"nodes": 1}, NodeShare("n1", (0,), ()))
    annotations = pod["metadata"]["annotations"]
    assert annotations["karpenter.sh/do-not-disrupt"] == "true"
    assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"


def test_each_node_has_a_pod_that_asks_for_what_the_scheduler_counted() -> None:
    spec = {"nodes": 2, "resources": {"gpu": 2, "cpu": "1500m", "memory": "3Gi"}}
    first, second = pods_of(spec, NodeShare("n1", (0, 1), (0, 1)), NodeShare("n2", (2, 3), (4, 5)))
    assert [pod["metadata"]["name"] for pod in (first, second)] == ["bert-3-0", "bert-3-1"]
    for pod, gpu in ((first, "nvidia.com/gpu"), (second, "amd.com/gpu")):
        assert needs(pod)["requests"] == {"cpu": "1500m", "memory": str(3 << 30), gpu: "2"}
        assert needs(pod)["limits"] == {"memory": str(3 << 30), gpu: "2"}


@pytest.mark.parametrize(
    ("resources", "is_hidden"),
    [
        ({"cpu": 4, "extended": {"rdma/hca": 1}}, True),
        ({"gpu": 1}, False),
        ({"extended": {"nvidia.com/mig-1g.5gb": 1}}, False),
    ],
)
def test_no_container_sees_gpus_that_it_did_not_ask_for(resources: dict[str, Any], *, is_hidden: bool) -> None:
    init = {"name": "fetch", "image": "nvidia/cuda", "env": [{"name": "URL", "value": "x"}]}
    job = {"resources": resources, "pod": {"spec": {"initContainers": [init]}}}
    devices = (0,) if "gpu" in resources else ()
    (pod,) = pods_of(job, NodeShare("n1", (0,), devices))
    hidden = {"NVIDIA_VISIBLE_DEVICES": "void", "AMD_VISIBLE_DEVICES": "none", "ASCEND_VISIBLE_DEVICES": "void"}
    variables = {variable["name"]: variable.get("value") for variable in pod["spec"]["containers"][0]["env"]}
    assert (hidden.items() <= variables.items(), "NVIDIA_VISIBLE_DEVICES" in variables) == (is_hidden, is_hidden)
    (of_init,) = pod["spec"]["initContainers"]
    assert of_init["env"] == [*({"name": name, "value": value} for name, value in hidden.items()), *init["env"]]
    kubernetes_validate.validate(pod, "1.37", strict=True)


def test_roles_that_share_a_node_share_a_pod() -> None:
    spec = {
        "roles": {"chief": {"resources": {"gpu": 1}}, "ps": {"count": 2, "resources": {"cpu": 2, "memory": "1Gi"}}},
        "run": "x",
    }
    (pod,) = pods_of(spec, NodeShare("n1", (0,), (3,), 0), NodeShare("n1", (1,), (), 1), NodeShare("n1", (2, 3), (), 2))
    assert needs(pod)["requests"] == {"cpu": "6000m", "memory": str(2 << 30), "nvidia.com/gpu": "1"}


def test_a_pod_asks_for_extended_resources_once_a_node_and_once_a_process_of_a_role() -> None:
    extended = {"extended": {"rdma/hca": 2}}
    (pod,) = pods_of({"nproc_per_node": 4, "resources": extended}, NodeShare("n1", (0, 1, 2, 3)))
    assert needs(pod)["requests"]["rdma/hca"] == needs(pod)["limits"]["rdma/hca"] == "2"
    (pod,) = pods_of({"roles": {"ps": {"count": 3, "resources": extended}}}, NodeShare("n1", (1, 2, 3), (), 1))
    assert needs(pod)["limits"]["rdma/hca"] == "6"
    kubernetes_validate.validate(pod, "1.36", strict=True)


def test_a_pod_asks_for_disk_which_its_working_directory_may_use() -> None:
    disk = {"extended": {"ephemeral-storage": "250Gi"}}
    init = {"name": "fetch", "image": "x", "command": ["true"]}
    job = {"nproc_per_node": 4, "resources": disk, "pod": {"spec": {"initContainers": [init]}}}
    (pod,) = pods_of(job, NodeShare("n1", (0, 1, 2, 3)))
    size = str(250 * GIB_BYTES)
    assert needs(pod)["requests"]["ephemeral-storage"] == needs(pod)["limits"]["ephemeral-storage"] == size
    assert pod["spec"]["initContainers"][0]["resources"]["requests"]["ephemeral-storage"] == size
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes["work"]["emptyDir"] == {"sizeLimit": size}
    kubernetes_validate.validate(pod, "1.36", strict=True)
    (without,) = pods_of({}, NodeShare("n1", (0,)))
    assert "ephemeral-storage" not in str(without)


def test_no_secret_and_no_plan_is_in_a_pod() -> None:
    (pod,) = pods_of({"env": {"TOKEN": "hush"}}, NodeShare("n1", (0,)))
    assert "hush" not in str(pod)


EVERYTHING: dict[str, Any] = {
    "secrets": ["KEY"],
    "volumes": [{"name": "data", "path": "/data"}],
    "env": {"A": "1"},
}
RESTRICTED_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret")
}
"""Kinds of volumes that the Pod Security Standard `restricted` accepts."""


def test_pods_comply_with_the_restricted_standard() -> None:
    """Each control of the standard, as Kubernetes documents it, on a job that has everything."""
    (pod,) = pods_of(EVERYTHING, NodeShare("n1", (0,)))
    spec = pod["spec"]
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & spec.keys()
    assert all(volume.keys() - {"name"} <= RESTRICTED_VOLUMES for volume in spec["volumes"])
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = spec["containers"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    variables = {item["name"]: item.get("value") for item in container["env"]}
    assert variables["HOME"] == container["workingDir"], "an image has no home for a user that is not its own"


@pytest.mark.parametrize("security", POD_SECURITY)
def test_files_of_volumes_have_a_group_that_ranks_have(security: str) -> None:
    (pod,) = pods_of(EVERYTHING, NodeShare("n1", (0,)), settings=replace(SETTING, security=security))
    assert pod["spec"]["securityContext"]["fsGroup"] > 0
    assert pod["spec"]["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    kubernetes_validate.validate(pod, "1.36", strict=True)


def test_a_policy_leaves_the_user_to_the_image() -> None:
    (pod,) = pods_of(EVERYTHING, NodeShare("n1", (0,)), settings=replace(SETTING, security=BASELINE))
    assert not {"runAsUser", "runAsGroup", "runAsNonRoot"} & pod["spec"]["securityContext"].keys()
    assert pod["spec"]["containers"][0]["securityContext"] == {}
    assert "HOME" not in {item["name"] for item in pod["spec"]["containers"][0]["env"]}


def test_no_directory_of_a_pod_fills_its_node() -> None:
    (pod,) = pods_of(EVERYTHING, NodeShare("n1", (0,)))
    directories = [volume["emptyDir"] for volume in pod["spec"]["volumes"] if "emptyDir" in volume]
    assert len(directories) == 3
    assert all(int(directory["sizeLimit"]) > 0 for directory in directories)


def test_ids_lead_to_objects() -> None:
    assert object_names.key_of("bert.team") == Key("team", "bert")
    assert object_names.key_of("bert.team[7]") == Key("team", "bert")
    assert object_names.pod_name("bert.team[7]", 2, 0) == "bert-e7-2-0"
    assert object_names.id_of(Key("team", "bert")) == "bert.team"
    for wrong in ("bert", ".team", "bert."):
        with pytest.raises(ValueError, match=r"NAME\.NAMESPACE"):
            object_names.key_of(wrong)
