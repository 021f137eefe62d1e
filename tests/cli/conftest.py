"""Fixtures of the command-line tests: a fake server, and a shell that runs commands."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from ganger.cli import call
from ganger.settings import Home
from tests.cli.world import World, serve

PROGRAM = [sys.executable, "-c", "from ganger.cli import main; main()"]


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


class Shell:
    """Runs commands in this process, or with `start` in a process of its own."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *args: str) -> CommandResult:
        self._capsys.readouterr()
        code = call(args)
        captured = self._capsys.readouterr()
        return CommandResult(code, captured.out, captured.err)

    def start(self, *args: str, stdout: int | IO[bytes] = subprocess.PIPE) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*PROGRAM, *args], stdout=stdout, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    """Return a shell in an empty directory, with an empty state directory."""
    monkeypatch.setenv("GANGER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("TZ", "UTC")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return Shell(capsys)


@pytest.fixture
def world(shell: Shell) -> Iterator[World]:
    """Run a fake server behind the state directory."""
    home = Path(os.environ["GANGER_HOME"])
    world_state, server = serve(home)
    yield world_state
    Home(home).server_file.unlink(missing_ok=True)  # it stops, so threads that still follow start no other
    with world_state.changed:
        world_state.closing = True
        world_state.changed.notify_all()
    server.shutdown()
    server.server_close()
