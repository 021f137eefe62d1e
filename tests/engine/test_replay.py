"""Every log replays with equal decisions, in any process; what is impure is found at its first round."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from ganger.backends.simulator.job_behaviour import Behaviour
from ganger.backends.simulator.virtual_cluster import VirtualCluster
from ganger.core.cycle.plan import plan
from ganger.core.fold.fold import fold
from ganger.core.queue_order.policy_interface import LaneHeads, Policy
from ganger.core.queues.share_bounds import Floats
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import MEMORY, EventLog
from ganger.engine.loop import Loop
from ganger.engine.replay import Replay, replay
from ganger.model import event as e
from ganger.model.policy import Reservations
from ganger.model.units import HOUR_MS
from ganger.model.views.service_views import Factor
from tests.crash.scripts import SCRIPTS, Script, world_of
from tests.engine.days import Day, days
from tests.engine.scenes import POLICIES, nodes, played, serve, submit

FIFO = POLICIES["fifo"]
S = 1_000

every_script = pytest.mark.parametrize("script", SCRIPTS, ids=[script.name for script in SCRIPTS])


@given(days())
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
def test_any_day_replays(day: Day) -> None:
    log = EventLog(MEMORY)
    played(day.world(), log, day.policy, 3 * HOUR_MS).copy().validate()
    replayed = replay(log, POLICIES)
    assert replayed.difference is None
    assert replayed.rounds >= sum(isinstance(row.event, e.Decided) for row in log.rows())


@every_script
def test_any_stretch_replays(script: Script, tmp_path: Path) -> None:
    log = EventLog(tmp_path / "g.db")
    played(world_of(script), log, script.policy, script.until_ms)
    end = log.last_seq()
    whole = replay(log, POLICIES)
    assert (whole.first, whole.last, whole.difference) == (1, end, None)
    for first, last in ((1, 1), (2, 40), (37, 91), (end - 50, end), (end, end), (end - 3, end + 100)):
        stretch = replay(log, POLICIES, first, last)
        assert stretch.difference is None
        assert stretch.last == min(last, end)
        decided = [row for row in log.rows(first - 1, limit=last - first + 1) if isinstance(row.event, e.Decided)]
        assert stretch.rounds >= len(decided)
    assert replay(log, POLICIES, end + 1) == Replay(first=end + 1, last=end, rounds=0)


def test_a_log_of_several_servers_and_policies_replays(tmp_path: Path) -> None:
    """Each server has its own; the rounds of one are not judged by the policy of another."""
    script = SCRIPTS[0]
    world = world_of(script)
    for second, policy in ((3, "fifo"), (8, "las"), (25, "fair_share"), (90, "priority")):
        log = EventLog(tmp_path / "g.db")
        world.run(serve(world, log, policy), second * S)
        log.close()
    log = EventLog(tmp_path / "g.db")
    assert replay(log, POLICIES).difference is None
    with pytest.raises(KeyError, match="las"):
        replay(log, {name: policy for name, policy in POLICIES.items() if name != "las"})


def test_a_round_that_decided_nothing_is_judged_by_the_policy_of_its_own_server(tmp_path: Path) -> None:
    """While the first server was away the running job grew old: its policy would stop it for the one that waits."""
    world = VirtualCluster(nodes(1, gpus=1), {"old-1": Behaviour(steps=None)})
    world.at(0, submit("old-1", 1, 1))
    world.at(S, submit("young-1", 1, 1))
    log = EventLog(tmp_path / "g.db")
    world.run(serve(world, log, "las"), 10 * S)
    world.run(None, 2 * HOUR_MS)
    loop = serve(world, log, "fifo")
    world.run(loop, 2 * HOUR_MS)
    seq = log.last_seq()
    assert log.rows(seq - 1)[0].event.kind == "nodes_listed"
    assert replay(log, POLICIES).difference is None
    world.run(None, 3 * HOUR_MS)
    world.run(serve(world, log, "las"), 3 * HOUR_MS)
    decided = [row.event for row in log.rows(seq, limit=9_999) if isinstance(row.event, e.Decided)]
    assert decided[0].plan.decisions[0].kind == "stop", "the premise: the other policy would not have left it alone"


# -- in another process ------------------------------------------------------------------------------------------------

REPLAY = """
import json, sys
from ganger.engine.eventlog.event_log import EventLog
from ganger.registry import policies
from ganger.engine.replay import replay
replayed = replay(EventLog(sys.argv[1]), policies())
print(json.dumps([replayed.rounds, replayed.difference and replayed.difference.seq]))
"""


def in_another_process(program: str, *arguments: str, seed: str) -> Any:
    """What the program prints, as JSON, under another hash seed."""
    command = [sys.executable, "-c", program, *arguments]
    surroundings = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])}
    return json.loads(subprocess.run(command, env=surroundings, check=True, capture_output=True, text=True).stdout)


@every_script
def test_a_fresh_process_under_another_hash_seed_decides_the_same(script: Script, tmp_path: Path) -> None:
    log = EventLog(tmp_path / "g.db")
    played(world_of(script), log, script.policy, script.until_ms)
    rounds = replay(log, POLICIES).rounds
    assert in_another_process(REPLAY, str(tmp_path / "g.db"), seed="4711") == [rounds, None]


# -- what is impure is found -------------------------------------------------------------------------------------------


class Fickle:
    """An order that turns round after so many rounds: it remembers."""

    NAME = "fickle"
    LIVENESS_GUARANTEES: tuple[str, ...] = ()
    ORDERS_RUNNING = False
    STARVATION_AGE_MS: int | None = None
    FIXED_RESERVATIONS: Reservations | None = None
    STRICT_ORDER = False

    def __init__(self, after: int | None) -> None:
        self.after, self.rounds = after, Counter[int]()

    def key(self, gang: Gang, state: State, now_ms: int) -> tuple[Any, ...]:
        self.rounds[state.seq] += 1
        turned = self.after is not None and len(self.rounds) > self.after
        return (-gang.number if turned else gang.number,)

    def account_key(self, state: State, queue: str, user: str, now_ms: int) -> tuple[Any, ...]:
        return (0,)

    def gang_key(self, gang: Gang, state: State, now_ms: int) -> tuple[Any, ...]:
        return (0, gang.number)

    def key_lower_bound(self, heads: LaneHeads, state: State, now_ms: int) -> Floats:
        return np.full(len(heads.number), -np.inf)

    def fifo_class(self, gang: Gang) -> int:
        return 0

    def factors(self, gang: Gang, state: State, now_ms: int) -> tuple[Factor, ...]:
        return ()

    def next_key_change_ms(self, gang: Gang, now_ms: int) -> int | None:
        return None


class ByAddress(Fickle):
    """An order that depends on where an object lies in memory."""

    NAME = "by_address"

    def key(self, gang: Gang, state: State, now_ms: int) -> tuple[Any, ...]:
        return (id(gang) * 2_654_435_761 % (1 << 32), gang.number)


class ByHash(Fickle):
    """An order that depends on the hash of a text, which is another in every process."""

    NAME = "by_hash"

    def key(self, gang: Gang, state: State, now_ms: int) -> tuple[Any, ...]:
        return (hash(gang.id), gang.number)


def lived_under(policy: Policy, log: EventLog, jobs: int = 14) -> None:
    """Jobs of many users, so that each is a class of its own, on two nodes that take one each."""
    world = VirtualCluster(nodes(2, gpus=2))
    for number in range(jobs):
        world.at(number * 300, submit(f"job-{number}", 1, 2, user=f"u{number}"))
    loop = Loop(log, world, lambda _: policy, world, "test")
    loop.open()
    world.run(loop, HOUR_MS)


def first_that_differs(log: EventLog, policy: Policy) -> int:
    """The first `Decided` that comes out otherwise: folded and planned here, without `replay`."""
    state = State()
    for row in log.each(0, log.last_seq()):
        if isinstance(row.event, e.Decided) and plan(state, row.at_ms, policy).decisions != row.event.plan.decisions:
            return row.seq
        fold(state, row)
    pytest.fail("nothing differs")


@pytest.mark.parametrize("after", [3, 9, 14, 20])
def test_an_order_that_remembers_is_found_where_it_turned(after: int) -> None:
    log = EventLog(MEMORY)
    lived_under(Fickle(after), log)
    replayed = replay(log, {"fickle": Fickle(None)})
    assert replayed.difference is not None
    assert replayed.difference.seq == first_that_differs(log, FIFO)
    (row,) = log.rows(replayed.difference.seq - 1, limit=1)
    assert isinstance(row.event, e.Decided)
    assert replayed.difference.logged == row.event.plan.decisions != replayed.difference.planned
    before = replay(log, {"fickle": Fickle(None)}, 1, replayed.difference.seq - 1)
    assert before.difference is None


def test_an_order_by_address_is_found() -> None:
    log = EventLog(MEMORY)
    lived_under(ByAddress(None), log)
    replayed = replay(log, {"by_address": ByAddress(None)})
    assert replayed.difference is not None


LIVE = """
import sys
from tests.engine.test_replay import ByHash, EventLog, lived_under, replay
log = EventLog(sys.argv[1])
if log.last_seq() == 0:
    lived_under(ByHash(None), log)
