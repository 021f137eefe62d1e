"""Search of the end of a rank's log for the Python exception that ended it.

Reads tracebacks as CPython prints them (library reference, "traceback" and "Exception groups"), and what torch,
multiprocessing, concurrent.futures and Ray print around those of their workers. In a chain the exception raised first
is the cause; in a group, its first leaf; a thread or child that died takes precedence over the one that waited for it.
One pass over at most WINDOW_BYTES, and over MORE_BYTES if those contain none. Imported only when a rank has failed.
"""

from __future__ import annotations

import os
import re
import signal

from ganger.launcher.logs.log_file import newest_bytes
from ganger.launcher.logs.tracebacks import Block, parse_tracebacks
from ganger.launcher.protocol.messages import LINE_DIGITS, TEXT_CHARACTERS
from ganger.launcher.ranks.process import SELF_INFLICTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WINDOW_BYTES, MORE_BYTES = 64 << 10, 512 << 10
MESSAGE_CHARACTERS = 300
STAMP_DIGITS = 15  # of Unix ms; the line may be forged by a rank
MESSAGE_LINES = 4
STALE_LINES = 60
"""Maximum number of lines after the exception that ended a process, in the same stream."""
NEAR_MS = 10_000
"""Time before the main thread's end in which another thread's death counts as the cause, whatever it reports."""

_SIGNALS = frozenset(signal.Signals)
# torch writes its tag once more for each process group that the process has joined.
_TAG = re.compile(r"(\[(?:rank|default)?\d+(?:,\d+)?\](?:<std\w+>)?:|\([^()]*\bpid=\d+[^()]*\)) ?(?:\1 ?)*")
_FATAL = re.compile(r"Fatal Python error: (?:\w+: )?(.*)$")
_FATAL_FRAME = re.compile(r'  File "(.+)", line (\d+) in ')
_THROWN = re.compile(r"terminate called after throwing an instance of '(.+)'$")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3|^<frozen |/bin/[^/.]+$")
_BLAMES_OTHERS = re.compile(
    r"^(Empty|BrokenBarrierError|BrokenProcessPool|ProcessExitedException|TimeoutError|EOFError|CalledProcessError"
    r"|ChildFailedError|BrokenPipeError|Connection\w*Error)$|exited unexpectedly|by peer|Connection refused|timed out"
)

_STARTS_OTHERS = re.compile(r"ChildFailedError|CalledProcessError|Process(Exited|Raised)Exception")
_ROOT_CAUSE = "Root Cause (first observed failure):"
_NCCL_DETAIL = "Last error:"
"""The line after which torch writes what NCCL itself says."""
_OF_ROOT_CAUSE = re.compile(r" +(rank|exitcode|traceback) +:(?! To enable traceback)")
"""Lines in which torchrun describes its workers, but for the advice where it has no traceback."""
_FAILED_RANK = re.compile(r" +rank +: (\d{1,9}) ")
_OF_TORCHRUN = re.compile(r"[IWEC]\d{4} \d\d:\d\d:\d\d\S* \d+ torch/")
"""A line of the log of torchrun itself."""
WORKER_LINES = 20
"""Lines before the traceback of torchrun in which a worker may have written why it ended."""
_LETTER = re.compile(r"[^\W\d_]")
_BOX = re.compile(r"^[\s│|╭╰─]+|[\s│|╮╯─]+$")
_ERROR_WORDS = re.compile(
    r"(?i)error|fatal|not found|no such|cannot|can't|could not|couldn't|failed|invalid|unrecognized|unknown|must"
    r"|missing|timeout|timed out|abort"
)


def find_exit_error(code: int, path: str, directory: str) -> dict[str, Any] | None:
    """Return the exception that ended a rank with that exit code, or -N for signal N.

    The format is that of `read_error`. None for a rank that a signal from outside ended: what it wrote before is
    unrelated.
    """
    number = -code if code < 0 else code - 128
    is_external = number in _SIGNALS and number not in SELF_INFLICTED
    return None if is_external else read_error(path, directory)


def read_error(path: str, directory: str) -> dict[str, Any] | None:
    """Return the exception that ended the process with this log, or None.

    Fields: {"type", "message", "file", "line", "source", "led_to"}; files are relative to the job's directory if they
    are inside it. None if there is no exception, or the log cannot be read.
    """
    for size in (WINDOW_BYTES, MORE_BYTES):
        try:
            data, is_cut = newest_bytes(path, size)
        except OSError:
            return None
        streams = _split_streams(data, is_cut=is_cut)
        for letter in "eo":
            error = find_error(streams[letter], os.path.realpath(directory))
            if error is not None:
                return error
        if not is_cut:
            return None
    return None


