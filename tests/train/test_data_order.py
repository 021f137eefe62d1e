"""Laws of the data order: the global batches depend neither on the number of ranks nor on resizes in between."""

import itertools
import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ganger import train
from ganger.train import shard
from tests.train.conftest import Rank

batches = st.sampled_from([1, 2, 4, 6, 12, 24])


def global_batches(samples: int, batch: int, seed: int, runs: list[tuple[int, int]]) -> list[list[int]]:
    """Return the batches of all ranks together over (ranks, steps) runs; each goes on from the saved state."""
    saved: str | None = None
    seen: list[list[int]] = []
    for ranks, steps in runs:
        orders = [shard(samples, batch, seed=seed, rank=rank, ranks=ranks) for rank in range(ranks)]
        for order in orders:
            if saved is not None:
                order.resume(json.loads(saved))
        for pieces in itertools.islice(zip(*orders, strict=True), steps):
            assert len({len(piece) for piece in pieces}) == 1, "no rank has more work than another"
            seen.append([sample for piece in pieces for sample in piece])
            for order in orders:
                order.advance()
        saved = json.dumps(orders[0].state())
    return seen


@settings(deadline=None, max_examples=60)
@given(samples=st.integers(1, 200), batch=batches, seed=st.integers(0, 1 << 70), data=st.data())
def test_any_sequence_of_sizes_has_the_same_global_batches(
    samples: int, batch: int, seed: int, data: st.DataObject
) -> None:
    sizes = st.sampled_from([ranks for ranks in range(1, batch + 1) if batch % ranks == 0])
    runs = data.draw(st.lists(st.tuples(sizes, st.integers(0, 12)), min_size=1, max_size=6))
    steps = sum(count for _, count in runs)
    assert global_batches(samples, batch, seed, runs) == global_batches(samples, batch, seed, [(1, steps)])


@settings(deadline=None, max_examples=60)
@given(
    samples=st.integers(1, 150),
    seed=st.integers(),
    runs=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 8), st.integers(0, 30)), min_size=1, max_size=6),
)
def test_each_sample_is_in_each_epoch_once_also_when_the_batch_changes(
    samples: int, seed: int, runs: list[tuple[int, int, int]]
) -> None:
    saved, stream = {"samples": samples, "seed": seed, "consumed": 0}, []
    for ranks, per_rank, steps in runs:
        orders = [shard(samples, ranks * per_rank, seed=seed, rank=rank, ranks=ranks) for rank in range(ranks)]
        for order in orders:
            order.resume(saved)
        for pieces in itertools.islice(zip(*orders, strict=True), steps):
            stream += [sample for piece in pieces for sample in piece]
            for order in orders:
                order.advance()
        saved = orders[0].state()
    epochs = [stream[first : first + samples] for first in range(0, len(stream), samples)]
    assert all(Counter(epoch) == Counter(range(samples)) for epoch in epochs[:-1])
    assert len(set(epochs[-1])) == len(epochs[-1]) if epochs else True
    assert saved["consumed"] == len(stream)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [
        tuple(next(iter(order)))
        for seed in range(4)
        for epoch in range(4)
        for order in [shard(1000, 1000, seed=seed, rank=0, ranks=1)]
        if order.resume({"samples": 1000, "seed": seed, "consumed": 1000 * epoch}) is None
    ]
    assert len(set(orders)) == 16
    # Places keep no trace of the index: as many rise as fall, and the first half of the samples is in both halves.
    for order in orders:
        assert 400 < sum(first < second for first, second in itertools.pairwise(order)) < 600
        assert 200 < sum(sample < 500 for sample in order[:500]) < 300


def test_the_order_is_the_same_in_every_version() -> None:
    assert next(iter(shard(10, 10, seed=3, rank=0, ranks=1))) == [7, 8, 5, 3, 6, 2, 9, 0, 4, 1]


def test_ranks_and_batch_come_from_the_job(rank: Rank) -> None:
    rank.set(GANGER_BATCH_PER_RANK="3", GANGER_LR_SCALE="1.5", GANGER_MIN_NODES="2", GANGER_MAX_NODES="4")
    me = train.world()
    assert (me.batch_per_rank, me.lr_scale, me.min_nodes, me.max_nodes) == (3, 1.5, 2, 4)
    order = shard(120)
    assert order.batch == 12
    assert next(iter(order)) == next(iter(shard(120, 12, rank=3, ranks=4)))


def test_outside_ganger_there_is_one_rank_and_no_policy() -> None:
    me = train.world()
    assert (me.batch_per_rank, me.lr_scale, me.min_nodes, me.max_nodes) == (None, 1.0, None, None)
    assert sorted(next(iter(shard(8, 8)))) == list(range(8))
    with pytest.raises(ValueError, match="give it as batch="):
        shard(8)


def test_reading_ahead_consumes_nothing() -> None:
    order = shard(100, 10)
    ahead = list(itertools.islice(order, 7))
    assert order.consumed == 0
    for _ in range(11):
        order.advance()
    assert (order.consumed, order.epoch, order.state()["consumed"]) == (110, 1, 110)
    assert len(ahead) == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": 8, "batch": 6, "rank": 0, "ranks": 4}, "a batch of 6 samples has no equal pieces for rank 0 of 4"),
        ({"samples": 8, "batch": 4, "rank": 4, "ranks": 4}, "for rank 4 of 4"),
        ({"samples": 0, "batch": 4}, "at least one sample"),
    ],
)
def test_ranks_without_equal_pieces_are_an_error(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shard(**arguments)


def test_the_state_of_other_data_is_an_error() -> None:
    with pytest.raises(ValueError, match="the saved data order is of"):
        shard(8, 4).resume(shard(9, 3).state())
