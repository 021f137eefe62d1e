"""The file of a trace as numbered lines of text, one at a time, gzip or plain.

A line that is no text is returned as its flaw, so that the rows around it can be used. A truncated gzip is refused as a
whole: the number of missing jobs is unknown, and every figure of the rest would be wrong.
"""

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, cast

from ganger.simulation.traces.trace import Flaw, UnreadableTrace

LONGEST_BYTES: Final = 64 * 1024
"""Far longer than a row of any format."""
_GZIP: Final = b"\x1f\x8b"
_OTHER_FILES: Final = {
    b"PAR1": ("is Parquet", "write it as CSV: docs/reference/trace-format.md says how"),
    b"\x28\xb5\x2f\xfd": ("is packed with zstd", "unpack it, or pack it with gzip"),
    b"\xfd7zXZ": ("is packed with xz", "unpack it, or pack it with gzip"),
    b"BZh": ("is packed with bzip2", "unpack it, or pack it with gzip"),
    b"PK\x03\x04": ("is a zip archive", "unpack it, or pack it with gzip"),
    b"\xff\xfe": ("is UTF-16", "write it as UTF-8: iconv -f UTF-16 -t UTF-8"),
    b"\xfe\xff": ("is UTF-16", "write it as UTF-8: iconv -f UTF-16 -t UTF-8"),
}
"""First bytes of files that are refused, with the reason and the remedy."""
_BOM: Final = b"\xef\xbb\xbf"
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

Line = str | Flaw


def begins_with(path: Path, start: bytes) -> bool:
    """Return whether a file begins with `start`, after blanks; False if it cannot be read."""
    try:
        with path.open("rb") as file, _unpacked(path, file) as content:
            return content.read(256).removeprefix(_BOM).lstrip().startswith(start)
    except (OSError, EOFError, zlib.error):
        return False


def whole_text(path: Path) -> str:
    """Return a file as one text. UnreadableTrace: as of `numbered_lines`, or its bytes are not UTF-8."""
    try:
        with path.open("rb") as file, _unpacked(path, file) as content:
            return content.read().removeprefix(_BOM).decode()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _truncated(path, str(error)) from None
    except UnicodeDecodeError as error:
        raise UnreadableTrace(str(path), f"is not UTF-8: {error}", "write the file as UTF-8 text") from None
    except OSError as error:
        raise _unopened(path, error) from None


def numbered_lines(path: Path) -> Iterator[tuple[int, Line]]:
    """Yield (number from 1, text without its end, or its flaw) of every line.

    UnreadableTrace: the file is truncated, cannot be opened, or is of another kind.
    """
    number = 0
    try:
        with path.open("rb") as file, _unpacked(path, file) as lines:
            while raw := lines.readline(LONGEST_BYTES + 1):
                number += 1
                yield number, _skipped(lines, raw) if len(raw) > LONGEST_BYTES else _decoded(raw, number)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _truncated(path, f"after line {number}: {error}") from None
    except OSError as error:
        raise _unopened(path, error) from None


def _truncated(path: Path, detail: str) -> UnreadableTrace:
    remedy = f"fetch the file again; gzip -t {path} tells whether it is whole"
    return UnreadableTrace(str(path), f"the gzip breaks off {detail}", remedy)


def _unopened(path: Path, error: OSError) -> UnreadableTrace:
    return UnreadableTrace(str(path), f"cannot be read: {error.strerror}", f"see what is there: ls -ld {path}")


def _unpacked(path: Path, file: BinaryIO) -> BinaryIO:
    packed = io.BufferedReader(cast("io.RawIOBase", file))
    first_bytes = packed.peek(8)
    if first_bytes.startswith(_GZIP):
        unpacked = io.BufferedReader(cast("io.RawIOBase", gzip.GzipFile(fileobj=packed)))
        first_bytes = unpacked.peek(8)
    else:
        unpacked = packed
    for magic, (reason, remedy) in _OTHER_FILES.items():
        if first_bytes.startswith(magic):
            raise UnreadableTrace(str(path), reason, remedy)
    return cast("BinaryIO", unpacked)


def _skipped(lines: BinaryIO, raw: bytes) -> Flaw:
    """Read to the end of a line of which `raw` was the beginning."""
    while raw and not raw.endswith(b"\n"):
        raw = lines.readline(LONGEST_BYTES)
    return Flaw.TOO_LONG


def _decoded(raw: bytes, number: int) -> Line:
    if number == 1:
        raw = raw.removeprefix(_BOM)
    try:
        text = raw.rstrip(b"\r\n").decode()
    except UnicodeDecodeError:
        return Flaw.NOT_UTF8
    return Flaw.CONTROL_CHARACTER if _CONTROL.search(text) else text
