"""Invariant 18, shares: usage decays exactly, however it is cut up and read; the account with less goes first.

The oracle is in `tests.laws.oracles.usage_oracle`.
"""

from fractions import Fraction
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ganger.core.fold.fold import fold
from ganger.core.queue_order.policy_interface import LaneHeads, Policy
from ganger.core.queues.fair_share import REMEMBERED, DecayedUsage, FairShares, first_remembered_period, gang_points
from ganger.core.queues.quota import QueueTree
from ganger.core.state.gang_attempts import Retries
from ganger.core.state.state import State
from ganger.core.undo import Undo
from ganger.engine.eventlog.codec import encode_image
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import NodeShare, Plan, Start
from ganger.model.job import GpuRequest, JobSpec, Resources
from ganger.model.policy import Weights
from ganger.model.queue import DEFAULT, ROOT, Queue
from ganger.model.units import MINUTE_MS
from tests.examples import examples
from tests.laws import draws
from tests.laws.oracles.usage_oracle import HALF_LIFE_MS, average
from tests.laws.policies import every_policy

CAPACITY = (16, 64_000, 1 << 30)
TODAY = 2_900 * HALF_LIFE_MS
MOMENTS = st.integers(TODAY - 5 * HALF_LIFE_MS, TODAY + HALF_LIFE_MS)
QUEUES = (Queue(name="a"), Queue(name="b", parent="a", weight=3), Queue(name="c", parent="a"))
HELD = st.tuples(*(st.integers(0, n) for n in CAPACITY))
OWNERS = st.tuples(st.sampled_from(("a", "b", "c", DEFAULT)), st.sampled_from(draws.USERS))
HOLDINGS = st.tuples(OWNERS, st.tuples(MOMENTS, MOMENTS).map(sorted), HELD)
Owner = tuple[str, str]
Held = tuple[Owner, list[int], tuple[int, int, int]]


def standings(*queues: Queue, spent: tuple[DecayedUsage, ...] = (), at_ms: int = TODAY) -> FairShares:
    tree = QueueTree((Queue(name=ROOT, parent=None), Queue(name=DEFAULT), *queues), CAPACITY, Undo())
    return FairShares(tree, CAPACITY, spent, at_ms, HALF_LIFE_MS)


def value(shares: FairShares, queue: str, user: str, at_ms: int) -> Fraction:
    """Return a user's share of the cluster in a queue."""
    use = shares.user_usage(queue, user, at_ms)
    return Fraction(use.used, use.capacity)


@given(allocations=st.lists(HOLDINGS, max_size=6), data=st.data())
def test_invariant_18_usage_is_what_the_intervals_say_however_they_are_cut(
    allocations: list[Held], data: st.DataObject
) -> None:
    whole, cut = standings(*QUEUES), standings(*QUEUES)
    for (queue, user), (began, until), amounts in allocations:
        whole.begin(queue, user, amounts, began)
        whole.end(queue, user, amounts, (began, until))
        cuts = data.draw(st.lists(st.integers(began, until), max_size=3))
        for cut_from, cut_until in pairwise(sorted((began, until, *cuts))):
            cut.begin(queue, user, amounts, cut_from)
            cut.end(queue, user, amounts, (cut_from, cut_until))
    assert (whole.queues, whole.users, whole.decayed_usage()) == (cut.queues, cut.users, cut.decayed_usage())
    for queue, user in {owner: None for owner, _, _ in allocations}:
        own = [(interval, amounts) for owner, interval, amounts in allocations if owner == (queue, user)]
        shares = [
            average([(began, until, amounts[r]) for (began, until), amounts in own], TODAY + HALF_LIFE_MS, TODAY)
            / CAPACITY[r]
            for r in range(3)
        ]
        assert value(whole, queue, user, TODAY + HALF_LIFE_MS) == max(shares)


