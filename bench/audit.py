"""What the ranks of `kill_server` wrote down, against what the server, its log and the machine say. Called when every
job has ended and the last server still runs; not a bench itself.
"""

import re
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ganger.client import Client
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.replay import replay
from ganger.registry import policies

GONE_WITHIN_S = 30.0
_RECORD = re.compile(r"\d+ ([oeOE]) ?(.*)")


@dataclass
class AcceptedJob:
    """A job whose submission was acknowledged: its id and what must become of it. `out`: where its ranks write."""

    job: str
    name: str
    kind: str
    lines: int
    nodes: int
    out: Path
    stopped: bool = False

    @property
    def is_to_be_stopped(self) -> bool:
        return self.kind in ("endless", "deaf")

    @property
    def end(self) -> tuple[str, int | None, int | None]:
        """State, exit code and generation it must end with; None: any."""
        if self.is_to_be_stopped:
            return "stopped", None, None
        return {
            "steady": ("succeeded", None, 1),
            "daemon": ("succeeded", None, 1),
            "dies": ("succeeded", None, 2),
            "fails": ("failed", 7, 1),
            "unset": ("failed", 3, 1),
        }[self.kind]


@dataclass
class Findings:
    """How much was wrong of each sort, and in sentences."""

    lost: int = 0
    doubled: int = 0
    leaked: int = 0
    orphans: int = 0
    lines_lost: int = 0
    otherwise: int = 0
    events: int = 0
    lines: int = 0
    details: list[str] = field(default_factory=list)

    def add(self, sort: str, what: str, count: int = 1) -> None:
        setattr(self, sort, getattr(self, sort) + count)
        self.details.append(f"{sort}: {what}")


def audit(client: Client, folder: Path, accepted_jobs: list[AcceptedJob]) -> Findings:
    """Everything that is wrong."""
    findings = Findings()
    _jobs(client, accepted_jobs, findings)
    for accepted in accepted_jobs:
        check_witnesses(accepted, findings)
        check_logs(accepted, folder / "home" / "jobs" / accepted.job, findings)
    _devices(client, findings)
    _processes(folder / "home", findings)
    _log(folder / "home" / "ganger.db", findings)
    return findings


def _jobs(client: Client, accepted_jobs: list[AcceptedJob], findings: Findings) -> None:
    """Each acknowledged job is listed, once, and ended as it must; no other is."""
    rows: dict[str, dict[str, Any]] = {}
    cursor = None
    while True:
        page = client.jobs(all=True, limit=500, cursor=cursor)
        rows |= {row["id"]: row for row in page["items"]}
        if (cursor := page["next"]) is None:
            break
    for accepted in accepted_jobs:
        row = rows.pop(accepted.job, None)
        if row is None:
            findings.add("lost", f"{accepted.job} is not listed")
            continue
        state, code, generation = accepted.end
        is_so = row["state"] == state and code in (None, row["exit_code"]) and generation in (None, row["generation"])
        if not is_so:
            reason = row.get("reason")
            findings.add("lost", f"{accepted.job} is {row['state']} at attempt {row['generation']}, {reason}")
    for job in rows:
        findings.add("doubled", f"{job} is listed, and nobody submitted it")


def check_witnesses(accepted: AcceptedJob, findings: Findings) -> None:
    """No rank of an attempt was begun twice, none ran beside another of its place, no device was in two gangs."""
    for book in accepted.out.glob("*.*"):
        words = Counter(line.split()[0] for line in book.read_text().splitlines())
        if words["begin"] != 1:
            findings.add("doubled", f"{accepted.job} {book.name} was begun {words['begin']} times")
        for line in book.read_text().splitlines():
            if line.startswith("taken rank"):
                findings.add("doubled", f"{accepted.job} {book.name} ran beside another of its place")
            elif line.startswith("taken"):
                findings.add("leaked", f"{accepted.job} {book.name}: {line}")


def check_logs(accepted: AcceptedJob, job: Path, findings: Findings) -> None:
    """Every line that a rank had written is in its log, once and in order."""
    for book in accepted.out.glob("*.*"):
        attempt, rank = book.name.split(".")
        said = [int(line.split()[1]) for line in book.read_text().splitlines() if line.startswith("said")]
        logs = list(job.glob(f"nodes/*/{attempt}/rank-{rank}.log"))
        logged = _lines(logs[0]) if len(logs) == 1 else []
        findings.lines += len(logged)
        # A rank that was killed may have written one line more than it wrote down.
        if logged not in (said, [*said, len(said)]):
            missing = len({*said} - {*logged}) or 1
            findings.add(
                "lines_lost", f"{accepted.job} {book.name} said {len(said)} lines, logged {logged[-3:]}", missing
            )
        if accepted.end[0] == "succeeded" and int(attempt) == accepted.end[2] and len(said) != accepted.lines:
            findings.add("lines_lost", f"{accepted.job} {book.name} said {len(said)} of {accepted.lines} lines")


def _lines(log: Path) -> list[int]:
    """The numbers in a log, joined from pieces, in the order in which they were written, or [-1] for what is no line of
    a witness."""
    numbers: list[int] = []
    begun = {"o": "", "e": ""}
    for record in log.read_text().splitlines():
        found = _RECORD.fullmatch(record)
        if found is None:
            return [-1]
        stream, text = found.groups()
        begun[stream.lower()] += text
        if stream.islower():
            line, begun[stream] = begun[stream], ""
            if not line.startswith("line "):
                return [-1]
            numbers.append(int(line.removeprefix("line ")))
    return sorted(numbers) if _rises(numbers) else [-1]


def _rises(numbers: list[int]) -> bool:
    """Each of the two streams is in order; between them it is the pipes' matter which is read first."""
    streams = [n for n in numbers if n % 5 == 0], [n for n in numbers if n % 5]
    return all(stream == sorted({*stream}) for stream in streams)


def _devices(client: Client, findings: Findings) -> None:
    for node in client.nodes():
        if node["gpus_free"] != node["gpus"] or node["cpu_free_milli"] != node["cpu_milli"]:
            findings.add("leaked", f"not all of {node['name']} is free: {node}")


def _processes(home: Path, findings: Findings) -> None:
    """Nothing of a task is left, and no launcher once it was told to go."""
    until_s = time.monotonic() + GONE_WITHIN_S
    while (left := left_of(home)) and time.monotonic() < until_s:
        time.sleep(0.2)
    for pid, what in left.items():
        findings.add("orphans", f"process {pid}: {what}")


def left_of(home: Path) -> dict[int, str]:
    """Launchers, their guards and what carries a mark, of this state directory: pid -> command."""
    place, found = str(home / "jobs"), {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (path / "cmdline").read_bytes()
            is_guard = b"ganger-launcher-guard" in command and any(
                str(file.readlink()).startswith(place) for file in (path / "fd").iterdir()
            )
            if is_guard or place.encode() in command or f"={place}".encode() in (path / "environ").read_bytes():
                found[int(path.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def _log(path: Path, findings: Findings) -> None:
    """The log replays, and nothing in the state it folds to is held."""
    log = EventLog(path)
    try:
        state = log.restore()
        state.validate()
        findings.events = state.seq
        for gang, _ in state.allocated():
            findings.add("leaked", f"{gang.id} holds nodes")
        found = replay(log, policies(), 1)  # type: ignore[arg-type] - policies are modules
        if found.difference is not None:
            findings.add("otherwise", str(found.difference))
    finally:
        log.close()
