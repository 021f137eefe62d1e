"""Processes that outlive their starter, each recorded in a file by itself before it becomes what it is.

So a crash at any moment leaves no unknown process behind. A process is identified by its pid and start tick: a pid that
was reused is never signalled.
"""

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from tools.testcluster.waiting import until

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
RECORD_AND_EXEC = 'read -r line < /proc/self/stat && echo "$line" > "$0.new" && mv "$0.new" "$0" && exec "$@"'
"""Shell code before the exec: it writes its own line of /proc, with pid and start, into a file.

If that cannot be written, because the cluster was taken down meanwhile, it starts nothing.
"""


def start(record: Path, log: Path, argv: Sequence[str]) -> int:
    """Start a process in a session of its own, with its output appended to `log`; return its pid."""
    record.unlink(missing_ok=True)
    with log.open("ab") as output:
        subprocess.run(
            ["setsid", "--fork", "sh", "-c", RECORD_AND_EXEC, str(record), *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={"PATH": PATH, "HOME": str(Path.home())},
            umask=0o022,  # containers of other users must reach what a node unpacks
            check=True,
        )
    until(record.exists, f"the start of {argv[0]}; see {log}")
    return _parse_stat(record.read_text())[0]


def live_pid(record: Path) -> int | None:
    """Return the pid of the recorded process, or None if it has ended."""
    try:
        pid, start_tick = _parse_stat(record.read_text())
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    has_ended = stat.rpartition(")")[2].split()[0] in "ZX"
    return None if has_ended or _parse_stat(stat) != (pid, start_tick) else pid


def pid_in_node(pid: int) -> int:
    """Return the process that `nsenter` or `unshare` with this pid started in a node."""
    pids: list[int] = []

    def has_child() -> bool:
        for child in psutil.Process(pid).children():
            with suppress(FileNotFoundError, ProcessLookupError):  # the shell has ended
                if _namespace(child.pid) != _namespace(pid):
                    pids.append(child.pid)
        return bool(pids)

    until(has_child, f"what process {pid} starts in a node")
    return pids[0]


def end(record: Path) -> None:
    """Kill the recorded process, and wait until it is gone."""
    if (pid := live_pid(record)) is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: live_pid(record) is None, f"the end of process {pid}")
    record.unlink(missing_ok=True)


def _namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115 - it is no path that could be followed


def _parse_stat(stat: str) -> tuple[int, int]:
    """Parse pid and start tick of a line of /proc/PID/stat; the name in it may have blanks and brackets."""
    return int(stat.partition(" ")[0]), int(stat.rpartition(")")[2].split()[19])
