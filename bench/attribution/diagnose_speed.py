"""`ganger diagnose` of 100 MB: the logs of 1,000 ranks, one log, and one log of unlike lines; time and memory.

The time includes the start of the programs. Unlike lines are the worst case: nothing can be left out because a line
like it was read.
"""

import json
import random
import resource
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.measure import Figure, median
from bench.serving import GANGER

SIZE_BYTES: Final = 100_000_000
RANKS: Final = 1000
FAILED_RANK: Final = 417
REPEATS: Final = 5
BAR_S: Final = 1.0
MEMORY_BAR_MB: Final = 300.0
_STEP: Final = (
    "2025-03-11 19:{minute:02d}:{second:02d},{milli:03d} INFO trainer: step {step}/60000 | loss {loss:.4f} "
    "| lr 1.2e-04 | {rate:.1f}k tok/s\n"
)
_CAUSE: Final = """Traceback (most recent call last):
  File "/w/train.py", line 31, in <module>
    loss.backward()
RuntimeError: CUDA error: uncorrectable ECC error encountered
"""
_EFFECT: Final = (
    "[rank{rank}]:[E604 13:41:52.907714325 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=21473, OpType=ALLREDUCE, NumelIn=2949, NumelOut=2949, "
    "Timeout(ms)=1800000) ran for 1800043 milliseconds before timing out.\n"
    "[rank{rank}]: Traceback (most recent call last):\n"
    '[rank{rank}]:   File "/w/train.py", line 31, in <module>\n'
    "[rank{rank}]:     loss.backward()\n"
    "[rank{rank}]: torch.distributed.DistBackendError: NCCL error in: /pytorch/x.cpp:3690, remote process exited or "
    "there was a network error, NCCL version 2.26.2\n"
)


def run() -> list[Figure]:
    figures = []
    with TemporaryDirectory(prefix="ganger-bench-") as directory:
        for name, path in _write(Path(directory)):
            samples = [_diagnose(path) for _ in range(REPEATS)]
            bar = BAR_S if name != "unlike_lines" else None
            figures.append(median(f"diagnose_100mb_{name}", "s", samples, under=bar))
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    figures.append(median("diagnose_peak_memory_of_a_process", "MB", [peak_mb], under=MEMORY_BAR_MB))
    return figures


def _write(directory: Path) -> Iterator[tuple[str, Path]]:
    """Write the logs; iterate over name and path of each set."""
    draws = random.Random(1)
    ranks = directory / "ranks"
    ranks.mkdir()
    for rank in range(RANKS):
        end = _CAUSE if rank == FAILED_RANK else _EFFECT.format(rank=rank)
        _write_lines(ranks / f"rank-{rank}.log", _steps(draws, SIZE_BYTES // RANKS - len(end)), end)
    yield "1000_ranks", ranks
    one = directory / "one.log"
    _write_lines(one, _steps(draws, SIZE_BYTES), _CAUSE)
    yield "one_log", one
    unlike = directory / "unlike.log"
    words = ["".join(draws.choices("abcdefghijklmnopqrstuvwxyz", k=draws.randint(2, 9))) for _ in range(30_000)]
    lines = (f"sample: {' '.join(draws.choices(words, k=15))}\n" for _ in range(SIZE_BYTES // 105))
    _write_lines(unlike, lines, _CAUSE)
    yield "unlike_lines", unlike


def _write_lines(path: Path, lines: Iterable[str], end: str) -> None:
    """Write a log line by line: a process begins with the peak of the memory of the one that starts it."""
    with path.open("w") as file:
        file.writelines(lines)
        file.write(end)


def _steps(draws: random.Random, size: int) -> Iterator[str]:
    written = step = 0
    while written < size:
        line = _STEP.format(
            minute=step // 60 % 60,
            second=step % 60,
            milli=step % 1000,
            step=step,
            loss=3 * draws.random(),
            rate=500 * draws.random(),
        )
        yield line
        written += len(line)
        step += 1


def _diagnose(path: Path) -> float:
    started = time.perf_counter()
    run = subprocess.run([GANGER, "diagnose", str(path), "-o", "json"], stdout=subprocess.PIPE, check=True)
    seconds = time.perf_counter() - started
    found = json.loads(run.stdout)["class"]
    if found != "gpu_ecc_uncorrectable":
        raise AssertionError(f"{path.name}: {found}")
    return seconds
