"""A directory for the logs of simulated days, and assertion details for the checks in `mortal`."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.crash.mortal")

IN_MEMORY = Path("/dev/shm")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a directory in memory for log files: a server is killed here, never the machine."""
    with tempfile.TemporaryDirectory(prefix="ganger-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as name:
        yield Path(name)
