"""Allocation of devices, against every choice of devices on small nodes."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.backends.kubernetes.devices.allocator import (
    Budget,
    ClaimNeeds,
    CounterId,
    DeviceChoice,
    DeviceId,
    NodeDevice,
    NodeDevices,
    NoDevicesError,
    SameOrDistinct,
    allocate,
    shape_of,
)
from ganger.kubeapi.device_objects import DeviceTaint, DeviceToleration

MEMORY = CounterId("d", "p", "gpu-0", "memory")


def id_of(index: int) -> DeviceId:
    return DeviceId("d", "p", f"gpu-{index}")


def node(count: int, **attributes: tuple[object, ...]) -> NodeDevices:
    devices = (
        NodeDevice(id_of(index), {name: values[index] for name, values in attributes.items()}) for index in range(count)
    )
    return NodeDevices(tuple(devices))


def choice(count: int | None, *indices: int, request: str = "gpu", admin_access: bool = False) -> DeviceChoice:
    selected = frozenset(map(id_of, indices))
    return DeviceChoice(request, "gpu.example.com", count, selected, admin_access=admin_access)


def names(granted: tuple[tuple[object, ...], ...]) -> list[list[str]]:
    return [[each.device.name for each in claim] for claim in granted]  # type: ignore[attr-defined]


def test_requests_leave_each_other_what_they_need() -> None:
    needs = ClaimNeeds(((choice(1, 0, 1),), (choice(1, 0),)))
    assert names(allocate([needs], node(2), ())) == [["gpu-1", "gpu-0"]]
    apart = ClaimNeeds(((choice(1, 0, 1),),)), ClaimNeeds(((choice(1, 0),),))
    assert names(allocate(apart, node(2), ())) == [["gpu-1"], ["gpu-0"]]


def test_the_first_alternative_that_can_be_had_is_taken() -> None:
    needs = ClaimNeeds(((choice(2, 0, 1, request="gpu/pair"), choice(1, 2, request="gpu/one")),))
    assert names(allocate([needs], node(3), ())) == [["gpu-0", "gpu-1"]]
    ((granted,),) = allocate([needs], node(3), {id_of(0)})
    assert (granted.request, granted.device.name) == ("gpu/one", "gpu-2")


def test_all_devices_are_all_or_none_and_monitoring_takes_nothing() -> None:
    everything = ClaimNeeds(((choice(None, 0, 1, 2),),))
    assert names(allocate([everything], node(3), ())) == [["gpu-0", "gpu-1", "gpu-2"]]
    with pytest.raises(NoDevicesError, match=r"2 of 3 devices are free: gpu-1 is in use"):
        allocate([everything], node(3), {id_of(1)})
    monitor = ClaimNeeds(((choice(None, 0, 1, 2, admin_access=True),),))
    assert len(allocate([monitor, everything], node(3), ())[0]) == 3
    assert len(allocate([monitor], node(3), {id_of(1)})[0]) == 3


def test_a_tainted_device_is_for_those_that_tolerate_it() -> None:
    taint = DeviceTaint(key="sick", value="yes", effect="NoSchedule")
    tainted = NodeDevices((NodeDevice(id_of(0), taints=(taint,)),))
    with pytest.raises(NoDevicesError, match="0 of 1 devices are free: gpu-0 has a taint"):
        allocate([ClaimNeeds(((choice(1, 0),),))], tainted, ())
    for tolerates in (DeviceToleration(key="sick", operator="Exists"), DeviceToleration(key="sick", value="yes")):
        tolerant = DeviceChoice("gpu", "c", 1, frozenset({id_of(0)}), tolerations=(tolerates,))
        assert names(allocate([ClaimNeeds(((tolerant,),))], tainted, ())) == [["gpu-0"]]


def parts(*sizes: int, total: int = 80) -> NodeDevices:
    devices = tuple(NodeDevice(id_of(index), uses={MEMORY: size}) for index, size in enumerate(sizes))
    return NodeDevices(devices, {MEMORY: total})


def test_partitions_share_the_counters_of_their_device() -> None:
    some = ClaimNeeds(((choice(2, 0, 1, 2),),))
    assert names(allocate([some], parts(80, 40, 40), ())) == [["gpu-1", "gpu-2"]]
    with pytest.raises(NoDevicesError, match="gpu-0 has no counters left"):
        allocate([ClaimNeeds(((choice(1, 0),),))], parts(80, 40, 40), {id_of(2)})
    with pytest.raises(NoDevicesError, match="gpu-0 has no counters left"):
        allocate([ClaimNeeds(((choice(1, 0),),))], NodeDevices(parts(80).devices), ())  # a counter that does not exist


def test_reasons_name_the_request_and_what_is_in_the_way() -> None:
    with pytest.raises(NoDevicesError, match=r"^request gpu: gpu\.example\.com: the node has no such device$"):
        allocate([ClaimNeeds(((choice(1),),))], node(1), ())
    pair = ClaimNeeds(((choice(2, 0, 1),),), (SameOrDistinct(frozenset(), "numa"),))
    with pytest.raises(NoDevicesError, match="constraints on numa together"):
        allocate([pair], node(2, numa=(0, 1)), ())
    wide = SameOrDistinct(frozenset(), "numa", distinct=True)
    many = ClaimNeeds(((choice(16, *range(30)),),), (wide,))
    with pytest.raises(
        NoDevicesError, match="too many combinations: no devices were found for its claims in 500 attempts"
    ):
        allocate([many], node(30, numa=tuple(index % 15 for index in range(30))), ())


@given(st.data())
def test_it_finds_devices_exactly_where_there_are_some(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    numa = data.draw(st.tuples(*[st.integers(0, 2)] * count))
    sizes = data.draw(st.tuples(*[st.integers(0, 3)] * count))
    taken = data.draw(st.sets(st.integers(0, count - 1)))
    total = data.draw(st.integers(0, 8))
    distinct = data.draw(st.booleans())
    requests = data.draw(
        st.lists(st.tuples(st.integers(1, 3), st.sets(st.integers(0, count - 1))), min_size=1, max_size=2)
    )
    devices = tuple(NodeDevice(id_of(i), {"numa": numa[i]}, {MEMORY: sizes[i]}) for i in range(count))
    constraint = SameOrDistinct(frozenset(), "numa", distinct)
    choices = tuple((choice(need, *of, request=f"r{i}"),) for i, (need, of) in enumerate(requests))
    needs = ClaimNeeds(choices, (constraint,))

    def is_right(picked: list[tuple[int, ...]]) -> bool:
        every = [index for each in picked for index in each]
        values = [numa[index] for index in every]
        fits = sum(sizes[i] for i in {*every, *taken}) <= total or all(sizes[i] == 0 for i in every)
        constrained = len(set(values)) == (len(values) if distinct else 1)
        selected = all(set(each) <= of for each, (_, of) in zip(picked, requests, strict=True))
        return len(set(every)) == len(every) and taken.isdisjoint(every) and fits and constrained and selected

    def every_choice(left: int) -> list[list[tuple[int, ...]]]:
        if not left:
            return [[]]
        rest = every_choice(left - 1)
        return [[*before, each] for before in rest for each in combinations(range(count), requests[left - 1][0])]

    is_possible = any(map(is_right, every_choice(len(requests))))
    try:
        ((*granted,),) = allocate([needs], NodeDevices(devices, {MEMORY: total}), set(map(id_of, taken)))
    except NoDevicesError:
        assert not is_possible
    else:
        of_request = {f"r{i}": [] for i in range(len(requests))}
        for each in granted:
            of_request[each.request].append(int(each.device.name.removeprefix("gpu-")))
        picked = [tuple(each) for each in of_request.values()]
        assert [len(each) for each in picked] == [need for need, _ in requests]
        assert is_right(picked)


@pytest.mark.parametrize("more", [8, 9])
def test_requests_for_the_same_devices_are_counted_together_at_once(more: int) -> None:
    everything = range(16)
    needs = ClaimNeeds(((choice(8, *everything, request="a"),), (choice(more, *everything, request="b"),)))
    if more == 8:
        assert [len(claim) for claim in allocate([needs], node(16), ())] == [16]
        with pytest.raises(NoDevicesError, match="16 devices are needed together, 15 are free"):
            allocate([needs], node(16), {id_of(3)})
    else:
        reason = r"^requests a, b: gpu\.example\.com: 17 devices are needed together, 16 are free$"
        with pytest.raises(NoDevicesError, match=reason):
            allocate([needs], node(16), ())


def test_of_devices_that_differ_in_names_alone_one_is_tried() -> None:
    budget = Budget(10_000)
    same = SameOrDistinct(frozenset(), "numa")
    needs = ClaimNeeds(((choice(8, *range(16)),), (choice(1, 16),)), (same,))  # the last is of another value
    with pytest.raises(NoDevicesError, match="constraints on numa together"):
        allocate([needs], node(17, numa=(0,) * 16 + (1,)), (), budget)
    assert 10_000 - budget.steps < 20


def test_nodes_that_differ_in_names_alone_have_one_shape() -> None:
    def shape(pool: str, *, size: int = 40, numa: int = 0, taken: int = 5) -> object:
        ids = [DeviceId("d", pool, f"gpu-{index}") for index in range(2)]
        counter = CounterId("d", pool, "gpu", "memory")
        devices = NodeDevices(tuple(NodeDevice(each, {"numa": numa}, {counter: size}) for each in ids), {counter: 80})
        needs = ClaimNeeds(((DeviceChoice("r", "c", 1, frozenset(ids)),),), (SameOrDistinct(frozenset(), "numa"),))
        return shape_of([needs], devices, {DeviceId("d", pool, f"gpu-{taken}")})

    assert shape("a") == shape("b")
    others = [shape("b", size=80), shape("b", numa=1), shape("b", taken=0), shape("b", taken=1)]
    assert len({shape("a"), *others}) == 5
