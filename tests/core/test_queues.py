"""The quota arithmetic of the queue tree, by example and against Kueue's definitions written out on fractions."""

from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.core.queues.quota import UNLIMITED, QueueTree, need
from ganger.core.queues.quota_figures import EXTENDED_PREFIX, GPU_TYPE_PREFIX
from ganger.core.undo import Undo
from ganger.model.queue import DEFAULT, ROOT, Amount, Queue
from ganger.model.shape import Shape
from tests.laws import draws
from tests.laws.oracles.raw_facts import figure

CAPACITY = (16_000, 64_000, 256)
OF_NAMED = {"gpu_milli.h100": 5_000, "gpu_milli.a100": 5_000, "extended.rdma/hca": 6}
CHARGES = st.lists(st.tuples(st.sampled_from((*draws.QUEUES, DEFAULT, ROOT)), st.integers(0, 6)), max_size=8)


def tree_of(*queues: Queue) -> QueueTree:
    named = {queue.name: queue for queue in (Queue(name=ROOT, parent=None), Queue(name=DEFAULT), *queues)}
    return QueueTree(named.values(), CAPACITY, Undo(), OF_NAMED)


class Definitions:
    """Quota of one resource by definition: usage of the whole tree at once, without increments."""

    def __init__(self, tree: QueueTree, r: int, charges: list[tuple[str, int]]) -> None:
        self.queues = {queue.name: queue for queue in tree.queues}
        name = tree.resources[r]
        self.r = name.removeprefix(GPU_TYPE_PREFIX).removeprefix(EXTENDED_PREFIX)
        self.capacity = OF_NAMED[name] if name in OF_NAMED else CAPACITY[r]
        self.charges = charges

    def children(self, name: str) -> list[str]:
        return [queue.name for queue in self.queues.values() if queue.parent == name]

    def guaranteed(self, name: str) -> int | None:
        amount = self.queues[name].nominal
        own = figure(amount, self.r)
        of_types = 1000 * sum(amount.gpu_types.values())
        return of_types if own is None and self.r == "gpu_milli" and amount.gpu_types else own

    def subtree_quota(self, name: str) -> Fraction:
        own = self.guaranteed(name)
        if name == ROOT and own is None:
            own = UNLIMITED if all(self.guaranteed(queue) is None for queue in self.queues) else self.capacity
        rest = max(0, (own or 0) - sum(self.guaranteed_sum(child) for child in self.children(name)))
        return Fraction(rest) + sum(
            (self.subtree_quota(c) - self.local_quota(c) for c in self.children(name)), Fraction(0)
        )

    def guaranteed_sum(self, name: str) -> int:
        below = sum(self.guaranteed_sum(child) for child in self.children(name))
        return max(self.guaranteed(name) or 0, below)

    def local_quota(self, name: str) -> Fraction:
        lending = figure(self.queues[name].lending, self.r)
        return Fraction(0) if lending is None or name == ROOT else max(Fraction(0), self.subtree_quota(name) - lending)

    def usage(self, name: str) -> Fraction:
        own = sum(amount for queue, amount in self.charges if queue == name)
        bubbled = (max(Fraction(0), self.usage(child) - self.local_quota(child)) for child in self.children(name))
        return Fraction(own) + sum(bubbled, Fraction(0))

    def held(self, name: str) -> int:
        own = sum(amount for queue, amount in self.charges if queue == name)
        return own + sum(self.held(child) for child in self.children(name))

    def available(self, name: str) -> Fraction:
        parent = self.queues[name].parent
        if parent is None:
            return self.subtree_quota(name) - self.usage(name)
        above, borrowing = self.available(parent), figure(self.queues[name].borrowing, self.r)
        if borrowing is not None:
            above = min(above, self.subtree_quota(name) + borrowing - max(self.usage(name), self.local_quota(name)))
        return max(Fraction(0), self.local_quota(name) - self.usage(name)) + above


@given(queues=draws.queues(), charges=CHARGES)
def test_tree_keeps_to_the_definitions(queues: tuple[Queue, ...], charges: list[tuple[str, int]]) -> None:
    tree = tree_of(*queues)
    charges = [(name, amount) for name, amount in charges if name in tree.index]
    resources = range(len(tree.resources))
    for r in resources:
        empty = Definitions(tree, r, [])
        for name, index in tree.index.items():
            assert tree.available(index, r) == tree.potential(index, r) == empty.available(name)
            assert tree.guaranteed[index][r] == empty.guaranteed_sum(name)
    for name, amount in charges:
        tree.charge(name, (amount,) * len(tree.resources))
    for r in resources:
        empty, defined = Definitions(tree, r, []), Definitions(tree, r, charges)
        for name, index in tree.index.items():
            assert tree.usage[r][index] == defined.usage(name)
            assert tree.subtree_usage(r)[index] == defined.held(name)
            assert tree.available(index, r) == defined.available(name)
            assert tree.potential(index, r) == empty.available(name)
    for name, amount in reversed(charges):
        tree.charge(name, (-amount,) * len(tree.resources))
    assert not any(any(row) for row in tree.usage), "what was taken away was what was added"


