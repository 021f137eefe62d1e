"""Every score against its definition, from raw fields: of the nodes that have room the best one takes a part."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger import registry
from ganger.core.nodes.fragmentation import DemandKind
from ganger.core.nodes.node_table import NodeTable
from ganger.core.placement.place import place
from ganger.core.undo import Undo
from ganger.model import policy
from ganger.model.cluster import Node
from ganger.model.job import JobSpec
from ganger.model.job_sections.placement_spec import Placement
from ganger.model.policy import GpuShares, Rules
from ganger.model.shape import Shape
from tests.laws import draws
from tests.laws.oracles.device_oracle import on_device
from tests.laws.oracles.job_parts import Part, parts
from tests.laws.placement.test_placement import SPECS, HalfFull, half_full

CUTS = st.sampled_from((0, 7, 100))
NEARLY = Fraction(1, 1 << 18)
"""The dot product is of truncated fractions."""


class NodeFacts:
    """A node, and a part that it has room for, as the definitions see them, without the core."""

    def __init__(self, cluster: HalfFull, node: Node, part: Part) -> None:
        on = cluster.on(node.name)
        devices = [on_device(device, on) for device in range(node.gpus)]
        self.left = [0 if whole else 1000 - milli for whole, milli, _ in devices]
        self.shared = [not whole and (node.name, device) in {(node_name, d) for node_name, d, *_ in cluster.shares}
                       for device, (whole, *_) in enumerate(devices)]  # fmt: skip
        self.cpu_milli = cluster.left(node.name)[1]
        self.most = (
            max(listed.cpu_milli for listed in cluster.nodes),
            1000 * max(1, *(listed.gpus for listed in cluster.nodes)),
        )
        self.wanted = part.need["cpu_milli"], 1000 * part.need["gpus"] + part.share[0]
        self.holds = [
            index
            for index, (whole, milli, memory) in enumerate(devices)
            if not whole and milli + part.share[0] <= 1000 and memory + part.share[1] <= node.gpu_memory_bytes
        ]
        # One number stands for all that is taken whole on a node, another for all that foreign pods use.
        self.sizes = {len(cluster.taken[node.name]), len(node.foreign)} - {0} | (
            {"share"} if any(self.shared) else set()
        )
        self.size = part.need["gpus"] or ("share" if any(part.share) else 0)

    def best_fit(self) -> Fraction:
        free = self.cpu_milli, sum(self.left)
        rests = (Fraction(a - b, most) for a, b, most in zip(free, self.wanted, self.most, strict=True))
        return sum(rests, Fraction(0)) / 2

    def dot_product(self) -> Fraction:
        free = self.cpu_milli, sum(self.left)
        products = (Fraction(a * b, most**2) for a, b, most in zip(free, self.wanted, self.most, strict=True))
        return sum(products, Fraction(0)) / 2

    def gpu_packing(self) -> Fraction:
        if not self.size:
            return Fraction(0)
        if all(left == 1000 for left in self.left):
            return Fraction(20 + len(self.left))
        rests = [self.left[index] for index in self.holds if self.left[index] < 1000] if self.size == "share" else []
        return Fraction(min(rests), 10_000) if rests else Fraction(10)

    def gpu_clustering(self) -> Fraction:
        if not self.size:
            return Fraction(0)
        same = self.size in self.sizes
        other_sizes = int(len(self.sizes) > 1) if same else 3 if self.sizes else 2
        return Fraction(other_sizes, 4) + Fraction(sum(self.left), self.most[1]) / 4


BADNESS = {
    "best-fit": NodeFacts.best_fit,
    "dotprod": NodeFacts.dot_product,
    "gpu-packing": NodeFacts.gpu_packing,
    "gpu-clustering": NodeFacts.gpu_clustering,
}
"""Badness of a node by score; a whole of it is cut into grades. `fgd` is in test_fragments, `pack` in test_place."""


@pytest.mark.parametrize("score", BADNESS)
@given(cluster=half_full(), spec=SPECS, cut=CUTS, ties=st.sampled_from(policy.TIES))
def test_the_best_node_takes_it(score: str, cluster: HalfFull, spec: JobSpec, cut: int, ties: str) -> None:
    (part,) = parts(spec)
    on_network = [[kind for kind in part.variants if kind.network == variant.network] for variant in part.variants]
    fitting = ([node for kind in kinds for node in cluster.fits(kind)] for kinds in on_network)
    fits = next(filter(None, fitting), [])
    if spec.nodes > 1 or not fits:
        return
    table = cluster.table(Rules(gpu_shares=GpuShares(score=score, cut=cut, ties=ties)))
    shares = place(table, spec.shape)
    assert shares is not None
    badness = {node.name: BADNESS[score](NodeFacts(cluster, node, part)) for node in fits}
    chosen_badness, least = badness[shares[0].node], min(badness.values())
    assert chosen_badness <= least + NEARLY + (Fraction(1, cut) if cut else 0)
    if ties == "order":
        before = table.attributes.names[: table.index[shares[0].node]]
        assert all(badness[name] > chosen_badness - NEARLY for name in before if name in badness), (
            "of equal ones the first"
        )


@pytest.mark.parametrize("score", registry.scores())
@given(cluster=half_full(), spec=SPECS, placement=draws.placements(), shares=draws.scores())
def test_no_score_loses_a_place(
    score: str, cluster: HalfFull, spec: JobSpec, placement: Placement, shares: GpuShares
) -> None:
    """Check that there is a place wherever the default finds one, and that nothing is allocated twice.

    What is remembered of nodes is what they are computed to be anew.
    """
    shape = draws.possible(replace(spec, placement=placement)).shape
    table = cluster.table(Rules(gpu_shares=replace(shares, score=score)))
    table.set_demand_kinds((DemandKind(shape.one, 2), DemandKind(Shape(nodes=1, gpus=2), 1)))
    table.capacity_index.have_room(shape.parts)
    assert (place(table, shape) is None) == (place(cluster.table(), shape) is None)
    taken = []
    while (node_shares := place(table, shape)) is not None and len(taken) < 4:
        table.take(200 + len(taken), shape, node_shares)
        assert place(table, shape) == place(table, shape), "the same of the same"
        table.validate()
        taken.append(node_shares)
    for shares_of in taken[::2]:
        table.release(shape, shares_of)
        table.validate()
    if taken:
        with table.trial():
            table.take(300, shape, taken[0])
            table.validate()
        table.validate()


def drawing_table(nodes: list[Node], seed: int) -> NodeTable:
    """Return a table of these nodes with the score `random`."""
    table = NodeTable(nodes, {}, Undo(), ("rack",), Rules(gpu_shares=GpuShares(score="random", seed=seed)))
    table.score_cache.find_score = registry.score
    return table


def test_random_is_any_node_and_another_each_time() -> None:
    nodes = [Node(name=f"n{index}", gpus=1, cpu_milli=10**9) for index in range(4)]
    table = drawing_table(nodes, 3)
    cpu, counts = Shape(nodes=1, cpu_milli=1), Counter[str]()
    for number in range(400):
        shares = place(table, cpu)
        assert shares is not None
        table.take(number, cpu, shares)
        counts[shares[0].node] += 1
    assert all(60 < times < 140 for times in counts.values()), "about a hundred each"


def test_another_seed_is_another_draw() -> None:
    nodes = [Node(name=f"n{index}", gpus=8, cpu_milli=8_000) for index in range(40)]
    drawn = {place(drawing_table(nodes, seed), HALF) for seed in range(5)}
    assert len({(share.node, share.devices) for shares in drawn if shares for share in shares}) > 1


HALF = Shape(nodes=1, gpu_milli=500)
