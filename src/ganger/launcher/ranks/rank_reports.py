"""Reports of a node's ranks through `ganger.train`, as two facts: the slowest rank's step, the newest checkpoint.

Reads each `rank-R.report` from where it stopped, also those of ranks that mpirun or torchrun started, and passes each
record to the monitor too.
"""

from __future__ import annotations

import json
import math
import os

from ganger.launcher.protocol.messages import LARGEST, MAX_FLAWS, MAX_METRICS, RANK_DIGITS, TEXT_CHARACTERS
from ganger.launcher.task_directory import now_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ganger.launcher.health.monitor import Monitor
    from ganger.launcher.protocol.link import MessageSender

    Reader = Callable[[int, dict[str, Any]], None]

POLL_S = 0.25
PROGRESS_S = 0.5
MILESTONE_S = 10.0
CHECKPOINT_S = 1.0
READ_BYTES = 1 << 20
NEVER = float("-inf")
NUMBERS = ("t", "pid", "step", "checkpoint", "took_ms", "parts")
PREFIX, SUFFIX = "rank-", ".report"


class Reports:
    """The reports of all ranks of the generation in this directory; `readers` get each record too, with its rank."""

    def __init__(
        self, directory: str, sender: MessageSender, monitor: Monitor, readers: Sequence[Reader], now: float
    ) -> None:
        self.due = now + POLL_S
        self._monitor = monitor
        self._readers = readers
        self._directory = directory
        self._files: dict[int, _Tail] = {}
        self._sender = sender
        self._latest: dict[int, tuple[int, Any]] = {}  # rank -> step, metrics
        self._ended: set[int] = set()  # ranks that have reported their normal end
        self._notice_ms: int | None = None  # when the ranks were first asked to save, in Unix ms
        self._notice_saved: tuple[int, int] | None = None  # step and parts of the newest save begun since
        self._milestone: object = None
        self._milestone_sent_at = NEVER
        self._last_sent: object = None
        self._last_sent_at = NEVER
        self._checkpoint: int | None = None
        self._checkpoint_ms: int | None = None  # when it was saved, in Unix ms
        self._checkpoint_sent: int | None = None
        self._checkpoint_sent_at = NEVER
        self._checkpoints_took_ms = 0  # since the last one that was sent
        self._checkpoint_parts = 1

    def tick(self, now: float) -> None:
        if now >= self.due:
            self.due = now + POLL_S
            self._read(now)
            self._send(now)

    def flush(self, now: float) -> None:
        """Send now what has been reported, as a fact: ranks have ended."""
        while self._read(now):
            pass
        self._send(now, last=True)

    def notice(self) -> None:
        """From now on tell the server of saves that begin: the ranks are asked for one, and are ended after it."""
        self._notice_ms = self._notice_ms or now_ms()

    def announce(self) -> None:
        """Repeat to a newly connected server which save the notice has brought."""
        if self._notice_saved is not None:
            step, parts = self._notice_saved
            self._sender.send_state("notice_saved", step=step, parts=parts)

    def has_made(self, step: int, ended: set[int], now: float) -> bool:
        """Return True if every rank that reports steps, and has not ended, has reported this one until now."""
        while self._read(now):
            pass
        gone = ended | self._ended
        return all(newest >= step for rank, (newest, _) in self._latest.items() if rank not in gone)

    def step_of(self, rank: int, now: float) -> int | None:
        """Return the newest step that a rank has reported until now."""
        while self._read(now):
            pass
        return self._latest[rank][0] if rank in self._latest else None

    def _read(self, now: float) -> bool:
        """Read the reports; return False if there was nothing new."""
        has_records = False
        self._find()
        for rank, file in self._files.items():
            for record in file.read():
                has_records = True
                self._monitor.report_received(rank, record, now)
                for reader in self._readers:
                    reader(rank, record)
                step, checkpoint = record.get("step"), record.get("checkpoint")
                if step is not None:
                    self._latest[rank] = (step, record.get("metrics", {}))
                if "end" in record:
                    self._ended.add(rank)
                if checkpoint is not None:
                    self._follow_notice(checkpoint, record)
                if checkpoint is not None and (self._checkpoint is None or checkpoint > self._checkpoint):
                    self._checkpoint, self._checkpoint_ms = checkpoint, record.get("t")
                    self._checkpoint_parts = max(1, record.get("parts", 1))
                    took_ms = self._checkpoints_took_ms + max(0, record.get("took_ms", 0))
                    self._checkpoints_took_ms = min(took_ms, LARGEST)
        return has_records

    def _follow_notice(self, step: int, record: dict[str, Any]) -> None:
        """Tell the server of a save that began after the notice; both times are by this node's clock."""
        if self._notice_ms is None or record.get("t", 0) - record.get("took_ms", 0) < self._notice_ms:
            return
        if self._notice_saved is None or step > self._notice_saved[0]:
            self._notice_saved = step, max(1, record.get("parts", 1))
            self.announce()

    def _find(self) -> None:
        try:
            names = os.listdir(self._directory)
        except OSError:
            return
        for name in names:
            rank = name[len(PREFIX) : -len(SUFFIX)]
            if not (name.startswith(PREFIX) and name.endswith(SUFFIX) and rank.isdecimal()):
                continue
            if len(rank) <= RANK_DIGITS and int(rank) not in self._files:
                self._files[int(rank)] = _Tail(os.path.join(self._directory, name))

    def _send(self, now: float, *, last: bool = False) -> None:
        if self._latest:
            slowest = min(self._latest, key=lambda rank: (self._latest[rank][0], rank))
            step, metrics = self._latest[slowest]
            self._send_progress(step, metrics, now, last=last)
        if self._checkpoint != self._checkpoint_sent and (last or now >= self._checkpoint_sent_at + CHECKPOINT_S):
            self._checkpoint_sent, self._checkpoint_sent_at = self._checkpoint, now
            times = {"took_ms": self._checkpoints_took_ms, "saved_ms": self._checkpoint_ms}
            self._sender.send_fact("checkpointed", step=self._checkpoint, **times, parts=self._checkpoint_parts)
            self._checkpoints_took_ms = 0

    def _send_progress(self, step: int, metrics: Any, now: float, *, last: bool) -> None:
        if step != self._milestone and (last or now >= self._milestone_sent_at + MILESTONE_S):
            self._milestone, self._milestone_sent_at = step, now
            step_times_ms, busy_shares = self._monitor.step_times(), self._monitor.busy_shares(now)
            self._sender.send_fact(
                "progressed",
                step=step,
                metrics=metrics,
                milestone=True,
                step_times_ms=step_times_ms,
                busy_shares=busy_shares,
            )
        elif (step, metrics) != self._last_sent and now >= self._last_sent_at + PROGRESS_S:
            self._sender.send_update("progressed", step=step, metrics=metrics, milestone=False)
        else:
            return
        self._last_sent, self._last_sent_at = (step, metrics), now


