"""Invariant 4: fair division uses all that is available and requested: guarantees first, more for more weight.

The order of the demands does not matter.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random

from hypothesis import assume, given
from hypothesis import strategies as st

from ganger.core.fold.fold import fold
from ganger.core.queue_order.fair_division import QueueDemand, divide, fair_gpus
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.job import GpuRequest, JobSpec, Resources
from ganger.model.queue import DEFAULT, ROOT, Amount, Queue
from tests.laws import draws
from tests.laws.oracles.raw_facts import RawFacts

CLAIMS = st.lists(
    st.builds(QueueDemand, weight=st.integers(1, 7), guarantee=st.integers(0, 9), most=st.integers(0, 20)), max_size=6
)


@given(capacity=st.integers(0, 40), claims=CLAIMS)
def test_invariant_4_all_that_is_available_and_requested_is_divided(capacity: int, claims: list[QueueDemand]) -> None:
    """Check the sum, the bounds, the guarantees."""
    given_out = divide(capacity, claims)
    assert sum(given_out) == min(capacity, sum(claim.most for claim in claims))
    assert all(0 <= part <= claim.most for part, claim in zip(given_out, claims, strict=True))
    least = [min(claim.guarantee, claim.most) for claim in claims]
    if sum(least) <= capacity:
        assert all(part >= guaranteed for part, guaranteed in zip(given_out, least, strict=True))


@given(capacity=st.integers(0, 40), claims=CLAIMS.filter(bool), data=st.data())
def test_invariant_4_more_weight_never_gives_less(
    capacity: int, claims: list[QueueDemand], data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(claims) - 1))
    heavier = [*claims]
    heavier[index] = claims[index]._replace(weight=claims[index].weight + data.draw(st.integers(1, 9)))
    assert divide(capacity, heavier)[index] >= divide(capacity, claims)[index]


@given(capacity=st.integers(0, 40), claims=CLAIMS, order=st.randoms(use_true_random=False))
def test_invariant_4_the_order_of_demands_does_not_matter(
    capacity: int, claims: list[QueueDemand], order: Random
) -> None:
    """Check it but for equal demands, of which one may have one more."""
    mixed = [*claims]
    order.shuffle(mixed)
    divided = sorted(zip(claims, divide(capacity, claims), strict=True))
    mixed_divided = sorted(zip(mixed, divide(capacity, mixed), strict=True))
    level = [part for _, part in divided]
    assert sum(level) == sum(part for _, part in mixed_divided)
    assert all(abs(a - b) <= 1 for (_, a), (_, b) in zip(divided, mixed_divided, strict=True))


@given(capacity=st.integers(0, 40), claims=CLAIMS)
def test_invariant_4_no_queue_could_have_one_more_at_less_cost(capacity: int, claims: list[QueueDemand]) -> None:
    """Compare with brute force: units one at a time, each where the next one costs least, give the same costs."""
    least = [min(claim.guarantee, claim.most) for claim in claims]
    if sum(least) > capacity:
        return
    given_out = [*least]
    for _ in range(min(capacity, sum(claim.most for claim in claims)) - sum(least)):
        costs = [
            (Fraction(part + 1, claim.weight), index)
            for index, (part, claim) in enumerate(zip(given_out, claims, strict=True))
            if part < claim.most
        ]
        given_out[min(costs)[1]] += 1
    divided = divide(capacity, claims)
    costs_of = [
        sorted(Fraction(part, claim.weight) for part, claim in zip(parts, claims, strict=True))
        for parts in (divided, given_out)
    ]
    assert costs_of[0] == costs_of[1]


class DemandOracle(RawFacts):
    """The quota of a tree written out from the raw figures, with a number of GPUs used in each queue itself."""

    def __init__(self, nodes: tuple[Node, ...], queues: Iterable[Queue]) -> None:
        super().__init__(nodes={node.name: node for node in nodes})
        self.queues |= {queue.name: queue for queue in queues}
        self.own: Counter[str] = Counter()
        self.top = ROOT

    def available(self, name: str, r: str, *, as_set: bool = False) -> Fraction | float:
        """Return how much more the queue may use, of what `top` has of its own."""
        return self.subtree(name, r) - self.used(name, r) if name == self.top else super().available(name, r)

    def used(self, name: str, r: str) -> Fraction:
        """Return what is used in and below the queue that the queue can see."""
        below = (max(Fraction(0), self.used(c, r) - self.local_quota(c, r)) for c in self._children(name))
        return 1000 * Fraction(self.own[name]) + sum(below)

    def contradicts(self) -> bool:
        """Return whether a queue has less than those below it are guaranteed."""
        figures = {name: self.own_quota(name, "gpu_milli") for name in self.queues}
        return any(
            figure is not None and self.guaranteed(name, "gpu_milli") > figure for name, figure in figures.items()
        )

    def most(self, requested: Mapping[str, int], name: str = ROOT, *, alone: bool = False) -> int:
        """Return how much of what is requested the queue and those below it could use if no other queue used any.

        With `alone` as if all others used all of theirs. GPUs are added one by one, wherever they may.
        """
        self.own.clear()
        self.top = name if alone else ROOT
        inside = [queue for queue in requested if name in self._path(queue)]
        while can := [q for q in inside if self.own[q] < requested[q] and self.available(q, "gpu_milli") >= 1000]:
            self.own[can[0]] += 1
        return self.own.total()

    def _path(self, name: str | None) -> Iterator[str]:
        while name:
            yield name
            name = self.queues[name].parent


@dataclass(frozen=True)
class Tree:
    """Queues, GPUs, and how many are requested in each queue."""

    queues: tuple[Queue, ...]
    gpus: int
    requested_gpus: dict[str, int]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The cluster."""
        return (Node(name="n1", gpus=self.gpus, cpu_milli=64_000, memory_bytes=64),)

    def fair(self) -> dict[str, int]:
        """Return the fair division of the core."""
        state = State()
        for queue in self.queues:
            _apply(state, e.QueueSet(queue=queue))
        _apply(state, e.NodesListed(nodes=self.nodes))
        for number, (queue, gpus) in enumerate(self.requested_gpus.items()):
            spec = JobSpec(run="x", queue=queue, resources=Resources(gpu=GpuRequest(count=gpus)))
            _apply(state, e.Submitted(job=draws.job(number, "ann", spec)))
        return dict(zip(state.tree.index, fair_gpus(state), strict=True))


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Draw small trees without contradicting guarantees, which now and then exceed the cluster."""
    queues = draw(draws.queues().filter(bool))
    gpus = draw(st.integers(0, 16))
    names = dict.fromkeys((ROOT, DEFAULT, *(queue.name for queue in queues)))
    tree = Tree(queues, gpus, {name: draw(st.integers(0, 9)) for name in names})
    assume(not DemandOracle(tree.nodes, queues).contradicts())
    return tree


@given(tree=trees())
def test_invariant_4_on_a_tree_all_that_may_be_used_is_divided(tree: Tree) -> None:
    """Check the sum, the bounds and the guarantees with borrowing and lending at every level.

    All of it may be held at once.
    """
    raw, fair = DemandOracle(tree.nodes, tree.queues), tree.fair()
    assert fair[ROOT] == min(tree.gpus, raw.most(tree.requested_gpus))
    is_there = raw.guaranteed(ROOT, "gpu_milli") <= 1000 * tree.gpus
    for name in [name for name in raw.queues if name != ROOT]:
        least, most = raw.most(tree.requested_gpus, name, alone=True), raw.most(tree.requested_gpus, name)
        assert fair[name] >= least or not is_there, f"{name} is guaranteed {least}"
        assert fair[name] <= most, f"{name} may have {most}"
    raw.own.clear()
    for name in raw.queues:
        raw.own[name] = fair[name] - sum(fair[child] for child in raw._children(name))
        assert 0 <= raw.own[name] <= tree.requested_gpus[name], f"all of {name} is divided among requests"
    assert all(raw.available(name, "gpu_milli") >= 0 for name in raw.queues), "within every quota"


@given(tree=trees(), order=st.randoms(use_true_random=False), more=st.integers(1, 9), data=st.data())
def test_invariant_4_on_a_tree_weight_helps_and_order_does_not_matter(
    tree: Tree, order: Random, more: int, data: st.DataObject
) -> None:
    fair = tree.fair()
    heavier = data.draw(st.sampled_from(tree.queues))
    queues = [replace(queue, weight=queue.weight + more) if queue is heavier else queue for queue in tree.queues]
    assert replace(tree, queues=tuple(queues)).fair()[heavier.name] >= fair[heavier.name]
    mixed, requested = [*tree.queues], [*tree.requested_gpus.items()]
    order.shuffle(mixed)
    order.shuffle(requested)
    parents_first = sorted(mixed, key=lambda queue: len([*DemandOracle((), tree.queues)._path(queue.name)]))
    assert replace(tree, queues=tuple(parents_first), requested_gpus=dict(requested)).fair() == fair


def test_an_example_of_a_tree() -> None:
    state = State()
    for queue in (Queue(name="a", weight=3), Queue(name="b", nominal=Amount(gpus=2)), Queue(name="c", parent="a")):
        _apply(state, e.QueueSet(queue=queue))
    nodes = tuple(Node(name=name, gpus=8, cpu_milli=64_000, memory_bytes=64) for name in ("n1", "in repair"))
    _apply(state, e.NodesListed(nodes=nodes))
    _apply(state, e.NodeCordoned(node="in repair"))
    for number, (queue, gpus) in enumerate((("c", 8), ("b", 1), ("default", 8))):
        spec = JobSpec(run="x", queue=queue, resources=Resources(gpu=GpuRequest(count=gpus)))
        _apply(state, e.Submitted(job=draws.job(number, "ann", spec)))
    fair = dict(zip(state.tree.index, fair_gpus(state), strict=True))
    assert fair == {"root": 8, "a": 6, "b": 1, "c": 6, "default": 1}


def _apply(state: State, event: e.Event) -> None:
    fold(state, e.Stamped(state.seq + 1, 1, event))
