"""A row of the log that is any JSON is set aside with a warning; the server starts, and other jobs lose nothing."""

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
from tests.engine.scenes import listed_states, nodes, serve, submit
from tests.launcher.forged import MANY, SEEDS, changed, forged, written

S = 1_000
FOREVER = Behaviour(steps=None)
GLOBAL_ROWS = ("server_started", "nodes_listed", "decided", "policy_set")
"""Rows that are about all jobs, or about none."""


def write_day(path: Path) -> Path:
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
    return write_day(tmp_path_factory.mktemp("day") / "g.db")


def copy_log(path: Path) -> EventLog:
    """Return the same log, in memory."""
    log = EventLog(MEMORY)
    with closing(sqlite3.connect(path)) as source:
        source.backup(log._writer)
    return log


def damage(log: EventLog, seq: int, data: bytes) -> None:
    log._writer.execute("DELETE FROM snapshot")
    log._writer.execute("UPDATE event SET data = ? WHERE seq = ?", (data, seq))


def attempts(state: State) -> dict[str, tuple[str, int, tuple[str, ...]]]:
    return {gang.id: (gang.state.value, gang.attempt.generation, gang.nodes) for gang in state.gangs.values()}


def rows_of(path: Path) -> list[e.Stamped]:
    with closing(EventLog(path)) as log:
        return log.rows()


def test_premises_of_the_day(day: Path) -> None:
    log = copy_log(day)
    assert listed_states(log) == {
        "short-1": "succeeded",
        "long-1": "running",
        "other-1": "running",
        "last-1": "pending",
    }
    kinds = {row.event.kind for row in log.rows()}
    assert {"submitted", "decided", "started", "finished", "cleared", "nodes_listed"} <= kinds


def test_every_row_may_be_lost(day: Path) -> None:
    for row in rows_of(day):
        log = copy_log(day)
        before, listed = attempts(log.restore()), listed_states(log)
        damage(log, row.seq, b'{"kind": "failed", "exit_code": "x"}')
        state = log.restore()
        assert row.seq in log.unreadable
        affected = set(jobs_of(row))
        for name, attempt in before.items():
            if name not in affected and row.event.kind not in GLOBAL_ROWS:
                assert attempts(state)[name] == attempt, (row, name)
        live = {name for name, job_state in listed.items() if GangState(job_state) not in ENDED}
        assert set(state.gangs) == live, row
        assert [other.event.kind for other in log.rows(after=row.seq - 1, limit=1)] == ["unreadable"]
        serve(VirtualCluster(nodes(2, gpus=2)), log)


def jobs_of(row: e.Stamped) -> list[str]:
    event = row.event
    return [event.job.id] if isinstance(event, e.Submitted) else [getattr(event, "gang", "")]


@settings(max_examples=MANY // 16)  # each restores a whole log
@given(seed=SEEDS)
def test_any_json_as_a_row(day: Path, seed: int) -> None:
    random = Random(seed)
    log = copy_log(day)
    row = random.choice(log.rows())
    (data,) = log._writer.execute("SELECT data FROM event WHERE seq = ?", (row.seq,)).fetchone()
    document: Any = json.loads(data)
    damage(log, row.seq, written(changed(random, document)) if random.random() < 0.8 else forged(random, document))
    listed = listed_states(log)
    state = log.restore()
    assert state.seq == log.last_seq()
    assert {name for name, job_state in listed.items() if GangState(job_state) not in ENDED} <= {*state.gangs}
    assert [entry.seq for entry in log.rows()] == [*range(1, log.last_seq() + 1)]
    if row.seq not in log.unreadable:
        return  # it is a valid event, and cannot be distinguished from a true one
    loop = serve(VirtualCluster(nodes(2, gpus=2)), log)
    done = loop.post(submit("new-1"))
    loop.run_cycle(loop.drain())
    assert done.result() > 0


@pytest.mark.parametrize("at_ms", [1 << 62, -1, "x"])
def test_an_invalid_time_is_not_passed_on(day: Path, at_ms: object) -> None:
    rows = rows_of(day)
    for row in rows[-2:]:
        log = copy_log(day)
        log._writer.execute("UPDATE event SET at_ms = ? WHERE seq = ?", (at_ms, row.seq))
        state = log.restore()
        assert row.seq in log.unreadable
        assert rows[0].at_ms <= state.at_ms <= rows[-1].at_ms
        assert rows[0].at_ms <= log.last_ms() <= rows[-1].at_ms


# -- events that are not written ---------------------------------------------------------------------------------------

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
def test_the_log_accepts_only_what_decodes_again(wrong: dict[str, Any]) -> None:
    log = EventLog(MEMORY)
    with pytest.raises(RequestError, match="failed cannot be written"):
        log.append([e.Stamped(1, S, replace(FAILED, **wrong))], [])
    log.append([e.Stamped(1, S, FAILED)], [])
    assert [row.event for row in log.rows()] == [FAILED]


UNKNOWN_STOP = Stop(gang="none", generation=1, cause=Cause.USER)
BAD_EVENTS = (
    replace(FAILED, exit_code="x"),
    e.Decided(
        plan=Plan(as_of=1, decisions=(Stop(gang="none", generation=1, cause=Cause.USER),)), policy="", version=""
    ),
    e.Cleared(gang="long-1", generation=1, nodes=3),  # type: ignore[arg-type]
)


@pytest.mark.parametrize("bad", BAD_EVENTS, ids=lambda event: event.kind)
def test_a_bad_event_is_an_error_for_its_poster_alone(day: Path, bad: e.Event) -> None:
    log = copy_log(day)
    loop = serve(VirtualCluster(nodes(2, gpus=2)), log)
    before = attempts(loop.copy())
    good, wrong, also_good = loop.post_all([submit("a-1"), bad, submit("b-1")])
    loop.run_cycle(loop.drain())
    with pytest.raises(RequestError) as refused:
        wrong.result()
    assert refused.value.code in ("bad_text", "bad_event")
    assert also_good.result() == good.result() + 1
    assert before.items() <= attempts(loop.copy()).items()
    assert attempts(log.restore()) == attempts(loop.copy())
