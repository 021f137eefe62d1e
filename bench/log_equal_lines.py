"""`ganger logs` of 250 MB and of 1 GB, of equal and of distinct lines: seconds a GB, and the memory of both ends.

The lines are those of four ranks. `-f` begins with the job and ends with it, so its time has the writing in it; the
plain command reads the log of the job when it has ended. No line may be missing: one that several ranks wrote counts
as often as it says.
"""

import json
import re
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, Final

import psutil

from bench.equal_lines import LINE_BYTES
from bench.measure import ROOT, Figure, median
from bench.serving import GANGER, ganger, state_directory

RANKS: Final = 4
SIZES: Final = {"250mb": 250_000_000, "1gb": 1_000_000_000}
MEMORY_BAR_MB: Final = 200.0
LINEAR_BAR: Final = 1.5
"""How much longer a GB may take in the large log than in the small one."""
BLOCK_BYTES: Final = 1 << 20
SAMPLED_S: Final = 0.1
_COUNT: Final = re.compile(rb"  \(x(\d+)\)$", re.MULTILINE)


def run() -> list[Figure]:
    figures = []
    for kind in ("equal", "distinct"):
        seconds: dict[str, dict[str, float]] = {"follow": {}, "plain": {}}
        for size_name, size in SIZES.items():
            with state_directory() as environment, TemporaryDirectory(prefix="ganger-bench-") as folder:
                lines = size // LINE_BYTES // RANKS
                ganger(environment, "server", "start", "--topology", str(ROOT / "examples" / "two_nodes.yaml"))
                server = psutil.Process(json.loads(ganger(environment, "server", "status", "-o", "json"))["pid"])
                ganger(environment, "submit", "-f", _job_file(Path(folder), kind, lines))
                for how, flags in (("follow", ["-f"]), ("plain", [])):
                    command = [GANGER, "logs", *flags, "--all", "writers"]
                    taken_s, client_mb, server_mb, found = _read(command, environment, server)
                    assert found == RANKS * lines, f"{how} of {size_name}: {found} lines of {RANKS * lines}"
                    name = f"log_{kind}_lines_{how}_{size_name}"
                    print(f"{name}: {taken_s:.0f} s", flush=True)
                    seconds[how][size_name] = taken_s / size * 1e9
                    figures += [
                        median(f"{name}_time", "s/GB", [seconds[how][size_name]]),
                        median(f"{name}_client", "MB", [client_mb], under=MEMORY_BAR_MB),
                        median(f"{name}_server", "MB", [server_mb], under=MEMORY_BAR_MB),
                    ]
        figures += [
            median(f"log_{kind}_lines_{how}_linear", "", [of["1gb"] / of["250mb"]], under=LINEAR_BAR)
            for how, of in seconds.items()
        ]
    return figures


def _job_file(folder: Path, kind: str, lines: int) -> str:
    job = {
        "name": "writers",
        "nodes": 2,
        "nproc_per_node": RANKS // 2,
        "resources": {"cpu": RANKS // 2},
        "run": ["python3", str(ROOT / "bench" / "equal_lines.py"), kind, str(lines)],
        "retry": {"max": 0},
    }
    path = folder / "job.yaml"
    path.write_text(json.dumps(job))
    return str(path)


def _read(command: list[str], environment: dict[str, str], server: psutil.Process) -> tuple[float, float, float, int]:
    """Run the command to its end; return its seconds, the peak memory of client and server in MB, and the lines."""
    began_s = time.monotonic()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as client:
        assert client.stdout is not None
        peaks_mb = {server.pid: 0.0, client.pid: 0.0}
        sampling = threading.Thread(target=_sample, args=(client, peaks_mb))
        sampling.start()
        found = _count(client.stdout)
        client.wait()
        taken_s = time.monotonic() - began_s
        sampling.join()
    assert client.returncode == 0, f"{command} exited with {client.returncode}"
    return taken_s, peaks_mb[client.pid], peaks_mb[server.pid], found


def _sample(client: subprocess.Popen[bytes], peaks_mb: dict[int, float]) -> None:
    while client.poll() is None:
        for pid, peak_mb in peaks_mb.items():
            with suppress(psutil.NoSuchProcess):  # the client has just ended
                peaks_mb[pid] = max(peak_mb, psutil.Process(pid).memory_info().rss / 1e6)
        time.sleep(SAMPLED_S)


def _count(out: BinaryIO) -> int:
    """Count lines; one that several ranks wrote has their number behind it."""
    found, rest = 0, b""
    while block := out.read(BLOCK_BYTES):
        whole, _, rest = (rest + block).rpartition(b"\n")
        whole += b"\n" if whole else b""
        found += whole.count(b"\n") + sum(int(number) - 1 for number in _COUNT.findall(whole))
    return found
