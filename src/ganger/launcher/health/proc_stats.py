"""State of a generation's processes, read from /proc: rank, state and processor time of each.

`scan` visits all descendants of this process and is called rarely; `read` reads only the given ones. Fields:
proc_pid_stat(5), proc_tid_children(5).
"""

from __future__ import annotations

import os

from ganger.launcher.health.leftovers import mark
from ganger.launcher.health.procfs import environment, read
from ganger.launcher.protocol.messages import RANK_DIGITS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

RANKS = (b"GANGER_RANK", b"OMPI_COMM_WORLD_RANK", b"PMIX_RANK", b"PMI_RANK", b"RANK")
"""Variables that give a process its rank, in the order in which `ganger.train` asks.

They are set by ganger, Open MPI, PMIx, MPICH and Intel MPI, torchrun.
"""
ENDED = ("Z", "X")


class ProcStat:
    """One process at one time.

    ticks: processor time of all its threads, in clock ticks
    pages: resident memory, in pages
    switches: how often its first thread has left a processor; only of a process that is stopped or in uninterruptible
        sleep
    waits: kernel function in which a process in uninterruptible sleep waits, "" if the kernel does not tell
    """

    __slots__ = ("name", "pages", "parent", "pid", "start_ticks", "state", "switches", "ticks", "waits")

    def __init__(self, pid: int, stat: bytes) -> None:
        before, _, after = stat.rpartition(b")")
        fields = after.split()
        self.pid = pid
        self.name = before.partition(b"(")[2].decode(errors="replace")  # program name, at most 15 bytes
        self.state = fields[0].decode()
        self.parent = int(fields[1])
        self.ticks = int(fields[11]) + int(fields[12])
        self.start_ticks = int(fields[19])
        self.pages = int(fields[21])
        self.switches = 0
        self.waits = ""

    @property
    def lives(self) -> bool:
        return self.state not in ENDED


class ProcStats:
    """The processes of the generation in this directory: descendants of this process that carry its mark."""

    def __init__(self, directory: str) -> None:
        self._mark = mark(directory)
        self._ranks: dict[tuple[int, int], int | None] = {}  # (pid, start_ticks) -> rank
        self.of_ranks: dict[int, list[ProcStat]] = {}
        """The processes of each rank at the last scan, the oldest first."""
        self.processes_without_rank: list[ProcStat] = []
        """Processes of no rank: mpirun and the programs by which it starts ranks, setup lines."""

    def scan(self) -> None:
        """Visit all descendants of this process, leaving out those that have ended."""
        processes = [
            process for process in map(_read_stat, _descendants(os.getpid())) if process is not None and process.lives
        ]
        before, self._ranks, self.of_ranks, self.processes_without_rank = self._ranks, {}, {}, []
        ranks: dict[int, int | None] = {}  # by pid
        for process in sorted(processes, key=lambda process: (process.start_ticks, process.pid)):
            key = (process.pid, process.start_ticks)
            rank = before.get(key)
            if rank is None:  # it may have executed another program, with other variables
                variables = environment(process.pid)
                is_marked = self._mark in variables
                if not is_marked and ranks.get(process.parent) is None:
                    continue
                rank = rank_in(variables) if is_marked else ranks[process.parent]  # it has cleared its environment
            self._ranks[key] = ranks[process.pid] = rank
            if rank is None:
                self.processes_without_rank.append(process)
            else:
                self.of_ranks.setdefault(rank, []).append(process)

    def any_rank_lives(self) -> bool:
        """Return True if a process of a rank, as of the last scan, still lives."""
        return any(_is_same_and_alive(process) for processes in self.of_ranks.values() for process in processes)

    def transferred_bytes(self, rank: int) -> int:
        """Return the bytes that a rank's processes, as of the last scan, have read and written: files and pipes."""
        return sum(_transferred_bytes(process.pid) for process in self.of_ranks.get(rank, ()))

    def read(self, pids: Iterable[int]) -> dict[int, ProcStat]:
        """Read the processes that still exist, including zombies."""
        processes = {}
        for pid in pids:
            process = _read_stat(pid)
            if process is not None:
                if process.state in ("D", "T"):
                    process.switches = _switches(pid)
                if process.state == "D":
                    process.waits = kernel_function(pid)
                processes[pid] = process
        return processes


def state_of(pid: int) -> str:
    """Return the process's state letter in /proc, "?" if it does not exist."""
    process = _read_stat(pid)
    return "?" if process is None else process.state


def run_times_ns(pid: int) -> tuple[int, int] | None:
    """Return how long the first thread has run and was queued, if the kernel tells (see sched-stats.rst)."""
    fields = read(pid, "schedstat").split()
    return (int(fields[0]), int(fields[1])) if len(fields) == 3 else None


def kernel_function(pid: int) -> str:
    """Return the kernel function in which the process sleeps; "" if it runs, or the kernel does not tell."""
    return read(pid, "wchan").decode(errors="replace").strip().strip("0")


def rank_in(variables: bytes) -> int | None:
    """Parse the rank from environment variables, each between zero bytes."""
    for name in RANKS:
        value = variables.partition(b"\0" + name + b"=")[2].partition(b"\0")[0]
        if value.isdigit() and len(value) <= RANK_DIGITS:
            return int(value)
    return None


def _descendants(pid: int) -> Iterator[int]:
    """Yield descendants; one that is missed, because another one ended meanwhile, appears the next time."""
    for child in _children(pid):
        yield child
        yield from _descendants(child)


def _children(pid: int) -> list[int]:
    """Return the children of all threads: a child belongs to the thread that started it."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []  # it has ended
    children_files = (read(pid, f"task/{thread}/children") for thread in threads)
    return [int(child) for pids in children_files for child in pids.split()]


def _read_stat(pid: int) -> ProcStat | None:
    stat = read(pid, "stat")
    return ProcStat(pid, stat) if stat else None


def _is_same_and_alive(known: ProcStat) -> bool:
    current = _read_stat(known.pid)
    return current is not None and current.start_ticks == known.start_ticks and current.lives


def _transferred_bytes(pid: int) -> int:
    lines = read(pid, "io").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith((b"rchar:", b"wchar:")))


def _switches(pid: int) -> int:
    lines = read(pid, "status").splitlines()
    return sum(int(line.split()[1]) for line in lines if b"ctxt_switches:" in line)
