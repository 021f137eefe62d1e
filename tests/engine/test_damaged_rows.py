"""A row of the log that is any JSON: it is set aside with a word, the server lives, other jobs lose nothing."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings

from ganger.backends.simulator.job_behaviour import Behaviour
from ganger.backends.simulator.virtual_cluster import VirtualCluster
from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import MEMORY, EventLog
from ganger.errors import RequestError
from ganger.model import event as e
from ganger.model.decision import Cause, Plan, Stop
from ganger.model.job import ENDED, GangState
from tests.engine.scenes import ends, nodes, serve, submit
from tests.launcher.forged import MANY, SEEDS, changed, forged, written

S = 1_000
FOREVER = Behaviour(steps=None)
ROWS_ALONE = ("server_started", "nodes_listed", "decided", "policy_set")
"""Rows that are about all jobs, or about none."""


def a_day(path: Path) -> Path:
    """Write the log of a server with four jobs: one has ended, two run, one waits for one of these."""
    world = VirtualCluster(nodes(2, gpus=2), {"short-1": Behaviour(steps=5), "long-1": FOREVER, "other-1": FOREVER})
    log = EventLog(path)
    loop = serve(world, log)
    for at_ms, request in enumerate([submit("short-1"), submit("long-1", gpus=2), submit("other-1", gpus=2)], 1):
        world.at(at_ms * S, request)
    world.at(20 * S, submit("last-1", gpus=2))
    world.run(loop, 30 * S)
    log.close()
    return path


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_day(tmp_path_factory.mktemp("day") / "g.db")


def copied(path: Path) -> EventLog:
    """The same log, in memory."""
    log = EventLog(MEMORY)
    with closing(sqlite3.connect(path)) as source:
        source.backup(log._writer)
    return log


def damaged(log: EventLog, seq: int, data: bytes) -> None:
    log._writer.execute("DELETE FROM snapshot")
    log._writer.execute("UPDATE event SET data = ? WHERE seq = ?", (data, seq))


def attempts(state: State) -> dict[str, tuple[str, int, tuple[str, ...]]]:
    return {gang.id: (gang.state.value, gang.generation, gang.nodes) for gang in state.gangs.values()}


def of_each_row(path: Path) -> list[e.Stamped]:
    with closing(EventLog(path)) as log:
        return log.rows()


def test_the_day_is_what_the_tests_below_count_on(day: Path) -> None:
    log = copied(day)
    assert ends(log) == {"short-1": "succeeded", "long-1": "running", "other-1": "running", "last-1": "pending"}
    kinds = {row.event.kind for row in log.rows()}
    assert {"submitted", "decided", "started", "finished", "cleared", "nodes_listed"} <= kinds


def test_every_row_may_be_lost(day: Path) -> None:
    for row in of_each_row(day):
        log = copied(day)
        before, listed = attempts(log.restore()), ends(log)
        damaged(log, row.seq, b'{"kind": "failed", "exit_code": "x"}')
        state = log.restore()
        assert row.seq in log.unreadable
        about = set(e_about(row))
        for name, attempt in before.items():
            if name not in about and row.event.kind not in ROWS_ALONE:
                assert attempts(state)[name] == attempt, (row, name)
        live = {name for name, how in listed.items() if GangState(how) not in ENDED}
        assert set(state.gangs) == live, row
        assert [other.event.kind for other in log.rows(after=row.seq - 1, limit=1)] == ["unreadable"]
        serve(VirtualCluster(nodes(2, gpus=2)), log)


def e_about(row: e.Stamped) -> list[str]:
    event = row.event
    return [event.job.id] if isinstance(event, e.Submitted) else [getattr(event, "gang", "")]


@settings(max_examples=MANY)
@given(seed=SEEDS)
def test_any_json_as_a_row(day: Path, seed: int) -> None:
    random = Random(seed)
    log = copied(day)
    row = random.choice(log.rows())
    (data,) = log._writer.execute("SELECT data FROM event WHERE seq = ?", (row.seq,)).fetchone()
    document: Any = json.loads(data)
    damaged(log, row.seq, written(changed(random, document)) if random.random() < 0.8 else forged(random, document))
    listed = ends(log)
    state = log.restore()
    assert state.seq == log.last_seq()
    assert {name for name, how in listed.items() if GangState(how) not in ENDED} <= {*state.gangs}
    assert [each.seq for each in log.rows()] == [*range(1, log.last_seq() + 1)]
    if row.seq not in log.unreadable:
        return  # it may say anything that an event can say, and cannot be told from the truth
    loop = serve(VirtualCluster(nodes(2, gpus=2)), log)
    done = loop.post(submit("new-1"))
    loop.turn(loop.drain())
    assert done.result() > 0


@pytest.mark.parametrize("at_ms", [1 << 62, -1, "x"])
def test_a_time_that_no_row_can_have_is_not_passed_on(day: Path, at_ms: object) -> None:
    rows = of_each_row(day)
    for row in rows[-2:]:
        log = copied(day)
        log._writer.execute("UPDATE event SET at_ms = ? WHERE seq = ?", (at_ms, row.seq))
        state = log.restore()
        assert row.seq in log.unreadable
        assert rows[0].at_ms <= state.at_ms <= rows[-1].at_ms
        assert rows[0].at_ms <= log.last_ms() <= rows[-1].at_ms


# -- what is not written ----------------------------------------------------------------------------------------------

FAILED = e.Failed(gang="a-1", generation=1, node="n1", cause=Cause.RANK_FAILED, rank=0, exit_code=3)
WRONG: list[dict[str, Any]] = [
    {"exit_code": "x"},
    {"rank": 1.5},
    {"node": None},
    {"tail": (b"x",)},
    {"since_ms": "x"},
    {"detail": "\ud800"},
    {"cause": "nothing"},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_the_log_takes_only_what_decodes_again(wrong: dict[str, Any]) -> None:
    log = EventLog(MEMORY)
    with pytest.raises(RequestError, match="failed cannot be written"):
        log.append([e.Stamped(1, S, replace(FAILED, **wrong))], [])
    log.append([e.Stamped(1, S, FAILED)], [])
    assert [row.event for row in log.rows()] == [FAILED]


STRANGE = Stop(gang="none", generation=1, cause=Cause.USER)
BAD_EVENTS = (
    replace(FAILED, exit_code="x"),
    e.Decided(
        plan=Plan(as_of=1, decisions=(Stop(gang="none", generation=1, cause=Cause.USER),)), policy="", version=""
    ),
    e.Cleared(gang="long-1", generation=1, nodes=3),  # type: ignore[arg-type]
)


@pytest.mark.parametrize("bad", BAD_EVENTS, ids=lambda event: event.kind)
def test_a_bad_event_is_told_to_its_poster_alone(day: Path, bad: e.Event) -> None:
    log = copied(day)
    loop = serve(VirtualCluster(nodes(2, gpus=2)), log)
    before = attempts(loop.copy())
    good, wrong, also_good = loop.post_all([submit("a-1"), bad, submit("b-1")])
    loop.turn(loop.drain())
    with pytest.raises(RequestError) as refused:
        wrong.result()
    assert refused.value.code in ("bad_text", "bad_event")
    assert also_good.result() == good.result() + 1
    assert before.items() <= attempts(loop.copy()).items()
    assert attempts(log.restore()) == attempts(loop.copy())
