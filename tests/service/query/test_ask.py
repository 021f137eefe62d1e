"""Queries and requests about jobs: listings, one job, explanations, logs, and stopping."""

from collections.abc import Callable
from dataclasses import asdict
from itertools import chain, pairwise
from typing import Any

import pytest

from ganger.engine.service import JobFilter, Page
from ganger.errors import RequestError
from ganger.model.event import Event, StopRequested
from ganger.ports import LogQuery
from tests.service.world import Embedded, python
from tests.waiting import wait_until


def listed(world: Embedded, **query: Any) -> list[str]:
    return [row["id"] for row in page(world, **query).items]


def page(
    world: Embedded, *, everything: bool = False, limit: int = 50, cursor: str | None = None, **fields: Any
) -> Page:
    return world.service.jobs(JobFilter(**fields), everything=everything, limit=limit, cursor=cursor)


def pages(world: Embedded, **query: Any) -> list[list[str]]:
    """Return every page, following the cursors."""
    pages_found, cursor = [], None
    while True:
        part = page(world, cursor=cursor, **query)
        pages_found.append([row["id"] for row in part.items])
        cursor = part.next
        if cursor is None:
            return pages_found


def cordon_all(world: Embedded) -> Embedded:
    for node in world.service.nodes():
        world.service.cordon(node.name, cordoned=True)
    return world


def test_pages_are_newest_first_without_gap_or_repeat(world: Embedded) -> None:
    made = [cordon_all(world).submit() for _ in range(25)]
    for query in ({"everything": True}, {"states": ("pending",)}, {}):
        assert list(chain(*pages(world, limit=10, **query))) == made[::-1]
        assert [len(page) for page in pages(world, limit=10, **query)] == [10, 10, 5]
    assert pages(world, limit=25, everything=True) == [made[::-1]]
    assert listed(world, states=("running",)) == []


def test_a_live_job_is_never_hidden_behind_ended_ones(world: Embedded) -> None:
    lives = world.submit()
    ended = [world.submit(["true"]) for _ in range(4)]
    for name in ended:
        world.ended(name)
    assert listed(world, limit=3) == [ended[3], ended[2], lives]
    assert listed(world, everything=True, limit=3) == [ended[3], ended[2], ended[1]]
    assert listed(world, states=("succeeded",)) == ended[::-1]


def test_invalid_listing_queries_are_refused(world: Embedded) -> None:
    for query, code in (({"states": ("sleeping",)}, "invalid_request"), ({"cursor": "x"}, "bad_cursor")):
        with pytest.raises(RequestError) as refused:
            listed(world, **query)
        assert refused.value.code == code


def test_a_job_is_found_by_id_or_the_newest_by_name(world: Embedded) -> None:
    first, second = (world.submit(name="train") for _ in range(2))
    assert world.service.find(first) == first
    assert world.service.find("train") == second
    with pytest.raises(RequestError) as refused:
        world.service.find("trian")
    assert (refused.value.status, refused.value.code) == (404, "no_such_job")
    assert "train" in refused.value.next


def test_a_pending_reason_is_the_same_everywhere_and_in_a_dry_run(world: Embedded) -> None:
    world.submit(name="holder", nodes=2, resources={"gpu": "h100:4"})
    fields = {"name": "second", "resources": {"gpu": "h100:1"}}
    before = world.service.seq()
    dry_run = world.service.dry_run(world.submission(**fields))
    assert (world.service.seq(), dry_run.starts_now) == (before, False)
    name = world.submit(**fields)
    wait_until(lambda: world.service.job(name).reason, "a cycle has seen it")
    job, explained = world.service.job(name), world.service.explain(name)
    row = page(world, states=("pending",), limit=1).items[0]
    assert dry_run.reason is not None
    assert job.reason is not None
    assert dry_run.reason.sentence == job.reason.sentence == job.row.sentence == explained.sentence == row["sentence"]
    assert "holder-" in job.row.sentence
    assert (explained.position, explained.pending, explained.state) == (1, 1, "pending")


def test_a_dry_run_predicts_the_next_cycle(world: Embedded) -> None:
    for shape in ({"nodes": 2, "resources": {"gpu": "h100:4"}}, {"nodes": 3}, {"resources": {"gpu": "a100:2"}}):
        submission = world.submission(framework="torch", env={"SEED": "1"}, **shape)
        dry_run = world.service.dry_run(submission)
        assert dry_run.starts_now
        assert dry_run.environment["WORLD_SIZE"] == str(len(dry_run.nodes) * dry_run.spec.processes_per_node)
        assert {"SEED", "PATH"}.isdisjoint(dry_run.environment)
        name = world.service.submit(submission)[0].row.id
        assert world.until(name, "running").row.nodes == dry_run.nodes
        world.service.stop(name)
        world.ended(name)


