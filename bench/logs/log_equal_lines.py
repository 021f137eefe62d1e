"""`ganger logs` of 250 MB and of 1 GB, of equal and of distinct lines: time per GB, and memory of both ends.

The lines are those of four ranks. `-f` begins and ends with the job, so its time includes the writing; the plain
command reads the log after the job has ended. No line may be missing; a line that several ranks wrote counts that many
times. Linearity is judged by CPU time, which other load does not change.
"""

import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, Final

import psutil

from bench.logs.equal_lines import LINE_BYTES
from bench.measure import ROOT, Figure, median
from bench.serving import GANGER, ganger, state_directory

RANKS: Final = 4
SIZES: Final = {"250mb": 250_000_000, "1gb": 1_000_000_000}
WAYS: Final = {"follow": ["-f"], "plain": []}
MEMORY_BAR_MB: Final = 200.0
LINEAR_BAR: Final = 1.5
"""Limit of the time of a GB in the large log, as a multiple of that in the small one."""
BLOCK_BYTES: Final = 1 << 20
SAMPLED_S: Final = 0.1
_COUNT: Final = re.compile(rb"  \(x(\d+)\)$", re.MULTILINE)


@dataclass(slots=True)
class _Usage:
    """Resource usage of a process: peak memory, and CPU time since the first sample."""

    process: psutil.Process
    began_s: float = 0.0
    peak_mb: float = 0.0
    cpu_s: float = 0.0

    def sample(self) -> None:
        with suppress(psutil.NoSuchProcess):  # it has just ended
            self.cpu_s = sum(self.process.cpu_times()[:2]) - self.began_s
            self.peak_mb = max(self.peak_mb, self.process.memory_info().rss / 1e6)


def run() -> list[Figure]:
    figures = []
    for kind in ("equal", "distinct"):
        cpu: dict[str, list[float]] = {way: [] for way in WAYS}
        for size_name, size in SIZES.items():
            for way, wall_s, client, server in _reads(kind, size):
                name = f"log_{kind}_lines_{way}_{size_name}"
                print(f"{name}: {wall_s:.0f} s", flush=True)
                cpu[way].append((client.cpu_s + server.cpu_s) / size * 1e9)
                figures += [
                    median(f"{name}_wall", "s/GB", [wall_s / size * 1e9]),
                    median(f"{name}_cpu", "s/GB", cpu[way][-1:]),
                    median(f"{name}_client", "MB", [client.peak_mb], under=MEMORY_BAR_MB),
                    median(f"{name}_server", "MB", [server.peak_mb], under=MEMORY_BAR_MB),
                ]
        figures += [
            median(f"log_{kind}_lines_{way}_linear", "", [large / small], under=LINEAR_BAR)
            for way, (small, large) in cpu.items()
        ]
    return figures


def _reads(kind: str, size: int) -> Iterator[tuple[str, float, _Usage, _Usage]]:
    """Write that many bytes and read them in each way; yield its name, seconds and the usage of client and server."""
    lines = size // LINE_BYTES // RANKS
    with state_directory() as environment, TemporaryDirectory(prefix="ganger-bench-") as folder:
        ganger(environment, "server", "start", "--topology", str(ROOT / "examples" / "two_nodes.yaml"))
        pid = json.loads(ganger(environment, "server", "status", "-o", "json"))["pid"]
        ganger(environment, "submit", "-f", _job_file(Path(folder), kind, lines))
        for way, flags in WAYS.items():
            process = psutil.Process(pid)
            server = _Usage(process, began_s=sum(process.cpu_times()[:2]))
            wall_s, client, line_count = _read([GANGER, "logs", *flags, "--all", "writers"], environment, server)
            assert line_count == RANKS * lines, f"{way}: {line_count} lines of {RANKS * lines}"
            yield way, wall_s, client, server


def _job_file(folder: Path, kind: str, lines: int) -> str:
    job = {
        "name": "writers",
        "nodes": 2,
        "nproc_per_node": RANKS // 2,
        "resources": {"cpu": RANKS // 2},
        "run": ["python3", str(ROOT / "bench" / "logs" / "equal_lines.py"), kind, str(lines)],
        "retry": {"max": 0},
    }
    path = folder / "job.yaml"
    path.write_text(json.dumps(job))
    return str(path)


def _read(command: list[str], environment: dict[str, str], server: _Usage) -> tuple[float, _Usage, int]:
    """Run the command to its end; return its seconds, its usage and the number of its lines."""
    began_s = time.monotonic()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        client = _Usage(psutil.Process(process.pid))
        sampling = threading.Thread(target=_sample, args=(process, client, server))
        sampling.start()
        line_count = _count(process.stdout)
        process.wait()
        taken_s = time.monotonic() - began_s
        sampling.join()
    assert process.returncode == 0, f"{command} exited with {process.returncode}"
    return taken_s, client, line_count


def _sample(process: subprocess.Popen[bytes], *used: _Usage) -> None:
    while process.poll() is None:
        for usage in used:
            usage.sample()
        time.sleep(SAMPLED_S)


def _count(out: BinaryIO) -> int:
    """Count lines; a line of several ranks is followed by their number."""
    line_count, partial = 0, b""
    while block := out.read(BLOCK_BYTES):
        whole, _, partial = (partial + block).rpartition(b"\n")
        whole += b"\n" if whole else b""
        line_count += whole.count(b"\n") + sum(int(number) - 1 for number in _COUNT.findall(whole))
    return line_count
