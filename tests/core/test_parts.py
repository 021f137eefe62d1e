"""Gangs of unequal parts: roles become parts of the shape, and each part is placed among the others."""

import numpy as np
import pytest

from ganger.core.nodes.node_table import NodeTable, ReservedCapacity
from ganger.core.placement.place import place
from ganger.core.queues.quota import need
from ganger.core.undo import Undo
from ganger.model.affinity import Affinity, Expression, Operator, Preference, Term
from ganger.model.cluster import Node
from ganger.model.decision import NodeShare
from ganger.model.job import GpuRequest, JobSpec, Resources, Role
from ganger.model.job_sections.placement_spec import Placement
from ganger.model.shape import Shape

CPU = Resources(cpu_milli=1_000)


def table(*gpus: int, cpu_milli: int = 4_000) -> NodeTable:
    nodes = [Node(name=f"n{number}", gpus=count, cpu_milli=cpu_milli) for number, count in enumerate(gpus, 1)]
    return NodeTable(nodes, {}, Undo())


def on(shares: tuple[NodeShare, ...] | None) -> list[tuple[int, str, tuple[int, ...], tuple[int, ...]]]:
    assert shares is not None
    return [(share.part, share.node, share.ranks, share.devices) for share in shares]


def test_roles_are_parts_in_the_order_of_their_ranks() -> None:
    roles = {"ps": Role(count=2, resources=CPU), "chief": Role(resources=CPU)}
    spec = JobSpec(run="x", nodes=2, nproc_per_node=2, roles=roles)
    assert [(part.nodes, part.ranks, part.stacked) for part in spec.shape.parts] == [
        (1, 1, True),
        (2, 2, False),
        (2, 1, True),
    ]
    assert spec.shape.all_nodes == 5
    assert need(spec.shape) == (0, 1_000 + 2 * 2_000 + 2 * 1_000, 0)
    assert str(spec.shape) == "1x1 cpu + 2x2 cpu + 2x1 cpu"


def test_a_role_of_workers_takes_the_place_of_nodes() -> None:
    spec = JobSpec(run="x", nodes=1, roles={"worker": Role(count=3, resources=CPU)})
    assert spec.shape.parts == (Shape(nodes=3, cpu_milli=1_000, stacked=True),)


def test_processes_of_a_role_share_a_node_with_each_other_and_the_workers() -> None:
    roles = {"ps": Role(count=2, resources=CPU)}
    spec = JobSpec(run="x", resources=Resources(gpu=GpuRequest(count=1), cpu_milli=1_000), roles=roles)
    nodes = table(1, 1)
    shares = place(nodes, spec.shape)
    assert on(shares) == [(0, "n1", (0,), (0,)), (1, "n1", (1,), ()), (1, "n1", (2,), ())]
    assert nodes.free.cpu_milli.tolist() == [4_000, 4_000], "a place that was looked for is not taken"


def test_they_go_on_to_the_next_node_when_one_is_full() -> None:
    nodes = table(2, 2, cpu_milli=2_000)
    shape = Shape(nodes=3, gpus=1, cpu_milli=1_000, stacked=True)
    assert on(place(nodes, shape)) == [(0, "n1", (0,), (0,)), (0, "n1", (1,), (1,)), (0, "n2", (2,), (0,))]
    assert place(nodes, Shape(nodes=5, gpus=1, cpu_milli=1_000, stacked=True)) is None


def test_another_order_of_the_parts_is_tried_where_the_first_leads_nowhere() -> None:
    nodes = NodeTable(
        [
            Node(name="n1", gpus=2, gpu_type="a100", cpu_milli=8_000),
            Node(name="n2", gpus=2, gpu_type="h100", cpu_milli=8_000),
        ],
        {},
        Undo(),
    )
    any_type = Shape(nodes=1, gpus=2, cpu_milli=1_000)
    shape = Shape(nodes=1, gpus=2, cpu_milli=1_000, more=(Shape(nodes=1, gpus=2, gpu_type="a100", cpu_milli=1_000),))
    assert place(nodes, any_type) is not None
    assert [(part, node) for part, node, *_ in on(place(nodes, shape))] == [(0, "n2"), (1, "n1")]


