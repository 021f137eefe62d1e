"""Invariant 4: fair shares give out all that is there and asked for, guarantees first, more for more weight, whoever is
named first."""

from dataclasses import replace
from fractions import Fraction
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ganger.core.fair import Claim, divide, fair_gpus
from ganger.core.state import State
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.job import GpuRequest, JobSpec, Resources
from ganger.model.queue import Amount, Queue
from tests.laws import draws

CLAIMS = st.lists(
    st.builds(Claim, weight=st.integers(1, 7), guarantee=st.integers(0, 9), most=st.integers(0, 20)), max_size=6
)


@given(capacity=st.integers(0, 40), claims=CLAIMS)
def test_invariant_4_all_that_is_there_and_asked_for_is_given_out(capacity: int, claims: list[Claim]) -> None:
    """Invariant 4: the sum, the bounds, the guarantees."""
    given_out = divide(capacity, claims)
    assert sum(given_out) == min(capacity, sum(claim.most for claim in claims))
    assert all(0 <= part <= claim.most for part, claim in zip(given_out, claims, strict=True))
    least = [min(claim.guarantee, claim.most) for claim in claims]
    if sum(least) <= capacity:
        assert all(part >= guaranteed for part, guaranteed in zip(given_out, least, strict=True))


@given(capacity=st.integers(0, 40), claims=CLAIMS.filter(bool), data=st.data())
def test_invariant_4_more_weight_never_gives_less(capacity: int, claims: list[Claim], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(claims) - 1))
    heavier = [*claims]
    heavier[at] = claims[at]._replace(weight=claims[at].weight + data.draw(st.integers(1, 9)))
    assert divide(capacity, heavier)[at] >= divide(capacity, claims)[at]


@given(capacity=st.integers(0, 40), claims=CLAIMS, order=st.randoms(use_true_random=False))
def test_invariant_4_the_order_of_claims_says_nothing(capacity: int, claims: list[Claim], order: Random) -> None:
    """But for equal claims, of which one may have one more."""
    mixed = [*claims]
    order.shuffle(mixed)
    one = sorted(zip(claims, divide(capacity, claims), strict=True))
    other = sorted(zip(mixed, divide(capacity, mixed), strict=True))
    level = [part for _, part in one]
    assert sum(level) == sum(part for _, part in other)
    assert all(abs(a - b) <= 1 for (_, a), (_, b) in zip(one, other, strict=True))


@given(capacity=st.integers(0, 40), claims=CLAIMS)
def test_invariant_4_nobody_could_have_one_more_at_less_cost(capacity: int, claims: list[Claim]) -> None:
    """Brute force: units one at a time, each where the next one costs least, give the same costs."""
    least = [min(claim.guarantee, claim.most) for claim in claims]
    if sum(least) > capacity:
        return
    given_out = [*least]
    for _ in range(min(capacity, sum(claim.most for claim in claims)) - sum(least)):
        costs = [
            (Fraction(part + 1, claim.weight), at)
            for at, (part, claim) in enumerate(zip(given_out, claims, strict=True))
            if part < claim.most
        ]
        given_out[min(costs)[1]] += 1
    found = divide(capacity, claims)
    costs_of = [
        sorted(Fraction(part, claim.weight) for part, claim in zip(parts, claims, strict=True))
        for parts in (found, given_out)
    ]
    assert costs_of[0] == costs_of[1]


@given(queues=draws.queues(), specs=st.lists(draws.specs(), max_size=6))
def test_fair_shares_of_a_tree_add_up(queues: tuple[Queue, ...], specs: list[JobSpec]) -> None:
    state = State()
    for queue in queues:
        _apply(state, e.QueueSet(queue=queue))
    _apply(state, e.NodesListed(nodes=(Node(name="n1", gpus=9, cpu_milli=64_000, memory_bytes=64),)))
    for number, spec in enumerate(specs):
        if spec.queue in state.queues:
            _apply(state, e.Submitted(job=draws.job(number, "ann", replace(spec, array=None))))
    fair = fair_gpus(state)
    tree = state.tree
    assert 0 <= fair[0] <= 9
    for at, children in enumerate(tree.children):
        assert sum(fair[child] for child in children) <= fair[at]
        assert fair[at] <= max(0, tree.potential(at, 0))


def test_an_example_of_a_tree() -> None:
    state = State()
    for queue in (Queue(name="a", weight=3), Queue(name="b", nominal=Amount(gpus=2)), Queue(name="c", parent="a")):
        _apply(state, e.QueueSet(queue=queue))
    _apply(state, e.NodesListed(nodes=(Node(name="n1", gpus=8, cpu_milli=64_000, memory_bytes=64),)))
    for number, (queue, gpus) in enumerate((("c", 8), ("b", 1), ("default", 8))):
        spec = JobSpec(run="x", queue=queue, resources=Resources(gpu=GpuRequest(count=gpus)))
        _apply(state, e.Submitted(job=draws.job(number, "ann", spec)))
    fair = dict(zip(state.tree.index, fair_gpus(state), strict=True))
    assert fair == {"root": 8, "a": 6, "b": 1, "c": 6, "default": 1}


def _apply(state: State, event: e.Event) -> None:
    state.apply(e.Stamped(state.seq + 1, 1, event))