@given(allocations=st.lists(HOLDINGS, min_size=1, max_size=4), later_ms=st.integers(0, 3 * HALF_LIFE_MS))
def test_half_a_life_later_it_counts_exactly_half(allocations: list[Held], later_ms: int) -> None:
    shares = standings(*QUEUES)
    for (queue, user), (began, until), amounts in allocations:
        shares.begin(queue, user, amounts, began)
        shares.end(queue, user, amounts, (began, until))
    at_ms = TODAY + HALF_LIFE_MS + later_ms
    for queue, user in {owner: None for owner, _, _ in allocations}:
        assert 2 * value(shares, queue, user, at_ms + HALF_LIFE_MS) == value(shares, queue, user, at_ms)


@given(
    allocations=st.lists(st.tuples(OWNERS, MOMENTS, st.tuples(*(st.integers(0, n) for n in CAPACITY))), max_size=5),
    at_ms=st.integers(TODAY + HALF_LIFE_MS, TODAY + 4 * HALF_LIFE_MS),
)
def test_what_is_held_counts_from_its_start(allocations: list[tuple[Owner, int, tuple[int, ...]]], at_ms: int) -> None:
    fair_shares = standings(*QUEUES)
    for (queue, user), began, amounts in allocations:
        fair_shares.add_held(queue, user, amounts, +1)
        fair_shares.begin(queue, user, amounts, began)
    for queue, user in {owner: None for owner, _, _ in allocations}:
        own = [(began, amounts) for owner, began, amounts in allocations if owner == (queue, user)]
        shares = [
            (sum(amounts[r] for _, amounts in own) + average([(began, at_ms, a[r]) for began, a in own], at_ms, TODAY))
            / CAPACITY[r]
            for r in range(3)
        ]
        assert value(fair_shares, queue, user, at_ms) == max(shares)
    for (queue, user), began, amounts in allocations:
        fair_shares.add_held(queue, user, amounts, -1)
        fair_shares.end(queue, user, amounts, (began, began))
    assert fair_shares.users == {}, "what begins and ends at once was nothing"


FAIR = {"a": Fraction(1, 2), DEFAULT: Fraction(1, 2), "b": Fraction(3, 8), "c": Fraction(1, 8)}
"""The part of the cluster that is fair to each of QUEUES; jobs in `a` itself weigh 1 beside 3 and 1."""


@given(allocations=st.lists(st.tuples(OWNERS, HELD), max_size=6))
def test_a_queue_counts_at_the_level_of_its_path_that_is_worst_off(
    allocations: list[tuple[Owner, tuple[int, ...]]],
) -> None:
    shares = standings(*QUEUES)
    for (queue, user), amounts in allocations:
        shares.add_held(queue, user, amounts, +1)

    def over(fair: Fraction, *queues: str) -> Fraction:
        held = [amounts for (queue, _), amounts in allocations if queue in queues]
        return max(Fraction(sum(vector[r] for vector in held), CAPACITY[r]) for r in range(3)) / fair

    for queue, levels in (("b", ("b", "a")), ("c", ("c", "a")), ("a", ("a",)), (DEFAULT, (DEFAULT,))):
        below = {"a": ("a", "b", "c")}
        ratios = [over(FAIR[level], *below.get(level, (level,))) for level in levels]
        ratios += [over(FAIR["a"] / 5, "a")] if queue == "a" else []
        use = shares.queue_usage(queue, TODAY)
        assert Fraction(use.used * use.fair_whole, use.capacity * use.fair_part) == max(ratios)


@given(allocations=st.lists(HOLDINGS, max_size=6), at_ms=st.integers(TODAY + HALF_LIFE_MS, TODAY + 9 * HALF_LIFE_MS))
def test_a_snapshot_has_all_that_is_remembered(allocations: list[Held], at_ms: int) -> None:
    shares = standings(*QUEUES)
    for (queue, user), (began, until), amounts in allocations:
        shares.begin(queue, user, amounts, began)
        shares.end(queue, user, amounts, (began, until))
    restored = standings(*QUEUES, spent=tuple(shares.decayed_usage()))
    assert (restored.queues, restored.users, restored.decayed_usage()) == (
        shares.queues,
        shares.users,
        shares.decayed_usage(),
    )
    total = shares.queues[0].past
    assert total == tuple(
        sum(shares.users[account].past[r] for account in shares.users if account[1]) for r in range(3)
    ), "the root has what all users have"