def test_a_dry_run_of_roles_shows_the_command_of_rank_0_and_each_node_once(world: Embedded) -> None:
    sizes = {"chief": {"resources": {"cpu": 1}, "run": "lead"}, "ps": {"count": 2, "resources": {"cpu": 1}}}
    roles = {name: {"run": "serve", **role} for name, role in sizes.items()}
    dry_run = world.service.dry_run(world.submission(roles=roles))
    assert dry_run.argv == ("/bin/sh", "-c", "lead")
    assert len(dry_run.nodes) == len(set(dry_run.nodes)) > 0


def test_explain_of_a_job_that_is_not_pending(world: Embedded) -> None:
    name = world.submit()
    world.until(name, "running")
    assert "running" in world.service.explain(name).sentence
    world.service.stop(name)
    world.ended(name)
    explained = world.service.explain(name)
    assert (explained.state, explained.reason) == ("stopped", None)
    assert "been stopped" in explained.sentence


def test_stopping_a_pending_and_a_running_job(world: Embedded) -> None:
    running = world.submit()
    world.until(running, "running")
    pending = cordon_all(world).submit()
    for name in (pending, running):
        world.service.stop(name)
        job = world.ended(name)
        assert (job.row.state, job.row.exit_code) == ("stopped", None)
        with pytest.raises(RequestError) as refused:
            world.service.stop(name)
        assert (refused.value.code, refused.value.status) == ("already_ended", 409)
    assert [attempt.outcome for attempt in world.service.job(running).attempts] == ["stopped"]
    assert world.service.job(pending).attempts == ()


def test_a_request_for_a_job_that_ends_at_that_moment(world: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    cordon_all(world)
    requests: list[Callable[[str], object]] = [
        world.service.stop,
        lambda name: world.service.set_priority(name, 7),
        lambda name: world.service.suspend(name, suspended=True),
    ]
    ask = world.loop.ask
    for request in requests:
        name = world.submit()

        def too_late(event: Event, name: str = name) -> int:
            ask(StopRequested(gang=name))
            return ask(event)

        monkeypatch.setattr(world.loop, "ask", too_late)
        with pytest.raises(RequestError) as refused:
            request(name)
        monkeypatch.undo()
        assert (refused.value.code, refused.value.next) == ("already_ended", f"ganger get {name}")


def test_only_an_ended_job_can_be_deleted(world: Embedded) -> None:
    name = world.submit()
    world.until(name, "running")
    with pytest.raises(RequestError) as refused:
        world.service.delete(name)
    assert (refused.value.code, refused.value.status) == ("still_live", 409)
    assert refused.value.next == f"ganger stop {name}"
    world.service.stop(name)
    world.ended(name)
    world.service.delete(name)
    assert name not in listed(world, everything=True)
    wait_until(lambda: not (world.home.jobs / name).exists(), "its files are gone")
    for call in (world.service.job, world.service.stop, world.service.delete):
        with pytest.raises(RequestError) as refused:
            call(name)
        assert refused.value.status == 404


def test_logs_end_with_the_job_and_hold_every_line(world: Embedded) -> None:
    script = "import sys\nfor n in range(200): print(n, flush=True)\nprint('over', file=sys.stderr)"
    name = world.submit(python(script))
    followed = [line for line in world.service.follow(LogQuery(job=name)) if line]
    assert [line.text for line in followed if line.stream == "o"] == [str(n) for n in range(200)]
    assert [line.text for line in followed if line.stream == "e"] == ["over"]
    assert all(earlier.at_ms <= later.at_ms for earlier, later in pairwise(followed))
    assert list(world.service.lines(LogQuery(job=name, tail=2))) == followed[-2:]


def test_events_of_one_job_and_of_all(world: Embedded) -> None:
    names = [world.submit(["true"]) for _ in range(2)]
    for name in names:
        world.ended(name)
    rows = world.service.events(after=0, gang=None, limit=1_000)
    assert [row.seq for row in rows] == list(range(1, world.service.seq() + 1))
    assert world.service.events(after=3, gang=None, limit=2) == rows[3:5]
    job_rows = world.service.events(after=0, gang=names[0], limit=100)
    assert [row.kind for row in job_rows] == ["submitted", "decided", "started", "finished", "cleared"]
    assert {row.job for row in job_rows} == {names[0]}
    assert job_rows == [row for row in rows if row.job == names[0]]
    assert all(names[0] in row.sentence for row in job_rows)


def test_views_are_json(world: Embedded) -> None:
    name = world.submit(["true"])
    world.ended(name)
    for view in (world.service.job(name), world.service.explain(name), world.service.server()):
        assert plain(asdict(view))


def plain(value: Any) -> bool:
    """Return whether a value consists of JSON types."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(plain, value))
    return value is None or isinstance(value, str | int | float | bool)
