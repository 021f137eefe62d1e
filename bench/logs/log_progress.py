"""Progress bars of 8 ranks and one line of 100 MB, followed by `ganger logs -f` on a terminal: memory and lag.

The lag is the time from the write in the rank until the terminal has received it: of every state of a bar, and of the
line after the huge one. The peak memory is that of the launchers, the server and the command. The same line is then
read from `ganger run` through a pipe, which gets all of it.
"""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.measure import ROOT, Figure
from bench.serving import GANGER, ganger, state_directory

RANKS, LASTS_S = 8, 20
LINE_BYTES = 100_000_000
MEMORY_BAR_MB, LAG_BAR_S = 200, 1.0
_SCRIPT = str(ROOT / "bench" / "logs" / "progress_bars.py")
_STAMP = re.compile(rb"(after the line )?at=(\d{13})")
_OVERLAP = 64
"""Bytes of the previous chunk in which a stamp may begin."""


def run() -> list[Figure]:
    with state_directory() as environment, TemporaryDirectory(prefix="ganger-bench-") as folder:
        ganger(environment, "server", "start", "--topology", str(ROOT / "examples" / "two_nodes.yaml"))
        ganger(environment, "submit", "-f", _job_file(Path(folder)))
        server = json.loads(ganger(environment, "server", "status", "-o", "json"))["pid"]
        follower, terminal = _follow(environment)
        peaks = {"server": 0.0, "command": 0.0, "launcher": 0.0}
        bars, lines = _read(terminal, follower, server, environment["GANGER_HOME"], peaks)
        assert follower.wait() == 0, f"ganger logs exited with {follower.returncode}"
        command = [GANGER, "run", "--", "python3", _SCRIPT, str(LINE_BYTES), "2"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as piped:
            assert piped.stdout is not None
            _, piped_lines = _read(piped.stdout.fileno(), piped, server, environment["GANGER_HOME"], peaks)
        assert piped.returncode == 0, f"ganger run exited with {piped.returncode}"
    assert lines, "the line after the huge one was never shown"
    assert piped_lines, "the line after the huge one did not come through the pipe"
    return [
        *(_bounded(f"log_progress_{name}_peak", "MB", [peak], MEMORY_BAR_MB) for name, peak in peaks.items()),
        _bounded("log_progress_bar_lag", "s", bars, LAG_BAR_S),
        _bounded("log_progress_line_lag", "s", lines, LAG_BAR_S),
        _bounded("log_progress_piped_line_lag", "s", piped_lines, LAG_BAR_S),
    ]


def _bounded(name: str, unit: str, samples: list[float], bar: float) -> Figure:
    return Figure(name=name, unit=unit, samples=tuple(samples), value=max(samples), op="<", bar=bar)


def _job_file(folder: Path) -> str:
    job = {
        "name": "bars",
        "nodes": 2,
        "nproc_per_node": RANKS // 2,
        "resources": {"cpu": RANKS // 2},
        "run": ["python3", _SCRIPT, str(LINE_BYTES), str(LASTS_S)],
        "retry": {"max": 0},
    }
    path = folder / "job.yaml"
    path.write_text(json.dumps(job))
    return str(path)


def _follow(environment: dict[str, str]) -> tuple["subprocess.Popen[bytes]", int]:
    screen, tty = pty.openpty()
    fcntl.ioctl(tty, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    environment = {**environment, "TERM": "xterm-256color"}
    del environment["NO_COLOR"]
    command = [GANGER, "logs", "-f", "bars"]
    follower = subprocess.Popen(command, env=environment, stdin=tty, stdout=tty, stderr=tty)
    os.close(tty)
    return follower, screen


def _read(
    terminal: int, follower: "subprocess.Popen[bytes]", server: int, home: str, peaks: dict[str, float]
) -> tuple[list[float], list[float]]:
    """Read the terminal to its end; return the lags of bars and of the line after the huge one."""
    bars: list[float] = []
    lines: list[float] = []
    seen: set[bytes] = set()
    rest, sample_at_s = b"", 0.0
    while True:
        try:
            chunk = os.read(terminal, 1 << 16)
        except OSError:  # EIO: the other end of a terminal is closed
            break
        if not chunk:
            break
        # Searched first: the expression alone would read slower than a job writes.
        for match in _STAMP.finditer(rest + chunk) if b"at=" in rest + chunk else ():
            if match[0] not in seen:
                seen.add(match[0])
                (lines if match[1] else bars).append(time.time() - int(match[2]) / 1000)
        rest = chunk[-_OVERLAP:]
        if time.monotonic() > sample_at_s:
            sample_at_s = time.monotonic() + 0.2
            _sample({"server": [server], "command": [follower.pid], "launcher": _launchers(home)}, peaks)
    return bars, lines


def _launchers(home: str) -> list[int]:
    return [json.loads(path.read_text())["pid"] for path in Path(home).glob("jobs/*/nodes/*/launcher.json")]


def _sample(pids: dict[str, list[int]], peaks: dict[str, float]) -> None:
    for name, processes in pids.items():
        for pid in processes:
            try:
                text = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            if peak := re.search(r"VmHWM:\s+(\d+) kB", text):
                peaks[name] = max(peaks[name], int(peak[1]) / 1000)