@given(lives=st.lists(st.integers(1, 40), min_size=3, max_size=8), samples=st.lists(st.integers(1, 200), max_size=8))
@examples(gate=12, otherwise=40)
def test_invariant_18_reading_it_in_between_changes_nothing(lives: list[int], samples: list[int]) -> None:
    """Check two logs of a gang that runs, ends and runs again over hundreds of half-lives, one with events between."""
    seldom, often = State(), State()
    end_ms, ends_ms = TODAY, []
    for life in lives:
        end_ms += life * HALF_LIFE_MS + 12_345
        ends_ms.append(end_ms)
    between = [TODAY + sample * HALF_LIFE_MS for sample in samples if TODAY + sample * HALF_LIFE_MS < end_ms]
    for state, looks in ((seldom, []), (often, between)):
        _apply(state, TODAY, e.NodesListed(nodes=(Node(name="n1", gpus=8, cpu_milli=64_000, memory_bytes=64),)))
        _apply(state, TODAY, e.Submitted(job=draws.job(1, "ann", _spec(4))))
        for at_ms in sorted((*ends_ms, *looks)):
            if at_ms in ends_ms:
                _restart(state, at_ms)
            else:
                _apply(state, at_ms, e.NodeCordoned(node="n1") if state.nodes.ready[0] else e.NodeUncordoned(node="n1"))
            state.validate()
    assert (seldom.fair_shares.queues, seldom.fair_shares.users) == (often.fair_shares.queues, often.fair_shares.users)
    assert seldom.fair_shares.decayed_usage() == often.fair_shares.decayed_usage()
    copied = often.copy(dict(often.gangs), often.arrays.values()).fair_shares
    assert (copied.queues, copied.users, copied.decayed_usage()) == (
        often.fair_shares.queues,
        often.fair_shares.users,
        often.fair_shares.decayed_usage(),
    )
    assert seldom.fair_shares.base == first_remembered_period(end_ms, HALF_LIFE_MS)
    bits = max(abs(past).bit_length() for past in seldom.fair_shares.queues[0].past)
    assert bits <= 2 * REMEMBERED + HALF_LIFE_MS.bit_length() + (64_000).bit_length() + 8
    assert all(len(record.periods) <= 2 * REMEMBERED for record in seldom.fair_shares.decayed_usage())
    assert len(encode_image(seldom.image())) < 20_000


def _spec(gpus: int) -> JobSpec:
    return JobSpec(run="x", resources=Resources(gpu=GpuRequest(count=gpus), cpu_milli=1_000 * gpus))


def _apply(state: State, at_ms: int, event: e.Event) -> None:
    fold(state, e.Stamped(state.seq + 1, at_ms, event))


def _restart(state: State, at_ms: int) -> None:
    """Start the one gang, or make it start again if it runs."""
    gang = state.gangs["j1"]
    if gang.attempt.start:
        _apply(state, at_ms, e.Cleared(gang="j1", generation=gang.attempt.generation, nodes=("n1",)))
        return
    share = NodeShare("n1", (0,), (0, 1, 2, 3))
    gang.retries = Retries()
    start = Start(gang="j1", generation=gang.attempt.generation + 1, shares=(share,), host="127.0.0.1", port=20_000)
    _apply(state, at_ms, e.Decided(plan=Plan(as_of=state.seq, decisions=(start,)), policy="fifo", version="0"))


