"""Placement against brute force on tiny clusters: if any whole place exists, one is found, and it is a best one."""

from collections import Counter
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

LEVELS = len(draws.LEVELS)
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
    table = NodeTable(nodes, states, Undo(), draws.LEVELS)
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
    paths = [_path(nodes, share.node) for share in found]
    assert paths == sorted(paths), "ranks follow the network"
    if shape.nodes == 1:
        _one_is_tight(nodes, taken, [node.name for node in fits], names[0])
        return
    choices = [[_path(nodes, node.name) for node in choice] for choice in combinations(fits, shape.nodes)]
    depth = max(map(_common, choices))
    assert _common(paths) == depth, "the lowest level that holds it all"
    room = Counter(_path(nodes, node.name)[:depth] for node in fits)
    home = paths[0][:depth]
    assert room[home] == min(size for size in room.values() if size >= shape.nodes), "the tightest domain"
    inside = [choice for choice in choices if all(path[:depth] == home for path in choice)]
    fewest = min(len({path[: depth + 1] for path in choice}) for choice in inside)
    assert len({path[: depth + 1] for path in paths}) == fewest, "as few domains below it as possible"
    if depth == LEVELS:
        here = [node.name for node in fits if _path(nodes, node.name)[:depth] == home]
        loosest = max(_left(nodes, name, taken) for name in names)
        spared = [_left(nodes, name, taken) for name in here if name not in names]
        assert all(loosest <= other for other in spared), "the nodes with the least left"


def _one_is_tight(nodes: tuple[Node, ...], taken: dict[str, tuple[int, ...]], fits: list[str], name: str) -> None:
    """A single node: the one that is left with the least; of such, in the domain that is left with the least."""
    least = min(_left(nodes, other, taken) for other in fits)
    equal = [other for other in fits if _left(nodes, other, taken) == least]
    assert name in equal
    for depth in range(LEVELS, 0, -1):
        room = Counter(_path(nodes, other)[:depth] for other in fits)
        least_room = min(room[_path(nodes, other)[:depth]] for other in equal)
        equal = [other for other in equal if room[_path(nodes, other)[:depth]] == least_room]
        assert name in equal, "in the tightest domain"


def _path(nodes: tuple[Node, ...], name: str) -> tuple[str, ...]:
    return _named(nodes, name).domains


def _common(paths: list[tuple[str, ...]]) -> int:
    """How many levels, outermost first, they have in common."""
    return max(depth for depth in range(LEVELS + 1) if len({path[:depth] for path in paths}) == 1)


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
