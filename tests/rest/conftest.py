"""The application over a real service, and a home for real servers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from ganger.rest.app import make_app
from tests.rest.serving import Place
from tests.service.world import Embedded, launcher


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Embedded]:
    world = Embedded(tmp_path, launcher(tmp_path))
    yield world
    world.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A home without a server yet."""
    place = Place(tmp_path)
    yield place
    place.close()


@pytest.fixture
def left() -> list[str | None]:
    """What the application asked of its server: to end (None), or to run anew under an interpreter."""
    return []


@pytest.fixture
def app(world: Embedded, left: list[str | None]) -> FastAPI:
    return make_app(world.service, left.append)
