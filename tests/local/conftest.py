"""Fixtures of the local backend: a state directory for each test, of which no process is left behind."""

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
from tests.local.world import Server
from tests.waiting import wait_until


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("launcher"))


@pytest.fixture
def files(tmp_path: Path, launcher: Path) -> JobFiles:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return JobFiles(home=home, socket=home / "l.sock", launcher=launcher)


@pytest.fixture
def serve(files: JobFiles) -> Iterator[Callable[..., Server]]:
    """Create servers on this test's state directory, with nodes n1, n2 ... or named ones, and clean up afterwards."""
    servers: list[Server] = []

    def make(nodes: int = 2, names: tuple[str, ...] = ()) -> Server:
        for server in servers:
            server.close()
        node_names = names or [f"n{number}" for number in range(1, nodes + 1)]
        cluster_nodes = tuple(Node(name=name, cpu_milli=64_000, memory_bytes=2**34) for name in node_names)
        servers.append(Server(files, cluster_nodes))
        return servers[-1]

    yield make
    for server in servers:
        server.close()
    wait_until(lambda: not _killed(files), "everything of the test is gone")


def _killed(files: JobFiles) -> list[int]:
    """Kill every process of the test and return their pids."""
    pids = [process.pid for path, process in machine_processes.launchers() if path.is_relative_to(files.home)]
    pids += [pid for path, pid in machine_processes.rank_processes() if path.is_relative_to(files.home)]
    for pid in pids:
        with suppress(ProcessLookupError):  # it has ended since it was found
            os.kill(pid, signal.SIGKILL)
    return pids
