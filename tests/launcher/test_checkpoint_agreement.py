"""Ranks of a gang never answer `should_checkpoint` otherwise at the same count, whatever is lost meanwhile; and while
nothing is, they are told to save.
"""

import json
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ganger.launcher_server import message_schema
from ganger.launcher_server.checkpoints.checkpoint_coordinator import Counts
from tests.launcher.gang_model import AWAY_S, Gang

TURNS = 1_500
PERIOD_S = 0.5


@contextmanager
def gang_of(seed: int, *, lockstep: bool, reports: bool, period_s: float | None = PERIOD_S) -> Iterator[Gang]:
    with tempfile.TemporaryDirectory() as name:
        gang = Gang(Path(name), random.Random(seed), lockstep=lockstep, reports=reports, period_s=period_s)
        try:
            yield gang
        finally:
            gang.close()


def go_on(gang: Gang, turns: int) -> None:
    """Everything is there, and goes on."""
    for _ in range(turns):
        gang.reconnect(after_s=0)
        gang.act()
        for _ in range(2 * len(gang.nodes)):
            gang.deliver()


def with_faults(gang: Gang, turns: int) -> None:
    """Connections break, servers are killed, ranks begin anew, a notice comes; nothing is away for long."""
    chance = gang.chance
    for _ in range(turns):
        fault = chance.random() * (0.1 if gang.is_torn else 1)
        if fault < 0.004:
            gang.start_server()
        elif fault < 0.012:
            chance.choice(gang.nodes).drop(gang.now_s)
        elif 0.2 < fault < 0.201:
            gang.notify()
        elif 0.3 < fault < 0.302:
            gang.restart_ranks()
        gang.reconnect(after_s=0 if chance.random() < 0.05 else AWAY_S)
        gang.act()
        if chance.random() < 0.7:
            gang.deliver()


@given(seed=st.integers(0, 2**32), lockstep=st.booleans(), reports=st.booleans())
@settings(max_examples=60, deadline=None)
def test_ranks_agree_whatever_is_lost_and_save_when_all_is_back(seed: int, lockstep: bool, reports: bool) -> None:
    with gang_of(seed, lockstep=lockstep, reports=reports) as gang:
        with_faults(gang, TURNS)
        gang.check_agreement()
        before, saves = [rank.step for rank in gang.ranks], gang.saves()
        had_notice = gang.has_notice
        go_on(gang, TURNS)
        gang.check_agreement()
        assert all(rank.step > step for rank, step in zip(gang.ranks, before, strict=True)), "a rank stands still"
        if not had_notice:
            saved = [len(new) > len(old) for new, old in zip(gang.saves(), saves, strict=True)]
            assert (all if lockstep else any)(saved), "nothing is saved"  # a slow rank may yet have to come there


@given(seed=st.integers(0, 2**32), lockstep=st.booleans(), reports=st.booleans())
@settings(max_examples=20, deadline=None)
def test_a_notice_has_every_rank_save_once_more(seed: int, lockstep: bool, reports: bool) -> None:
    with gang_of(seed, lockstep=lockstep, reports=reports, period_s=None) as gang:
        go_on(gang, 200)
        assert not any(gang.saves())
        gang.notify()
        go_on(gang, TURNS)
        gang.check_agreement()
        assert len({tuple(saves) for saves in gang.saves()}) == 1
        assert len(gang.saves()[0]) == 1


def test_saves_keep_to_the_period() -> None:
    with gang_of(3, lockstep=True, reports=True) as gang:
        go_on(gang, 10 * TURNS)
        saves = gang.saves()[0][2:]
        steps_each_s = gang.ranks[0].step / (gang.now_s - 100)
        each_s = (saves[-1] - saves[0]) / (len(saves) - 1) / steps_each_s
    assert 0.7 * PERIOD_S < each_s < 1.4 * PERIOD_S


GOOD = {
    "v": 1,
    "type": "counted",
    "gang": "job",
    "node": "n1",
    "generation": 1,
    "answers": 1,
    "callers": 2,
    "stepping": 2,
    "step": 7,
    "call": 8,
    "pending": 0,
    "schedule": {"id": 1, "segments": [["step", 5, 6, 0]]},
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"answers": "1"},
        {"callers": True},
        {"step": -1},
        {"call": 1 << 60},
        {"pending": None},
        {"schedule": {"id": 1, "segments": [["epoch", 5, 6, 0]]}},
        {"schedule": {"id": 1, "segments": [["step", 5, 6]]}},
        {"schedule": {"id": 1, "segments": [["step", 5, 6.0, 0]]}},
        {"schedule": {"id": -1, "segments": []}},
        {"schedule": {"id": 1, "segments": {"step": 5}}},
    ],
)
def test_counts_that_are_none_are_refused(wrong: dict[str, object]) -> None:
    assert Counts.of(message_schema.message(json.dumps(GOOD).encode())).count("step") == 7
    with pytest.raises(message_schema.BadMessage, match="counted"):
        message_schema.message(json.dumps(GOOD | wrong).encode())
