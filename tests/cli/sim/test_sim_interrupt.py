"""Ctrl-C on a terminal while `ganger sim` runs: exit code 130, no traceback, and no process is left."""

import os
import pty
import select
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import PROGRAM

pytestmark = pytest.mark.long

DEADLINE_S = 120
JOBS = "name,submitted_ms,duration_ms,gpus\n" + "".join(
    f"j{at},{at * 1000},600000,{1 + at % 16}\n" for at in range(9999)
)


@dataclass
class Terminal:
    """A command on a terminal of its own, and what it wrote there."""

    pid: int
    screen: int
    text: bytes = b""
    seen: set[psutil.Process] = field(default_factory=set)

    def read(self) -> bool:
        """Read what is there; return False when it will write no more."""
        if not select.select([self.screen], [], [], 0.02)[0]:
            return True
        try:
            self.text += (said := os.read(self.screen, 65536))
        except OSError:
            return False
        return bool(said)

    def family(self) -> list[psutil.Process]:
        """Return its child processes, with all their descendants."""
        found = psutil.Process(self.pid).children(recursive=True)
        self.seen.update(found)
        return found

    def until(self, is_so: Callable[[], bool]) -> None:
        ends_s = time.monotonic() + DEADLINE_S
        while not is_so():
            assert time.monotonic() < ends_s, self.text.decode()
            assert self.read(), self.text.decode()

    def end(self) -> int:
        """Its exit code, once nothing has the terminal open any more."""
        ends_s = time.monotonic() + DEADLINE_S
        while self.read():
            assert time.monotonic() < ends_s, self.text.decode()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Terminal]]:
    monkeypatch.setenv("GANGER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.csv").write_text(JOBS)
    opened: list[Terminal] = []

    def typed(*words: str) -> Terminal:
        pid, screen = pty.fork()
        if pid == 0:
            os.execv(PROGRAM[0], [*PROGRAM, *words])
        opened.append(Terminal(pid, screen))
        return opened[-1]

    yield typed
    for each in opened:
        for process in each.seen:
            if process.is_running():
                process.kill()
        os.close(each.screen)


@pytest.mark.parametrize(
    ("words", "processes"),
    [
        (("compare", "jobs.csv", "--nodes", "4", "--policies", "conservative,srtf"), 1),
        (("compare", "jobs.csv", "--nodes", "4", "--policies", "conservative,srtf"), 3),
        (("run", "jobs.csv", "--nodes", "4", "--policy", "conservative"), 1),
        (("sweep", "jobs.csv", "--grid", "nodes=4,5", "--policy", "conservative", "--to", "swept"), 3),
        (("size", "jobs.csv", "--wait-p99", "1m", "--policy", "conservative"), 1),
    ],
    ids=["while-the-simulation-loads", "while-runs-last", "one-run", "sweep", "size"],
)
def test_it_ends_with_all_that_it_started(
    terminal: Callable[..., Terminal], words: tuple[str, ...], processes: int
) -> None:
    shown = terminal("sim", *words)
    shown.until(lambda: len(shown.family()) >= processes)
    os.write(shown.screen, b"\x03")
    assert shown.end() == 130
    assert b"Traceback" not in shown.text
    assert shown.seen
    assert psutil.wait_procs(shown.seen, timeout=DEADLINE_S)[1] == []
