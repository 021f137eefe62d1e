"""GangJobs on nodes whose device plugin has its own protocol, and on MIG slices."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kubernetes.admin import credentials_of
from tests.kubernetes.binding import CRD, JOB, OFFER
from tests.kubernetes.jobs.test_gang_jobs import reconciling_controller
from tests.waiting import until
from tools.fakeapi import FakeApi

REGISTER = json.dumps(
    [{"id": f"GPU-{index}", "index": index, "devmem": 81920, "type": "H100", "health": True} for index in range(2)]
)
SPEC = {"run": "true", "nodes": 1}


def placed(folder: Path, node: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    """Return the pod of a job on a cluster of this one node."""
    pods: list[dict[str, Any]] = []

    async def play() -> None:
        async with FakeApi(kubelet=True) as api:
            amounts = OFFER["allocatable"] | node["resources"]
            status = {**OFFER, "allocatable": amounts, "capacity": amounts}
            about = {"name": "n0", "annotations": node.get("annotations", {})}
            api.put({"apiVersion": "v1", "kind": "Node", "metadata": about, "status": status})
            api.put(CRD)
            api.put(JOB | {"spec": SPEC | spec})
            access = credentials_of(api)
            async with reconciling_controller(access, folder):
                await until(is_bound(api))
            pods.extend(api.objects("pods"))

    asyncio.run(play())
    (pod,) = pods
    return pod


def is_bound(api: FakeApi) -> Callable[[], bool]:
    return lambda: any(pod["spec"].get("nodeName") for pod in api.objects("pods"))


def test_a_job_on_a_node_with_hami_has_the_annotations_that_its_plugin_reads(tmp_path: Path) -> None:
    node = {"resources": {"nvidia.com/gpu": "20"}, "annotations": {"hami.io/node-nvidia-register": REGISTER}}
    annotations = placed(tmp_path, node, {"resources": {"gpu": 2}})["metadata"]["annotations"]
    assert annotations["hami.io/vgpu-devices-to-allocate"] == "GPU-0,NVIDIA,81920,0:GPU-1,NVIDIA,81920,0:;"
    assert annotations["hami.io/bind-phase"] == "allocating"
    assert annotations["ganger.dev/devices"] == "0,1"


def test_a_job_on_mig_slices_asks_for_their_resource(tmp_path: Path) -> None:
    node = {"resources": {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "7"}}
    pod = placed(tmp_path, node, {"resources": {"gpu": "mig-1g.10gb:2"}})
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/mig-1g.10gb"] == "2"
    assert "nvidia.com/gpu" not in limits
