"""The Python exception that ended a process, found in the end of its log. Called by `generation` when a rank fails.

Reads tracebacks as CPython prints them (library reference, "traceback" and "Exception groups"), and what torch,
multiprocessing, concurrent.futures and Ray print around those of their workers. Of a chain, what was raised first is
the cause; of a group, its first leaf; a thread or a child that died goes before whoever waited for it. One pass over
at most WINDOW_BYTES, and over MORE_BYTES where those hold none. Imported only when a rank has failed.
"""

from __future__ import annotations

import os
import re
import signal

from ganger.launcher.logs.log_file import newest_bytes
from ganger.launcher.logs.tracebacks import Block, tracebacks
from ganger.launcher.protocol.messages import LINE_DIGITS, TEXT_CHARACTERS
from ganger.launcher.ranks.process import OF_ITS_OWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WINDOW_BYTES, MORE_BYTES = 64 << 10, 512 << 10
SHOWN_CHARACTERS = 300
STAMP_DIGITS = 15  # of Unix ms; a rank may have written the line
MESSAGE_LINES = 4
STALE_LINES = 60
"""Lines that may follow the exception that ended a process, in the same stream."""
NEAR_MS = 10_000
"""How long before the end of the main thread another's death counts as the cause, whatever the main thread says."""

_SIGNALS = frozenset(signal.Signals)
_TAG = re.compile(r"(\[(?:rank|default)?\d+(?:,\d+)?\](?:<std\w+>)?:|\([^()]*\bpid=\d+[^()]*\)) ?")
_FATAL = re.compile(r"Fatal Python error: (?:\w+: )?(.*)$")
_FATAL_FRAME = re.compile(r'  File "(.+)", line (\d+) in ')
_THROWN = re.compile(r"terminate called after throwing an instance of '(.+)'$")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3|^<frozen |/bin/[^/.]+$")
_TELLS_OF_OTHERS = re.compile(
    r"^(Empty|BrokenBarrierError|BrokenProcessPool|ProcessExitedException|TimeoutError|EOFError|CalledProcessError"
    r"|ChildFailedError|BrokenPipeError|Connection\w*Error)$|exited unexpectedly|by peer|Connection refused|timed out"
)

_STARTS_OTHERS = re.compile(r"ChildFailedError|CalledProcessError|Process(Exited|Raised)Exception")
_ROOT_CAUSE = "Root Cause (first observed failure):"
_OF_ROOT_CAUSE = re.compile(r" +(rank|exitcode|traceback) +:")
"""As torchrun tells of its workers."""
_LETTER = re.compile(r"[^\W\d_]")
_BOX = re.compile(r"^[\s│|╭╰─]+|[\s│|╮╯─]+$")
_SPEAKS_OF_ERROR = re.compile(
    r"(?i)error|fatal|not found|no such|cannot|can't|could not|couldn't|failed|invalid|unrecognized|unknown|must"
    r"|missing|timeout|timed out|abort"
)


def ended_by(code: int, path: str, directory: str) -> dict[str, Any] | None:
    """The exception that ended a rank with that exit code, or -N for signal N, as `read_error` gives it. None for one
    that a signal from outside ended: what it wrote before is another matter."""
    number = -code if code < 0 else code - 128
    outside = number in _SIGNALS and number not in OF_ITS_OWN
    return None if outside else read_error(path, directory)


def read_error(path: str, directory: str) -> dict[str, Any] | None:
    """What ended the process whose log this is: {"type", "message", "file", "line", "source", "led_to"}, files relative
    to the job's directory where they are in it. None when no exception is there, or the log cannot be read."""
    for size in (WINDOW_BYTES, MORE_BYTES):
        try:
            data, is_cut = newest_bytes(path, size)
        except OSError:
            return None
        streams = _streams(data, is_cut=is_cut)
        for letter in "eo":
            found = find(streams[letter], os.path.realpath(directory))
            if found is not None:
                return found
        if not is_cut:
            return None
    return None


def find(lines: list[tuple[int, str]], directory: str) -> dict[str, Any] | None:
    """The same, in the lines of one stream, each with its time in Unix ms."""
    chains: list[list[Block]] = []
    tagged: dict[str, list[tuple[int, int, str]]] = {}
    for number, (at_ms, written) in enumerate(lines):
        text = _COLOUR.sub("", written) if "\x1b" in written else written
        tag = _TAG.match(text)
        name = tag[1] if tag else ""
        tagged.setdefault(name, []).append((number, at_ms, text[tag.end() :] if tag else text))
    for name, mine in tagged.items():
        for chain in tracebacks(mine):
            chain[0].tag = name
            chains.append(chain)
    chosen = _chosen(chains, len(lines))
    return _fatal([text for _, text in lines], directory) if chosen is None else _told(chosen, directory)


def telling(tail: list[str]) -> str:
    """Of the last lines of a rank without an exception the one that says most: the last that speaks of an error, else
    the last at all."""
    lines = [text for text in (_BOX.sub("", line) for line in tail) if _LETTER.search(text)]
    errors = [line for line in lines if _SPEAKS_OF_ERROR.search(line)]
    return (errors or lines or [""])[-1][:SHOWN_CHARACTERS]


# -- from bytes to tracebacks ------------------------------------------------------------------------------------------