found = replay(log, {"by_hash": ByHash(None)}).difference
print(found.seq if found else 0)
"""


def test_an_order_by_hash_is_found_by_another_hash_seed(tmp_path: Path) -> None:
    path = str(tmp_path / "g.db")
    assert in_another_process(LIVE, path, seed="1") == 0, "under the seed it was made with nothing is to be seen"
    found = in_another_process(LIVE, path, seed="2")
    assert found > 0
    assert replay(EventLog(path), {"by_hash": FIFO}, 1, found - 1).rounds <= found


def test_a_round_that_decided_nothing_counts_too() -> None:
    """The log says that nothing followed from a submission; planned now, the job would start."""
    log, silent = EventLog(MEMORY), EventLog(MEMORY)
    lived_under(FIFO, log)
    rows = log.rows(limit=6)
    assert [row.event.kind for row in rows][2:] == ["submitted", "decided", "submitted", "decided"]
    silent.append(rows[:-1], [])
    found = replay(silent, POLICIES).difference
    assert found is not None
    assert (found.seq, found.logged) == (5, ())
    assert isinstance(rows[5].event, e.Decided)
    assert found.planned == rows[5].event.plan.decisions
    assert replay(log, POLICIES, 1, 5).difference is None, "the round of its last event lies outside this stretch"
