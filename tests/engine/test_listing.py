"""Listings by every kind of filter, compared with the plain definition of each, and what a page of them costs."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ganger.core.fold.fold import fold
from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.eventlog.job_filters import JobFilter, LabelTerm, label_terms
from ganger.engine.eventlog.projection import Projection, project
from ganger.errors import RequestError
from ganger.model import event as e
from ganger.model.decision import Cause, Plan, Stop
from ganger.model.event import Stamped
from tests.engine.scenes import job

JOBS = 10_000
PAGE = 50
END_MS = 100_000
STATES = ("pending", "stopped")


@dataclass(frozen=True)
class Told:
    """A job of the history, as it was asked for."""

    id: str
    name: str
    user: str
    queue: str
    state: str
    submitted_ms: int
    ended_ms: int | None
    labels: dict[str, str]


def history(log: EventLog, jobs: int) -> list[Told]:
    """Jobs of a few users, queues and names with labels, one a millisecond; most have been stopped. Newest first."""
    dice = random.Random(1)
    state, rows, projections = State(), list[Stamped](), list[Projection]()

    def happens(event: e.Event, at_ms: int) -> None:
        rows.append(Stamped(len(rows) + 1, at_ms, event))
        projections.extend(project(gang, at_ms) for gang in fold(state, rows[-1]))

    for queue in ("a", "b"):
        happens(e.QueueSet(queue=e.Queue(name=queue)), 0)
    told = []
    for number in range(jobs):
        name, queue = f"job{number % 7}", dice.choice(["default", "a", "b"])
        labels = {"team": dice.choice(["nlp", "cv"])} if number % 5 else {}
        labels |= {"rare": "yes"} if number % 1000 == 3 else {}
        asked = job(f"{name}-{number}", user=f"user{number % 90}", queue=queue, labels=labels)
        happens(e.Submitted(job=asked), 1_000 + number)
        stopped = number % 20 != 0
        told.append(
            Told(
                id=asked.id,
                name=name,
                user=asked.user,
                queue=queue,
                state="stopped" if stopped else "pending",
                submitted_ms=1_000 + number,
                ended_ms=END_MS + number // 2 if stopped else None,
                labels=labels,
            )
        )
    for one in told:
        if one.ended_ms is not None:
            stop = Stop(gang=one.id, generation=0, cause=Cause.USER)
            plan = Plan(as_of=len(rows), decisions=(stop,))
            happens(e.Decided(plan=plan, policy="fifo", version="t"), one.ended_ms)
    log.append(rows, projections)
    return told[::-1]


def fits(wanted: JobFilter, one: Told) -> bool:
    """The filter by its definition."""
    return (
        (not wanted.states or one.state in wanted.states)
        and wanted.user in (None, one.user)
        and wanted.queue in (None, one.queue)
        and wanted.name in (None, one.name)
        and (wanted.since_ms is None or one.ended_ms is None or one.ended_ms >= wanted.since_ms)
        and (wanted.until_ms is None or one.submitted_ms <= wanted.until_ms)
        and all((one.labels.get(term.key) == term.value) is term.equal for term in wanted.labels)
    )


def pages(log: EventLog, wanted: JobFilter, limit: int) -> Iterator[list[dict[str, Any]]]:
    before: int | None = None
    while page := log.jobs(wanted, limit, before):
        yield [row for _, _, row in page]
        before = page[-1][0]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[EventLog, list[Told]]:
    log = EventLog(tmp_path_factory.mktemp("small") / "g.db")
    return log, history(log, 1_200)


def test_every_filter_is_what_it_says(small: tuple[EventLog, list[Told]]) -> None:
    log, told = small
    dice = random.Random(2)
    chances: dict[str, Callable[[], Any]] = {
        "states": lambda: tuple(dice.sample([*STATES, "running"], dice.randint(1, 3))),
        "user": lambda: f"user{dice.randint(0, 95)}",
        "queue": lambda: dice.choice(["default", "a", "none"]),
        "name": lambda: f"job{dice.randint(0, 8)}",
        "since_ms": lambda: dice.choice([0, END_MS + dice.randint(-5, 700), END_MS * 2]),
        "until_ms": lambda: dice.choice([0, 999 + dice.randint(0, 1_300), END_MS]),
        "labels": lambda: tuple(
            LabelTerm(key, dice.choice(values), dice.random() < 0.6)
            for key, values in (("team", ["nlp", "cv", ""]), ("rare", ["yes"]))
            if dice.random() < 0.6
        ),
    }
    for _ in range(400):
        asked = {name: draw() for name, draw in chances.items() if dice.random() < 0.35}
        wanted = JobFilter(**asked)
        found = [row for page in pages(log, wanted, dice.choice([1_300, 97])) for row in page]
        assert [row["id"] for row in found] == [one.id for one in told if fits(wanted, one)], asked
        assert [row["labels"] for row in found] == [one.labels for one in told if fits(wanted, one)]


CHEAP = {
    "all": {},
    "one state": {"states": ("stopped",)},
    "most states": {"states": ("stopped", "running", "pending", "failed")},
    "what is rare": {"states": ("pending",)},
    "a user": {"user": "user7"},
    "a queue": {"queue": "a"},
    "a name": {"name": "job3"},
    "a label": {"labels": (LabelTerm("team", "nlp"),)},
    "a rare label": {"labels": (LabelTerm("rare", "yes"),), "states": STATES},
    "not a label": {"labels": (LabelTerm("team", "nlp", equal=False),)},
    "until long ago": {"until_ms": 2_000},
    "since": {"since_ms": END_MS + JOBS // 2 - 20},
    "a user and a state": {"user": "user7", "states": ("stopped", "pending")},
}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> EventLog:
    log = EventLog(tmp_path_factory.mktemp("large") / "g.db")
    history(log, JOBS)
    return log


@pytest.mark.parametrize("asked", CHEAP.values(), ids=CHEAP.keys())
def test_a_page_costs_what_it_shows_and_not_what_there_is(large: EventLog, asked: dict[str, Any]) -> None:
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 100
        return 0

    large.last_seq()  # this thread has its connection from here on
    large._reader().set_progress_handler(count, 100)
    first = large.jobs(JobFilter(**asked), PAGE)
    middle = large.jobs(JobFilter(**asked), PAGE, first[-1][0])
    large._reader().set_progress_handler(None, 0)
    # To look at every job once takes more than ten steps of SQLite's machine for each.
    assert first
    assert steps < JOBS, f"{steps} steps for {len(first) + len(middle)} rows"


def test_selectors_are_read_and_what_is_none_is_refused() -> None:
    assert label_terms("") == label_terms("  ") == ()
    assert label_terms("team=nlp, stage!=prod") == (LabelTerm("team", "nlp"), LabelTerm("stage", "prod", equal=False))
    assert label_terms("a.b/c=") == (LabelTerm("a.b/c", ""),)
    for text in ("team", "=x", "team=a=b", "team=nlp,", "!x", "a b=c", "team==x", ","):
        with pytest.raises(RequestError) as refused:
            label_terms(text)
        assert (refused.value.code, text in refused.value.detail) == ("invalid_request", True)


def test_labels_and_notes_change_after_the_end_too(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "g.db")
    told = history(log, 10)
    name = told[0].id
    said = e.Described(gang=name, labels={"team": "ops", "new": "1", "rare": None}, notes="diverged")
    log.append([Stamped(log.last_seq() + 1, END_MS * 2, said)], [])
    assert [row["id"] for _, _, row in log.jobs(JobFilter(labels=label_terms("team=ops,new=1")))] == [name]
    found = log.job(name)
    assert found is not None
    assert (found[0].labels, found[3].spec.labels, found[3].spec.notes) == (
        *[{"team": "ops", "new": "1"}] * 2,
        "diverged",
    )
    log.append([Stamped(log.last_seq() + 1, END_MS * 2, e.Described(gang=name, labels={"team": None}))], [])
    assert log.jobs(JobFilter(labels=label_terms("team=ops"))) == []
    found = log.job(name)
    assert found is not None
    assert (found[0].labels, found[3].spec.notes) == ({"new": "1"}, "diverged")
    log.append([Stamped(log.last_seq() + 1, END_MS * 2, e.Deleted(gang=name))], [])
    assert log.jobs(JobFilter(labels=label_terms("new=1"))) == []
    log.append([Stamped(log.last_seq() + 1, END_MS * 2, said)], [])
    assert log.job(name) is None
