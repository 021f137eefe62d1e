"""Claim templates that ganger writes for rails, on a real API server: by the controller's own rights, and collected.

No DRANET runs: its slices are published by hand, and the pods stay where their kubelet looks for the driver.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubernetes.devices.published import class_body
from tests.kubernetes.networks.test_dranet import GPU_CLASS, NIC, published
from tests.kubernetes.networks.test_network_profiles import profile
from tools.controlled import Controlled, controlled
from tools.testcluster import Cluster
from tools.testcluster.waiting import until


@pytest.fixture(scope="module")
def system(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    """Run a controller on nodes for which network cards and GPUs are published, with a profile for them."""
    nodes = json.loads(real_cluster.kubectl("get", "nodes", "-o", "json"))["items"]
    slices = [item for node in nodes for item in published(node["metadata"]["name"])]
    classes = [class_body(name, f'device.driver == "{driver}"') for name, driver in (("dranet", NIC), (GPU_CLASS,) * 2)]
    items = [*slices, *classes, profile("dranet", node_selector={}, gpu_class=GPU_CLASS)]
    made = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    with controlled(real_cluster, tmp_path_factory.mktemp("controller")) as system:
        real_cluster.kubectl("apply", "-f", "-", input=made)
        real_cluster.kubectl("wait", "--for=condition=Accepted", "networkprofile/dranet", "--timeout=30s")
        yield system
        real_cluster.kubectl("delete", "-f", "-", input=made)


def objects(system: Controlled, plural: str) -> list[Any]:
    listed: list[Any] = json.loads(system.kubectl("get", plural, "-o", "json"))["items"]
    return listed


def test_templates_are_written_allocated_from_and_collected_with_their_job(system: Controlled) -> None:
    system.submit("claiming", nodes=2, nproc_per_node=1, run="true", placement={"network": "roce"})
    until(lambda: len([pod for pod in objects(system, "pods") if pod["spec"].get("nodeName")]) == 2, "two bound pods")
    assert len(objects(system, "resourceclaimtemplates")) == 2
    allocations = [claim["status"]["allocation"]["devices"] for claim in objects(system, "resourceclaims")]
    chosen = [tuple(sorted(each["device"] for each in allocation["results"])) for allocation in allocations]
    assert sorted(chosen) == [("gpu-0", "pci-0000-3b-00-0")] * 2 + [("gpu-1", "pci-0000-18-00-0")] * 2
    assert {config["opaque"]["driver"] for each in allocations for config in each["config"]} == {NIC}
    system.kubectl("delete", "gangjob", "claiming")
    until(lambda: not objects(system, "resourceclaimtemplates"), "the templates to be collected")
