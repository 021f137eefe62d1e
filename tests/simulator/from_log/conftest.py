"""The shell of the command-line tests, whose simulations run in the process of the tests."""

import pytest

from tests.cli.conftest import Shell
from tests.cli.conftest import shell as plain_shell
from tests.cli.sim.conftest import simulate_here

__all__ = ["plain_shell"]


@pytest.fixture
def shell(plain_shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Return a shell of commands that start no process."""
    simulate_here(monkeypatch)
    return plain_shell
