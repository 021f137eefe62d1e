"""Audit of a run of `kill_server`: the witnesses' records against the server, its log and the machine; not a bench.

Called when every job has ended and the last server still runs.
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
    """A job whose submission was acknowledged, and the outcome it must have.

    Attributes:
        out: folder that its ranks write to.
    """

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
        """State, exit code and generation at the end; None allows any."""
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
    """Number of errors by kind, and a sentence for each."""

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
    """Return all errors."""
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
    """Check that exactly the acknowledged jobs are listed, once each, with the expected end."""
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
        is_expected = (
            row["state"] == state and code in (None, row["exit_code"]) and generation in (None, row["generation"])
        )
        if not is_expected:
            reason = row.get("reason")
            findings.add("lost", f"{accepted.job} is {row['state']} at attempt {row['generation']}, {reason}")
    for job in rows:
        findings.add("doubled", f"{job} is listed but was never submitted")


def check_witnesses(accepted: AcceptedJob, findings: Findings) -> None:
    """Check that no rank started twice, none ran beside another of the same rank, and no device was in two gangs."""
    for record_file in accepted.out.glob("*.*"):
        words = Counter(line.split()[0] for line in record_file.read_text().splitlines())
        if words["begin"] != 1:
            findings.add("doubled", f"{accepted.job} {record_file.name} was begun {words['begin']} times")
        for line in record_file.read_text().splitlines():
            if line.startswith("taken rank"):
                findings.add("doubled", f"{accepted.job} {record_file.name} ran beside another of its place")
            elif line.startswith("taken"):
                findings.add("leaked", f"{accepted.job} {record_file.name}: {line}")


def check_logs(accepted: AcceptedJob, job: Path, findings: Findings) -> None:
    """Check that every line a rank wrote is in its log, once and in order."""
    for record_file in accepted.out.glob("*.*"):
        attempt, rank = record_file.name.split(".")
        written = [int(line.split()[1]) for line in record_file.read_text().splitlines() if line.startswith("said")]
        logs = list(job.glob(f"nodes/*/{attempt}/rank-{rank}.log"))
        logged = _lines(logs[0]) if len(logs) == 1 else []
        findings.lines += len(logged)
        # A rank that was killed may have written one line more than it recorded.
        if logged not in (written, [*written, len(written)]):
            missing = len({*written} - {*logged}) or 1
            findings.add(
                "lines_lost",
                f"{accepted.job} {record_file.name} said {len(written)} lines, logged {logged[-3:]}",
                missing,
            )
        if accepted.end[0] == "succeeded" and int(attempt) == accepted.end[2] and len(written) != accepted.lines:
            findings.add(
                "lines_lost", f"{accepted.job} {record_file.name} said {len(written)} of {accepted.lines} lines"
            )


def _lines(log: Path) -> list[int]:
    """Return the numbers in a log, joined from fragments, in writing order; [-1] for a line that no witness wrote."""
    numbers: list[int] = []
    partial = {"o": "", "e": ""}
    for record in log.read_text().splitlines():
        match = _RECORD.fullmatch(record)
        if match is None:
            return [-1]
        stream, text = match.groups()
        partial[stream.lower()] += text
        if stream.islower():
            line, partial[stream] = partial[stream], ""
            if not line.startswith("line "):
                return [-1]
            numbers.append(int(line.removeprefix("line ")))
    return sorted(numbers) if _rises(numbers) else [-1]


def _rises(numbers: list[int]) -> bool:
    """Return whether each of the two streams is in order; the order between them depends on the pipes."""
    streams = [n for n in numbers if n % 5 == 0], [n for n in numbers if n % 5]
    return all(stream == sorted({*stream}) for stream in streams)


def _devices(client: Client, findings: Findings) -> None:
    for node in client.nodes():
        if node["gpus_free"] != node["gpus"] or node["cpu_free_milli"] != node["cpu_milli"]:
            findings.add("leaked", f"not all of {node['name']} is free: {node}")


def _processes(home: Path, findings: Findings) -> None:
    """Check that no process of a task is left, and no launcher after it was asked to exit."""
    until_s = time.monotonic() + GONE_WITHIN_S
    while (left := left_of(home)) and time.monotonic() < until_s:
        time.sleep(0.2)
    for pid, what in left.items():
        findings.add("orphans", f"process {pid}: {what}")


def left_of(home: Path) -> dict[int, str]:
    """Return the launchers, their guards and marked processes of this state directory: PID -> command."""
    jobs_folder, commands = str(home / "jobs"), {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (path / "cmdline").read_bytes()
            is_guard = b"ganger-launcher-guard" in command and any(
                str(file.readlink()).startswith(jobs_folder) for file in (path / "fd").iterdir()
            )
            if (
                is_guard
                or jobs_folder.encode() in command
                or f"={jobs_folder}".encode() in (path / "environ").read_bytes()
            ):
                commands[int(path.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return commands


def _log(path: Path, findings: Findings) -> None:
    """Check that the log replays, and that no resource is allocated in the final state."""
    log = EventLog(path)
    try:
        state = log.restore()
        state.validate()
        findings.events = state.seq
        for gang, _ in state.allocated():
            findings.add("leaked", f"{gang.id} holds nodes")
        result = replay(log, policies(), 1)  # type: ignore[arg-type] - policies are modules
        if result.difference is not None:
            findings.add("otherwise", str(result.difference))
    finally:
        log.close()
