"""The application over a real service, and a home for real servers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from ganger.rest.app import make_app
from tests.rest.serving import ServerHome
from tests.service.world import Embedded, launcher


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Embedded]:
    world = Embedded(tmp_path, launcher(tmp_path))
    yield world
    world.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[ServerHome]:
    """Yield a home without a running server."""
    place = ServerHome(tmp_path)
    yield place
    place.close()


@pytest.fixture
def stop_calls() -> list[str | None]:
    """Return the requests of the application to its server: to stop (None), or to restart under an interpreter."""
    return []


@pytest.fixture
def app(world: Embedded, stop_calls: list[str | None]) -> FastAPI:
    return make_app(world.service, stop_calls.append)
