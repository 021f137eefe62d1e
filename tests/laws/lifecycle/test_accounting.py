"""Every millisecond of every job is booked once, in the part where the raw events say that it belongs.

And the failures of the whole cluster, with the node time in which they occurred, are those of the raw events.
"""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ganger.core.failure.save_interval import PRIOR_NODE_MS, node_failure_ms
from ganger.core.fold.fold import fold
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import MEMORY, EventLog
from ganger.model import event as e
from ganger.model.decision import Start
from ganger.model.job import GangState
from ganger.model.units import HOUR_MS
from ganger.model.views.service_views import PARTS
from tests.crash.scripts import SCRIPTS, Script, world_of
from tests.engine.days import Day, days
from tests.engine.scenes import played
from tests.examples import examples
from tests.laws.oracles.accounting import failures_of, ledger_of
from tests.laws.oracles.kept_nodes import KeptNodes
from tests.laws.safety import account_adds_up


def with_reported_times(row: e.Stamped, chance: Random) -> e.Stamped:
    """Return the row with times that nodes might have reported, plausible or not: no decision depends on them."""
    match row.event:
        case e.Checkpointed():
            saved_ms = chance.choice((None, row.at_ms, row.at_ms - 900, row.at_ms - HOUR_MS, row.at_ms + HOUR_MS))
            took_ms = chance.choice((0, 700, 20_000, HOUR_MS))
            return replace(row, event=replace(row.event, took_ms=took_ms, saved_ms=saved_ms))
        case e.Failed():
            since_ms = chance.choice((None, row.at_ms, row.at_ms - 900, row.at_ms - HOUR_MS, row.at_ms + HOUR_MS))
            return replace(row, event=replace(row.event, since_ms=since_ms))
        case _:
            return row


@given(day=days(), seed=st.integers(0, 9))
@settings(examples(gate=6, otherwise=15), suppress_health_check=[HealthCheck.too_slow])
def test_accounts_agree_with_the_raw_events(day: Day, seed: int) -> None:
    log = EventLog(MEMORY)
    played(day.world(), log, day.policy, 3 * HOUR_MS)
    all_agree(log, Random(seed))


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.name for script in SCRIPTS])
def test_accounts_agree_where_much_goes_wrong(script: Script) -> None:
    log = EventLog(MEMORY)
    played(world_of(script), log, script.policy, script.until_ms)
    all_agree(log, Random(5))


def all_agree(log: EventLog, chance: Random) -> None:
    """Check every job's account, at its end or at that of the log, whatever times nodes report."""
    state = State()
    rows = [with_reported_times(row, chance) for row in log.iter_rows(0, log.last_seq())]
    kept = KeptNodes()
    for number, row in enumerate(rows, start=1):
        changed = fold(state, row)
        kept.note(state, row.at_ms)
        for gang in changed:
            if isinstance(gang, Gang) and not gang.is_head:
                account_adds_up(gang, row.at_ms)
                if gang.ended:
                    agrees(gang, rows[:number], row.at_ms, kept.held_ms(gang.id, row.at_ms))
    now_ms = rows[-1].at_ms + 777
    for gang in state.gangs.values():
        if not gang.is_head:
            agrees(gang, rows, now_ms, kept.held_ms(gang.id, now_ms))
    started = {start.gang for row in rows if isinstance(row.event, e.Decided) for start in starts_of(row.event)}
    for record in (state.history.failures, State(state.image()).history.failures):
        assert (record.failures, record.node_time_ms(now_ms)) == failures_of(rows, started, now_ms)
        expected_ms = (PRIOR_NODE_MS + record.node_time_ms(now_ms)) // (1 + record.failures)
        assert node_failure_ms(record, now_ms) == expected_ms


def starts_of(decided: e.Decided) -> list[Start]:
    return [decision for decision in decided.plan.decisions if isinstance(decision, Start)]


def agrees(gang: Gang, rows: list[e.Stamped], now_ms: int, kept_ms: int) -> None:
    """Check an account by the raw events; that a gang keeps nodes between two attempts is not among them."""
    failed = gang.state in (GangState.FAILED, GangState.FAILING)
    raw = ledger_of(rows, gang.id, gang.submitted_ms, now_ms, failed=failed)
    raw["held"] += kept_ms
    ledger = gang.account.ledger(now_ms)
    assert {part: getattr(ledger, f"{part}_ms") for part in (*PARTS, "held")} == raw
