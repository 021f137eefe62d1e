"""GPUs of nodes that are parts of devices, and devices that pods of other schedulers share."""

import json
from typing import Any

import msgspec
import pytest

from ganger.backends.kubernetes.gpus.sharing_dialects import Binding, binding_annotations, share_request
from ganger.backends.kubernetes.nodes.node_inventory import NodeInventory
from ganger.core.nodes.node_table import NodeTable
from ganger.core.placement.place import place
from ganger.core.undo import Undo
from ganger.errors import RequestError
from ganger.gang_jobs.gpu_slices import with_slices
from ganger.kubeapi import objects
from ganger.model.cluster import Node
from ganger.model.job import GpuRequest, JobSpec, Resources
from ganger.model.shape import Shape
from ganger.model.units import GIB_BYTES, MIB_BYTES
from tests.kubernetes.nodes.test_nodes import ALLOCATABLE, node, node_view, pod

A100 = "NVIDIA-A100-SXM4-40GB"


@pytest.mark.parametrize(
    ("labels", "gpu_type", "is_partial"),
    [
        ({"nvidia.com/gpu.product": A100}, "a100", False),
        ({"nvidia.com/gpu.product": f"{A100}-MIG-1g.5gb"}, "a100-mig-1g.5gb", True),
        ({"nvidia.com/gpu.product": f"{A100}-MIG-1g.5gb.me"}, "a100-mig-1g.5gb.me", True),
        ({"nvidia.com/gpu.product": f"{A100}-MIG-1g.5gb-SHARED"}, "a100-mig-1g.5gb-shared", True),
        ({"nvidia.com/gpu.product": f"{A100}-SHARED"}, "a100-shared", True),
        ({"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "mps"}, "nvidia-shared", True),
        ({"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "none"}, "nvidia", False),
        ({"nvidia.com/gpu.replicas": "many", "nvidia.com/gpu.sharing-strategy": "mps"}, "nvidia", False),
    ],
)
def test_type_of_gpus_that_are_parts(labels: dict[str, str], gpu_type: str, is_partial: bool) -> None:
    actual = node_view(of=node(labels=labels))
    assert (actual.gpu_type, actual.partial_gpus) == (gpu_type, is_partial)


def test_a_job_for_any_gpu_gets_whole_ones() -> None:
    labels = {"nvidia.com/gpu.product": f"{A100}-SHARED", "nvidia.com/gpu.replicas": "4"}
    nodes = [node_view(of=node("a", labels=labels)), Node(name="b", gpus=8, gpu_type="a100", cpu_milli=64_000)]
    table = NodeTable(nodes, {}, Undo())

    def nodes_of(shape: Shape) -> list[str]:
        return [share.node for share in place(table, shape) or ()]

    assert nodes_of(Shape(nodes=1, gpus=8)) == ["b"]
    assert nodes_of(Shape(nodes=2, gpus=1)) == []
    assert nodes_of(Shape(nodes=1, gpus=1, gpu_type="a100-shared")) == ["a"]
    assert nodes_of(Shape(nodes=2, cpu_milli=1000)) == ["a", "b"], "its CPUs are for all"


def test_slices_by_their_type() -> None:
    spec = JobSpec(name="j", resources=Resources(gpu=GpuRequest(count=2, type="MIG-1g.10gb")))
    actual = with_slices(spec)
    assert (actual.resources.gpu, actual.resources.extended) == (GpuRequest(), {"nvidia.com/mig-1g.10gb": 2})
    assert actual.nproc_per_node == 2
    whole = JobSpec(name="j", resources=Resources(gpu=GpuRequest(count=2, type="a100-mig-1g.5gb")))
    assert with_slices(whole) == whole, "those are the GPUs of a node"


@pytest.mark.parametrize(
    ("gpu", "extended", "reason"),
    [
        (GpuRequest(count=1, type="mig-1g.10gb", other_types=("h100",)), {}, "a resource of their own"),
        (GpuRequest(type="mig-1g.10gb", milli=500), {}, "a share of a MIG slice"),
        (GpuRequest(count=1, type="mig-1g.10gb"), {"nvidia.com/mig-1g.10gb": 1}, "nvidia.com/mig-1g.10gb too"),
    ],
)
def test_slices_that_contradict_themselves(gpu: GpuRequest, extended: dict[str, int], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        with_slices(JobSpec(name="j", resources=Resources(gpu=gpu, extended=extended)))


# -- dialects of sharing ----------------------------------------------------------------------------------------------


def hami(register: str | None = None) -> objects.Node:
    """Return a node with four GPUs, the last of which is unhealthy."""
    gpus = [
        {"id": f"GPU-{index}", "index": index, "count": 10, "devmem": 32768, "type": "NVIDIA-A100", "health": index < 3}
        for index in (3, 2, 1, 0)
    ]
    plain = node(allocatable=ALLOCATABLE | {"nvidia.com/gpu": "40"})
    text = json.dumps(gpus) if register is None else register
    annotations = {"hami.io/node-nvidia-register": text}
    return msgspec.structs.replace(plain, metadata=msgspec.structs.replace(plain.metadata, annotations=annotations))


def sharing(limits: dict[str, str], annotations: dict[str, str], name: str = "p", **spec: Any) -> objects.Pod:
    """Return a pod that another scheduler has placed."""
    plain = pod(name, containers=[{"name": "c", "resources": {"limits": limits}}], **spec)
    return msgspec.structs.replace(plain, metadata=msgspec.structs.replace(plain.metadata, annotations=annotations))


def test_gpus_of_a_node_with_hami_are_those_that_it_registers() -> None:
    actual = node_view(of=hami())
    assert (actual.gpus, actual.foreign, actual.gpu_type) == (4, (3,), "a100")
    assert actual.gpu_memory_bytes == 32768 * MIB_BYTES
    assert actual.labels["ganger.dev/gpu-plugin"] == "hami"


@pytest.mark.parametrize("register", ["GPU-0,10,32768,100,NVIDIA-A100,0,true:GPU-1,10,32768,100,NVIDIA-A100,0,true:"])
def test_the_older_register(register: str) -> None:
    assert node_view(of=hami(register)).gpus == 2


@pytest.mark.parametrize("register", ["nothing", "[{}]", '{"id": 1}', "a,b:c,d:", "GPU-0,x,32768,100,A100,0,true:"])
def test_a_register_that_is_none(register: str) -> None:
    assert node_view(of=hami(register)).gpus == 40


def test_gpus_of_gpushare() -> None:
    amounts = ALLOCATABLE | {"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"}
    actual = node_view(of=node(allocatable=amounts))
    assert (actual.gpus, actual.gpu_type, actual.partial_gpus) == (2, "gpushare", True)
    assert actual.gpu_memory_bytes == 15 * GIB_BYTES
    in_mib = node_view(of=node(allocatable=amounts | {"aliyun.com/gpu-mem": "30000"}))
    assert in_mib.gpu_memory_bytes == 15000 * MIB_BYTES
    beside_nvidia = node_view(of=node(allocatable=amounts | {"nvidia.com/gpu": "4"}))
    assert (beside_nvidia.gpus, beside_nvidia.gpu_type) == (4, "nvidia")


HAMI_SHARE = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}


def on_gpu(*devices: int) -> dict[str, str]:
    return {"hami.io/vgpu-devices-allocated": ":".join(f"GPU-{index},NVIDIA,1000,0" for index in devices) + ":;"}


def test_devices_that_pods_of_others_share_are_used() -> None:
    assert node_view(sharing(HAMI_SHARE, on_gpu(1)), of=hami()).foreign == (1, 3)
    both = sharing(HAMI_SHARE, on_gpu(1), "p"), sharing(HAMI_SHARE, on_gpu(1), "q")
    assert node_view(*both, of=hami()).foreign == (1, 3), "one device, shared by two"
    assert node_view(sharing({"nvidia.com/gpu": "2"}, on_gpu(0, 2)), of=hami()).foreign == (0, 2, 3)
    assert node_view(sharing(HAMI_SHARE, {}), of=hami()).foreign == (2, 3), "it does not say which"
    unknown = {"hami.io/vgpu-devices-allocated": "GPU-99,NVIDIA,1000,0:;"}
    assert node_view(sharing(HAMI_SHARE, unknown), of=hami()).foreign == (2, 3)


def test_devices_of_the_other_dialects() -> None:
    gpushare = node(allocatable=ALLOCATABLE | {"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"})
    asks = {"aliyun.com/gpu-mem": "4"}
    assert node_view(sharing(asks, {"ALIYUN_COM_GPU_MEM_IDX": "0"}), of=gpushare).foreign == (0,)
    assert node_view(sharing(asks, {"ALIYUN_COM_GPU_MEM_IDX": "-1"}), of=gpushare).foreign == (1,)
    openb = node(allocatable=ALLOCATABLE | {"alibabacloud.com/gpu-count": "4"})
    whole = {"alibabacloud.com/gpu-milli": "1000", "alibabacloud.com/gpu-count": "2"}
    assert node_view(sharing({}, whole | {"alibabacloud.com/gpu-index": "0-2"}), of=openb).foreign == (0, 2)


def grouped(name: str, groups: dict[str, str], of: objects.Pod) -> objects.Pod:
    """Return a pod of KAI Scheduler in groups, by their labels."""
    metadata = msgspec.structs.replace(of.metadata, name=name, uid=f"uid-{name}", labels=groups)
    return msgspec.structs.replace(of, metadata=metadata)


def test_a_gpu_that_kai_shares_is_counted_once_with_the_pod_that_reserves_it() -> None:
    one, half = {"runai-gpu-group": "g1"}, sharing({}, {"gpu-fraction": "0.5"})
    sharers = [grouped(name, one, half) for name in ("p", "q")]
    reserves = grouped("r", one, sharing({"nvidia.com/gpu": "1"}, {"run.ai/reserve_for_gpu_index": "3"}))
    assert node_view(*sharers, reserves).foreign == (3,), "the index of older versions"
    by_uuid = sharing({"nvidia.com/gpu": "1"}, {"run.ai/reserve_for_gpu_index": "GPU-1"})
    assert node_view(*sharers, grouped("r", one, by_uuid), of=hami()).foreign == (1, 3)
    assert node_view(*sharers, grouped("r", one, by_uuid)).foreign == (7,), "a GPU, and not known which"
    assert node_view(*sharers).foreign == (7,), "the pod that reserves it is gone before them"
    elsewhere = grouped("r", {"runai-gpu-group": "g2"}, sharing({"nvidia.com/gpu": "1"}, {}))
    assert node_view(*sharers, elsewhere).foreign == (6, 7)
    both = grouped("m", {"runai-gpu-group/g1": "g1", "runai-gpu-group/g2": "g2"}, half)
    assert node_view(both, reserves).foreign == (3, 7)
    assert node_view(grouped("n", {}, half)).foreign == (), "KAI has given it no GPU"


def test_a_reservation_pod_that_learns_its_gpu_or_goes_is_counted_again() -> None:
    inventory, one = NodeInventory(), {"runai-gpu-group": "g1"}
    inventory.node_changed(None, node())
    sharer = grouped("p", one, sharing({}, {"gpu-fraction": "0.5"}))
    before = grouped("r", one, sharing({"nvidia.com/gpu": "1"}, {}))
    after = grouped("r", one, sharing({"nvidia.com/gpu": "1"}, {"run.ai/reserve_for_gpu_index": "2"}))
    steps = [(None, before, (7,)), (None, sharer, (7,)), (before, after, (2,)), (sharer, None, (2,)), (after, None, ())]
    for old, new, used in steps:
        inventory.pod_changed(old, new)
        assert inventory.cluster().nodes[0].foreign == used


def test_a_pod_that_ends_or_learns_its_device_is_counted_again() -> None:
    inventory, of = NodeInventory(), hami()
    inventory.node_changed(None, of)
    before, after = sharing(HAMI_SHARE, {}), sharing(HAMI_SHARE, on_gpu(0))
    inventory.pod_changed(None, before)
    assert inventory.cluster().nodes[0].foreign == (2, 3)
    inventory.pod_changed(before, after)
    assert inventory.cluster().nodes[0].foreign == (0, 3)
    inventory.pod_changed(after, None)
    assert inventory.cluster().nodes[0].foreign == (3,)


# -- amounts and annotations that no real object has -------------------------------------------------------------------

HUGE = ("1e999", "9" * 40, "1e-999", "9" * 5000, "-1", "0.5", "", "\u00b2", "1e1e1", "0-1", "[" * 5000)
HUGE_LIMITS = ("9" * 40, "1e999", "0.5")


@pytest.mark.parametrize("text", HUGE)
def test_no_annotation_of_a_pod_ends_the_controller(text: str) -> None:
    names = ("gpu-fraction", "gpu-memory", "alibabacloud.com/gpu-milli")
    more = (
        "gpu-fraction-num-devices",
        "alibabacloud.com/gpu-count",
        "nvidia.com/use-gputype",
        *on_gpu(),
    )
    reads = ("ALIYUN_COM_GPU_MEM_IDX", "alibabacloud.com/gpu-index", "alibabacloud.com/gpu-card-model")
    for name in names:
        for annotations in ({name: text}, {name: "1"} | dict.fromkeys((*more, *reads), text)):
            of = sharing({}, annotations)
            assert node_view(of) == node_view(sharing({}, {})), "another scheduler gave it no GPU that it says"
            binding_annotations(Binding(of, hami(), (0,), 1))
    reserves = sharing({"nvidia.com/gpu": "1"}, {"run.ai/reserve_for_gpu_index": text})
    assert len(node_view(grouped("r", {"runai-gpu-group": text}, reserves)).foreign) == 1


@pytest.mark.parametrize("text", HUGE_LIMITS)
def test_no_resource_of_a_pod_ends_the_controller(text: str) -> None:
    for name in ("aliyun.com/gpu-mem", "nvidia.com/gpumem", "nvidia.com/gpucores", "nvidia.com/gpumem-percentage"):
        of = sharing({name: text}, {})
        request = share_request(of)
        assert request is not None
        assert request.error
        assert node_view(of, of=hami()).foreign == (2, 3), "it has a share of some GPU"
        assert binding_annotations(Binding(of, hami(), (0,), 1)) == {}


def test_a_number_beyond_all_gpus_is_named() -> None:
    request = share_request(sharing({}, {"gpu-fraction": "1e999"}))
    assert request is not None
    assert request.error == "gpu-fraction is 1e999, more than any GPU has; write less"


def test_a_list_of_types_that_is_none_is_named() -> None:
    request = share_request(sharing(HAMI_SHARE, {"nvidia.com/use-gputype": "a," * 20_000}))
    assert request is not None
    assert request.error == "nvidia.com/use-gputype has 40000 characters; write at most 1000"


@pytest.mark.parametrize(
    "register",
    [
        json.dumps([{"id": "a", "more": 0}]).replace("0", "[" * 100_000 + "]" * 100_000),
        json.dumps([{"id": "a"}] * 1000),
        "a,1,1,100,A100,0,true:" * 1000,
        "a,1," + "9" * 5000 + ",100,A100,0,true:",
    ],
)
def test_a_register_that_no_node_has(register: str) -> None:
    assert node_view(of=hami(register)).gpus == 40


@pytest.mark.parametrize("mib", [1 << 62, 1 << 70, (1 << 24) + 1])
def test_more_memory_than_any_gpu_has_is_unknown(mib: int, caplog: pytest.LogCaptureFixture) -> None:
    register = json.dumps([{"id": "a", "devmem": mib, "type": "A100", "health": True}])
    for _ in range(2):
        assert_takes_whole_gpus_only(node_view(of=hami(register)))
    assert caplog.text.count(f"its GPUs have {mib} MiB, more than 16777216; their memory counts as unknown") == 1


def test_more_memory_than_any_gpu_has_in_the_other_ways() -> None:
    gpushare = ALLOCATABLE | {"aliyun.com/gpu-mem": "1e15", "aliyun.com/gpu-count": "1"}
    assert node_view(of=node(allocatable=gpushare)).gpu_memory_bytes == 0
    assert_takes_whole_gpus_only(node_view(of=node(labels={"nvidia.com/gpu.memory": "1e15"})))


def assert_takes_whole_gpus_only(actual: Node) -> None:
    assert actual.gpus
    assert actual.gpu_memory_bytes == 0
    table = NodeTable([actual], {}, Undo())
    assert place(table, Shape(nodes=1, gpus=1))
    assert not place(table, Shape(nodes=1, gpu_memory_bytes=GIB_BYTES))


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "aliyun.com/gpu-count"])
def test_more_gpus_than_any_node_has_do_not_count(resource: str, caplog: pytest.LogCaptureFixture) -> None:
    amounts = ALLOCATABLE | {"aliyun.com/gpu-mem": "1e15", resource: "1e12"}
    name = resource.replace("/", "-")
    assert node_view(of=node(name, allocatable=amounts)).gpus == 0
    assert f"node {name}: it has 1000000000000 GPUs, more than 999; they do not count" in caplog.text


ALL = {"alibabacloud.com/gpu-index": "0-1-2-3-4-5-6-7"}


@pytest.mark.parametrize(
    ("limits", "annotations", "foreign"),
    [
        ({}, ALL, 0),
        ({"nvidia.com/gpu": "1"}, ALL, 1),
        ({"nvidia.com/gpu": "8"}, {"gpu-fraction": "1"}, 8),
        ({"nvidia.com/gpu": "8"}, {"gpu-fraction": "1", "alibabacloud.com/gpu-index": "0"}, 8),
        ({"nvidia.com/gpu": "8"}, {"alibabacloud.com/gpu-milli": "500", "alibabacloud.com/gpu-index": "0"}, 8),
        ({"nvidia.com/gpu": "2"}, {"alibabacloud.com/gpu-index": "0-0"}, 2),
        ({"nvidia.com/gpu": "2"}, on_gpu(1), 2),
        ({}, on_gpu(1), 0),
        ({}, {"alibabacloud.com/gpu-milli": "500"} | ALL, 1),
    ],
)
def test_annotations_do_not_say_how_many_gpus_a_pod_has(
    limits: dict[str, str], annotations: dict[str, str], foreign: int
) -> None:
    assert len(node_view(sharing(limits, annotations)).foreign) == foreign


def test_a_pod_whose_annotations_come_and_go_leaves_nothing_behind() -> None:
    inventory, limits = NodeInventory(), {"nvidia.com/gpu": "8"}
    inventory.node_changed(None, node())
    pods = [sharing(limits, annotations) for annotations in ({}, {"gpu-fraction": "1"}, ALL, {"gpu-memory": "x"}, {})]
    for before, after in zip([None, *pods], [*pods, None], strict=True):
        inventory.pod_changed(before, after)
        assert len(inventory.cluster().nodes[0].foreign) == (8 if after else 0)


def test_each_container_gets_its_own_devices_of_hami() -> None:
    def bound(*gpus: str) -> str:
        containers = [{"name": f"c{count}", "resources": {"limits": {"nvidia.com/gpu": count}}} for count in gpus]
        devices = tuple(range(sum(map(int, gpus))))
        notes = binding_annotations(Binding(pod("p", containers=containers), hami(), devices, 1))
        return notes["hami.io/vgpu-devices-allocated"]

    first, second, third = (f"GPU-{index},NVIDIA,32768,0:" for index in range(3))
    assert bound("1", "1") == f"{first};{second};"
    assert bound("1", "0", "2") == f"{first};;{second}{third};"


def test_two_containers_with_shares_of_one_device_of_hami() -> None:
    annotations = {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1000,0:;GPU-1,NVIDIA,1000,0:;"}
    plain = pod("p", containers=[{"name": "c", "resources": {"limits": HAMI_SHARE}}] * 2)
    theirs = msgspec.structs.replace(plain, metadata=msgspec.structs.replace(plain.metadata, annotations=annotations))
    assert node_view(theirs, of=hami()).foreign == (1, 3)
