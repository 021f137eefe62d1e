"""Every log replays with equal decisions, in any process; an impure policy is detected at its first cycle."""

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
from ganger.core.cycle.cycle import plan
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
from tests.examples import examples, one_in_gate

FIFO = POLICIES["fifo"]
S = 1_000


@given(days())
@settings(examples(gate=10, otherwise=30), suppress_health_check=[HealthCheck.too_slow])
def test_any_day_replays(day: Day) -> None:
    log = EventLog(MEMORY)
    played(day.world(), log, day.policy, 3 * HOUR_MS).copy().validate()
    replayed = replay(log, POLICIES)
    assert replayed.difference is None
    assert replayed.cycles >= sum(isinstance(row.event, e.Decided) for row in log.rows())


@pytest.mark.parametrize("script", one_in_gate(reversed(SCRIPTS)), ids=lambda script: script.name)
def test_any_part_replays(script: Script, tmp_path: Path) -> None:
    log = EventLog(tmp_path / "g.db")
    played(world_of(script), log, script.policy, script.until_ms)
    end = log.last_seq()
    whole = replay(log, POLICIES)
    assert (whole.first, whole.last, whole.difference) == (1, end, None)
    for first, last in ((1, 1), (2, 40), (37, 91), (end - 50, end), (end, end), (end - 3, end + 100)):
        part = replay(log, POLICIES, first, last)
        assert part.difference is None
        assert part.last == min(last, end)
        decided = [row for row in log.rows(first - 1, limit=last - first + 1) if isinstance(row.event, e.Decided)]
        assert part.cycles >= len(decided)
    assert replay(log, POLICIES, end + 1) == Replay(first=end + 1, last=end, cycles=0)


def test_a_log_of_several_servers_and_policies_replays(tmp_path: Path) -> None:
    """The cycles of a server are replayed with its own policy."""
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


def test_a_cycle_without_decisions_is_replayed_with_its_own_policy(tmp_path: Path) -> None:
    """While the first server was away the running job grew old: its policy would stop it for the pending one."""
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
print(json.dumps([replayed.cycles, replayed.difference and replayed.difference.seq]))
"""


def in_another_process(program: str, *arguments: str, seed: str) -> Any:
    """Return what the program prints, as JSON, under another hash seed."""
    command = [sys.executable, "-c", program, *arguments]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{root / 'src'}:{root}"}
    return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize("script", one_in_gate(reversed(SCRIPTS)), ids=lambda script: script.name)
def test_a_fresh_process_under_another_hash_seed_decides_the_same(script: Script, tmp_path: Path) -> None:
    log = EventLog(tmp_path / "g.db")
    played(world_of(script), log, script.policy, script.until_ms)
    cycles = replay(log, POLICIES).cycles
    assert in_another_process(REPLAY, str(tmp_path / "g.db"), seed="4711") == [cycles, None]


# -- impure policies are detected --------------------------------------------------------------------------------------


class StatefulOrder:
    """A queue order that reverses after so many cycles: it has state."""

    NAME = "fickle"
    LIVENESS_GUARANTEES: tuple[str, ...] = ()
    ORDERS_RUNNING = False
    STARVATION_AGE_MS: int | None = None
    FIXED_RESERVATIONS: Reservations | None = None
    STRICT_ORDER = False

    def __init__(self, after: int | None) -> None:
        self.after, self.cycles = after, Counter[int]()

    def key(self, gang: Gang, state: State, now_ms: int) -> tuple[Any, ...]:
        self.cycles[state.seq] += 1
        is_reversed = self.after is not None and len(self.cycles) > self.after
        return (-gang.number if is_reversed else gang.number,)

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


class ByAddress(StatefulOrder):
    """A queue order that depends on the address of an object."""

    NAME = "by_address"

    def key(self, gang: Gang, state: State, now_ms: int) -> tuple[Any, ...]:
        return (id(gang) * 2_654_435_761 % (1 << 32), gang.number)


class ByHash(StatefulOrder):
    """A queue order that depends on the hash of a string, which differs between processes."""

    NAME = "by_hash"

    def key(self, gang: Gang, state: State, now_ms: int) -> tuple[Any, ...]:
        return (hash(gang.id), gang.number)


def write_log(policy: Policy, log: EventLog, jobs: int = 14) -> None:
    """Run jobs of many users, so that each is a class of its own, on two nodes that hold one each."""
    world = VirtualCluster(nodes(2, gpus=2))
    for number in range(jobs):
        world.at(number * 300, submit(f"job-{number}", 1, 2, user=f"u{number}"))
    loop = Loop(log, world, lambda _: policy, world, "test")
    loop.open()
    world.run(loop, HOUR_MS)


def first_difference(log: EventLog, policy: Policy) -> int:
    """Return the first `Decided` with another result: folded and planned here, without `replay`."""
    state = State()
    for row in log.iter_rows(0, log.last_seq()):
        if isinstance(row.event, e.Decided) and plan(state, row.at_ms, policy).decisions != row.event.plan.decisions:
            return row.seq
        fold(state, row)
    pytest.fail("nothing differs")


@pytest.mark.parametrize("after", [3, 9, 14, 20])
def test_a_stateful_order_is_detected_where_it_changed(after: int) -> None:
    log = EventLog(MEMORY)
    write_log(StatefulOrder(after), log)
    replayed = replay(log, {"fickle": StatefulOrder(None)})
    assert replayed.difference is not None
    assert replayed.difference.seq == first_difference(log, FIFO)
    (row,) = log.rows(replayed.difference.seq - 1, limit=1)
    assert isinstance(row.event, e.Decided)
    assert replayed.difference.logged == row.event.plan.decisions != replayed.difference.planned
    before = replay(log, {"fickle": StatefulOrder(None)}, 1, replayed.difference.seq - 1)
    assert before.difference is None


def test_an_order_by_address_is_detected() -> None:
    log = EventLog(MEMORY)
    write_log(ByAddress(None), log)
    replayed = replay(log, {"by_address": ByAddress(None)})
    assert replayed.difference is not None


LIVE = """
import sys
from tests.engine.test_replay import ByHash, EventLog, replay, write_log
log = EventLog(sys.argv[1])
if log.last_seq() == 0:
    write_log(ByHash(None), log)
difference = replay(log, {"by_hash": ByHash(None)}).difference
print(difference.seq if difference else 0)
"""


@pytest.mark.long
def test_an_order_by_hash_is_detected_under_another_hash_seed(tmp_path: Path) -> None:
    path = str(tmp_path / "g.db")
    assert in_another_process(LIVE, path, seed="1") == 0, "under its own seed there is no difference"
    seq = in_another_process(LIVE, path, seed="2")
    assert seq > 0
    assert replay(EventLog(path), {"by_hash": FIFO}, 1, seq - 1).cycles <= seq


def test_a_cycle_without_decisions_is_compared_too() -> None:
    """The log says that nothing followed from a submission; planned now, the job would start."""
    log, silent = EventLog(MEMORY), EventLog(MEMORY)
    write_log(FIFO, log)
    rows = log.rows(limit=6)
    assert [row.event.kind for row in rows][2:] == ["submitted", "decided", "submitted", "decided"]
    silent.append(rows[:-1], [])
    difference = replay(silent, POLICIES).difference
    assert difference is not None
    assert (difference.seq, difference.logged) == (5, ())
    assert isinstance(rows[5].event, e.Decided)
    assert difference.planned == rows[5].event.plan.decisions
    assert replay(log, POLICIES, 1, 5).difference is None, "the cycle of its last event is outside this part"