def test_whole_or_not_at_all() -> None:
    shape = Shape(nodes=1, gpus=1, cpu_milli=1_000, more=(Shape(nodes=2, gpus=1, cpu_milli=1_000, stacked=True),))
    assert place(table(1, 1), shape) is None
    assert place(table(1, 2), shape) is not None


def test_all_parts_are_where_the_gang_prefers_to_be() -> None:
    fast = {"disk": "ssd"}
    listed = [
        Node(name=f"n{number}", gpus=2, cpu_milli=4_000, labels=fast if number > 2 else {}) for number in range(1, 5)
    ]
    ssd = Preference(match=Term((Expression("disk", Operator.IN, ("ssd",)),)))
    role = Role(count=1, resources=Resources(gpu=GpuRequest(count=2), cpu_milli=1_000))
    spec = JobSpec(
        run="x",
        resources=role.resources,
        roles={"ps": role},
        placement=Placement(affinity=Affinity(preferred=(ssd,))),
    )
    nodes = NodeTable(listed, {}, Undo())
    assert [node for _, node, *_ in on(place(nodes, spec.shape))] == ["n3", "n4"]
    with nodes.excluding(["n3"]):
        assert {node for _, node, *_ in on(place(nodes, spec.shape))} <= {"n1", "n2", "n4"}


@pytest.mark.parametrize("sharing", ["shared", "exclusive"])
def test_exclusive_parts_leave_the_nodes_of_which_others_have_reserved_some(sharing: str) -> None:
    nodes = table(4, 2)
    roles = {"chief": Role(resources=Resources(gpu=GpuRequest(count=1), cpu_milli=1_000))}
    resources, placement = Resources(gpu=GpuRequest(count=1), cpu_milli=1_000), Placement(sharing=sharing)
    shape = JobSpec(run="x", resources=resources, roles=roles, placement=placement).shape
    ones, none = np.ones(1, dtype=np.int64), np.zeros(1, dtype=bool)
    reserved = ReservedCapacity(np.array([1]), 0 * ones, 1_000 * ones, 0 * ones, guests=~none, alone=none)
    with nodes.reserving(reserved):
        shares = place(nodes, shape)
    assert {node for _, node, *_ in on(shares)} == {"n2" if sharing == "shared" else "n1"}


def test_no_share_starts_where_more_devices_are_reserved_than_free() -> None:
    """Check that a gang is refused that fit nowhere: it counted as fitting -1 times, which was not zero."""
    nodes, share = table(2), Shape(nodes=1, gpu_milli=1)
    nodes.take(1, share, [NodeShare("n1", (0,), (0,))])
    ones, none = np.ones(1, dtype=np.int64), np.zeros(1, dtype=bool)
    reserved = ReservedCapacity(np.array([0]), 2 * ones, 0 * ones, 0 * ones, guests=~none, alone=none)
    with nodes.reserving(reserved):
        assert nodes.counts(share).tolist() == [0]
        assert place(nodes, share) is None


@pytest.mark.parametrize("sharing", ["shared", "exclusive"])
def test_exclusive_parts_leave_the_nodes_on_which_others_are(sharing: str) -> None:
    nodes = table(4, 2)
    nodes.take(1, Shape(nodes=1, cpu_milli=500), [NodeShare("n2", (0,), ())])
    resources = Resources(gpu=GpuRequest(count=1), cpu_milli=1_000)
    spec = JobSpec(
        run="x", resources=resources, roles={"chief": Role(resources=resources)}, placement=Placement(sharing=sharing)
    )
    assert {node for _, node, *_ in on(place(nodes, spec.shape))} == {"n2" if sharing == "shared" else "n1"}
