"""Commands run against a real server with real processes."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import CommandResult, Shell
from tests.rest.serving import ServerHome
from tests.waiting import wait_until

__all__ = ["Live", "live", "place"]


@dataclass(frozen=True, slots=True)
class Live:
    """A shell and its server with two nodes, n1 and n2, of 8 CPUs and 4 GPUs each."""

    shell: Shell
    place: ServerHome

    def __call__(self, *args: str) -> CommandResult:
        return self.shell(*args)

    def json(self, *args: str) -> Any:
        """Return the output of a command with -o json."""
        return json.loads(self.shell(*args, "-o", "json").out)

    def submit(self, *args: str) -> str:
        """Submit a job and return its id."""
        result = self.shell("submit", *args)
        assert result.code == 0, result.err
        return result.out.strip()

    def until(self, job: str, *states: str) -> dict[str, Any]:
        return self.place.until(job, *states)

    def until_written(self, job: str, text: str) -> None:
        """Wait until rank 0 has written a text."""
        wait_until(lambda: text in self.shell("logs", job).out, f"{job} writes {text}")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerHome]:
    """Run one server for the tests of a module."""
    server_place = ServerHome(tmp_path_factory.mktemp("live"))
    server_place.client.connect()
    yield server_place
    server_place.close()


@pytest.fixture
def live(shell: Shell, place: ServerHome, monkeypatch: pytest.MonkeyPatch) -> Live:
    """Return a shell in an empty directory, connected to that server."""
    monkeypatch.setenv("GANGER_HOME", str(place.home.path))
    assert Path(os.environ["GANGER_HOME"]) == place.home.path
    return Live(shell, place)
