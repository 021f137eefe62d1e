"""Collector of what traced processes send, and the environment that has a process traced."""

import json
import mmap
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import ganger
import ganger.controller
import ganger.server
from ganger.core.placement.place import place
from ganger.engine.loop import Loop
from ganger.launcher import build_archive
from tools.testcluster.waiting import until
from tools.way_of_a_job import recorder

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = Path(ganger.__file__).parent
SERVERS: Final = (ganger.server.__name__, ganger.controller.__name__)

SETTLES_S: Final = 2.0
"""Time after the end of its launchers in which code still runs for a job: queues get their new figures."""
LAUNCHER: Final = "launcher"
"""The command line that a launcher sends."""

Function = tuple[str, str]
"""A file, and the qualified name of a function in it."""


class Phase(IntEnum):
    """Part of a tracing."""

    START = 0
    IDLE = 1
    JOB = 2
    END = 3


@dataclass
class Process:
    """The report of a process.

    Attributes:
        argv: its command line.
        calls: the phase and the function of each first call, in order.
        stacks: the stacks of placements of the job, from the loop on; True: a function of ganger.
    """

    argv: list[str] = field(default_factory=list)
    calls: list[tuple[Phase, Function]] = field(default_factory=list)
    stacks: list[list[tuple[str, str, bool]]] = field(default_factory=list)
    is_over: bool = False

    def add(self, record: dict[str, Any]) -> None:
        """Add a record."""
        if "argv" in record:
            self.argv = record["argv"]
        elif "stack" not in record:
            self.calls.append((Phase(record["phase"]), (record["file"], record["function"])))
        elif record["phase"] == Phase.JOB:
            self.stacks.append([(file, function, is_own) for file, function, is_own in record["stack"]])


class Collector:
    """A TCP server to which the processes of one tracing connect.

    Attributes:
        processes: in the order in which they connected.
    """

    def __init__(self, host: str, folder: Path) -> None:
        self.processes: list[Process] = []
        self._folder = folder
        self._listener = socket.create_server((host, 0))
        phase_file = folder / "phase"
        phase_file.write_bytes(bytes([Phase.START]))
        with phase_file.open("r+b") as file:
            self._phase = mmap.mmap(file.fileno(), 1)
        self._settings = {
            "address": self._listener.getsockname()[:2],
            "source": str(SOURCE),
            "phase": str(phase_file),
            "loop": _function(Loop.run),
            "place": _function(place),
        }
        threading.Thread(target=self._accept, daemon=True).start()

    def enter(self, phase: Phase) -> None:
        """Begin a phase, in every process."""
        self._phase[0] = phase

    def environment(self, *, launcher_phase: Phase | None) -> dict[str, str]:
        """Return the variables that have Python processes traced, and the launchers whose archives they build.

        launcher_phase: the phase of launchers that cannot read that of this machine.
        """
        injected = self._folder / "injected"
        injected.mkdir(exist_ok=True)
        (injected / "sitecustomize.py").write_text(self._sitecustomize(launcher_phase))
        paths = [str(injected), str(SOURCE.parent), str(ROOT)]
        return {"PYTHONPATH": os.pathsep.join(paths), recorder.VARIABLE: json.dumps(self._settings)}

    def wait_for_end(self) -> None:
        """Wait until the launchers of the job have run, and until what follows from their end is done."""
        until(lambda: any(map(_is_launcher, self.processes)), "a traced launcher")
        until(lambda: all(launcher.is_over for launcher in filter(_is_launcher, self.processes)), "its end")
        time.sleep(SETTLES_S)

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()

    def _sitecustomize(self, launcher_phase: Phase | None) -> str:
        of_launcher = self._settings | ({} if launcher_phase is None else {"phase": int(launcher_phase)})
        text = Path(recorder.__file__).read_text()
        main = f"{text}\n\nRecorder({of_launcher!r}, {[LAUNCHER]!r}).start()\n{build_archive.MAIN}"
        return f"""{text}

Recorder(json.loads(os.environ[VARIABLE]), sys.orig_argv).start()
if set(sys.orig_argv) & set({SERVERS!r}):
    from {build_archive.__package__} import {build_archive.__name__.rpartition(".")[2]} as _archive

    _archive.MAIN = {main!r}
"""

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            process = Process()
            self.processes.append(process)
            threading.Thread(target=_receive, args=(connection, process), daemon=True).start()


@contextmanager
def collector(host: str, folder: Path) -> Iterator[Collector]:
    """Collect at an address of this machine for the duration of the context."""
    collecting = Collector(host, folder)
    try:
        yield collecting
    finally:
        collecting.close()


def _receive(connection: socket.socket, process: Process) -> None:
    with connection, connection.makefile("rb") as lines:
        try:
            for line in lines:
                process.add(json.loads(line))
        except ConnectionResetError:
            pass  # a process that was killed
        process.is_over = True


def _is_launcher(process: Process) -> bool:
    return process.argv == [LAUNCHER]


def _function(function: Any) -> Function:
    code = function.__code__
    return str(Path(code.co_filename).relative_to(SOURCE)), code.co_qualname
