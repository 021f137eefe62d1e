"""Fixtures of the embedded backend: a home of its own for each test, of which no process is left behind."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ganger.backends.local import machine_processes
from ganger.backends.local.job_files import JobFiles
from ganger.launcher.build_archive import build
from ganger.model.cluster import Node
from tests.local.world import Server, wait_until


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("launcher"))


@pytest.fixture
def layout(tmp_path: Path, launcher: Path) -> JobFiles:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return JobFiles(home=home, socket=home / "l.sock", launcher=launcher)


@pytest.fixture
def serve(layout: JobFiles) -> Iterator[Callable[..., Server]]:
    """Makes a server on this test's home, with nodes n1, n2 ... or so named. After the test nothing of it is left."""
    servers: list[Server] = []

    def make(nodes: int = 2, names: tuple[str, ...] = ()) -> Server:
        for server in servers:
            server.close()
        each = names or [f"n{number}" for number in range(1, nodes + 1)]
        listed = tuple(Node(name=name, cpu_milli=64_000, memory_bytes=2**34) for name in each)
        servers.append(Server(layout, listed))
        return servers[-1]

    yield make
    for server in servers:
        server.close()
    wait_until(lambda: not _killed(layout), "everything of the test is gone")


def _killed(layout: JobFiles) -> list[int]:
    mine = [process.pid for place, process in machine_processes.launchers() if place.is_relative_to(layout.home)]
    mine += [pid for place, pid in machine_processes.marked() if place.is_relative_to(layout.home)]
    for pid in mine:
        with suppress(ProcessLookupError):  # it has ended since it was found
            os.kill(pid, signal.SIGKILL)
    return mine
