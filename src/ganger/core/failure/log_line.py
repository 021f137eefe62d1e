"""The parts of a log line: rank, node, time and text, without the prefixes that launchers, loggers and kernels add.

Prefixes: torchrun (`[rank3]:`, `[default3]:`), mpirun (`[1,3]<stderr>:`), srun --label (`3: `), compose and kubectl
(`pod-0  | `, `[pod/x/y] `), containerd, journald, syslog, dmesg, glog, ISO 8601, and the rank logs of ganger."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

MAX_CHARACTERS: Final = 4200
"""Part of a line that is read, from its beginning."""
MAX_DIGITS: Final = 9
_CLOCK_CHARACTERS: Final = 160
"""Part of a line in which its time is searched for."""

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_PREFIX: Final = re.compile(
    r"\d{13,15} [eoEO] ?|\[(?:rank|default)(?P<torch>\d+)\]: ?|\[\d+,(?P<mpi>\d+)\]<std\w+>: ?"
    r"|(?P<srun>\d{1,6}): |\((?:[^()]*\bpid=\d+"
    r"|(?=[^()]*\bip=))(?:[^()]*\bip=(?P<ray>[\w.:]+))?[^()]*\) ?"
    r"|(?P<compose>[\w.-]{1,80}-\d+) +\| ?|\[(?:pod/)?(?P<pod>[\w.-]+)/[\w.-]+\] ?"
    r"|\[(?P<plain>\d{1,6})\] |\[ *\d+\.\d+\] ?|\[\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\] ?"
    r"|\w{3} [ \d]\d \d\d:\d\d:\d\d (?P<syslog>[\w.-]+) (?:[\w@./-]+(?:\[\d+\])?: ?)?"
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:? ?(?:std(?:out"
    r"|err) [FP] )?|[- ]*[\w.]{1,60} - (?:DEBUG|INFO|WARNING|ERROR|CRITICAL) - "
    r"|[IWEFC]\d{4} \d\d:\d\d:\d\d[\d.]* +\d+ "
)
_RANK_PREFIXES: Final = ("torch", "mpi", "srun", "plain")
_RANK: Final = re.compile(
    r"\[rank(\d+)\]|\[Rank (\d+)\]|\bRank (\d+)\]|^ *rank +: (\d+) |\b[Rr]ank[ =:]{1,2}(\d+)\b"
    r"|\btask (\d+): |\brank (\d+) on "
)
_NODE: Final = re.compile(r"([\w.-]+):\d+:\d+ \[\d+\] | *host +: (\S+)|(?:srun|slurmd): (?:error: )?([\w.-]+): task")
_NODE_INSIDE: Final = re.compile(
    r"\brank \d{1,9} on ([\w.-]+)|\bnode[ =:\"']{1,3}([\w.-]*\d[\w.-]*)|\bNode ([a-z][\w.-]*\d[\w.-]*) "
)
_CLOCK: Final = re.compile(
    r"(?P<iso>\d{4}-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d))"
    r"|(?P<sys>([A-Z][a-z]{2}) +(\d+) (\d\d):(\d\d):(\d\d))"
    r"|(?P<glog>[IWEFC](\d?\d)(\d\d) (\d\d):(\d\d):(\d\d))|^\[? *(?P<boot>\d+)\.\d{6}\]"
    r"|^(?P<unix>\d{13}) "
)
_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1
    )
}


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line. text: without prefixes; rank, node: None and "" if no prefix names them."""

    raw: str
    text: str
    rank: int | None
    node: str

    def find_rank(self) -> int | None:
        """Return the rank that the line names anywhere, None if it names none."""
        return _number(_named(_RANK.search(self.raw))) if self.rank is None else self.rank

    def find_node(self) -> str:
        """Return the node that the line names anywhere, "" if it names none."""
        if self.node:
            return self.node
        is_inside = "ode" in self.text or " on " in self.text
        return _named(_NODE.match(self.text)) or (_named(_NODE_INSIDE.search(self.text)) if is_inside else "")

    def find_time_s(self) -> int | None:
        """Return the second of the year by the clock of the line, None if it has none."""
        return _time_s(self.raw)


def parse_log_line(raw: str) -> LogLine:
    """Return the parts of a line."""
    clean = raw[:MAX_CHARACTERS]
    if "\x1b" in clean:
        clean = _COLOUR.sub("", clean)
    if not clean.isprintable():
        clean = _CONTROL.sub(" ", clean)
    rank, node, start = None, "", 0
    while (match := _PREFIX.match(clean, start)) and match.end() > start:
        start = match.end()
        if kind := match.lastgroup:
            if kind not in _RANK_PREFIXES:
                node = node or match[kind]
            elif rank is None:
                rank = _number(match[kind])
    return LogLine(clean, clean[start:].rstrip(), rank, node)


def _named(match: re.Match[str] | None) -> str:
    return next((group for group in match.groups() if group), "") if match else ""


def _number(digits: str | None) -> int | None:
    return int(digits[:MAX_DIGITS]) if digits else None


def _time_s(text: str) -> int | None:
    match = _CLOCK.search(text[:_CLOCK_CHARACTERS])
    if match is None or match["boot"]:
        return None  # seconds since boot cannot be compared with another clock
    if match["unix"]:
        at = datetime.fromtimestamp(int(match["unix"]) // 1000, UTC)
        return _second_of_year(at.month, at.day, at.hour, at.minute, at.second)
    month, *others = (group for group in match.groups() if group and ":" not in group)
    return _second_of_year(_MONTHS.get(month, 0) if match["sys"] else int(month), *map(int, others))


def _second_of_year(month: int, day: int, hour: int, minute: int, second: int) -> int:
    """Return a number that orders times of one year; months count as 31 days."""
    return (((month * 31 + day) * 24 + hour) * 60 + minute) * 60 + second