@given(queues=draws.queues(), data=st.data())
def test_all_users_of_one_queue_go_before_all_of_another(queues: tuple[Queue, ...], data: st.DataObject) -> None:
    shares = standings(*(queue for queue in queues if queue.name != ROOT))
    names = [name for name in shares._tree.index if not shares._tree.children[shares._tree.index[name]]]
    for _ in range(data.draw(st.integers(0, 5))):
        amounts = data.draw(st.tuples(*(st.integers(0, n) for n in CAPACITY)))
        shares.add_held(data.draw(st.sampled_from(names)), data.draw(st.sampled_from(draws.USERS)), amounts, +1)
    order = sorted((shares.rank(name, user, TODAY), name) for name in names for user in draws.USERS)
    runs = [name for index, (_, name) in enumerate(order) if index == 0 or order[index - 1][1] != name]
    assert len(runs) == len({*runs}), "Fair Tree"


@every_policy(queues=draws.queues(), data=st.data())
def test_a_key_only_moves_back_as_usage_grows(policy: Policy, queues: tuple[Queue, ...], data: st.DataObject) -> None:
    state = State()
    for queue in queues:
        _apply(state, TODAY, e.QueueSet(queue=queue))
    _apply(state, TODAY, e.NodesListed(nodes=data.draw(draws.nodes())))
    accounts = [(queue, user) for queue in state.document.queues for user in draws.USERS]

    def keys() -> list[tuple[object, ...]]:
        return [policy.account_key(state, queue, user, TODAY) for queue, user in accounts]

    before = keys()
    for _ in range(data.draw(st.integers(1, 5))):
        queue, user = data.draw(st.sampled_from(accounts))
        amounts = data.draw(st.tuples(*(st.integers(0, n) for n in CAPACITY)))
        state.fair_shares.add_held(queue, user, amounts, +1)
        new_keys = keys()
        assert all(was <= later for was, later in zip(before, new_keys, strict=True))
        before = new_keys


@every_policy(queues=draws.queues(), jobs=st.integers(1, 6), data=st.data())
def test_no_key_is_below_its_lower_bound(
    policy: Policy, queues: tuple[Queue, ...], jobs: int, data: st.DataObject
) -> None:
    """Check also that bounds under `dynamic` are close, so that few exact keys are computed."""
    state = State()
    for queue in queues:
        _apply(state, TODAY, e.QueueSet(queue=queue))
    _apply(state, TODAY, e.NodesListed(nodes=data.draw(draws.nodes())))
    queue_names, times_ms = st.sampled_from([*state.document.queues]), st.integers(TODAY - 5 * HALF_LIFE_MS, TODAY)
    for queue, (began, until), amounts, ends in data.draw(
        st.lists(st.tuples(queue_names, st.tuples(times_ms, times_ms).map(sorted), HELD, st.booleans()), max_size=6)
    ):
        user = data.draw(st.sampled_from(draws.USERS))
        state.fair_shares.begin(queue, user, amounts, began)
        if ends:
            state.fair_shares.end(queue, user, amounts, (began, until))
        else:
            state.fair_shares.add_held(queue, user, amounts, +1)
    for number in range(1, jobs + 1):
        spec = JobSpec(run="x", queue=data.draw(queue_names), priority=data.draw(st.integers(-1_000, 1_000)))
        _apply(state, TODAY, e.Submitted(job=draws.job(number, data.draw(st.sampled_from(draws.USERS)), spec)))
    now_ms, gangs = data.draw(st.integers(TODAY, TODAY + 5 * HALF_LIFE_MS)), list(state.gangs.values())
    for _ in range(2):
        owners = list(dict.fromkeys((gang.queue, gang.job.user) for gang in gangs))
        owner_indices = (owners.index((gang.queue, gang.job.user)) for gang in gangs)
        own = ((gang.number, gang.submitted_ms, gang.job.spec.priority, gang.min_run_ms) for gang in gangs)
        heads = LaneHeads(
            owners,
            *np.array([(owner_index, *figures) for owner_index, figures in zip(owner_indices, own, strict=True)]).T,
        )
        key_lower_bound = policy.key_lower_bound(heads, state, now_ms).tolist()
        firsts = [policy.key(gang, state, now_ms)[0] for gang in gangs]
        assert all(at_least <= first for at_least, first in zip(key_lower_bound, firsts, strict=True))
        if policy.NAME == "dynamic":
            assert all(at_least > first - 3 for at_least, first in zip(key_lower_bound, firsts, strict=True))
        state.fair_shares.add_held(gangs[0].queue, gangs[0].job.user, data.draw(HELD), +1)


