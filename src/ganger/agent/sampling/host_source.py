"""CPU, memory, pressure and boot time of the machine, from /proc (proc(5); PSI: Documentation/accounting/psi.rst)."""

import re
import time
from pathlib import Path
from typing import Final, NamedTuple

from ganger.model.node_health.node_sample import HostSample

_AVERAGE: Final = re.compile(r"^some avg10=(\d+)\.(\d)", re.MULTILINE)
_MEMORY: Final = re.compile(r"^(MemTotal|MemAvailable):\s+(\d+) kB", re.MULTILINE)
_CPU: Final = re.compile(r"^cpu\d+ ", re.MULTILINE)
_BOOTED: Final = re.compile(r"^btime (\d+)", re.MULTILINE)
_IDLE, _IO_WAIT, _GUEST = 3, 4, 8
"""Columns of a cpu line; times of guests, in the last two, are counted as the user's too."""


class Boot(NamedTuple):
    """One boot of the machine: its id, and its beginning in Unix ms as it was first computed.

    The kernel computes the time from its clock, which may jump; that is not another boot.
    """

    id: str
    at_ms: int


class HostSource:
    """The machine without its devices."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._ticks: tuple[int, int] | None = None
        self._boot: Boot | None = None

    def read(self) -> HostSample:
        """Return the sample. CPU usage is a mean since the previous one."""
        stat = _text(self._proc / "stat")
        memory = {name: 1024 * int(kib) for name, kib in _MEMORY.findall(_text(self._proc / "meminfo"))}
        cpus = len(_CPU.findall(stat))
        boot = self._read_boot(stat)
        return HostSample(
            cpu_milli=self._cpu_milli(stat, cpus),
            cpu_total_milli=1000 * cpus or None,
            memory_available_bytes=memory.get("MemAvailable"),
            memory_bytes=memory.get("MemTotal"),
            cpu_pressure_permille=self._pressure_permille("cpu"),
            memory_pressure_permille=self._pressure_permille("memory"),
            io_pressure_permille=self._pressure_permille("io"),
            booted_at_ms=boot.at_ms if boot else None,
        )

    def boot(self) -> Boot | None:
        """Return the current boot; None where it cannot be read."""
        return self._read_boot(_text(self._proc / "stat"))

    def _read_boot(self, stat: str) -> Boot | None:
        booted, boot_id = _BOOTED.search(stat), _text(self._proc / "sys/kernel/random/boot_id").strip()
        if booted and (self._boot is None or self._boot.id != boot_id):
            self._boot = Boot(boot_id, 1000 * int(booted[1]))
        return self._boot

    def _cpu_milli(self, stat: str, cpus: int) -> int | None:
        columns = [int(column) for column in stat.partition("\n")[0].split()[1:] if column.isdecimal()][:_GUEST]
        previous, self._ticks = self._ticks, None
        if len(columns) <= _IO_WAIT:
            return None
        all_ticks = sum(columns)
        used_ticks = all_ticks - columns[_IDLE] - columns[_IO_WAIT]
        self._ticks = used_ticks, all_ticks
        if previous is None or all_ticks <= previous[1]:
            return None
        used = max(0, used_ticks - previous[0])  # the time of waiting may go back
        return round(1000 * cpus * min(1.0, used / (all_ticks - previous[1])))

    def _pressure_permille(self, name: str) -> int | None:
        average = _AVERAGE.search(_text(self._proc / "pressure" / name))
        return 10 * int(average[1]) + int(average[2]) if average else None


def now_ms() -> int:
    """Return the time by the clock of the node, in Unix ms."""
    return time.time_ns() // 1_000_000


def _text(path: Path) -> str:
    """Return the text of a file; nothing where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
