"""Ranks of a gang never answer `should_checkpoint` differently at the same count, whatever is lost meanwhile.

While nothing is lost, they are told to save.
"""

import json
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.launcher_server import message_schema
from ganger.launcher_server.checkpoints.checkpoint_coordinator import Counts
from tests.examples import examples
from tests.launcher.checkpoints.gang_model import AWAY_S, Gang

ACTIONS = 1_500
PERIOD_S = 0.5


@contextmanager
def gang_of(seed: int, *, lockstep: bool, reports: bool, period_s: float | None = PERIOD_S) -> Iterator[Gang]:
    with tempfile.TemporaryDirectory() as name:
        gang = Gang(Path(name), random.Random(seed), lockstep=lockstep, reports=reports, period_s=period_s)
        try:
            yield gang
        finally:
            gang.close()


def run_undisturbed(gang: Gang, actions: int) -> None:
    """Run the gang with everything connected."""
    for _ in range(actions):
        gang.reconnect(after_s=0)
        gang.act()
        for _ in range(2 * len(gang.nodes)):
            gang.deliver()


def run_with_faults(gang: Gang, actions: int) -> None:
    """Run the gang with broken connections, killed servers, restarted ranks and a notice; nothing is away for long."""
    chance = gang.chance
    for _ in range(actions):
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
@examples(gate=15, otherwise=60)
def test_ranks_agree_despite_faults_and_save_after_recovery(seed: int, lockstep: bool, reports: bool) -> None:
    with gang_of(seed, lockstep=lockstep, reports=reports) as gang:
        run_with_faults(gang, ACTIONS)
        gang.check_agreement()
        before, saves = [rank.step for rank in gang.ranks], gang.saves()
        had_notice = gang.has_notice
        run_undisturbed(gang, ACTIONS)
        gang.check_agreement()
        assert all(rank.step > step for rank, step in zip(gang.ranks, before, strict=True)), "a rank makes no steps"
        if not had_notice:
            saved = [len(new) > len(old) for new, old in zip(gang.saves(), saves, strict=True)]
            assert (all if lockstep else any)(saved), "nothing is saved"  # a slow rank may not be there yet


@given(seed=st.integers(0, 2**32), lockstep=st.booleans(), reports=st.booleans())
@examples(gate=6, otherwise=20)
def test_a_notice_makes_every_rank_save_once_more(seed: int, lockstep: bool, reports: bool) -> None:
    with gang_of(seed, lockstep=lockstep, reports=reports, period_s=None) as gang:
        run_undisturbed(gang, 200)
        assert not any(gang.saves())
        gang.notify()
        run_undisturbed(gang, ACTIONS)
        gang.check_agreement()
        assert len({tuple(saves) for saves in gang.saves()}) == 1
        assert len(gang.saves()[0]) == 1


def test_saves_keep_to_the_period() -> None:
    with gang_of(3, lockstep=True, reports=True) as gang:
        run_undisturbed(gang, 10 * ACTIONS)
        saves = gang.saves()[0][2:]
        steps_each_s = gang.ranks[0].step / (gang.now_s - 100)
        each_s = (saves[-1] - saves[0]) / (len(saves) - 1) / steps_each_s
    assert 0.7 * PERIOD_S < each_s < 1.4 * PERIOD_S


GOOD = {
    "v": 2,
    "type": "checkpoint_counts",
    "gang": "job",
    "node": "n1",
    "generation": 1,
    "reply_to": 1,
    "calling_ranks": 2,
    "stepping_ranks": 2,
    "step": 7,
    "call": 8,
    "pending": 0,
    "schedule": {"id": 1, "segments": [["step", 5, 6, 0]]},
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"reply_to": "1"},
        {"calling_ranks": True},
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
def test_invalid_counts_are_refused(wrong: dict[str, object]) -> None:
    assert Counts.from_message(message_schema.message(json.dumps(GOOD).encode())).count("step") == 7
    with pytest.raises(message_schema.BadMessage, match="checkpoint_counts"):
        message_schema.message(json.dumps(GOOD | wrong).encode())
