"""A task directory and a server for each test; whatever a test started is ended with it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ganger.launcher.archive import build
from tests.launcher.harness import Server, Task


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("zipapp"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "s").open()
    yield server
    server.close()


@pytest.fixture
def task(tmp_path: Path, archive: Path) -> Iterator[Task]:
    task = Task(tmp_path / "task", archive, tmp_path / "s")
    yield task
    task.end()