@every_policy(
    ages_ms=st.lists(st.integers(0, 3 * 24 * 60 * MINUTE_MS), min_size=2, max_size=4), priority=st.integers(-9, 9)
)
def test_of_one_account_and_class_the_older_is_first(policy: Policy, ages_ms: list[int], priority: int) -> None:
    gangs, states = [], []
    for number, age_ms in enumerate(sorted(ages_ms, reverse=True), start=1):
        state = State()
        states.append(state)
        spec = JobSpec(run="x", priority=priority)
        _apply(state, TODAY - age_ms, e.Submitted(job=draws.job(number, "ann", spec)))
        gangs.append(state.gangs[f"j{number}"])
        gangs[-1].number += number
    keys = [policy.gang_key(gang, state, TODAY) for gang, state in zip(gangs, states, strict=True)]
    assert keys == sorted(keys)


@given(times_ms=st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 40)), priority=st.integers(-1000, 1000))
def test_points_rise_with_the_time_passed_over_without_end(times_ms: tuple[int, int], priority: int) -> None:
    shorter, longer = sorted(times_ms)
    weights = Weights()
    assert gang_points(weights, priority, shorter) <= gang_points(weights, priority, longer)
    assert gang_points(weights, -1000, longer + 100_000 * MINUTE_MS) > gang_points(weights, 1000, longer)


@every_policy(queues=draws.queues(), data=st.data())
def test_factors_add_up_to_the_key(policy: Policy, queues: tuple[Queue, ...], data: st.DataObject) -> None:
    """Check that `explain` shows what the order is made of."""
    state = State()
    for queue in queues:
        _apply(state, TODAY, e.QueueSet(queue=queue))
    _apply(state, TODAY, e.NodesListed(nodes=data.draw(draws.nodes())))
    for number in range(data.draw(st.integers(1, 4))):
        owner = data.draw(st.sampled_from(draws.USERS))
        spec = JobSpec(
            run="x", queue=data.draw(st.sampled_from([*state.document.queues])), priority=data.draw(st.integers(-9, 9))
        )
        time_ms = TODAY + number * data.draw(st.sampled_from((0, MINUTE_MS, 40 * MINUTE_MS)))
        _apply(state, max(state.at_ms, time_ms), e.Submitted(job=draws.job(number, owner, spec)))
        amounts = data.draw(st.tuples(*(st.integers(0, n) for n in CAPACITY)))
        state.fair_shares.add_held(spec.queue, owner, amounts, +1)
    now_ms = state.at_ms + data.draw(st.sampled_from((0, MINUTE_MS, 3 * HALF_LIFE_MS)))
    for gang in state.gangs.values():
        factors = policy.factors(gang, state, now_ms)
        assert factors
        assert all(factor.sentence for factor in factors)
        if policy.NAME == "dynamic":
            assert -policy.key(gang, state, now_ms)[0] == sum(factor.points or 0 for factor in factors)
        if policy.NAME == "priority":
            age_ms, points = now_ms - gang.submitted_ms, sum(factor.points or 0 for factor in factors)
            assert points == gang.job.spec.priority + age_ms // MINUTE_MS


def test_what_is_fair_to_a_queue_is_fair_to_one_user_of_it_and_beside_its_children_to_its_own_jobs() -> None:
    shares = standings(*QUEUES)
    fair = {name: shares.user_usage(name, "ann", TODAY) for name in FAIR}
    assert {name: Fraction(use.fair_part, use.fair_whole) for name, use in fair.items()} == FAIR | {"a": FAIR["a"] / 5}
