"""The policy document survives being written and read, and a difference leads from one document to the other.

It changes all it says and nothing else, and usage keeps its sum when the half-life changes.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from ganger import registry
from ganger.core.fold.fold import fold, refusal
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.queues.fair_share import REMEMBERED, FairShares, first_remembered_period, recut_usage
from ganger.core.queues.quota import QueueTree
from ganger.core.state.state import State
from ganger.core.undo import Undo
from ganger.engine.eventlog.codec import decode, decode_image, encode, encode_image
from ganger.engine.policy_doc.policy_validation import (
    changes,
    policy_from_dict,
    policy_text,
    policy_to_dict,
    read_policy,
)
from ganger.model import event as e
from ganger.model.policy import Large, PolicyDocument, Pool, Reservations, Starvation, Weights, document_of
from ganger.model.queue import DEFAULT, MAX_FIGURE, ROOT, Amount, Queue, UserLimits
from ganger.model.units import DAY_MS, HOUR_MS, MINUTE_MS
from tests.examples import examples
from tests.laws import draws
from tests.laws.oracles.usage_oracle import average, usage_agrees_with_the_log
from tests.laws.policies import POLICIES, every_policy
from tests.laws.queues.test_fair_share import CAPACITY, HOLDINGS, QUEUES, TODAY, Held, standings, value
from tests.laws.world import World

FIGURES = st.none() | st.integers(0, MAX_FIGURE)
NAMES = st.sampled_from(("a", "b-c", "d", "e0"))
LASTING = st.integers(1, 3650 * DAY_MS)
HALF_LIVES = st.sampled_from((HOUR_MS, 5 * HOUR_MS + 17, DAY_MS, 7 * DAY_MS, 100 * DAY_MS, 3650 * DAY_MS))
AMOUNTS = st.builds(
    Amount,
    gpus=FIGURES,
    cpu_milli=FIGURES,
    memory_bytes=FIGURES,
    gpu_types=st.dictionaries(st.sampled_from(("h100", "a100-80gb")), st.integers(0, 9), max_size=2),
)


@st.composite
def documents(draw: st.DrawFn) -> PolicyDocument:
    """Draw any document of the right form; quotas are checked against each other elsewhere."""
    queues = {ROOT: Queue(name=ROOT, parent=None), DEFAULT: Queue(name=DEFAULT)}
    for name in draw(st.lists(NAMES, unique=True)):
        # A limit of no time, which no job could keep, is refused.
        longest = st.none() | LASTING
        limits = st.builds(UserLimits, gpus=FIGURES, jobs=FIGURES, pending=FIGURES, time_ms=longest, node_ms=FIGURES)
        queues[name] = Queue(
            name=name,
            parent=draw(st.sampled_from([*queues])),
            weight=draw(st.integers(1, 1000)),
            borrowing=draw(AMOUNTS),
            lending=draw(AMOUNTS),
            user_limits=draw(limits),
            default_time_ms=draw(st.none() | LASTING),
        )
    pool = st.builds(Pool, name=NAMES, kind=st.sampled_from(("spot", "cpu")), nodes=st.just({"pool": "a"}))
    points = st.integers(0, 1_000_000)
    ages = st.dictionaries(st.sampled_from((-100, -7, 0, 100, 1000)), LASTING, max_size=3)
    weights = st.builds(Weights, priority=points, queue=points, user=points, passed_over_after_ms=LASTING)
    jobs = st.none() | st.integers(0, 1_000_000)
    large = st.builds(Large, nodes=st.integers(1, 65_536), after_ms=st.none() | LASTING, per_queue=jobs)
    return PolicyDocument(
        order=draw(st.sampled_from(("dynamic", "fifo", "las"))),
        weights=draw(weights),
        half_life_ms=draw(HALF_LIVES),
        starvation=draw(st.builds(Starvation, after_ms=st.none() | LASTING, by_priority=ages)),
        reservations=draw(st.builds(Reservations, total=jobs, per_queue=jobs, large=large)),
        pools=tuple(draw(st.lists(pool, unique_by=lambda pool: pool.name, max_size=2))),
        gpu_shares=draw(draws.scores()),
        queues=dict(sorted(queues.items())),
    )


@given(document=documents())
def test_written_and_read_it_is_the_same(document: PolicyDocument) -> None:
    assert read_policy(policy_text(document), "it").document == document
    assert policy_from_dict(policy_to_dict(document), "it").document == document
    event = e.PolicySet(document=document, version=1)
    assert decode(encode(event)) == event


@given(before=documents(), after=documents())
def test_what_differs_leads_from_one_to_the_other(before: PolicyDocument, after: PolicyDocument) -> None:
    changed = {change.path: (change.before, change.after) for change in changes(before, after)}
    before_leaves, after_leaves = dict(leaves("", policy_to_dict(before))), dict(leaves("", policy_to_dict(after)))
    for path, (old_value, new_value) in changed.items():
        assert before_leaves.pop(path, None) == old_value
        if new_value is not None:
            before_leaves[path] = new_value
    assert before_leaves == after_leaves
    assert (changes(before, after) == ()) == (before == after)


def leaves(path: str, data: Any) -> Any:
    """Yield every value by its path, and a mark for every queue."""
    if isinstance(data, dict):
        if path.startswith("queues.") and path.count(".") == 1:
            yield path, ""
        for key, value in data.items():
            yield from leaves(f"{path}.{key}" if path else key, value)
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from leaves(f"{path}[{index}]", value)
    else:
        yield path, data


def applied(state: State, document: PolicyDocument, at_ms: int = TODAY, **options: Any) -> None:
    event = e.PolicySet(document=document, version=state.policy_version + 1, **options)
    fold(state, e.Stamped(state.seq + 1, at_ms, event))


@given(document=documents())
def test_all_of_it_is_in_force_at_once(document: PolicyDocument) -> None:
    state = State(find_score=registry.score)
    applied(state, document)
    state.validate()
    assert state.document == document
    assert decode_image(encode_image(state.image())) == state.image()


BAD = (
    lambda document, data: {"version": data.draw(st.sampled_from((-1, 0, 2, 3)))},
    lambda document, data: {"queues": {**document.queues, "z": Queue(name="z", parent="nobody")}},
    lambda document, data: {
        "queues": {**document.queues, "z": Queue(name="z", parent="y"), "y": Queue(name="y", parent="z")}
    },
    lambda document, data: {"queues": {**document.queues, "z": Queue(name="z", weight=0)}},
    lambda document, data: {"queues": {**document.queues, "z": Queue(name="z", nominal=Amount(gpus=-1))}},
    lambda document, data: {"queues": {**document.queues, "z": Queue(name="z", nominal=Amount(gpus=1 << 60))}},
    lambda document, data: {"queues": {**document.queues, "z": Queue(name="y")}},
    lambda document, data: {"queues": {name: queue for name, queue in document.queues.items() if name != ROOT}},
    lambda document, data: {"queues": {name: queue for name, queue in document.queues.items() if name != DEFAULT}},
)


@given(document=documents(), data=st.data())
def test_a_refused_document_changes_nothing(document: PolicyDocument, data: st.DataObject) -> None:
    state = State(find_score=registry.score)
    before = encode_image(state.image())
    wrong = data.draw(st.sampled_from(BAD))(document, data)
    version = wrong.pop("version", 1)
    event = e.PolicySet(document=replace(document, **wrong), version=version, forced=data.draw(st.booleans()))
    assert refusal(state, event)
    try:
        fold(state, e.Stamped(1, TODAY, event))
    except ValueError:
        assert encode_image(state.image()) == before
    else:
        raise AssertionError("it was applied")


# -- half-lives ------------------------------------------------------------------------------------------------------


@given(allocations=st.lists(HOLDINGS, max_size=6), half_life_ms=HALF_LIVES)
def test_what_was_held_keeps_its_sum_when_the_half_life_changes(allocations: list[Held], half_life_ms: int) -> None:
    shares = standings(*QUEUES)
    for (queue, user), (began, until), amounts in allocations:
        until = min(until, TODAY)  # noqa: PLW2901 - nothing has ended that is still to come
        began = min(began, until)  # noqa: PLW2901 - the same
        shares.begin(queue, user, amounts, began)
        shares.end(queue, user, amounts, (began, until))
    spent = shares.decayed_usage()
    recut = recut_usage(spent, shares.half_life_ms, half_life_ms, TODAY)
    base = first_remembered_period(TODAY, half_life_ms)
    assert all(period >= base for record in recut for period, _ in record.periods), "no more is kept than REMEMBERED"
    assert all(len(record.periods) <= 2 * REMEMBERED + 1 for record in recut)
    if base * half_life_ms <= min((period for record in spent for period, _ in record.periods), default=0):
        assert total(recut) == total(spent)
    assert total(recut) <= total(spent) or not spent


def total(spent: Any) -> tuple[int, ...]:
    return tuple(sum(amounts[r] for record in spent for _, amounts in record.periods) for r in range(len(CAPACITY)))


@given(
    lives=st.tuples(st.integers(1, 5), st.integers(0, 4)),
    amounts=st.tuples(*(st.integers(0, n) for n in CAPACITY)),
    half_life_ms=HALF_LIVES,
)
def test_what_was_held_evenly_counts_by_the_new_half_life(
    lives: tuple[int, int], amounts: tuple[int, int, int], half_life_ms: int
) -> None:
    """Check whole half-lives, held evenly: then nothing is taken for what it was not."""
    assume(any(amounts))
    long, ago = lives
    week_ms = 7 * DAY_MS
    began, until = TODAY - (long + ago) * week_ms, TODAY - ago * week_ms
    assume(began >= first_remembered_period(TODAY, half_life_ms) * half_life_ms)
    shares = standings(*QUEUES)
    shares.begin("a", "ann", amounts, began)
    shares.end("a", "ann", amounts, (began, until))
    tree = QueueTree((Queue(name=ROOT, parent=None), Queue(name=DEFAULT), *QUEUES), CAPACITY, Undo())
    spent = recut_usage(shares.decayed_usage(), shares.half_life_ms, half_life_ms, TODAY)
    recut = FairShares(tree, CAPACITY, spent, TODAY, half_life_ms)
    whole = TODAY // half_life_ms * half_life_ms
    expected = max(
        average([(began, until, amount)], TODAY, whole, half_life_ms) / capacity
        for amount, capacity in zip(amounts, CAPACITY, strict=True)
    )
    assert abs(value(recut, "a", "ann", TODAY) - expected) <= Fraction(1, HOUR_MS)


@every_policy(each=2, data=st.data(), half_life_ms=HALF_LIVES)
def test_usage_is_exact_and_nothing_is_over_allocated_whatever_the_rules(
    policy: Policy, data: st.DataObject, half_life_ms: int
) -> None:
    """Check invariants 4 and 18, and those of every step, for drawn weights, thresholds and half-lives."""
    world = World(policy, data.draw(draws.nodes()), data.draw(draws.queues()))
    rules = data.draw(draws.policy_rules(half_life_ms))
    assert world.try_event(
        e.PolicySet(document=document_of(rules, world.state.document.queues), version=world.state.policy_version + 1)
    )
    for _ in range(data.draw(st.integers(1, 6), label="batches")):
        world.draw_events(data)
        world.run_cycle()
        while world.is_due():
            world.run_cycle()
    usage_agrees_with_the_log(world)


@given(data=st.data())
@examples(gate=10, otherwise=30)
def test_a_half_life_that_changes_is_made_anew_exactly(data: st.DataObject) -> None:
    """Check that derived figures are those of a snapshot, before and after, whatever is held."""
    world = World(POLICIES["dynamic"], data.draw(draws.nodes()), data.draw(draws.queues()))
    for half_life_ms in data.draw(st.lists(HALF_LIVES, min_size=1, max_size=3)):
        world.draw_events(data)
        world.run_cycle()
        world.now_ms += data.draw(st.sampled_from((MINUTE_MS, DAY_MS, 40 * DAY_MS)))
        rules = data.draw(draws.policy_rules(half_life_ms))
        document = document_of(rules, world.state.document.queues)
        assert world.try_event(e.PolicySet(document=document, version=world.state.policy_version + 1))
        world.state.validate()