def find_error(lines: list[tuple[int, str]], directory: str) -> dict[str, Any] | None:
    """Return the exception in the lines of one stream, each with its time in Unix ms; fields as of `read_error`."""
    chains: list[list[Block]] = []
    tagged: dict[str, list[tuple[int, int, str]]] = {}
    for number, (at_ms, raw) in enumerate(lines):
        text = _COLOUR.sub("", raw) if "\x1b" in raw else raw
        tag = _TAG.match(text)
        name = tag[1] if tag else ""
        tagged.setdefault(name, []).append((number, at_ms, text[tag.end() :] if tag else text))
    for name, tagged_lines in tagged.items():
        for traceback_chain in parse_tracebacks(tagged_lines):
            traceback_chain[0].tag = name
            chains.append(traceback_chain)
    chain = _choose_cause(chains, len(lines))
    texts = [text for _, text in lines]
    if chain is None:
        return _find_fatal_error(texts, directory)
    error = _describe(chain, directory)
    if error["type"] == "ChildFailedError":
        return _with_worker_line(error, chain[0], texts)
    return error if error["led_to"] else error | {"led_to": _failed_worker(texts)}


def most_telling_line(tail: list[str]) -> str:
    """Return the most informative of a rank's last lines: the last that mentions an error, else the last one.

    Warnings of ganger.train count only where the program wrote nothing itself: they are no reason why it ended.
    """
    lines = [text for text in (_BOX.sub("", line) for line in tail) if _LETTER.search(text)]
    lines = [line for line in lines if not line.startswith("ganger: ")] or lines
    errors = [line for line in lines if _ERROR_WORDS.search(line)]
    return (errors or lines or [""])[-1][:MESSAGE_CHARACTERS]


# -- from bytes to tracebacks ------------------------------------------------------------------------------------------


def _split_streams(data: bytes, *, is_cut: bool) -> dict[str, list[tuple[int, str]]]:
    """Return the whole lines of each stream, with the time of their last piece."""
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


def _choose_cause(chains: list[list[Block]], line_count: int) -> list[Block] | None:
    """Return the chain that ended the process, or that of a thread or child that died before and left it waiting."""
    chains = sorted((chain for chain in chains if chain[0].mark != "ignored"), key=lambda chain: chain[-1].ends)
    main_chains = [chain for chain in chains if chain[0].mark != "background"]
    if not main_chains:
        return chains[0] if chains else None
    last = main_chains[-1]
    if line_count - last[-1].ends > STALE_LINES + len(last[-1].message):
        return None
    is_multi_rank = len({chain[0].tag for chain in main_chains}) > 2
    is_waiting = is_multi_rank or _blames_others(last)
    has_started_others = is_multi_rank or _STARTS_OTHERS.match(_short_name(_cause(last)))
    for chain in chains:
        is_background = chain[0].mark == "background"
        is_near = last[-1].at_ms - chain[-1].at_ms <= NEAR_MS
        # An error long ago that was survived is the cause only if the process waited, or had started others.
        if (is_waiting and (has_started_others or is_background or is_near) and not _blames_others(chain)) or (
            is_background and is_near
        ):
            return chain
    return last


def _with_worker_line(error: dict[str, Any], block: Block, texts: list[str]) -> dict[str, Any]:
    """Return torchrun's report of a worker without a traceback, with what the worker wrote instead of torchrun's code.

    Nothing is added to the report of a signal, before which a worker wrote nothing about it.
    """
    before = [text for text in texts[: block.ends] if not _OF_TORCHRUN.match(text)]
    starts = max((number for number, text in enumerate(before) if text.startswith("Traceback ")), default=0)
    written = most_telling_line(before[max(starts - WORKER_LINES, 0) : starts])
    is_signal = "Signal " in error["message"]
    message = error["message"] if is_signal or not written else f"{error['message']}: it wrote {written!r}"
    return error | {"message": message[:MESSAGE_CHARACTERS], "file": "", "line": 0, "source": ""}


def _failed_worker(texts: list[str]) -> str:
    """Return which worker torchrun names as the first that failed; empty without its report.

    The process that ganger started, and whose rank it names, is torchrun.
    """
    report = texts[texts.index(_ROOT_CAUSE) :] if _ROOT_CAUSE in texts else ()
    rank = next((match[1] for text in report if (match := _FAILED_RANK.match(text))), None)
    return f"torchrun ended: its rank {rank} failed first" if rank else ""


