"""The agent of a real node with GPUs of the stub: what the kubelet gave to whom, and what the controller shows."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import stub_nvml  # noqa: F401  # a fixture
from tests.kubernetes.agents.real_agent import agent, beside_kubelet
from tests.kubernetes.client.test_query_permissions import Typed, ganger, record  # noqa: F401  # a fixture
from tools.controlled import Controlled, controlled
from tools.stub_nvml import VARIABLE, write_modes
from tools.testcluster import BASE_IMAGE, Cluster
from tools.testcluster.waiting import until

NODE = "node-1"
GPUS = 4


@pytest.fixture(scope="module")
def kernel_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file that the agent of node-1 takes for the kernel's log."""
    return tmp_path_factory.mktemp("kernel") / "kmsg"


@pytest.fixture(scope="module")
def system(
    own_cluster: Cluster,
    kernel_log: Path,
    stub_nvml: Path,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Controlled]:
    """Yield a controller with the agent of node-1, whose kubelet has a device plugin for the stub's GPUs."""
    folder = tmp_path_factory.mktemp("agent")
    write_modes(folder / "modes", f"{GPUS} 3=idle")
    kernel_log.touch()
    with controlled(own_cluster, folder) as system, ExitStack() as stack:
        uuids = [uuid_of(index) for index in range(GPUS)]
        stack.enter_context(beside_kubelet(own_cluster, 1, "tools.stub_kubelet.device_plugin", *uuids))
        until(lambda: _allocatable(own_cluster) == str(GPUS), "the kubelet to have the GPUs")
        places = {
            "nvml-library": stub_nvml,
            "pod-resources": "/var/lib/kubelet/pod-resources/kubelet.sock",
            "kernel-log": kernel_log,
        }
        stack.enter_context(agent(own_cluster, 1, folder, places, **{VARIABLE: str(folder / "modes")}))
        yield system


def uuid_of(index: int) -> str:
    """Return the UUID of a GPU of the stub."""
    return f"GPU-00000000-0000-0000-0000-{index:012d}"


def _allocatable(on: Cluster) -> str:
    node = json.loads(on.kubectl("get", "node", NODE, "-o", "json"))
    return str(node["status"]["allocatable"].get("nvidia.com/gpu", ""))


def gpus_of(system: Controlled) -> dict[str, Any]:
    """Return the telemetry of the GPUs of the node by UUID."""
    rows = [row for row in system.client.telemetry(points=3) if row["node"] == NODE]
    return {gpu["uuid"]: gpu for row in rows for gpu in row["gpus"]}


def test_gpus_are_those_that_the_kubelet_gave_and_people_see_them(
    system: Controlled,
    ganger: Typed,  # noqa: F811
) -> None:
    system.submit("train", run=["sleep", "600"], image=BASE_IMAGE, resources={"gpu": 2, "cpu": "100m"})
    system.wait("train", "Running")
    job = f"train.{system.namespace}"
    until(lambda: [gpu["job"] for gpu in gpus_of(system).values()].count(job) == 2, "its GPUs in a sample")
    (pod,) = system.pods("train")
    held = [gpu for gpu in gpus_of(system).values() if gpu["job"]]
    assert [gpu["pods"] for gpu in held] == 2 * [[f"{system.namespace}/{pod}"]]
    other = {"name": "other", "namespace": system.namespace}
    limits = {"nvidia.com/gpu": 1}
    container = {"name": "main", "image": BASE_IMAGE, "command": ["sleep", "600"], "resources": {"limits": limits}}
    spec = {"nodeName": NODE, "containers": [container], "terminationGracePeriodSeconds": 0}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": other, "spec": spec}
    system.on.kubectl("apply", "-f", "-", input=json.dumps(body))
    foreign = [f"{system.namespace}/other"]
    until(lambda: any(gpu["pods"] == foreign for gpu in gpus_of(system).values()), "the pod of another in a sample")
    assert [gpu["job"] for gpu in gpus_of(system).values() if gpu["pods"] == foreign] == [None]

    shown = ganger("seer", "top", "nodes", "-o", "json")
    (row,) = (row for row in record(shown)["telemetry"] if row["node"] == NODE)
    assert (row["is_silent"], row["unread"], len(row["gpus"])) == (False, [], GPUS)
    usage = record(ganger("seer", "get", "train", "--usage", "-o", "json"))
    assert [rank["memory_used_bytes"] is not None for rank in usage["ranks"]] == [True] * len(usage["ranks"])
    refused = ganger("asker", "top", "nodes")
    assert refused.returncode == 4, "telemetry names jobs of all namespaces"


def test_a_line_of_the_kernels_log_is_a_fault_of_its_node(system: Controlled, kernel_log: Path) -> None:
    until(lambda: gpus_of(system), "a sample")
    with kernel_log.open("a") as file:
        file.write("3,1,1,-;NVRM: Xid (PCI:0000:10:00): 31, pid=7, name=python3, Ch 00000008, MMU Fault\n")

    def faults() -> list[Any]:
        events = system.client.events(limit=1000)["items"]
        return [event["data"]["fault"] for event in events if event["kind"] == "node_faulty"]

    until(lambda: any(fault["code"] == "xid_31" for fault in faults()), "the fault in the controller's events")
    (fault,) = (fault for fault in faults() if fault["code"] == "xid_31")
    assert (fault["node"], fault["is_shadow"]) == (NODE, True), "a program can cause it: nothing is done about the node"
    assert system.serves()
