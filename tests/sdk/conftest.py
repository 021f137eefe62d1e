"""One server with two nodes for all tests of the SDK, each test in a directory of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ganger import Client
from tests.sdk.places import make_home, shut_down


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the state directory of a server that the first request starts."""
    path = make_home(tmp_path_factory.mktemp("sdk"))
    yield path
    shut_down(path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a temporary directory the working directory; return it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def client(home: Path, folder: Path) -> Client:
    return Client(home)


@pytest.fixture
def own_home(tmp_path: Path) -> Iterator[Path]:
    """Yield a state directory whose server a test may end as it likes."""
    path = make_home(tmp_path)
    yield path
    shut_down(path)
