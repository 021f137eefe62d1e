"""Gangs with DRA devices on two real nodes: a real driver of real kubelets says in each pod which devices it has."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubernetes.devices.published import claim_spec, class_body, device
from tools import devicedriver
from tools.controlled import OVER, ROOT_PODS, Controlled, controlled
from tools.testcluster import Cluster
from tools.testcluster.waiting import until

pytestmark = pytest.mark.skipif(
    not devicedriver.program().exists(), reason="the driver of devices is not built: make devices"
)
PERMITTED = {"references": ["ResourceClaimTemplate/*", f"hostPath{devicedriver.FOLDER}"], "security": "privileged"}
TELL = f"cat {devicedriver.FOLDER}/$HOSTNAME && sleep 600"


@pytest.fixture(scope="module")
def system(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    """Run a controller on nodes with three devices each."""
    of_node = [{"Devices": [device(f"gpu-{index}", index) for index in range(3)]}]
    slices = dict.fromkeys(real_cluster.shape.numbers, of_node)
    with (
        devicedriver.devices(real_cluster, tmp_path_factory.mktemp("driver"), slices),
        controlled(real_cluster, tmp_path_factory.mktemp("controller")) as system,
        system.policy(pods=ROOT_PODS | PERMITTED),
    ):
        real_cluster.kubectl("apply", "-f", "-", input=json.dumps(class_body()))
        until(lambda: len(items(system, "resourceslices")) == len(slices), "the drivers to publish their devices")
        yield system
        real_cluster.kubectl("delete", "deviceclass", "--all")


def items(system: Controlled, *what: str) -> list[Any]:
    listed: list[Any] = json.loads(system.kubectl("get", *what, "-o", "json"))["items"]
    return listed


def submit(system: Controlled, name: str, template: str, **spec: Any) -> None:
    folder = {"name": "devices", "hostPath": {"path": devicedriver.FOLDER}}
    container = {"volumeMounts": [{"name": "devices", "mountPath": devicedriver.FOLDER}]}
    pod = {"spec": {"resourceClaims": claims_of(template), "volumes": [folder]}, "container": container}
    system.submit(name, run=TELL, pod=pod, **spec)


def claims_of(template: str) -> list[dict[str, str]]:
    return [{"name": "gpus", "resourceClaimTemplateName": template}]


def template(system: Controlled, name: str, spec: dict[str, Any]) -> None:
    metadata = {"name": name, "namespace": system.namespace}
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": metadata}
    system.on.kubectl("apply", "-f", "-", input=json.dumps({**about, "spec": {"spec": spec}}))


def allocated(system: Controlled) -> dict[str, list[str]]:
    """Return the devices of pods by the status of their claims."""
    devices = dict[str, list[str]]()
    for claim in items(system, "resourceclaims"):
        status = claim.get("status", {})
        for user in status.get("reservedFor", ()):
            results = status["allocation"]["devices"]["results"]
            devices.setdefault(user["name"], []).extend(each["device"] for each in results)
    return devices


def seen(system: Controlled, pod: str) -> list[str]:
    """Return the devices that a container says it has."""
    lines = system.kubectl("logs", pod).splitlines()
    return [line.split()[-1] for line in lines if "gpu-" in line]


def test_the_pods_of_a_gang_get_the_devices_that_were_chosen(system: Controlled) -> None:
    template(system, "last", claim_spec(2, 'device.attributes["gpu.example.com"].index > 0'))
    submit(system, "first", "last", nodes=2, nproc_per_node=1)
    system.wait("first", "Running", *OVER)
    pods = sorted(system.pods("first"))
    assert allocated(system) == {pod: ["gpu-1", "gpu-2"] for pod in pods}
    for pod in pods:
        until(lambda pod=pod: seen(system, pod) == ["gpu-1", "gpu-2"], f"{pod} to say what it has")  # type: ignore[misc]

    template(system, "one", claim_spec(1))
    submit(system, "other", "one", nodes=2, nproc_per_node=1)
    system.wait("other", "Running", *OVER)
    assert [seen(system, pod) for pod in sorted(system.pods("other"))] == [["gpu-0"]] * 2

    submit(system, "more", "one", nodes=2, nproc_per_node=1)
    system.wait("more", "Pending", "Rejected")
    assert "1xgpu.example.com" in system.status("more")["message"]
    assert not system.pods("more")
    system.kubectl("delete", "gangjob", "first")
    system.wait("more", "Running", *OVER)
    assert [seen(system, pod) for pod in sorted(system.pods("more"))] == [["gpu-1"]] * 2
    for name in ("other", "more"):
        system.kubectl("delete", "gangjob", name)
    until(lambda: not items(system, "resourceclaims"), "the claims to be gone with their pods")


def test_each_process_of_a_role_gets_devices_of_its_own(system: Controlled) -> None:
    template(system, "single", claim_spec(1))
    template(system, "double", claim_spec(2))
    of_worker = {"count": 2, "pod": {"spec": {"resourceClaims": claims_of("double")}}}
    submit(system, "roles", "single", roles={"chief": {}, "worker": of_worker})
    system.wait("roles", "Running", *OVER)
    pods = sorted(system.pods("roles"))
    assert sorted(map(len, allocated(system).values())) == [2, 3], "of three on each node"
    for pod in pods:  # the driver writes the devices of the claim that it has prepared last
        until(lambda pod=pod: seen(system, pod), f"{pod} to say what it has")  # type: ignore[misc]
        assert {*seen(system, pod)} <= {*allocated(system)[pod]}
    system.kubectl("delete", "gangjob", "roles")
    until(lambda: not items(system, "resourceclaims"), "the claims to be gone with their pods")
