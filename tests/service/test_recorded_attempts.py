"""Attempts as the log records them, for trials of policies: of real jobs, and when their start is not in the log."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ganger.engine.policy_doc.recorded_attempts import KINDS, LoggedAttempt, logged_attempts
from tests.service.world import Embedded


@pytest.fixture
def world(tmp_path: Path, zipapp: Path) -> Iterator[Embedded]:
    world = Embedded(tmp_path, zipapp)
    yield world
    world.close()


def attempts(world: Embedded, name: str, after: int = 0) -> list[LoggedAttempt]:
    rows = world.log.rows(after, name, 1_000, KINDS)
    return logged_attempts(name, rows, world.loop.copy().gangs.get(name))


def test_each_attempt_runs_until_it_is_stopped_finished_or_failed(world: Embedded) -> None:
    suspended = world.submit(nodes=2, resources={"gpu": 1})
    world.until(suspended, "running")
    world.service.suspend(suspended, suspended=True)
    world.until(suspended, "suspended")
    world.service.suspend(suspended, suspended=False)
    world.until(suspended, "running")
    first, second = attempts(world, suspended)
    assert (first.start.generation, second.start.generation) == (1, 2)
    assert first.until_ms is not None
    assert first.running_ms is not None
    assert second.running_ms is not None
    assert first.running_ms <= first.until_ms <= second.running_ms
    assert (second.until_ms, len(second.start.nodes)) == (None, 2)
    for run, state in ((["true"], "succeeded"), (["false"], "failed")):
        name = world.submit(run, retry={"max": 0})
        world.until(name, state)
        (attempt,) = attempts(world, name)
        assert attempt.until_ms is not None, state


def test_the_attempt_of_a_running_job_is_known_without_its_start_in_the_log(world: Embedded) -> None:
    name = world.submit(resources={"gpu": 1})
    world.until(name, "running")
    (whole,) = attempts(world, name)
    (cut,) = attempts(world, name, world.log.last_seq())
    assert (cut.start, cut.running_ms, cut.until_ms) == (whole.start, whole.running_ms, None)
    world.service.stop(name)
    world.until(name, "stopped")
    assert attempts(world, name, world.log.last_seq()) == []
