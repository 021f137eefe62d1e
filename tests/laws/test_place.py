"""Placement against brute force on tiny clusters: if any whole place exists, one is found, and it is a best one."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from ganger.core.nodes import NodeTable
from ganger.core.place import place
from ganger.core.undo import Undo
from ganger.model.cluster import Node, NodeState
from ganger.model.decision import NodeShare
from ganger.model.job import Shape
from tests.laws import draws

SHAPES = st.builds(
    Shape,
    nodes=st.integers(1, 4),
    gpus=st.integers(0, 4),
    gpu_type=st.sampled_from((None, None, "h100")),
    cpu_milli=st.sampled_from((0, 1_000, 2_000)),
    memory_bytes=st.sampled_from((0, 2)),
    ranks=st.integers(1, 3),
)


@st.composite
def half_full(draw: st.DrawFn) -> tuple[tuple[Node, ...], dict[str, tuple[int, ...]], dict[str, NodeState], set[str]]:
    """Nodes; devices taken on each; states; nodes that a round keeps for somebody."""
    nodes = draw(draws.nodes(6))
    taken = {node.name: tuple(draw(st.sets(st.integers(0, node.gpus - 1)))) if node.gpus else () for node in nodes}
    states = {node.name: draw(st.sampled_from((NodeState.READY, *NodeState))) for node in nodes}
    return nodes, taken, states, draw(st.sets(st.sampled_from([node.name for node in nodes]), max_size=1))


@given(cluster=half_full(), shape=SHAPES)
def test_place_is_exact_and_tight(
    cluster: tuple[tuple[Node, ...], dict[str, tuple[int, ...]], dict[str, NodeState], set[str]],
    shape: Shape,
) -> None:
    nodes, taken, states, held = cluster
    table = NodeTable(nodes, states, Undo())
    for number, (name, devices) in enumerate(taken.items()):
        used = Shape(nodes=1, gpus=len(devices), cpu_milli=500 * len(devices))
        table.take(number, used, [NodeShare(name, (0,), devices)])
    table.hold(held, held=True)
    fits = [node for node in nodes if _fits(node, shape, taken[node.name], states[node.name]) and node.name not in held]
    found = place(table, shape)
    if len(fits) < shape.nodes:
        assert found is None
        return
    assert found is not None
    names = [share.node for share in found]
    assert len({*names}) == shape.nodes
    assert {*names} <= {node.name for node in fits}
    assert [rank for share in found for rank in share.ranks] == list(range(shape.nodes * shape.ranks))
    for share in found:
        free = [device for device in range(_named(nodes, share.node).gpus) if device not in taken[share.node]]
        assert share.devices == tuple(free[: shape.gpus]), "the lowest free devices"
    racks = [_named(nodes, name).rack for name in names]
    assert racks == sorted(racks), "ranks follow the network"
    fewest = min(len({node.rack for node in choice}) for choice in combinations(fits, shape.nodes))
    assert len({*racks}) == fewest, "as few racks as possible"
    if fewest == 1:
        room = {rack: sum(node.rack == rack for node in fits) for rack in {node.rack for node in fits}}
        assert room[racks[0]] == min(size for size in room.values() if size >= shape.nodes), "the tightest rack"
        here = [node.name for node in fits if node.rack == racks[0]]
        loosest = max(_left(nodes, name, taken) for name in names)
        spared = [_left(nodes, name, taken) for name in here if name not in names]
        assert all(loosest <= other for other in spared), "the nodes with the least left"


def _named(nodes: tuple[Node, ...], name: str) -> Node:
    return next(node for node in nodes if node.name == name)


def _left(nodes: tuple[Node, ...], name: str, taken: dict[str, tuple[int, ...]]) -> tuple[int, int, int]:
    node, used = _named(nodes, name), len(taken[name])
    return node.gpus - used, node.cpu_milli - 500 * used, node.memory_bytes


def _fits(node: Node, shape: Shape, taken: tuple[int, ...], state: NodeState) -> bool:
    return (
        state is NodeState.READY
        and shape.gpu_type in (None, node.gpu_type.lower())
        and node.gpus - len(taken) >= shape.gpus
        and node.cpu_milli - 500 * len(taken) >= shape.cpu_milli
        and node.memory_bytes >= shape.memory_bytes
    )
