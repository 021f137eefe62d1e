"""What the tests of the command line share: a world to talk to, and two ways to type a command."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from ganger.cli import call
from tests.cli.world import World, serve

PROGRAM = [sys.executable, "-c", "from ganger.cli import main; main()"]


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


class Shell:
    """Types commands in this process; `start` in a process of its own."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> Said:
        self._capsys.readouterr()
        code = call(words)
        captured = self._capsys.readouterr()
        return Said(code, captured.out, captured.err)

    def start(self, *words: str, stdout: int | IO[bytes] = subprocess.PIPE) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*PROGRAM, *words], stdout=stdout, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    """A shell in an empty directory, with an empty state directory."""
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
    """A server behind the state directory."""
    made, server = serve(Path(os.environ["GANGER_HOME"]))
    yield made
    with made.changed:
        made.closing = True
        made.changed.notify_all()
    server.shutdown()
    server.server_close()
