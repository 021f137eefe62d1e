"""Stragglers: examples of step times and of work, laws of the detection, and real ranks that wait for each other."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.launcher_server.generation_state import new_generation
from ganger.launcher_server.health.straggler import (
    BUSY_PERMILLE,
    FRESH_S,
    HELD_UP_PERMILLE,
    RESTS,
    SLOW_FACTOR,
    StepPaces,
    StepShares,
    awaited_ranks,
    slow_ranks,
)
from ganger.model.decision import Start
from ganger.model.event import Slow
from ganger.model.evidence import StepWork
from tests.local import world
from tests.local.world import Server, make_job, make_start
from tests.waiting import wait_until

pytestmark = pytest.mark.serial

ROOT = Path(__file__).parents[3]
Serve = Callable[..., Server]
STEPS = """
import os, sys, time
from bench.hangs.freezing import Peers
from ganger import train

rank = int(os.environ["GANGER_RANK"])
peers = Peers(rank, int(os.environ["WORLD_SIZE"]))
for step in range(1000000):
    began = time.process_time()
    while time.process_time() - began < (0.06 if rank == int(sys.argv[1]) else 0.005):
        sum(range(1000))
    if sys.argv[1] == "-1":
        time.sleep(0.055)
    peers.meet()
    train.report(step=step)
"""


@pytest.mark.parametrize(
    ("paces", "slow"),
    [
        ([100, 100, 100, 151], [3]),
        ([100, 100, 100, 150], []),
        ([100, 300], [1]),
        ([100, 200, 300, 380], []),
        ([100], []),
        ([], []),
    ],
)
def test_slow_ranks_are_far_beyond_their_peers_and_the_spread(paces: list[int], slow: list[int]) -> None:
    assert slow_ranks(dict(enumerate(paces))) == slow


def works(*shares: tuple[int, int, int], at_s: float = 0.0) -> dict[int, StepShares]:
    return {rank: StepShares.of(share, at_s) for rank, share in enumerate(shares)}


WAITS, WORKS, SPINS, DOES_MORE = (300, 320, 250), (930, 980, 900), (990, 1000, 990), (420, 450, 380)


@pytest.mark.parametrize(
    ("shares", "waited"),
    [
        pytest.param([WAITS, WAITS, WAITS, WORKS], [3], id="one works, the others wait"),
        pytest.param([WAITS, WORKS], [1], id="one of two"),
        pytest.param([WAITS, WORKS, WAITS, WORKS], [1, 3], id="both of a node"),
        pytest.param([(450, 600, 500)] * 3 + [(900, 970, 930)], [3], id="twice the work, on shared processors"),
        pytest.param([(450, 500, 450)] * 3 + [(450, 990, 950)], [], id="the same work, and a long queue"),
        pytest.param(
            [(40, 950, 900), (20, 400, 300), (300, 990, 950)], [2], id="rank 0 is woken for each of the others"
        ),
        pytest.param([(40, 950, 900), (20, 400, 300), (20, 400, 300)], [], id="rank 0 is woken, and has nothing to do"),
        pytest.param([DOES_MORE, WAITS, WAITS, WAITS], [], id="rank 0 writes logs"),
        pytest.param([WORKS, (650, 700, 600), (650, 700, 600)], [], id="all work for most of it, one for more"),
        pytest.param([SPINS] * 4, [], id="who waits spins"),
        pytest.param([WORKS, SPINS, SPINS, SPINS], [], id="the others spin"),
        pytest.param([WAITS] * 4, [], id="all wait, say for devices"),
        pytest.param([WAITS, WAITS, (930, 980, 700)], [], id="it waits too, now and then"),
        pytest.param([(50, 320, 180), (50, 250, 130), (180, 920, 800)], [2], id="gradients take a little time"),
        pytest.param([WAITS, WAITS, (800, 840, 800)], [], id="it rests in every step"),
        pytest.param([(100, 120, 90), (600, 620, 590), (900, 950, 900)], [], id="all differ"),
        pytest.param([WORKS], [], id="one alone"),
    ],
)
def test_a_straggler_works_all_the_time_while_its_peers_wait(
    shares: list[tuple[int, int, int]], waited: list[int]
) -> None:
    assert awaited_ranks(dict.fromkeys(range(len(shares)), 1000), works(*shares)) == waited


@pytest.mark.parametrize("step_ms", [600, 1300])
def test_ranks_that_do_not_step_together_do_not_wait_for_each_other(step_ms: int) -> None:
    assert awaited_ranks({0: 1000, 1: 1000, 2: step_ms}, works(WAITS, WAITS, WORKS)) == []


SHARES = st.tuples(*[st.integers(0, 1000)] * 3).map(sorted).map(lambda values: (values[0], values[2], values[1]))


@given(st.lists(SHARES, max_size=8), st.randoms())
def test_stragglers_are_busy_and_most_peers_wait(shares: list[tuple[int, int, int]], chance: object) -> None:
    stragglers = awaited_ranks(dict.fromkeys(range(len(shares)), 1000), works(*shares))
    for rank in stragglers:
        peers = sorted(busy for peer, (_, busy, _) in enumerate(shares) if peer != rank)
        usual = peers[(len(peers) - 1) // 2]
        assert shares[rank][1] >= BUSY_PERMILLE
        assert usual <= HELD_UP_PERMILLE
        assert RESTS * (1000 - shares[rank][2]) <= 1000 - usual
    assert len(stragglers) <= (len(shares) + 1) // 2
    mirrored = awaited_ranks(dict.fromkeys(range(len(shares)), 1000), works(*reversed(shares)))
    assert sorted(len(shares) - 1 - rank for rank in mirrored) == stragglers


@given(SHARES, st.integers(1, 8), st.integers(0, 100))
def test_similar_ranks_are_never_stragglers(share: tuple[int, int, int], ranks: int, percent: int) -> None:
    larger = tuple(min(1000, int(value * (1 + percent / 100 * (SLOW_FACTOR - 1)))) for value in share)
    assert awaited_ranks(dict.fromkeys(range(ranks + 1), 1000), works(larger, *[share] * ranks)) == []


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Ranks 0 and 1 on n1, 2 and 3 on n2."""
    job = make_job(tmp_path, "true")
    return new_generation(make_start(job), job).start


