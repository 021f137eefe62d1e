"""A task directory and a server for each test, and the processes it starts, which end with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ganger.launcher.build_archive import build
from tests.launcher.harness import Server, Task
from tests.launcher.remote_launchers import HOST, Authority, Controller, ListenFixture, Pod, StartFixture


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


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority") / "own")


@pytest.fixture
def listens(authority: Authority) -> Iterator[ListenFixture]:
    """Return a function that opens a controller, with TLS by default."""
    opened: list[Controller] = []

    def listen(**options: Any) -> Controller:
        opened.append(Controller(options.pop("context", authority.context()), **options))
        return opened[-1]

    yield listen
    for controller in opened:
        if not controller.loop.is_closed():
            controller.close()


@pytest.fixture
def starts(tmp_path: Path, archive: Path, authority: Authority) -> Iterator[StartFixture]:
    """Return a function that makes a pod and starts it for a controller."""
    pods: list[Pod] = []

    def start(controller: Controller, node: str = "n1", ca: Path | None = authority.ca, **options: Any) -> Pod:
        pods.append(Pod(tmp_path / f"pod-{len(pods)}", archive, node))
        if ca is not None:
            pods[-1].ca.write_bytes(ca.read_bytes())
        pods[-1].start(options.pop("server", f"tcp:{HOST}:{controller.port}"), **options)
        return pods[-1]

    yield start
    for pod in pods:
        pod.end()
