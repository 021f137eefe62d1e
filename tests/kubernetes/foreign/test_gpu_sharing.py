"""Pods that ask for shares of GPUs in the dialects of others: placed, annotated as each device plugin expects."""

import json
from pathlib import Path
from typing import Any

import pytest

from ganger.kubeapi.credentials import Credentials
from tests.kubernetes.binding import OFFER, controller
from tests.kubernetes.foreign.hami_plugin import plugin_of
from tests.kubernetes.foreign.scenes import bound, group, pending_message, scene
from tests.waiting import until
from tools.fakeapi import FakeApi

AMOUNTS = OFFER["allocatable"]
GPUSHARE = {"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"}
OPENB = {"alibabacloud.com/gpu-count": "2"}
REGISTER = json.dumps(
    [
        {"id": f"GPU-{index}", "index": index, "count": 10, "devmem": 16384, "type": "NVIDIA-Tesla T4", "health": True}
        for index in range(2)
    ]
)


def node(api: FakeApi, name: str, resources: dict[str, str], **more: Any) -> None:
    amounts = {key: value for key, value in AMOUNTS.items() if key != "nvidia.com/gpu"} | resources
    status = {**OFFER, "allocatable": amounts, "capacity": amounts}
    api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **more}, "status": status})


def hami_node(api: FakeApi, name: str = "hami") -> None:
    node(api, name, {"nvidia.com/gpu": "20"}, annotations={"hami.io/node-nvidia-register": REGISTER})


