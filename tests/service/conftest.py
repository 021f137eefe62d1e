"""One embedded server for each test that requests it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.world import Embedded, launcher


@pytest.fixture(scope="session")
def zipapp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launcher(tmp_path_factory.mktemp("launcher"))


@pytest.fixture
def world(tmp_path: Path, zipapp: Path) -> Iterator[Embedded]:
    world = Embedded(tmp_path, zipapp)
    yield world
    world.close()
