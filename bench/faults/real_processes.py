"""Servers that are killed, and the processes that belong to a state directory; not a bench."""

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

DEADLINE_S = 600.0


class Servers:
    """One server after the other, each started as soon as the previous one is dead."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._process: subprocess.Popen[bytes]

    def start(self) -> None:
        command = [sys.executable, "-P", "-m", "ganger.server", "serve", "--home", str(self._home)]
        with (self._home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        self.check_alive()
        self._process.kill()
        self._process.wait()

    def check_alive(self) -> None:
        """Raise RuntimeError if the server has ended by itself."""
        if self._process.poll() is not None:
            log = (self._home / "server.log").read_text(errors="replace")
            raise RuntimeError(f"the server ended with {self._process.returncode}: {log[-3000:]}")

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(DEADLINE_S)


def left_of(home: Path) -> dict[int, str]:
    """Return the launchers, their guards and marked processes of this state directory: PID -> command."""
    jobs_folder, commands = str(home / "jobs"), {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (path / "cmdline").read_bytes()
            is_guard = b"ganger-launcher-guard" in command and any(
                str(file.readlink()).startswith(jobs_folder) for file in (path / "fd").iterdir()
            )
            if (
                is_guard
                or jobs_folder.encode() in command
                or f"={jobs_folder}".encode() in (path / "environ").read_bytes()
            ):
                commands[int(path.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return commands


def is_alive(pid: int, ticks: int) -> bool:
    """Return whether that very process exists, and is neither a zombie nor stopped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZTt" and int(fields[19]) == ticks
