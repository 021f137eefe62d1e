"""Devices of nodes, as slices and claims come and go."""

from typing import Any

import pytest

from ganger.backends.kubernetes.devices.allocator import NoDevicesError
from ganger.backends.kubernetes.devices.device_inventory import DeviceInventory
from ganger.backends.kubernetes.devices.published_devices import DeviceRequestError
from ganger.kubeapi.objects import Key, ObjectMeta
from tests.kubernetes.devices.published import (
    DRIVER,
    allocated,
    claim_spec,
    device,
    device_class,
    gpus,
    parsed,
    slice_of,
)

POD = ObjectMeta(name="pod", namespace="default", uid="uid-pod")


def inventory(count: int = 4, *, nodes: tuple[str, ...] = ("a",)) -> DeviceInventory:
    devices = DeviceInventory()
    devices.class_changed(None, device_class())
    for node in nodes:
        devices.slice_changed(None, gpus(node, count))
    return devices


def counted(devices: DeviceInventory, *specs: dict[str, Any], node: str = "a", own: int = 0) -> int:
    kind = devices.count_kind([parsed(spec) for spec in specs])
    return devices.amounts(node, {kind.name: own}).get(kind.name, 0)


def test_kinds_are_named_by_their_classes_and_what_they_ask_for() -> None:
    devices = inventory()
    one, again, other = (devices.count_kind([parsed(claim_spec(2, *more))]).name for more in ((), (), ("true",)))
    assert one == again != other
    assert one.startswith(f"devices.ganger.dev/2x{DRIVER}-")
    assert devices.count_kind([parsed(claim_spec()), parsed(claim_spec(2))]) == devices.count_kind(
        [parsed(claim_spec(2)), parsed(claim_spec())]
    )


@pytest.mark.parametrize(
    ("specs", "many"),
    [
        ((claim_spec(1),), 4),
        ((claim_spec(2),), 2),
        ((claim_spec(3),), 1),
        ((claim_spec(5),), 0),
        ((claim_spec(1), claim_spec(1)), 2),
        ((claim_spec(1, 'device.attributes["gpu.example.com"].index >= 3'),), 1),
        ((claim_spec(2, constraints=[{"matchAttribute": "example.com/numa"}]),), 2),
        ((claim_spec(3, constraints=[{"matchAttribute": "example.com/numa"}]),), 0),
        ((claim_spec(2, constraints=[{"distinctAttribute": "example.com/numa"}]),), 2),
        ((claim_spec(allocationMode="All"),), 1),
        ((claim_spec(1, 'device.attributes["gpu.example.com"].serial == 1'),), 0),
    ],
)
def test_nodes_have_devices_for_so_many_pods(specs: tuple[dict[str, Any], ...], many: int) -> None:
    assert counted(inventory(), *specs) == many


def test_what_claims_hold_is_not_free_until_they_are_gone() -> None:
    devices = inventory()
    assert counted(devices, claim_spec(2)) == 2
    devices.take_changed()
    held = allocated("c", "a", "gpu-1")
    devices.claim_changed(None, held)
    assert devices.take_changed() == {"a"}
    assert counted(devices, claim_spec(2)) == 1
    assert counted(devices, claim_spec(1)) == 3
    assert counted(devices, claim_spec(1), own=1) == 4
    devices.claim_changed(held, None)
    assert counted(devices, claim_spec(2)) == 2


def test_what_is_being_written_is_held_and_counts_once() -> None:
    devices, claim = inventory(), allocated("c", "a")
    ((granted,),) = devices.allocate("a", [parsed(claim_spec(1))])
    devices.assume(claim, [granted], POD)
    assert counted(devices, claim_spec(1)) == 3
    devices.claim_changed(claim, allocated("c", "a", granted.device.name))
    assert counted(devices, claim_spec(1)) == 3
    devices.claim_changed(allocated("c", "a", granted.device.name), None)
    assert counted(devices, claim_spec(1)) == 4
    devices.assume(claim, [granted], POD)
    devices.release(Key("default", "c"), "another")
    assert counted(devices, claim_spec(1)) == 3
    devices.release(Key("default", "c"), POD.uid)
    assert counted(devices, claim_spec(1)) == 4


def test_an_older_generation_and_an_incomplete_pool_have_no_devices() -> None:
    devices = inventory(0, nodes=())
    devices.slice_changed(None, slice_of("a", device("gpu-0"), device("gpu-1"), generation=1))
    newer = slice_of("a", device("gpu-0"), name="newer", generation=2, count=2)
    devices.slice_changed(None, newer)
    assert counted(devices, claim_spec(1)) == 0
    devices.slice_changed(None, slice_of("a", device("gpu-2"), name="second", generation=2, count=2))
    assert counted(devices, claim_spec(1)) == 2
    devices.slice_changed(newer, None)
    assert counted(devices, claim_spec(1)) == 0


