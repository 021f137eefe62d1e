"""One server for the tests of a module, and a user of another machine for each."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote.other_machine import OtherMachine, RemoteHome


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteHome]:
    home = RemoteHome(tmp_path_factory.mktemp("server"))
    yield home
    home.close()


@pytest.fixture
def user(server: RemoteHome, tmp_path: Path) -> OtherMachine:
    return OtherMachine(tmp_path / "other", server)
