"""Selection of the lines of a log that may be evidence, fast enough for logs of hundreds of megabytes.

Lines that differ only in numbers and punctuation have one template, their letters in lower case. A log has few
templates, so one line of each is compared with the signatures, and only lines of a telling template are read. Where
there are many, as in a log of prompts, those are selected that contain a word of the signatures. Memory is bounded by
BLOCK_BYTES and MAX_LINES, whatever a log contains."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress, count
from typing import BinaryIO, Final

BLOCK_BYTES: Final = 4 << 20
TAIL_BYTES: Final = 1 << 20
"""End of a file that is always searched for all words."""
MAX_LINE_BYTES: Final = 4096
"""Part of a line that is returned: the beginning, and the end of a longer one."""
MAX_LINES: Final = 20_000
"""Lines of a file that are returned."""
MAX_OF_TEMPLATE: Final = 2000
MAX_TEMPLATES: Final = 5000
DIVERSE: Final = 4000
"""Templates of a block from which on they are selected by words."""
MAX_KNOWN: Final = 200_000
"""Templates that are remembered; then the memory is emptied."""

FEW_WORDS: Final = (
    *(b"error", b"exception", b"failed", b"fatal", b"killed", b"timedout", b"timeout", b"nvrmxid", b"abort"),
    *(b"cancelled", b"evicted", b"pyline"),
)
WORDS: Final = (
    *FEW_WORDS,
    *(b"fail", b"kill", b"nvrm", b"signal", b"cancel", b"evict", b"refused", b"outofmemory", b"pyline"),
    *(b"xid", b"watchdog", b"reset", b"closed", b"unreach", b"noroute", b"nan", b"lossinf", b"norminf", b"finite"),
    *(b"sigterm", b"sigkill", b"sigint", b"sighup", b"sigsegv", b"sigusr", b"sigabrt", b"sigbus", b"preempt"),
    *(b"limit", b"denied", b"permission", b"permitted", b"found", b"nomodule", b"cannot", b"couldn", b"couldnot"),
    *(b"unable", b"invalid", b"mismatch", b"corrupt", b"truncat", b"missing", b"unexpected", b"space", b"quota"),
    *(b"memory", b"oom", b"segfault", b"segmentation", b"dumped", b"lost", b"gone", b"notready", b"notresponding"),
    *(b"unavailable", b"resource", b"toomany", b"resolution", b"resolve", b"getaddrinfo", b"unknown", b"inuse"),
    *(b"nvlink", b"nvswitch", b"ecc", b"aer", b"pcie", b"uncorrect", b"remount", b"readonly", b"blocked", b"lockup"),
    *(b"stuck", b"hang", b"hung", b"stall", b"straggl", b"throttl", b"slow", b"worknccl", b"seqnum", b"exit"),
    *(b"terminat", b"interrupt", b"maintenance", b"drain", b"pressure", b"shutdown", b"crash", b"died", b"dead"),
    *(b"broken", b"stale", b"assert", b"illegal", b"misaligned", b"ncclwarn", b"completion", b"asyncevent"),
    *(b"libcuda", b"synchronize", b"cudamemcpy", b"diverge", b"spike", b"offline", b"stopped", b"duplicate", b"used"),
    *(b"down", b"clients", b"heartbeat", b"eof", b"ratelimit", b"maxretries", b"disk", b"lustre", b"nfs", b"expired"),
    *(b"usage", b"reached", b"slowdown", b"cudaerror", b"nvidiasmi", b"driver", b"imagepull", b"pull", b"deleted"),
    *(b"reclaim", b"spot", b"notconnected", b"required", b"unauthorized", b"forbidden", b"overflow", b"skipp"),
    *(b"progress", b"differ", b"incomplete", b"checksum", b"exceed", b"yet", b"fallen", b"requeue", b"panic"),
    *(b"flap", b"temperature", b"collective", b"ibvwc", b"enospc", b"edquot", b"nothingto"),
)
"""Words of the signatures, in the letters of templates, for logs of many templates; FEW_WORDS before their ends."""

_LOWER: Final = bytes(range(256)).lower()
_OTHERS: Final = bytes(
    byte for byte in range(256) if byte != ord("\n") and not (chr(byte).isascii() and chr(byte).isalpha())
)

Line = tuple[int, bytes]
"""Number, from 1, and bytes of a line."""


def template(text: bytes) -> bytes:
    """Return the letters of a text in lower case, line by line."""
    return text.translate(_LOWER, _OTHERS)


class TellingTemplates:
    """Templates of telling lines, learned from one line of each."""

    def __init__(self, is_telling: Callable[[bytes], bool]) -> None:
        self._is_telling = is_telling
        self._known: dict[bytes, bool] = {}

    def unknown(self, templates: Iterable[bytes]) -> list[bytes]:
        """Return the templates of which no line was seen yet."""
        if len(self._known) > MAX_KNOWN:
            self._known.clear()
        return [letters for letters in templates if letters not in self._known]

    def select(self, templates: Iterable[bytes], examples: Mapping[bytes, bytes]) -> set[bytes]:
        """Return the telling ones of some templates; examples: a line of each unknown one."""
        for letters, line in examples.items():
            pieces = line.split(b"\r", MAX_OF_TEMPLATE) if b"\r" in line else [line]
            unlike = {template(piece): piece for piece in pieces}
            self._known[letters] = any(self._is_telling(_clip(piece)) for piece in unlike.values())
        return set(filter(self._known.__getitem__, templates))


class LineSelection:
    """Lines of a part of a file that may be evidence: those that begin in [start, end).

    newlines: after the iteration, the ends of lines in the part.
    """

    def __init__(
        self, file: BinaryIO, size: int, telling: TellingTemplates, start: int = 0, end: int | None = None
    ) -> None:
        """Take a file opened for reading in binary mode, and its size in bytes."""
        self.newlines = 0
        self._telling = telling
        self._file = file
        self._start = start
        self._end = size if end is None else end
        self._tail = size - TAIL_BYTES
        self._counts: dict[bytes, int] = {}

    def __iter__(self) -> Iterator[Line]:
        returned = 0
        for offset, block in self._blocks():
            for line in self._of_block(block, is_tail=offset > self._tail):
                if returned < MAX_LINES:
                    returned += 1
                    yield line

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """Iterate over blocks of whole lines, each with the offset of its end in the file."""
        file, offset = self._file, max(self._start - 1, 0)
        file.seek(offset)
        if self._start:
            while (piece := file.readline(BLOCK_BYTES)) and not piece.endswith(b"\n"):
                pass  # the rest of a line that belongs to the part before
            offset = file.tell()
        rest = b""
        while offset < self._end or rest:
            wanted = min(BLOCK_BYTES, self._end - offset)
            data = file.read(wanted) if wanted > 0 else file.readline(BLOCK_BYTES)
            offset += len(data)
            block = rest + data
            end = block.rfind(b"\n") + 1 if data else len(block)
            if not end and len(block) >= BLOCK_BYTES:
                # One line without an end: its beginning and its end stand for it, so that it takes no memory.
                rest = block[:MAX_LINE_BYTES] + b"\r" + block[-MAX_LINE_BYTES:]
                continue
            rest = block[end:]
            if end:
                yield offset, block[:end]

    def _of_block(self, block: bytes, *, is_tail: bool) -> Iterator[Line]:
        templates = template(block).split(b"\n")
        before = self.newlines + 1
        self.newlines += len(templates) - 1
        distinct = dict.fromkeys(templates)
        if len(distinct) < DIVERSE:
            unknown = self._telling.unknown(distinct)
            examples = _lines(block, templates, [templates.index(letters) for letters in unknown])
            selected = self._telling.select(distinct, dict(zip(unknown, examples.values(), strict=True)))
        else:
            selected = _with_words(distinct, WORDS if is_tail else FEW_WORDS)
        indices = list(compress(count(), map(selected.__contains__, templates))) if selected else []
        counts = self._counts
        for index, line in _lines(block, templates, indices).items():
            letters = templates[index]
            number = counts[letters] = counts.get(letters, 0) + 1
            if number <= MAX_OF_TEMPLATE:
                yield from self._pieces(before + index, line)

    def _pieces(self, number: int, line: bytes) -> Iterator[Line]:
        """Iterate over what a line shows: progress bars overwrite themselves by carriage returns."""
        line = line.rstrip(b"\r")
        if b"\r" in line:
            pieces = {template(piece): piece for piece in line.split(b"\r", MAX_OF_TEMPLATE)}
            unknown = self._telling.unknown(pieces)
            selected = self._telling.select(pieces, {letters: pieces[letters] for letters in unknown})
            yield from ((number, _clip(piece)) for letters, piece in pieces.items() if letters in selected)
        else:
            yield number, _clip(line)


def _lines(block: bytes, templates: Sequence[bytes], indices: Sequence[int]) -> dict[int, bytes]:
    """Return lines of a block by their indices; the last ones of it, which most often are asked for, in little time."""
    if not indices:
        return {}
    first = min(indices)
    lines = block.rsplit(b"\n", len(templates) - 1 - first)
    lines[0] = lines[0][lines[0].rfind(b"\n") + 1 :]
    return {index: lines[index - first] for index in indices}


def _clip(line: bytes) -> bytes:
    """Return the beginning and the end of a line that is too long to be read."""
    if len(line) <= MAX_LINE_BYTES:
        return line
    return line[: MAX_LINE_BYTES // 2] + b" ... " + line[-MAX_LINE_BYTES // 2 :]


def _with_words(templates: Iterable[bytes], words: Sequence[bytes]) -> set[bytes]:
    """Return the templates that contain one of the words."""
    text = b"\n".join(templates)
    selected: set[bytes] = set()
    for word in words:
        found = text.find(word)
        while found >= 0 and len(selected) < MAX_TEMPLATES:
            start, end = text.rfind(b"\n", 0, found) + 1, text.find(b"\n", found)
            end = len(text) if end < 0 else end
            selected.add(text[start:end])
            found = text.find(word, end)
    return selected
