"""Parser of tracebacks in the output of a process, as CPython and other programs print them.

Works line by line in one pass, after the library reference, "traceback" and "Exception groups"; torch's DataLoader and
spawn, multiprocessing, concurrent.futures and Ray for tracebacks of workers; rich for boxed ones.
"""

from __future__ import annotations

import re

from ganger.launcher.protocol.messages import LINE_DIGITS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MESSAGE_LINES = 30
HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(r'  File "(.+)", line (\d+)(?:, in .*)?$')
_BOXED_FRAME = re.compile(r"│ (\S+):(\d+) in .*│$")
_END = re.compile(r"([A-Za-z_][\w.<>]*(?:\([\w.]+\))?)(?::(?: (.*))?)?$")
_RAISED = re.compile(r"(Error|Exception|Exit|Interrupt|Warning|Group|Iteration|Empty|Full|Timeout|Failure)(\(|$)")
_GROUP_MARGIN = re.compile(r" +\| ?")
_GROUP_RULE = re.compile(r" +\+-[-+]*(?: (\d+) -+)?$")
_BEFORE = re.compile(
    r"(?P<ignored>Exception ignored |Error in (sys\.|atexit\.)|--- Logging error ---|object address )"
    r"|(?P<background>Exception in thread |Process \S+:$|Unhandled exception in thread|Task exception was never|"
    r"Future exception was never)"
    r"|(?P<nested>-- Process \d+ terminated with)"
    r"|(?P<wrapped>The above exception was the direct cause|During handling of the above exception)"
)


class Block:
    """One traceback.

    link: relation to the one before: `new` none, `wrapped` that one was its cause, `nested` this is the cause and
        printed inside that one's message, `sibling` another member of a group
    mark: "", `background` or `ignored`
    frames: file, line and source of each
    ends: number of its last line
    """

    def __init__(self, link: str, mark: str) -> None:
        self.link = link
        self.mark = mark
        self.frames: list[list[Any]] = []
        self.type = ""
        self.message: list[str] = []
        self.at_ms = 0
        self.ends = 0
        self.tag = ""


def parse_tracebacks(lines: list[tuple[int, int, str]]) -> list[list[Block]]:
    """Return the tracebacks of one writer in order, related ones in one list."""
    reader = _Reader()
    for number, at_ms, text in lines:
        reader.take(number, at_ms, text)
    chains: list[list[Block]] = []
    for block in reader.blocks:
        if block.link == "new" or not chains:
            chains.append([block])
        else:
            chains[-1].append(block)
    return chains


class _Reader:
    """State machine over lines."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._block: Block | None = None
        self._is_headed = False
        self._state = "text"  # or `frames` inside a traceback, `message` behind its last line
        self._link = "new"
        self._mark = ""

    def take(self, number: int, at_ms: int, text: str) -> None:
        rule = _GROUP_RULE.match(text)
        if rule:
            if rule[1]:
                self._link = "nested" if rule[1] == "1" else "sibling"
            self._state = "text"
            return
        margin = _GROUP_MARGIN.match(text)
        if margin:
            text = text[margin.end() :]
        if text.rstrip("╮─ ").endswith(HEADER[:-1]) or text.endswith(HEADER):
            self._begin(text)
        elif _FRAME.match(text) or (self._state == "frames" and _BOXED_FRAME.match(text)):
            self._frame(text)
        elif self._state == "frames":
            self._inside(number, at_ms, text)
        else:
            self._outside(text)

    def _begin(self, text: str) -> None:
        if "Original " in text and self.blocks:
            self._link = "nested"
        self._open(is_headed=True)

    def _open(self, *, is_headed: bool) -> None:
        self._block = Block(self._link, self._mark)
        self._is_headed, self._state = is_headed, "frames"
        self._link, self._mark = "new", ""

    def _frame(self, text: str) -> None:
        if self._state != "frames" or self._block is None:
            if self._state == "message":
                self._link = "nested"
            self._open(is_headed=self._state == "message")
        match = _FRAME.match(text) or _BOXED_FRAME.match(text)
        if match and self._block:
            self._block.frames.append([match[1], int(match[2][:LINE_DIGITS]), ""])

    def _inside(self, number: int, at_ms: int, text: str) -> None:
        block = self._block
        if block is None or text.startswith(("    ", "  [Previous line", "│", "╰")):
            if block and block.frames and not block.frames[-1][2] and text[:1] == " ":
                block.frames[-1][2] = text.strip()
            return
        end = _END.match(text)
        self._state = "text"
        if not end or not (self._is_headed or _RAISED.search(end[1])):
            return
        block.type, block.message = end[1], [end[2] or ""]
        block.at_ms, block.ends = at_ms, number
        self.blocks.append(block)
        self._state = "message"

    def _outside(self, text: str) -> None:
        before = _BEFORE.match(text)
        if before:
            kind = str(before.lastgroup)
            if kind in ("nested", "wrapped"):
                self._link = kind
            else:
                self._mark = kind
            self._state = "text"
        elif self._state == "message":
            if not text.strip() and any(self.blocks[-1].message):
                self._state = "text"
            elif len(self.blocks[-1].message) <= MESSAGE_LINES:
                self.blocks[-1].message.append(text)
        elif text.strip() and text.strip() != '"""' and not text.startswith("future: "):
            self._link, self._mark = "new", ""
