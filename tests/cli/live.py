"""Commands typed at a real server, with real processes behind it."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Said, Shell
from tests.rest.serving import ServerHome, wait_until

__all__ = ["Live", "live", "place"]


@dataclass(frozen=True, slots=True)
class Live:
    """A shell and the server behind it: two nodes, n1 and n2, of 8 CPUs and 4 GPUs each."""

    shell: Shell
    place: ServerHome

    def __call__(self, *words: str) -> Said:
        return self.shell(*words)

    def told(self, *words: str) -> Any:
        """What a command says with -o json."""
        return json.loads(self.shell(*words, "-o", "json").out)

    def submit(self, *words: str) -> str:
        """The id of a job that was submitted."""
        said = self.shell("submit", *words)
        assert said.code == 0, said.err
        return said.out.strip()

    def until(self, job: str, *states: str) -> dict[str, Any]:
        return self.place.until(job, *states)

    def until_written(self, job: str, text: str) -> None:
        """Wait until rank 0 has written that."""
        wait_until(lambda: text in self.shell("logs", job).out, f"{job} writes {text}")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerHome]:
    """One server for a module's tests."""
    found = ServerHome(tmp_path_factory.mktemp("live"))
    found.client.connect()
    yield found
    found.close()


@pytest.fixture
def live(shell: Shell, place: ServerHome, monkeypatch: pytest.MonkeyPatch) -> Live:
    """A shell in an empty directory, at that server."""
    monkeypatch.setenv("GANGER_HOME", str(place.home.path))
    assert Path(os.environ["GANGER_HOME"]) == place.home.path
    return Live(shell, place)