def test_a_slow_rank_is_reported_after_two_samples(start: Start) -> None:
    paces = StepPaces()
    paces.add_report("n1", {"0": 100, "1": 101}, {}, 0.0)
    assert paces.find_slow(start, 0.0) == []
    for at_s in (0.0, 10.0):
        paces.add_report("n2", {"2": 99, "3": 400}, {}, at_s)
        assert paces.find_slow(start, at_s) == []
    paces.add_report("n1", {"0": 100, "1": 101}, {}, 10.0)
    (slow,) = paces.find_slow(start, 10.0)
    assert (slow.node, slow.rank, slow.step_ms, slow.peers_ms, slow.work) == ("n2", 3, 400, 100, None)
    for node, pace in {"n2": {"2": 99, "3": 500}, "n1": {"0": 100, "1": 101}}.items():
        paces.add_report(node, pace, {}, 20.0)
        assert paces.find_slow(start, 20.0) == []


def test_no_rank_is_slow_when_all_steps_change(start: Start) -> None:
    """One node reports the change first."""
    paces = StepPaces()
    for turn, step_ms in enumerate([100, 100, 300, 300, 90, 600, 600]):
        for late_s, (node, ranks) in enumerate({"n1": "01", "n2": "23"}.items()):
            at_s = 10.0 * turn + 5 * late_s
            share = (980, 990, 900) if step_ms > 500 else WAITS
            paces.add_report(node, dict.fromkeys(ranks, step_ms), dict.fromkeys(ranks, share), at_s)
            assert paces.find_slow(start, at_s) == []


