"""A trace's file as numbered lines of text, one at a time, gzip or plain. Called by `read`.

A line that is no text is told as its flaw, so that the rows around it can be used. A file that breaks off (a truncated
gzip) is refused whole: how many jobs are missing nobody knows, and every figure made of the rest would be wrong.
"""

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, cast

from ganger.simulation.traces.trace import Flaw, Unreadable

LONGEST_BYTES: Final = 64 * 1024
"""No row of any format comes near it."""
_GZIP: Final = b"\x1f\x8b"
_FOREIGN: Final = {
    b"PAR1": ("is Parquet", "write it as CSV: docs/reference/trace-format.md says how"),
    b"\x28\xb5\x2f\xfd": ("is packed with zstd", "unpack it, or pack it with gzip"),
    b"\xfd7zXZ": ("is packed with xz", "unpack it, or pack it with gzip"),
    b"BZh": ("is packed with bzip2", "unpack it, or pack it with gzip"),
    b"PK\x03\x04": ("is a zip archive", "unpack it, or pack it with gzip"),
    b"\xff\xfe": ("is UTF-16", "write it as UTF-8: iconv -f UTF-16 -t UTF-8"),
    b"\xfe\xff": ("is UTF-16", "write it as UTF-8: iconv -f UTF-16 -t UTF-8"),
}
_BOM: Final = b"\xef\xbb\xbf"
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

Line = str | Flaw


def numbered_lines(path: Path) -> Iterator[tuple[int, Line]]:
    """(number from 1, text without its end) of every line, or what is wrong with it. Unreadable: the file breaks off,
    cannot be opened, or is of another kind."""
    number = 0
    try:
        with path.open("rb") as file, _unpacked(path, file) as text:
            while raw := text.readline(LONGEST_BYTES + 1):
                number += 1
                yield number, _skipped(text, raw) if len(raw) > LONGEST_BYTES else _decoded(raw, number)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        reason = f"the gzip breaks off after line {number}: {error}"
        raise Unreadable(str(path), reason, f"fetch the file again; gzip -t {path} tells whether it is whole") from None
    except OSError as error:
        raise Unreadable(str(path), f"cannot be read: {error.strerror}", f"see what is there: ls -ld {path}") from None


def _unpacked(path: Path, file: BinaryIO) -> BinaryIO:
    packed = io.BufferedReader(cast("io.RawIOBase", file))
    magic = packed.peek(8)
    if magic.startswith(_GZIP):
        unpacked = io.BufferedReader(cast("io.RawIOBase", gzip.GzipFile(fileobj=packed)))
        magic = unpacked.peek(8)
    else:
        unpacked = packed
    for begins, (what, remedy) in _FOREIGN.items():
        if magic.startswith(begins):
            raise Unreadable(str(path), what, remedy)
    return cast("BinaryIO", unpacked)


def _skipped(text: BinaryIO, raw: bytes) -> Flaw:
    """Read to the end of a line of which `raw` was the beginning."""
    while raw and not raw.endswith(b"\n"):
        raw = text.readline(LONGEST_BYTES)
    return Flaw.TOO_LONG


def _decoded(raw: bytes, number: int) -> Line:
    if number == 1:
        raw = raw.removeprefix(_BOM)
    try:
        text = raw.rstrip(b"\r\n").decode()
    except UnicodeDecodeError:
        return Flaw.NOT_UTF8
    return Flaw.CONTROL_CHARACTER if _CONTROL.search(text) else text
