"""Slices that are made of slices, against brute force: every choice of nodes in a network of three levels."""

from collections.abc import Iterator
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from ganger.core.nodes.node_table import NodeTable
from ganger.core.placement.place import place
from ganger.core.placement.topology_packing import largest_domain_room
from ganger.core.undo import Undo
from ganger.model.cluster import Node, NodeState
from ganger.model.job import JobSpec
from ganger.model.job_sections.placement_spec import Placement, Slice
from ganger.model.terms import Layout

LEVELS = ("spine", "rack", "nvlink")
Free = tuple[Node, ...]
Slicing = tuple[tuple[str, int], ...]

SLICINGS: tuple[Slicing, ...] = (
    (("rack", 4), ("nvlink", 2)),
    (("spine", 4), ("nvlink", 2)),
    (("spine", 6), ("rack", 3)),
    (("spine", 4), ("rack", 2), ("nvlink", 2)),
    (("spine", 8), ("rack", 4), ("nvlink", 2)),
    (("spine", 4), ("rack", 4), ("nvlink", 1)),
)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[NodeTable, Free]:
    """Draw up to nine nodes, and those of them that are free, in topology order."""
    domains = st.tuples(st.sampled_from(("s1", "s2")), st.sampled_from(("r1", "r2")), st.sampled_from(("v1", "v2", "")))
    homes = draw(st.lists(domains, min_size=1, max_size=9).map(sorted))
    nodes = [Node(name=f"n{index}", domains=home, cpu_milli=1000) for index, home in enumerate(homes)]
    taken = draw(st.sets(st.sampled_from([node.name for node in nodes]), max_size=3))
    table = NodeTable(nodes, dict.fromkeys(sorted(taken), NodeState.CORDONED), Undo(), LEVELS)
    return table, tuple(node for node in nodes if node.name not in taken)


def lies_well(ranks: list[Node], slicing: Slicing, inside: str) -> bool:
    """Return whether the nodes are in one domain of the level `inside`, and each slice in one of its own level."""
    layers = [(level, size) for level, size in slicing if size > 1] + ([(inside, len(ranks))] if inside else [])
    for level, size in layers:
        depth = LEVELS.index(level) + 1
        for first in range(0, len(ranks), size):
            homes = {node.domains[:depth] for node in ranks[first : first + size]}
            if len(homes) > 1 or not homes.pop()[-1]:
                return False
    return True


def places(free: Free, count: int, slicing: Slicing, inside: str) -> Iterator[tuple[Node, ...]]:
    """Yield every choice of that many nodes that lies well."""
    return (choice for choice in combinations(free, count) if lies_well(list(choice), slicing, inside))


@given(
    cluster=clusters(),
    slicing=st.sampled_from(SLICINGS),
    count=st.integers(1, 2),
    inside=st.sampled_from(("", "", "spine", "rack")),
    strategy=st.sampled_from(("pack", "spread", "balanced")),
)
def test_slices_of_slices(
    cluster: tuple[NodeTable, Free], slicing: Slicing, count: int, inside: str, strategy: str
) -> None:
    table, free = cluster
    size = slicing[0][1]
    spec = JobSpec(
        run="x",
        nodes=count * size,
        placement=Placement(
            topology=inside or None,
            mode="required" if inside else "preferred",
            strategy=strategy,
            slices=tuple(Slice(level=level, nodes=nodes) for level, nodes in slicing),
        ),
    )
    indices = place(table, spec.shape)
    assert (indices is None) == (next(places(free, spec.nodes, slicing, inside), None) is None)
    if indices is not None:
        index = {node.name: node for node in free}
        assert lies_well([index[share.node] for share in indices], slicing, inside)
    for layer, named in zip(spec.shape.slices.layers, range(len(slicing)), strict=True):
        room = max(n for n in range(len(free) // layer.nodes + 1) if _fits(free, n, slicing[named:], inside))
        assert largest_domain_room(table, table.counts(spec.shape), (Layout(inside, bool(inside)), layer)) == room


def _fits(free: Free, count: int, slicing: Slicing, inside: str) -> bool:
    return not count or any(True for _ in places(free, count * slicing[0][1], slicing, inside))
