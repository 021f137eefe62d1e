"""Listings with every kind of filter, compared with the plain definition of each, and the cost of a page."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ganger.core.fold.fold import fold
from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.eventlog.projection import Projection, project
from ganger.errors import RequestError
from ganger.model import event as e
from ganger.model.decision import Cause, Plan, Stop
from ganger.model.event import Stamped
from ganger.ports import JobFilter, LabelTerm, label_terms
from tests.engine.scenes import job
from tests.examples import IN_GATE

JOBS = 3_000
PAGE = 15
END_MS = 100_000
STATES = ("pending", "stopped")


@dataclass(frozen=True)
class ExpectedJob:
    """A job of the history, as it was submitted."""

    id: str
    name: str
    user: str
    queue: str
    state: str
    submitted_ms: int
    ended_ms: int | None
    labels: dict[str, str]


def history(log: EventLog, count: int) -> list[ExpectedJob]:
    """Write jobs of a few users, queues and names with labels, one per millisecond; most are stopped. Newest first."""
    dice = random.Random(1)
    state, rows, projections = State(), list[Stamped](), list[Projection]()

    def add(event: e.Event, at_ms: int) -> None:
        rows.append(Stamped(len(rows) + 1, at_ms, event))
        projections.extend(project(gang, at_ms) for gang in fold(state, rows[-1]))

    for queue in ("a", "b"):
        add(e.QueueSet(queue=e.Queue(name=queue)), 0)
    expected_jobs = []
    for number in range(count):
        name, queue = f"job{number % 7}", dice.choice(["default", "a", "b"])
        labels = {"team": dice.choice(["nlp", "cv"])} if number % 5 else {}
        labels |= {"rare": "yes"} if number % 1000 == 3 else {}
        submitted_job = job(f"{name}-{number}", user=f"user{number % 90}", queue=queue, labels=labels)
        add(e.Submitted(job=submitted_job), 1_000 + number)
        stopped = number % 20 != 0
        expected_jobs.append(
            ExpectedJob(
                id=submitted_job.id,
                name=name,
                user=submitted_job.user,
                queue=queue,
                state="stopped" if stopped else "pending",
                submitted_ms=1_000 + number,
                ended_ms=END_MS + number // 2 if stopped else None,
                labels=labels,
            )
        )
    for expected in expected_jobs:
        if expected.ended_ms is not None:
            stop = Stop(gang=expected.id, generation=0, cause=Cause.USER)
            plan = Plan(as_of=len(rows), decisions=(stop,))
            add(e.Decided(plan=plan, policy="fifo", version="t"), expected.ended_ms)
    log.append(rows, projections)
    return expected_jobs[::-1]


def matches(job_filter: JobFilter, expected: ExpectedJob) -> bool:
    """Return whether a job matches the filter, by its definition."""
    return (
        (not job_filter.states or expected.state in job_filter.states)
        and job_filter.user in (None, expected.user)
        and job_filter.queue in (None, expected.queue)
        and job_filter.name in (None, expected.name)
        and (job_filter.since_ms is None or expected.ended_ms is None or expected.ended_ms >= job_filter.since_ms)
        and (job_filter.until_ms is None or expected.submitted_ms <= job_filter.until_ms)
        and all((expected.labels.get(term.key) == term.value) is term.equal for term in job_filter.labels)
    )


def pages(log: EventLog, job_filter: JobFilter, limit: int) -> Iterator[list[dict[str, Any]]]:
    before: int | None = None
    while page := log.jobs(job_filter, limit, before):
        yield [row for _, _, row in page]
        before = page[-1][0]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[EventLog, list[ExpectedJob]]:
    log = EventLog(tmp_path_factory.mktemp("small") / "g.db")
    return log, history(log, 1_200)


def test_every_filter_matches_its_definition(small: tuple[EventLog, list[ExpectedJob]]) -> None:
    log, expected_jobs = small
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
    for _ in range(100 if IN_GATE else 400):
        fields = {name: draw() for name, draw in chances.items() if dice.random() < 0.35}
        job_filter = JobFilter(**fields)
        rows = [row for page in pages(log, job_filter, dice.choice([1_300, 97])) for row in page]
        assert [row["id"] for row in rows] == [
            expected.id for expected in expected_jobs if matches(job_filter, expected)
        ], fields
        assert [row["labels"] for row in rows] == [
            expected.labels for expected in expected_jobs if matches(job_filter, expected)
        ]


FILTERS = {
    "all": {},
    "one state": {"states": ("stopped",)},
    "most states": {"states": ("stopped", "running", "pending", "failed")},
    "a rare state": {"states": ("pending",)},
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


@pytest.mark.parametrize("fields", FILTERS.values(), ids=FILTERS.keys())
def test_the_cost_of_a_page_depends_on_its_size_alone(large: EventLog, fields: dict[str, Any]) -> None:
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 100
        return 0

    large.last_seq()  # this thread has its connection from here on
    large._reader().set_progress_handler(count, 100)
    first = large.jobs(JobFilter(**fields), PAGE)
    middle = large.jobs(JobFilter(**fields), PAGE, first[-1][0])
    large._reader().set_progress_handler(None, 0)
    # Visiting every job once takes more than ten steps of SQLite's machine for each.
    assert first
    assert steps < JOBS, f"{steps} steps for {len(first) + len(middle)} rows"


def test_label_selectors_are_parsed_and_invalid_ones_refused() -> None:
    assert label_terms("") == label_terms("  ") == ()
    assert label_terms("team=nlp, stage!=prod") == (LabelTerm("team", "nlp"), LabelTerm("stage", "prod", equal=False))
    assert label_terms("a.b/c=") == (LabelTerm("a.b/c", ""),)
    for text in ("team", "=x", "team=a=b", "team=nlp,", "!x", "a b=c", "team==x", ","):
        with pytest.raises(RequestError) as refused:
            label_terms(text)
        assert (refused.value.code, text in refused.value.detail) == ("invalid_request", True)


def test_labels_and_notes_can_change_after_the_end(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "g.db")
    expected_jobs = history(log, 10)
    name = expected_jobs[0].id
    described = e.Described(gang=name, labels={"team": "ops", "new": "1", "rare": None}, notes="diverged")
    log.append([Stamped(log.last_seq() + 1, END_MS * 2, described)], [])
    assert [row["id"] for _, _, row in log.jobs(JobFilter(labels=label_terms("team=ops,new=1")))] == [name]
    stored = log.job(name)
    assert stored is not None
    assert (stored[0].labels, stored[3].spec.labels, stored[3].spec.notes) == (
        *[{"team": "ops", "new": "1"}] * 2,
        "diverged",
    )
    log.append([Stamped(log.last_seq() + 1, END_MS * 2, e.Described(gang=name, labels={"team": None}))], [])
    assert log.jobs(JobFilter(labels=label_terms("team=ops"))) == []
    stored = log.job(name)
    assert stored is not None
    assert (stored[0].labels, stored[3].spec.notes) == ({"new": "1"}, "diverged")
    log.append([Stamped(log.last_seq() + 1, END_MS * 2, e.Deleted(gang=name))], [])
    assert log.jobs(JobFilter(labels=label_terms("new=1"))) == []
    log.append([Stamped(log.last_seq() + 1, END_MS * 2, described)], [])
    assert log.job(name) is None
