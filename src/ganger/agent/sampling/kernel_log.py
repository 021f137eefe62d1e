"""The kernel's log: records of /dev/kmsg, or of a file or a FIFO in its format.

A record is `prio,seq,usec,flags;text`, lines that continue it begin with a blank (Documentation/ABI/testing/dev-kmsg).
Records of programs are left out: the kernel marks them by their facility, so that none can feign a fault of the driver.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ganger.agent.sampling.host_source import Boot
from ganger.model.node_health.node_sample import KernelLine

MAX_LINES: Final = 2_000
"""Lines of one sample; more are read with the next one, and until then the kernel keeps them."""
MAX_LINE_CHARACTERS: Final = 1_024
MAX_PENDING_BYTES: Final = 1 << 20
"""Of a file that has no end of a line, which is then no log."""
_READ_BYTES: Final = 65_536
"""A read of the device returns one record, which is never as long."""
_HEADER: Final = re.compile(rb"(\d{1,10}),(\d{1,19}),(\d{1,19}),([^,;]*)[^;]*;")
_ESCAPE: Final = re.compile(rb"\\x([0-9a-f]{2})")
_FACILITY_SHIFT: Final = 3
_CONTINUES: Final = b"+"
"""Flag of a record that continues the one before, of kernels that print a line in parts."""


class KernelPosition(NamedTuple):
    """The newest record that was read: the boot of the machine, and its number."""

    boot: str
    seq: int


class _Record(NamedTuple):
    seq: int
    usec: int
    flags: bytes
    text: str
    is_of_kernel: bool


class KernelLog:
    """The lines since the previous sample.

    It begins after `position` where that is of the same boot; at the beginning of this boot where it is of an earlier
    one; at the end where there is none. A file is read from its beginning.
    """

    def __init__(self, path: Path, position: KernelPosition | None) -> None:
        self._path = path
        self._fd: int | None = None
        self._is_device = False
        self._pending = b""
        self._position = position
        self._seq: int | None = None
        self._skipped_to = -1

    @property
    def position(self) -> KernelPosition | None:
        """The newest record so far."""
        return self._position

    def read(self, boot: Boot | None) -> tuple[tuple[KernelLine, ...], int]:
        """Return the lines since the previous sample, and how many were overwritten before they were read.

        Nothing where the log cannot be read, which the kernel may reserve for administrators.
        """
        if boot is None or not self._open(boot):
            return (), 0
        lines: list[KernelLine] = []
        lost = 0
        for record in self._records():
            if record.seq <= self._skipped_to:
                continue  # read before the agent's last end
            lost += max(0, record.seq - self._seq - 1) if self._seq is not None else 0
            self._seq = record.seq
            if not record.is_of_kernel:
                continue
            if record.flags == _CONTINUES and lines:
                joined = f"{lines[-1].text}{record.text}"[:MAX_LINE_CHARACTERS]
                lines[-1] = KernelLine(seq=lines[-1].seq, at_ms=lines[-1].at_ms, text=joined)
            else:
                at_ms = boot.at_ms + record.usec // 1000
                lines.append(KernelLine(seq=record.seq, at_ms=at_ms, text=record.text))
            if len(lines) >= MAX_LINES:
                break
        if self._seq is not None:
            self._position = KernelPosition(boot.id, self._seq)
        return tuple(lines), lost

    def close(self) -> None:
        """Close the log."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self, boot: Boot) -> bool:
        is_first = self._fd is None and self._seq is None
        if self._fd is not None and (self._is_device or self._is_same_file()):
            return True
        self.close()
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        self._pending = b""
        self._is_device = stat.S_ISCHR(os.fstat(self._fd).st_mode)
        self._seq, self._skipped_to = None, -1
        if is_first and self._position is not None and self._position.boot == boot.id:
            self._seq = self._skipped_to = self._position.seq
        elif self._position is None and self._is_device:
            os.lseek(self._fd, 0, os.SEEK_END)
        return True

    def _is_same_file(self) -> bool:
        """Detect a file that was exchanged or cut."""
        assert self._fd is not None  # noqa: S101  # open
        own = os.fstat(self._fd)
        if not stat.S_ISREG(own.st_mode):
            return True
        try:
            there = self._path.stat()
        except OSError:
            return True
        return os.path.samestat(own, there) and own.st_size >= os.lseek(self._fd, 0, os.SEEK_CUR)

    def _records(self) -> Iterator[_Record]:
        while True:
            while (end := self._end_of_record()) >= 0:
                block, self._pending = self._pending[:end], self._pending[end:]
                if (record := _record(block)) is not None:
                    yield record
            block = self._block()
            if not block:
                return
            self._pending = (self._pending + block)[-MAX_PENDING_BYTES:]

    def _end_of_record(self) -> int:
        """Return the end of the first whole record that is pending, with its further lines; -1 without one.

        The device returns whole records. Of a file, a last line may still be written, or be continued.
        """
        end = self._pending.find(b"\n") + 1
        while end and self._pending[end : end + 1] == b" ":
            end = self._pending.find(b"\n", end) + 1
        return end or -1

    def _block(self) -> bytes:
        """Return what is there to read now; nothing at the end."""
        assert self._fd is not None  # noqa: S101  # open
        for _ in range(MAX_LINES):
            try:
                return os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                return b""
            except OSError as error:
                if error.errno != errno.EPIPE:  # EPIPE: records were overwritten, the next read is of the oldest
                    return b""
        return b""


def _record(block: bytes) -> _Record | None:
    """Return a record; None for what is none: a part of one that was cut, or text in another format."""
    first, _, _ = block.partition(b"\n")
    header = _HEADER.match(first)
    if header is None:
        return None
    priority, seq, usec = (int(header[number]) for number in (1, 2, 3))
    text = _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), first[header.end() :])
    return _Record(
        seq=seq,
        usec=usec,
        flags=header[4],
        text=text.decode("utf-8", "replace")[:MAX_LINE_CHARACTERS],
        is_of_kernel=priority >> _FACILITY_SHIFT == 0,
    )
