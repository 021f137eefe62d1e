"""A shell whose simulations run in the process of the tests: a new one takes 0.9 s of CPU time for its imports."""

import io
import signal
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from types import SimpleNamespace

import pytest

from ganger.cli.sim import progress, simulation_process
from ganger.simulation.__main__ import main
from tests.cli.conftest import Shell


@pytest.fixture
def shell(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Return a shell; `start` still starts a command with a simulation process of its own."""
    simulate_here(monkeypatch)
    return shell


def simulate_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands simulate in this process."""
    for module in (simulation_process, progress):
        monkeypatch.setattr(module, "start_simulation", _simulate)


@contextmanager
def _simulate(*arguments: str) -> Iterator[SimpleNamespace]:
    """Run a simulation, and yield what a process that has ended has of `subprocess.Popen`."""
    output = io.StringIO()
    handler = signal.getsignal(signal.SIGTERM)  # a comparison sets its own
    try:
        with redirect_stdout(output):
            main(arguments)
    finally:
        signal.signal(signal.SIGTERM, handler)
    printed = output.getvalue().encode()
    yield SimpleNamespace(stdout=io.BytesIO(printed), communicate=lambda: (printed, None))