def _streams(data: bytes, *, is_cut: bool) -> dict[str, list[tuple[int, str]]]:
    """The whole lines of each stream, with the time of their last piece."""
    streams: dict[str, list[tuple[int, str]]] = {"e": [], "o": []}
    pieces = {"e": "", "o": ""}
    for record in data.decode("utf-8", "replace").split("\n")[1 if is_cut else 0 :]:
        stamp, _, rest = record.partition(" ")
        letter, text = rest[:1], rest[2:]
        stream = letter.lower()
        if stream not in streams or not stamp.isdecimal() or len(stamp) > STAMP_DIGITS:
            continue
        if letter == stream:
            streams[stream].append((int(stamp), pieces[stream] + text))
            pieces[stream] = ""
        else:
            pieces[stream] += text
    return streams


# -- from tracebacks to the cause --------------------------------------------------------------------------------------


def _chosen(chains: list[list[Block]], lines: int) -> list[Block] | None:
    """The chain that ended the process, or that of whoever died before and left it waiting."""
    chains = sorted((chain for chain in chains if chain[0].mark != "ignored"), key=lambda chain: chain[-1].ends)
    mains = [chain for chain in chains if chain[0].mark != "background"]
    if not mains:
        return chains[0] if chains else None
    last = mains[-1]
    if lines - last[-1].ends > STALE_LINES + len(last[-1].message):
        return None
    several = len({chain[0].tag for chain in mains}) > 2
    tells = several or _tells_of_others(last)
    starts = several or _STARTS_OTHERS.match(_name(_cause(last)))
    for chain in chains:
        is_background = chain[0].mark == "background"
        is_near = last[-1].at_ms - chain[-1].at_ms <= NEAR_MS
        # What was written long ago, and survived, is the cause only of a process that waited, or had started others.
        if (tells and (starts or is_background or is_near) and not _tells_of_others(chain)) or (
            is_background and is_near
        ):
            return chain
    return last


def _fatal(lines: list[str], directory: str) -> dict[str, Any] | None:
    """The words of faulthandler, whose innermost frame comes first, and those of C++ about an exception."""
    block = Block("new", "")
    for text in lines:
        said, thrown, frame = _FATAL.match(text), _THROWN.match(text), _FATAL_FRAME.match(text)
        if said or thrown:
            block.frames = []
            block.type = "Fatal Python error" if said else str(thrown and thrown[1])
            block.message = [said[1] if said else ""]
        elif text.startswith("  what():"):
            block.message = [text.partition(":")[2]]
        elif frame and block.type:
            block.frames.insert(0, [frame[1], int(frame[2][:LINE_DIGITS]), ""])
    return _told([block], directory) if block.type else None


def _tells_of_others(chain: list[Block]) -> bool:
    cause = _cause(chain)
    name = cause.type.rpartition(".")[2]
    return bool(_TELLS_OF_OTHERS.search(name) or _TELLS_OF_OTHERS.search(cause.message[0]))


def _cause(chain: list[Block]) -> Block:
    """Python prints the oldest first; what a worker raised stands inside the message of who raised it again."""
    at = 0
    while at + 1 < len(chain) and chain[at + 1].link == "nested":
        at += 1
    return chain[at]


def _told(chain: list[Block], directory: str) -> dict[str, Any]:
    cause = _cause(chain)
    others = [block for block in chain if block is not cause]
    file, line, source = _place([cause, *others], directory)
    last = chain[-1] if chain[-1].link == "wrapped" else chain[0]
    led_to = "" if (last.type, last.message) == (cause.type, cause.message) else _words(last, directory)
    name = _name(cause)
    return {
        "type": name[:TEXT_CHARACTERS],
        "message": _message(cause.message),
        "file": file[:TEXT_CHARACTERS],
        "line": line,
        "source": source[:SHOWN_CHARACTERS],
        "led_to": led_to[:TEXT_CHARACTERS],
    }


def _words(block: Block, directory: str) -> str:
    file, line, _ = _place([block], directory)
    place = f"{file}:{line}: " if line else ""
    message = _message(block.message)
    return f"{place}{_name(block)}" + (f": {message}" if message else "")


def _name(block: Block) -> str:
    return re.split(r"[.:]", block.type.rpartition(">.")[2])[-1]


def _message(lines: list[str]) -> str:
    """The first line; and what follows where that is not the whole of it: it ends in a colon, or goes on indented."""
    first, rest = lines[0].strip(), lines[1 : 1 + MESSAGE_LINES]
    if _ROOT_CAUSE in lines:
        rest = [line for line in lines[lines.index(_ROOT_CAUSE) :] if _OF_ROOT_CAUSE.match(line)]
    elif first and not first.endswith(":") and not any(line[:1] in (" ", "\t") for line in rest[:2]):
        rest = []
    whole = " ".join(" ".join([first, *rest]).split())
    half = SHOWN_CHARACTERS // 2
    return whole if len(whole) <= SHOWN_CHARACTERS else f"{whole[: half - 5]} ... {whole[-half:]}"


def _place(blocks: list[Block], directory: str) -> tuple[str, int, str]:
    """The innermost frame in the job's own code, of the first traceback that has one; else the innermost at all."""
    frames = [frame for block in blocks for frame in reversed(block.frames)]
    own = [frame for frame in frames if not _LIBRARY.search(frame[0]) and ".pyz/" not in frame[0]]
    near = (frame for frame in own if _within(frame[0], directory))
    named = (frame for frame in own if frame[0][:1] != "<")
    found = next((frame for some in (near, named, own, frames) for frame in some), None)
    return (_within(found[0], directory) or found[0], found[1], found[2]) if found else ("", 0, "")


def _within(file: str, directory: str) -> str:
    """The path from the directory; empty for what is elsewhere, or no file."""
    if file[:1] == "<" or "\0" in file:
        return ""
    path = os.path.realpath(os.path.join(directory, file))
    return path[len(directory) + 1 :] if path.startswith(directory + os.sep) else ""