def sampled(at_s: float = 0.0) -> StepPaces:
    """Return the paces of the ranks of `start`, where the others wait for rank 3."""
    paces = StepPaces()
    paces.add_report("n1", {"0": 1000, "1": 1000}, {"0": WAITS, "1": WAITS}, at_s)
    paces.add_report("n2", {"2": 1000, "3": 1010}, {"2": WAITS, "3": WORKS}, at_s)
    return paces


def test_a_straggler_is_reported_with_its_work(start: Start) -> None:
    paces = sampled()
    (slow,) = paces.find_slow(start, 0.0)
    assert slow == Slow(
        gang=start.gang,
        generation=1,
        node="n2",
        rank=3,
        step_ms=1010,
        peers_ms=1000,
        work=StepWork(ran_ms=939, queued_ms=50),
        peers_work=StepWork(ran_ms=300, queued_ms=20),
    )
    assert paces.find_slow(start, 0.0) == []


def test_old_samples_are_not_compared(start: Start) -> None:
    paces = sampled()
    paces.add_report("n2", {}, {"2": WAITS, "3": WORKS}, FRESH_S + 10)
    assert paces.find_slow(start, FRESH_S + 10) == []
    paces.add_report("n1", {}, {"0": WAITS, "1": WAITS}, FRESH_S + 11)
    assert [slow.rank for slow in paces.find_slow(start, FRESH_S + 11)] == [3]


def test_samples_of_different_times_must_hold_longer(start: Start) -> None:
    paces = sampled()
    paces.add_report("n1", {}, {"0": WAITS, "1": WAITS}, 5.0)
    assert paces.find_slow(start, 5.0) == []
    paces.add_report("n2", {}, {"2": WAITS, "3": WORKS}, 10.0)
    assert paces.find_slow(start, 10.0) == []
    paces.add_report("n1", {}, {"0": WAITS, "1": WAITS}, 15.0)
    assert [slow.rank for slow in paces.find_slow(start, 15.0)] == [3]


def test_no_report_before_all_ranks_are_known(start: Start) -> None:
    paces = StepPaces()
    paces.add_report("n1", {"0": 1000, "1": 1000}, {"1": WAITS}, 0.0)
    paces.add_report("n2", {"2": 1000, "3": 1000}, {"2": WAITS, "3": WORKS}, 0.0)
    assert paces.find_slow(start, 0.0) == []


def test_roles_are_not_compared(start: Start) -> None:
    last, first = start.shares[1], start.shares[0]
    alone = replace(last, ranks=(3,), part=1)
    apart = replace(start, shares=(first, replace(last, ranks=(2,)), alone))
    assert sampled().find_slow(apart, 0.0) == []
    paces = StepPaces()
    for at_s in (0.0, 10.0, 20.0):
        paces.add_report("n1", {"0": 100, "1": 100}, {}, at_s)
        paces.add_report("n2", {"2": 100, "3": 900}, {}, at_s)
        assert paces.find_slow(apart, at_s) == []


def test_a_straggler_is_reported_and_balanced_ranks_are_not(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "DEADLINE_S", 120.0)  # it takes 32 steps and more
    server = serve().open()
    waiting, balanced = begin(server, tmp_path, 2), begin(server, tmp_path, -1)
    event = server.wait("slow", gang=waiting.gang)
    assert isinstance(event, Slow)
    assert (event.rank, event.node) == (2, "n2"), event
    assert event.work is not None
    assert event.peers_work is not None
    assert event.work.ran_ms > event.peers_work.ran_ms
    works = server.backend._runtime.generations[balanced.gang].paces.works
    wait_until(lambda: set(works) == {0, 1, 2, 3}, "the work of the balanced gang is known")
    assert [event.gang for event in server.of("slow") if isinstance(event, Slow)] == [waiting.gang]


def begin(server: Server, folder: Path, slow: int) -> Start:
    """Start two ranks on each of two nodes, of which rank `slow` works all the time."""
    (folder / "steps.py").write_text(STEPS)
    job = make_job(folder, (sys.executable, "steps.py", str(slow)), env={"PYTHONPATH": str(ROOT)})
    start = make_start(job)
    server.backend.start(start, job)
    return start