def _find_fatal_error(lines: list[str], directory: str) -> dict[str, Any] | None:
    """Return the error that faulthandler, whose innermost frame comes first, or C++ reports."""
    block = Block("new", "")
    for line in lines:
        fatal, thrown, frame = _FATAL.match(line), _THROWN.match(line), _FATAL_FRAME.match(line)
        if fatal or thrown:
            block.frames = []
            block.type = "Fatal Python error" if fatal else str(thrown and thrown[1])
            block.message = [fatal[1] if fatal else ""]
        elif line.startswith("  what():"):
            block.message = [line.partition(":")[2]]
        elif frame and block.type:
            block.frames.insert(0, [frame[1], int(frame[2][:LINE_DIGITS]), ""])
    return _describe([block], directory) if block.type else None


def _blames_others(chain: list[Block]) -> bool:
    cause = _cause(chain)
    name = cause.type.rpartition(".")[2]
    return bool(_BLAMES_OTHERS.search(name) or _BLAMES_OTHERS.search(cause.message[0]))


def _cause(chain: list[Block]) -> Block:
    """Return the block of the cause.

    Python prints the oldest exception first; a worker's is printed inside the message of the one that re-raises it.
    """
    index = 0
    while index + 1 < len(chain) and chain[index + 1].link == "nested":
        index += 1
    return chain[index]


def _describe(chain: list[Block], directory: str) -> dict[str, Any]:
    cause = _cause(chain)
    others = [block for block in chain if block is not cause]
    file, line, source = _find_frame([cause, *others], directory)
    last = chain[-1] if chain[-1].link == "wrapped" else chain[0]
    led_to = "" if (last.type, last.message) == (cause.type, cause.message) else _describe_block(last, directory)
    name = _short_name(cause)
    return {
        "type": name[:TEXT_CHARACTERS],
        "message": _message(cause.message),
        "file": file[:TEXT_CHARACTERS],
        "line": line,
        "source": source[:MESSAGE_CHARACTERS],
        "led_to": led_to[:TEXT_CHARACTERS],
    }


def _describe_block(block: Block, directory: str) -> str:
    file, line, _ = _find_frame([block], directory)
    place = f"{file}:{line}: " if line else ""
    message = _message(block.message)
    return f"{place}{_short_name(block)}" + (f": {message}" if message else "")


def _short_name(block: Block) -> str:
    return re.split(r"[.:]", block.type.rpartition(">.")[2])[-1]


def _message(lines: list[str]) -> str:
    """Return the first line, with the following ones if it ends in a colon, continues indented, or is of NCCL."""
    first, rest = lines[0].strip(), lines[1 : 1 + MESSAGE_LINES]
    if _ROOT_CAUSE in lines:
        root_cause = lines[lines.index(_ROOT_CAUSE) :]
        rest = [re.sub(" +:", ":", line, count=1) for line in root_cause if _OF_ROOT_CAUSE.match(line)]
    elif _NCCL_DETAIL in rest:
        rest = rest[: rest.index(_NCCL_DETAIL) + 2]
    elif first and not first.endswith(":") and not any(line[:1] in (" ", "\t") for line in rest[:2]):
        rest = []
    message = " ".join(" ".join([first, *rest]).split())
    half = MESSAGE_CHARACTERS // 2
    return message if len(message) <= MESSAGE_CHARACTERS else f"{message[: half - 5]} ... {message[-half:]}"


def _find_frame(blocks: list[Block], directory: str) -> tuple[str, int, str]:
    """Return the innermost frame in the job's own code, of the first traceback that has one; else the innermost one."""
    frames = [frame for block in blocks for frame in reversed(block.frames)]
    job_frames = [frame for frame in frames if not _LIBRARY.search(frame[0]) and ".pyz/" not in frame[0]]
    in_directory = (frame for frame in job_frames if _relative_path(frame[0], directory))
    in_files = (frame for frame in job_frames if frame[0][:1] != "<")
    frame_found = next(
        (frame for candidates in (in_directory, in_files, job_frames, frames) for frame in candidates), None
    )
    return (
        (_relative_path(frame_found[0], directory) or frame_found[0], frame_found[1], frame_found[2])
        if frame_found
        else ("", 0, "")
    )


def _relative_path(file: str, directory: str) -> str:
    """Return the path relative to the directory; empty for a file elsewhere, or no file."""
    if file[:1] == "<" or "\0" in file:
        return ""
    path = os.path.realpath(os.path.join(directory, file))
    return path[len(directory) + 1 :] if path.startswith(directory + os.sep) else ""
