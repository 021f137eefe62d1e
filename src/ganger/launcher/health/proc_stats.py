"""What the processes of a generation do, read from /proc: which rank each is of, its state, its processor time.

`find` goes through all that descends from this process and is called rarely; `look` reads only what is asked for.
Called by `lookout`. Fields: proc_pid_stat(5), proc_tid_children(5).
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
"""What tells a process its rank, in the order in which `ganger.train` asks: of ganger, Open MPI, PMIx, MPICH and
Intel MPI, torchrun."""
ENDED = ("Z", "X")


class ProcStat:
    """One process at one look. ticks: processor time of all its threads, in clock ticks. Of one that waits
    uninterruptibly, switches: how often its first thread has left a processor; waits: the kernel function in which it
    does, "" where the kernel does not tell."""

    __slots__ = ("name", "parent", "pid", "start_ticks", "state", "switches", "ticks", "waits")

    def __init__(self, pid: int, stat: bytes) -> None:
        before, _, after = stat.rpartition(b")")
        fields = after.split()
        self.pid = pid
        self.name = before.partition(b"(")[2].decode(errors="replace")  # of its program, at most 15 bytes
        self.state = fields[0].decode()
        self.parent = int(fields[1])
        self.ticks = int(fields[11]) + int(fields[12])
        self.start_ticks = int(fields[19])
        self.switches = 0
        self.waits = ""

    @property
    def lives(self) -> bool:
        return self.state not in ENDED


class ProcStats:
    """Of the generation with this directory: what descends from this process and carries its mark."""

    def __init__(self, directory: str) -> None:
        self._mark = mark(directory)
        self._ranks: dict[tuple[int, int], int | None] = {}  # (pid, start_ticks) -> rank
        self.of_ranks: dict[int, list[ProcStat]] = {}
        """The processes of each rank at the last `find`, the oldest first."""
        self.others: list[ProcStat] = []
        """Those of no rank: mpirun and what it starts the ranks with, set-up lines."""

    def find(self) -> None:
        """Go through all that descends from this process. Those that have ended are left out."""
        found = [vital for vital in map(_vital, _descendants(os.getpid())) if vital is not None and vital.lives]
        before, self._ranks, self.of_ranks, self.others = self._ranks, {}, {}, []
        for vital in sorted(found, key=lambda vital: (vital.start_ticks, vital.pid)):
            key = (vital.pid, vital.start_ticks)
            rank = before.get(key)
            if rank is None:  # it may have become another program, with other variables
                variables = environment(vital.pid)
                if self._mark not in variables:
                    continue
                rank = rank_in(variables)
            self._ranks[key] = rank
            if rank is None:
                self.others.append(vital)
            else:
                self.of_ranks.setdefault(rank, []).append(vital)

    def any_rank_lives(self) -> bool:
        """Of those that the last `find` found."""
        return any(_still(vital) for vitals in self.of_ranks.values() for vital in vitals)

    def transferred(self, rank: int) -> int:
        """Bytes that the processes of a rank, by the last `find`, have read and written so far: files and pipes."""
        return sum(_transferred(vital.pid) for vital in self.of_ranks.get(rank, ()))

    def look(self, pids: Iterable[int]) -> dict[int, ProcStat]:
        """Those of these processes that are there; zombies too."""
        found = {}
        for pid in pids:
            vital = _vital(pid)
            if vital is not None:
                if vital.state == "D":
                    vital.switches = _switches(pid)
                    vital.waits = kernel_function(pid)
                found[pid] = vital
        return found


def state_of(pid: int) -> str:
    """Its letter in /proc, "?" when it is gone."""
    vital = _vital(pid)
    return "?" if vital is None else vital.state


def run_times_ns(pid: int) -> tuple[int, int] | None:
    """How long its first thread has run so far, and how long it has waited for a processor; None where the kernel does
    not tell (Documentation/scheduler/sched-stats.rst)."""
    fields = read(pid, "schedstat").split()
    return (int(fields[0]), int(fields[1])) if len(fields) == 3 else None


def kernel_function(pid: int) -> str:
    """Where the kernel has it wait; "" where it runs, or the kernel does not tell."""
    return read(pid, "wchan").decode(errors="replace").strip().strip("0")


def rank_in(variables: bytes) -> int | None:
    """The rank that these variables tell, each of them between zero bytes."""
    for name in RANKS:
        value = variables.partition(b"\0" + name + b"=")[2].partition(b"\0")[0]
        if value.isdigit() and len(value) <= RANK_DIGITS:
            return int(value)
    return None


def _descendants(pid: int) -> Iterator[int]:
    """One that is missed, because another ended meanwhile, is there the next time."""
    for child in _children(pid):
        yield child
        yield from _descendants(child)


def _children(pid: int) -> list[int]:
    """A child is that of the thread which started it."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []  # it is gone
    found = (read(pid, f"task/{thread}/children") for thread in threads)
    return [int(child) for children in found for child in children.split()]


def _vital(pid: int) -> ProcStat | None:
    stat = read(pid, "stat")
    return ProcStat(pid, stat) if stat else None


def _still(known: ProcStat) -> bool:
    now = _vital(known.pid)
    return now is not None and now.start_ticks == known.start_ticks and now.lives


def _transferred(pid: int) -> int:
    lines = read(pid, "io").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith((b"rchar:", b"wchar:")))


def _switches(pid: int) -> int:
    lines = read(pid, "status").splitlines()
    return sum(int(line.split()[1]) for line in lines if b"ctxt_switches:" in line)