def pod(
    api: FakeApi,
    name: str,
    limits: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> None:
    container = {"name": "c", "image": "i", "resources": {"limits": {"cpu": "1", **(limits or {})}}}
    body = {"schedulerName": "ganger", "containers": [container], **spec}
    about = {"name": name, "namespace": "default", "annotations": annotations or {}}
    api.put({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": body, "status": {"phase": "Pending"}})


def annotations_of(api: FakeApi, name: str) -> dict[str, str]:
    actual = api.get("pods", name)
    assert actual is not None
    annotations: dict[str, str] = actual["metadata"]["annotations"]
    return annotations


def test_gpushare() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        node(api, "plain", {"nvidia.com/gpu": "8"})
        node(api, "share", GPUSHARE)
        async with controller(access, folder):
            for name, amount in (("a", "10"), ("b", "10"), ("c", "5")):
                pod(api, name, {"aliyun.com/gpu-mem": amount})
                await until(lambda name=name: name in bound(api))
            pod(api, "d", {"aliyun.com/gpu-mem": "10"})
            await until(lambda: pending_message(api, "d"))
        assert bound(api) == {"a": "share", "b": "share", "c": "share"}
        actual = {name: annotations_of(api, name) for name in "abc"}
        assert [actual[name]["ALIYUN_COM_GPU_MEM_IDX"] for name in "abc"] == ["0", "1", "0"]
        assert actual["a"].pop("ALIYUN_COM_GPU_MEM_ASSUME_TIME").isdecimal()
        assert actual["a"] == {
            "ALIYUN_COM_GPU_MEM_IDX": "0",
            "ALIYUN_COM_GPU_MEM_POD": "10",
            "ALIYUN_COM_GPU_MEM_DEV": "15",
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
            "ganger.dev/devices": "0",
        }

    scene(0, play)


def test_hami() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        node(api, "plain", {"nvidia.com/gpu": "8"})
        hami_node(api)
        async with plugin_of(api) as plugin, controller(access, folder):
            beside = {"name": "beside", "image": "i"}
            asks = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000", "nvidia.com/gpucores": "40"}
            main = {"name": "main", "image": "i", "resources": {"limits": asks}}
            pod(api, "a", containers=[beside, main])
            await until(lambda: "a" in bound(api))
            pod(api, "b", {"nvidia.com/gpumem": "8000"})
            await until(lambda: "b" in bound(api))
            pod(api, "c", {"nvidia.com/gpumem": "8000"}, {"nvidia.com/use-gputype": "V100,T4"})
            await until(lambda: plugin.served == ["a", "b", "c"])
        assert bound(api) == dict.fromkeys("abc", "hami")
        actual = annotations_of(api, "a")
        assert actual.pop("hami.io/vgpu-time") == actual.pop("hami.io/bind-time")
        assert actual == {
            "hami.io/vgpu-node": "hami",
            "hami.io/vgpu-devices-to-allocate": ";GPU-0,NVIDIA,8000,40:;",
            "hami.io/vgpu-devices-allocated": ";GPU-0,NVIDIA,8000,40:;",
            "hami.io/bind-phase": "success",
            "ganger.dev/devices": "0",
        }
        devices = [annotations_of(api, name)["hami.io/vgpu-devices-to-allocate"] for name in "bc"]
        assert devices == ["GPU-0,NVIDIA,8000,0:;", "GPU-1,NVIDIA,8000,0:;"]

    scene(0, play)


def test_whole_gpus_of_a_node_with_hami_get_its_annotations_too() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        hami_node(api)
        async with controller(access, folder):
            pod(api, "a", {"nvidia.com/gpu": "2"})
            await until(lambda: "a" in bound(api))
            pod(api, "b", {"nvidia.com/gpu": "1"})
            await until(lambda: pending_message(api, "b"))
        both = "GPU-0,NVIDIA,16384,0:GPU-1,NVIDIA,16384,0:;"
        assert annotations_of(api, "a")["hami.io/vgpu-devices-to-allocate"] == both
        assert bound(api) == {"a": "hami"}, "the plugin advertises 20, and there are 2"

    scene(0, play)


def test_kai() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        hami_node(api)
        node(api, "plain", {"nvidia.com/gpu": "1"}, labels={"nvidia.com/gpu.memory": "40000"})
        async with controller(access, folder):
            for name, fraction in (("a", "0.5"), ("b", "0.25")):
                pod(api, name, annotations={"gpu-fraction": fraction})
                await until(lambda name=name: name in bound(api))
            pod(api, "c", annotations={"gpu-fraction": "0.3"})
            await until(lambda: pending_message(api, "c"))
            pod(api, "d", annotations={"gpu-memory": "20000"})
            await until(lambda: "d" in bound(api))
        assert bound(api) == dict.fromkeys("abd", "plain"), "a node with HAMi is for its own dialect"
        written = {"gpu-fraction": "0.5", "received-resource-type": "Fraction", "ganger.dev/devices": "0"}
        assert annotations_of(api, "a") == written

    scene(0, play)


def test_openb() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        node(api, "p100", OPENB, labels={"alibabacloud.com/gpu-card-model": "P100"})
        node(api, "v100", OPENB, labels={"alibabacloud.com/gpu-card-model": "V100M16"})
        async with controller(access, folder):
            model = {"alibabacloud.com/gpu-card-model": "V100M16|V100M32"}
            pod(api, "a", annotations={"alibabacloud.com/gpu-milli": "460", "alibabacloud.com/gpu-count": "1"} | model)
            await until(lambda: "a" in bound(api))
            pod(api, "b", annotations={"alibabacloud.com/gpu-milli": "1000", "alibabacloud.com/gpu-count": "2"})
            await until(lambda: "b" in bound(api))
        assert bound(api) == {"a": "v100", "b": "p100"}
        assert annotations_of(api, "a")["alibabacloud.com/gpu-index"] == "0"
        assert annotations_of(api, "b")["alibabacloud.com/gpu-index"] == "0-1"
        assert annotations_of(api, "b")["alibabacloud.com/assume-time"].isdecimal()

    scene(0, play)


@pytest.mark.parametrize(
    ("limits", "annotations", "reason"),
    [
        ({"aliyun.com/gpu-mem": "4"}, {"gpu-fraction": "0.5"}, "in the dialects of aliyun gpushare and KAI Scheduler"),
        ({}, {"gpu-fraction": "1.5"}, "it asks for 1.5 of a GPU's compute; a share is at most one GPU"),
        ({}, {"gpu-fraction": "half"}, "'half' is not a quantity"),
        ({}, {"gpu-fraction": "0"}, "a share of nothing"),
        ({}, {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}, "it asks for shares of 2 GPUs"),
        ({}, {"gpu-fraction": "0.5", "gpu-memory": "100"}, "it has both gpu-fraction and gpu-memory"),
        ({"nvidia.com/gpu": "1"}, {"gpu-fraction": "0.5"}, "it asks for nvidia.com/gpu and for a share"),
        ({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "100"}, {}, "it asks for shares of 2 GPUs"),
        ({"nvidia.com/gpumem": "100", "nvidia.com/gpucores": "140"}, {}, "nvidia.com/gpucores is 140"),
        ({"nvidia.com/gpumem-percentage": "50"}, {}, "ask for MiB with nvidia.com/gpumem"),
        ({"nvidia.com/gpumem": "100"}, {"nvidia.com/use-gpuuuid": "GPU-1"}, "nvidia.com/use-gpuuuid is not supported"),
        ({}, {"alibabacloud.com/gpu-milli": "1400"}, "it asks for 1.4 of a GPU's compute"),
        ({}, {"alibabacloud.com/gpu-milli": "500", "alibabacloud.com/gpu-count": "3"}, "shares of 3 GPUs"),
        ({}, {"alibabacloud.com/gpu-milli": "1000", "alibabacloud.com/gpu-count": "900"}, "it asks for 900 GPUs"),
        ({"aliyun.com/gpu-mem": "8"}, {}, "gpushare"),
    ],
)
def test_a_share_that_cannot_be_placed_says_why_and_holds_up_nothing(
    limits: dict[str, str], annotations: dict[str, str], reason: str
) -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        node(api, "plain", {"nvidia.com/gpu": "1"})
        async with controller(access, folder):
            pod(api, "bad", limits, annotations)
            await until(lambda: reason in pending_message(api, "bad"))
            pod(api, "good", {"nvidia.com/gpu": "1"})
            await until(lambda: "good" in bound(api))
        assert bound(api) == {"good": "plain"}

    scene(0, play)


def test_a_new_controller_adopts_shares_and_counts_those_of_others() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        hami_node(api)
        async with plugin_of(api), controller(access, folder):
            pod(api, "a", {"nvidia.com/gpumem": "8000"})
            await until(lambda: "a" in bound(api))
        theirs = {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,100,0:;"}
        pod(api, "x", {"nvidia.com/gpu": "1"}, theirs, schedulerName="hami-scheduler", nodeName="hami")
        async with plugin_of(api), controller(access, folder):
            pod(api, "b", {"nvidia.com/gpumem": "8000"})
            await until(lambda: "b" in bound(api))
            pod(api, "c", {"nvidia.com/gpumem": "8000"})
            await until(lambda: pending_message(api, "c"))
        assert annotations_of(api, "b")["ganger.dev/devices"] == annotations_of(api, "a")["ganger.dev/devices"] == "0"
        assert "c" not in bound(api)

    scene(0, play)


def grouped(
    api: FakeApi, name: str, group: str, annotations: dict[str, str], limits: dict[str, str] | None = None
) -> None:
    pod(api, name, limits, annotations, schedulingGroup={"podGroupName": group})


def test_a_gang_of_shares_is_placed_whole_or_not_at_all() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        node(api, "plain", {"nvidia.com/gpu": "2"})
        group(api, "g", 4)
        group(api, "h", 2)
        async with controller(access, folder):
            for index in range(4):
                grouped(api, f"g-{index}", "g", {"gpu-fraction": "0.5"})
            await until(lambda: len(bound(api)) == 4)
            for index in range(2):
                grouped(api, f"h-{index}", "h", {"gpu-fraction": "0.5"})
            await until(lambda: pending_message(api, "h-0"))
            assert len(bound(api)) == 4
            devices = [annotations_of(api, f"g-{index}")["ganger.dev/devices"] for index in range(4)]
            assert sorted(devices) == ["0", "0", "1", "1"]
            for index in range(4):
                api.delete("pods", f"g-{index}")
            await until(lambda: len(bound(api)) == 2, within_s=120)
        assert [annotations_of(api, f"h-{index}")["ganger.dev/devices"] for index in range(2)] == ["0", "0"]

    scene(0, play)


def test_a_gang_in_two_dialects_waits_and_says_so() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        node(api, "plain", {"nvidia.com/gpu": "2"})
        node(api, "share", GPUSHARE)
        group(api, "g", 2)
        async with controller(access, folder):
            grouped(api, "g-0", "g", {"gpu-fraction": "0.5"})
            grouped(api, "g-1", "g", {}, {"aliyun.com/gpu-mem": "4"})
            await until(lambda: "of the device plugins" in pending_message(api, "g-0"))
        assert not bound(api)

    scene(0, play)


def test_a_device_that_pods_claim_beyond_its_size_is_not_adopted_twice() -> None:
    """Somebody wrote the slot of another pod into the annotation of a running one."""

    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        node(api, "plain", {"nvidia.com/gpu": "2"})
        for name in "ab":
            claims = {"gpu-fraction": "0.75", "ganger.dev/devices": "0"}
            pod(api, name, annotations=claims, nodeName="plain")
        async with controller(access, folder) as system:
            pod(api, "c", annotations={"gpu-fraction": "0.5"})
            await until(lambda: "c" in bound(api))
            assert len(system.loop.copy().gangs) == 2, "one of them and the new one"
        assert annotations_of(api, "c")["ganger.dev/devices"] == "1"

    scene(0, play)


def test_slices_are_counted_by_their_resource_and_never_as_gpus() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        node(api, "mixed", {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.10gb": "3", "nvidia.com/gpu.shared": "4"})
        async with controller(access, folder):
            pod(api, "a", {"nvidia.com/mig-1g.10gb": "2"})
            await until(lambda: "a" in bound(api))
            pod(api, "b", {"nvidia.com/mig-1g.10gb": "2"})
            await until(lambda: "free nvidia.com/mig-1g.10gb" in pending_message(api, "b"))
            pod(api, "c", {"nvidia.com/gpu.shared": "4"})
            pod(api, "d", {"nvidia.com/gpu": "1"})
            await until(lambda: {"c", "d"} <= bound(api).keys())
        assert annotations_of(api, "d")["ganger.dev/devices"] == "0"
        assert bound(api) == dict.fromkeys("acd", "mixed")

    scene(0, play)
