"""A server for each test here, and the environment that has torch."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.cluster import Cluster, end_jobs
from tests.real.environments import python_with


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Yield a started server; stop it at the end with all that runs under it."""
    mine = Cluster(tmp_path)
    mine.start()
    yield mine
    client = mine.client.connect()
    end_jobs(client)
    client.shutdown()


@pytest.fixture(scope="session")
def torch_python() -> str:
    """Return the interpreter that has torch."""
    return python_with("torch")