def test_a_slice_may_shrink_below_what_is_allocated() -> None:
    devices = inventory(2)
    devices.claim_changed(None, allocated("c", "a", "gpu-0", "gpu-1"))
    devices.slice_changed(gpus("a", 2), gpus("a", 1))
    assert counted(devices, claim_spec(1)) == 0
    devices.slice_changed(gpus("a", 1), None)
    assert counted(devices, claim_spec(1)) == 0
    with pytest.raises(NoDevicesError, match="no such device"):
        devices.allocate("a", [parsed(claim_spec(1))])
    devices.claim_changed(allocated("c", "a", "gpu-0", "gpu-1"), None)
    devices.slice_changed(None, gpus("a", 2))
    assert counted(devices, claim_spec(1)) == 2


def test_partitions_of_one_device_share_its_counters() -> None:
    def part(name: str, gibibytes: int) -> dict[str, Any]:
        uses = [{"counterSet": "gpu-0", "counters": {"memory": {"value": f"{gibibytes}Gi"}}}]
        return device(name, consumesCounters=uses)

    devices = inventory(0, nodes=())
    shared = [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]
    devices.slice_changed(None, slice_of("a", name="counters", count=2, sharedCounters=shared))
    devices.slice_changed(None, slice_of("a", part("whole", 80), part("half-0", 40), part("half-1", 40), count=2))
    assert counted(devices, claim_spec(1)) == 1  # the whole of it comes first
    assert counted(devices, claim_spec(2)) == 1
    devices.claim_changed(None, allocated("c", "a", "half-1"))
    assert counted(devices, claim_spec(1)) == 1
    devices.claim_changed(None, allocated("d", "a", "half-0"))
    assert counted(devices, claim_spec(1)) == 0


@pytest.mark.parametrize(
    ("uses", "reason"),
    [
        ([{"counterSet": "nothing", "counters": {"memory": {"value": "1"}}}], "gpu-0 has no counters left"),
        ([{"counterSet": "gpu-0", "counters": {"memory": {"value": "many"}}}], "not a quantity"),
    ],
)
def test_counters_that_cannot_be_counted_are_in_the_way(uses: list[Any], reason: str) -> None:
    devices = inventory(0, nodes=())
    devices.slice_changed(None, slice_of("a", device("gpu-0", consumesCounters=uses)))
    with pytest.raises(NoDevicesError, match=reason):
        devices.allocate("a", [parsed(claim_spec(1))])


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (claim_spec(deviceClassName="tpu"), f"there is no DeviceClass tpu; create it, or name one of these: {DRIVER}"),
        (claim_spec(1, "device.driver =="), "does not compile"),
        (claim_spec(capacity={"requests": {"memory": "1Gi"}}), "does not share the capacity"),
        (claim_spec(allocationMode="Some"), "does not know the mode Some"),
        ({"devices": {"requests": [{"name": "gpu"}]}}, "of a kind that ganger does not know"),
    ],
)
def test_claims_that_no_node_can_satisfy_are_refused_with_the_reason(spec: dict[str, Any], reason: str) -> None:
    devices = inventory()
    with pytest.raises(DeviceRequestError) as error:
        devices.check([parsed(spec)])
    assert reason in str(error.value)


def test_the_indices_of_devices_may_be_given() -> None:
    devices = inventory()
    kind = devices.count_kind([parsed(claim_spec(1))], (1, 3))
    assert devices.amounts("a", {}) == {kind.name: 2}
    assert kind != devices.count_kind([parsed(claim_spec(1))])
    ((granted,),) = devices.allocate("a", kind.claims, [kind])
    assert granted.device.name == "gpu-1"
    with pytest.raises(DeviceRequestError, match=r"gpu\.example\.com with an index of 8: the node has no such device"):
        devices.check([parsed(claim_spec(1))], (8,))


def test_a_class_may_come_and_change() -> None:
    devices = inventory()
    kind = devices.count_kind([parsed(claim_spec(1))])
    devices.class_changed(device_class(), None)
    assert devices.take_changed() == {"a"}
    assert devices.amounts("a", {}) == {}
    devices.class_changed(None, device_class(expression='device.attributes["gpu.example.com"].index < 2'))
    assert devices.amounts("a", {}) == {kind.name: 2}
