"""Invariant 5: what a queue does not lend is not seen outside it, and subtracting usage undoes adding it."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ganger.core.queues.fair_share import FairShares
from ganger.core.queues.quota import QueueTree
from ganger.core.undo import Undo
from ganger.model.queue import DEFAULT, ROOT, Queue
from ganger.model.units import DAY_MS
from tests.laws import draws

CAPACITY = (16, 64_000, 256)
OF_NAMED = {"gpu_milli.h100": 9, "gpu_milli.a100": 7, "extended.rdma/hca": 8}
TODAY = 1_780_000_000_000


def tree_of(queues: tuple[Queue, ...], undo: Undo) -> QueueTree:
    named = {queue.name: queue for queue in (Queue(name=ROOT, parent=None), Queue(name=DEFAULT), *queues)}
    return QueueTree(named.values(), CAPACITY, undo, OF_NAMED)


@given(queues=draws.queues(), data=st.data())
def test_invariant_5_what_is_not_lent_is_not_seen_outside(queues: tuple[Queue, ...], data: st.DataObject) -> None:
    """Check that up to its local quota a queue's usage changes only what may be used inside it, whatever was used."""
    tree = tree_of(queues, Undo())
    resources = range(len(tree.resources))
    for name in data.draw(st.lists(st.sampled_from([*tree.index]), max_size=4)):
        tree.charge(name, data.draw(st.tuples(*(st.integers(0, 6) for _ in resources))))
    for name, index in tree.index.items():
        inside = [q for q in tree.index if index in tree.path(tree.index[q])]
        outside = [q for q in tree.index.values() if tree.queues[q].name not in inside]
        before = {(q, r): tree.available(q, r) for q in outside for r in resources}
        free = tuple(max(0, tree.local_quota(index, r) - tree.usage[r][index]) for r in resources)
        amounts = tuple(data.draw(st.integers(0, most)) for most in free)
        tree.charge(name, amounts)
        assert {(q, r): tree.available(q, r) for q, r in before} == before
        tree.charge(name, tuple(-amount for amount in amounts))


@given(queues=draws.queues(), order=st.randoms(use_true_random=False), data=st.data())
def test_invariant_5_to_take_away_what_was_added_is_the_identity(
    queues: tuple[Queue, ...], order: Random, data: st.DataObject
) -> None:
    """Check queues, users and shares, in any order; and that a trial leaves no trace."""
    undo = Undo()
    tree = tree_of(queues, undo)
    standings = FairShares(tree, CAPACITY, (), TODAY, 7 * DAY_MS)
    resources = range(len(tree.resources))
    owners = st.tuples(st.sampled_from([*tree.index]), st.sampled_from(draws.USERS))
    amounts = st.tuples(*(st.integers(0, 6) for _ in resources))
    charges = data.draw(st.lists(st.tuples(owners, amounts), max_size=6))

    def figures() -> tuple[object, ...]:
        return [list(row) for row in tree.usage], dict(tree.users), list(standings.queues), dict(standings.users)

    def charge(sign: int) -> None:
        for (queue, user), amounts_used in charges:
            tree.charge(queue, tuple(sign * amount for amount in amounts_used))
            tree.charge_user(queue, user, sign * amounts_used[0], sign * 1_000, sign)
            standings.add_held(queue, user, amounts_used[:3], sign)

    nothing = figures()
    with undo.trial():
        charge(+1)
    assert figures() == nothing
    charge(+1)
    order.shuffle(charges)
    charge(-1)
    assert figures() == nothing
