"""Where days are lived, and what the witnesses assert told with its figures."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.crash.mortal")

IN_MEMORY = Path("/dev/shm")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A place for log files that nothing is synced to: a server dies here, never the machine."""
    with tempfile.TemporaryDirectory(prefix="ganger-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as name:
        yield Path(name)
