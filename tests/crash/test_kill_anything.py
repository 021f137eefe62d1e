"""Random faults on the whole server in virtual time, and checks of the oracle that judges them."""

from dataclasses import replace
from pathlib import Path

import pytest

from ganger.backends.simulator.job_behaviour import Behaviour, ScriptedFailure
from ganger.backends.simulator.virtual_cluster import VirtualCluster
from ganger.engine.eventlog.event_log import MEMORY, EventLog
from ganger.model import event as e
from ganger.model.decision import Cause, Start
from ganger.model.job_sections.retry_spec import Retry
from tests.crash.oracle import Oracle
from tests.crash.test_killed import LONG
from tests.crash.virtual_faults import Day, run_day
from tests.engine.scenes import POLICIES, nodes, played, submit

FAULTS = 25
TRIED = sorted(POLICIES) if LONG else ["dynamic"]
"""Queue orders: each with a day of its own where GANGER_TEST_LONG is set, otherwise the default."""


@pytest.mark.parametrize("policy", TRIED)
def test_every_job_ends_as_expected_whatever_happens(policy: str, folder: Path) -> None:
    result = run_day(Day(FAULTS, seed=1 + sorted(POLICIES).index(policy), policy=policy), folder / "g.db")
    assert result.sentences() == []
    assert result.jobs > FAULTS
    assert result.events > result.jobs


def test_the_oracle_detects_wrong_ends_lost_attempts_and_shared_devices() -> None:
    failures = tuple(ScriptedFailure(generation=g, signal=9) for g in (1, 2))
    world = VirtualCluster(nodes(1, 2), {"a-0": Behaviour(failures=failures), "b-0": Behaviour()})
    world.at(0, submit("a-0", 1, 1, retry=Retry(max=1)))
    world.at(0, submit("b-0", 1, 1))
    log = EventLog(MEMORY)
    loop = played(world, log)
    rows = list(log.iter_rows(0, log.last_seq()))
    assert {name: life.state for name, life in Oracle().read(rows).lives.items()} == {
        "a-0": "failed",
        "b-0": "succeeded",
    }
    failure_seqs = [row.seq for row in rows if isinstance(row.event, e.Failed)]
    rewritten = [row if row.seq != failure_seqs[0] else replace(row, event=_lost(row.event)) for row in rows]
    assert Oracle().read(rewritten).lives["a-0"].state == "pending"
    doubled = [replace(row, event=_on_the_same_device(row.event)) for row in rows]
    assert Oracle().read(doubled).errors
    loop.close()
    log.close()


def test_a_fault_after_the_end_of_the_job_changes_nothing() -> None:
    world = VirtualCluster(nodes(2, 2), {"a-0": Behaviour(steps=3, stagger_ms=5_000)})
    world.at(0, submit("a-0", 2, 1))
    runs_ms = Behaviour().startup_ms + 5_000
    world.inject_failure(
        runs_ms + 3_000 + 2_500, "a-0", ScriptedFailure(generation=0, cause=Cause.LAUNCHER_LOST, node=0)
    )
    log = EventLog(MEMORY)
    loop = played(world, log)
    assert Oracle().read(log.iter_rows(0, log.last_seq())).lives["a-0"].state == "succeeded"
    assert world.processes() == {}
    loop.close()
    log.close()


def _lost(failed: e.Event) -> e.Event:
    assert isinstance(failed, e.Failed)
    return replace(failed, cause=Cause.LAUNCHER_LOST)


def _on_the_same_device(event: e.Event) -> e.Event:
    if not isinstance(event, e.Decided):
        return event
    decisions = [
        replace(decision, shares=tuple(replace(share, devices=(0,)) for share in decision.shares))
        if isinstance(decision, Start)
        else decision
        for decision in event.plan.decisions
    ]
    return replace(event, plan=replace(event.plan, decisions=tuple(decisions)))