@given(queues=draws.queues(), charges=CHARGES, order=st.randoms(use_true_random=False))
def test_order_of_charges_says_nothing(
    queues: tuple[Queue, ...], charges: list[tuple[str, int]], order: Random
) -> None:
    tree, reversed_tree = tree_of(*queues), tree_of(*reversed(queues))
    charges = [(name, amount) for name, amount in charges if name in tree.index]
    for name, amount in charges:
        tree.charge(name, (amount, amount, amount))
    order.shuffle(charges)
    for name, amount in charges:
        reversed_tree.charge(name, (amount, amount, amount))
    assert tree.usage == reversed_tree.usage
    assert tree.queues == reversed_tree.queues


def queue(name: str, parent: str = ROOT, **figures: int) -> Queue:
    return Queue(name=name, parent=parent, **{figure: Amount(gpus=gpus) for figure, gpus in figures.items()})


@pytest.mark.parametrize(
    ("queues", "used", "name", "available"),
    [
        ((), {}, DEFAULT, UNLIMITED),
        ((queue("a", nominal=4),), {}, "a", 16_000),
        ((queue("a", nominal=4),), {}, DEFAULT, 16_000),
        ((queue("a", nominal=4, borrowing=0),), {}, "a", 4_000),
        ((queue("a", nominal=4, borrowing=2),), {"a": 5_500}, "a", 500),
        ((queue("a", nominal=4, lending=0),), {}, DEFAULT, 12_000),
        ((queue("a", nominal=4, lending=1),), {}, DEFAULT, 13_000),
        ((queue("a", nominal=4, lending=0),), {DEFAULT: 12_000}, "a", 4_000),
        ((queue("a", nominal=4),), {DEFAULT: 14_000}, "a", 2_000),
        ((queue("a", nominal=20),), {}, DEFAULT, 20_000),
        ((queue("a", nominal=4), queue("b", "a", borrowing=1)), {}, "b", 1_000),
        ((queue("a", nominal=4, borrowing=0), queue("b", "a", nominal=2)), {}, "b", 4_000),
        ((queue("a", nominal=4, borrowing=0), queue("b", "a", nominal=2)), {"a": 3_000}, "b", 1_000),
        ((queue("a", nominal=1, borrowing=0), queue("b", "a", nominal=2)), {}, "b", 2_000),
        ((Queue(name=ROOT, parent=None, nominal=Amount(gpus=8)), queue("a", nominal=4)), {}, "a", 8_000),
        ((Queue(name=ROOT, parent=None, nominal=Amount(gpus=8)),), {DEFAULT: 8_000}, DEFAULT, 0),
        ((Queue(name=ROOT, parent=None, nominal=Amount(gpus=8)),), {DEFAULT: 9_000}, DEFAULT, -1_000),
    ],
)
def test_available(queues: tuple[Queue, ...], used: dict[str, int], name: str, available: int) -> None:
    tree = tree_of(*queues)
    for user, gpus in used.items():
        tree.charge(user, (gpus, 0, 0))
    assert tree.available(tree.index[name], 0) == available


def test_each_resource_is_counted_by_itself() -> None:
    tree = tree_of(Queue(name="a", nominal=Amount(gpus=4, cpu_milli=8_000), borrowing=Amount(gpus=0, cpu_milli=0)))
    assert tree.exceeded_resource("a", (4_000, 8_000, 1 << 40)) is None
    assert tree.exceeded_resource("a", (4_001, 8_000, 0)) == 0
    assert tree.exceeded_resource("a", (4_000, 8_001, 0)) == 1
    tree.charge("a", (5_000, 0, 0))
    assert tree.exceeded_resource("a", (0, 8_000, 0)) is None, "a job without GPUs is not kept out by GPUs"


def test_users_are_counted_up_to_the_root() -> None:
    tree = tree_of(queue("a"), queue("b", "a"))
    tree.charge_user("b", "ann", 3, 100, 1)
    tree.charge_user("a", "ann", 1, 50, 1)
    names = {
        name: tuple(tree.users[index, "ann"]) for name, index in tree.index.items() if (index, "ann") in tree.users
    }
    assert names == {"b": (3, 100, 1, 0), "a": (4, 150, 2, 0), ROOT: (4, 150, 2, 0)}
    tree.charge_user("b", "ann", -3, -100, -1)
    tree.charge_user("a", "ann", -1, -50, -1)
    assert tree.users == {}


def test_need_is_of_the_whole_gang() -> None:
    assert need(Shape(nodes=3, gpus=2, cpu_milli=500, memory_bytes=7)) == (6_000, 1_500, 21)
    assert need(Shape(nodes=3, gpu_milli=250)) == (750, 0, 0)


def test_parents_come_before_children_whatever_their_names() -> None:
    tree = tree_of(queue("z"), queue("a", "z"), queue("m", "a"))
    assert [q.name for q in tree.queues].index("z") < [q.name for q in tree.queues].index("a")
    assert all(parent < index for index, parent in enumerate(tree.parent))