class _Tail:
    """Reader of one file that grows by lines."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        try:
            if os.stat(self._path).st_size <= self._offset:
                return []
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read(READ_BYTES)
        except OSError:
            return []  # no report yet
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > READ_BYTES:
            self._rest = b""  # not a report: the rank wrote something else there
        records = [_parse_record(line) for line in lines]
        return [record for record in records if record is not None]


def _parse_record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None  # truncated by a full disk, or not a report
    return valid_fields(record) if isinstance(record, dict) else None


def valid_fields(record: dict[str, Any]) -> dict[str, Any]:
    """Return the valid fields of a record.

    Any program of the job can write there, and the server refuses a message with a field of a wrong type or out of
    range.
    """
    fields = {name: record[name] for name in NUMBERS if _is_whole(record.get(name))}
    if "end" in record:
        fields["end"] = 0
    if isinstance(record.get("metrics"), dict):
        numbers = [(str(name)[:TEXT_CHARACTERS], value) for name, value in record["metrics"].items()]
        fields["metrics"] = {name: value for name, value in numbers[:MAX_METRICS] if _is_number(value)}
    if "phase" in record:
        fields["phase"] = None if record["phase"] is None else str(record["phase"])[:TEXT_CHARACTERS]
    if "resumed" in record and (record["resumed"] is None or _is_whole(record["resumed"])):
        fields["resumed"], fields["skipped"] = record["resumed"], _flaws(record.get("skipped"))
        fields["source"] = str(record.get("source") or "")[:TEXT_CHARACTERS]
    return fields


def _flaws(value: object) -> list[dict[str, Any]]:
    """Return the valid entries of the incomplete checkpoints that were skipped."""
    entries = [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
    return [
        {"step": entry["step"], "flaw": str(entry.get("flaw"))[:TEXT_CHARACTERS]}
        for entry in entries[:MAX_FLAWS]
        if _is_whole(entry.get("step"))
    ]


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def _is_number(value: object) -> bool:
    """Return True for a finite number or None, which stands for a number that is not finite."""
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or _is_whole(value)
