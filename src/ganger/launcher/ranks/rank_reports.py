"""What the ranks of a node report through `ganger.train`, as two facts: the slowest rank's step, the newest checkpoint.

Reads each `rank-R.report` onward from where it stopped, also those of ranks that mpirun or torchrun started, and hands
each record to `lookout` too. Called by `generation`.
"""

from __future__ import annotations

import json
import math
import os

from ganger.launcher.protocol.messages import LARGEST, MOST_FLAWS, MOST_METRICS, RANK_DIGITS, TEXT_CHARACTERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ganger.launcher.health.monitor import Monitor
    from ganger.launcher.protocol.link import Speaker
    from ganger.launcher.ranks.resume import Resumption

POLL_S = 0.25
PROGRESS_S = 0.5
MILESTONE_S = 10.0
CHECKPOINT_S = 1.0
READ_BYTES = 1 << 20
NEVER = float("-inf")
PREFIX, SUFFIX = "rank-", ".report"


class Reports:
    """All ranks of the generation with this directory."""

    def __init__(self, directory: str, tell: Speaker, lookout: Monitor, resumption: Resumption, now: float) -> None:
        self.due = now + POLL_S
        self._lookout = lookout
        self._resumption = resumption
        self._directory = directory
        self._files: dict[int, _Tail] = {}
        self._tell_server = tell
        self._latest: dict[int, tuple[int, Any]] = {}  # rank -> step, metrics
        self._milestone: object = None
        self._milestone_at = NEVER
        self._told: object = None
        self._told_at = NEVER
        self._checkpoint: int | None = None
        self._checkpoint_told: int | None = None
        self._checkpoint_at = NEVER
        self._checkpoints_took_ms = 0  # since the last one that was told

    def tick(self, now: float) -> None:
        if now >= self.due:
            self.due = now + POLL_S
            self._read(now)
            self._tell(now)

    def flush(self, now: float) -> None:
        """Ranks ended: tell now what there is, as a fact."""
        while self._read(now):
            pass
        self._tell(now, last=True)

    def step_of(self, rank: int, now: float) -> int | None:
        """The newest step that a rank has reported, until now."""
        while self._read(now):
            pass
        return self._latest[rank][0] if rank in self._latest else None

    def _read(self, now: float) -> bool:
        """False when nothing new was there."""
        came = False
        self._find()
        for rank, file in self._files.items():
            for record in file.read():
                came = True
                self._lookout.heard(rank, record, now)
                self._resumption.heard(rank, record)
                step, checkpoint = record.get("step"), record.get("checkpoint")
                if step is not None:
                    self._latest[rank] = (step, record.get("metrics", {}))
                if checkpoint is not None and (self._checkpoint is None or checkpoint > self._checkpoint):
                    self._checkpoint = checkpoint
                    took_ms = self._checkpoints_took_ms + max(0, record.get("took_ms", 0))
                    self._checkpoints_took_ms = min(took_ms, LARGEST)
        return came

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

    def _tell(self, now: float, *, last: bool = False) -> None:
        if self._latest:
            slowest = min(self._latest, key=lambda rank: (self._latest[rank][0], rank))
            step, metrics = self._latest[slowest]
            self._tell_progress(step, metrics, now, last=last)
        if self._checkpoint != self._checkpoint_told and (last or now >= self._checkpoint_at + CHECKPOINT_S):
            self._checkpoint_told, self._checkpoint_at = self._checkpoint, now
            self._tell_server.fact("checkpointed", step=self._checkpoint, took_ms=self._checkpoints_took_ms)
            self._checkpoints_took_ms = 0

    def _tell_progress(self, step: int, metrics: Any, now: float, *, last: bool) -> None:
        if step != self._milestone and (last or now >= self._milestone_at + MILESTONE_S):
            self._milestone, self._milestone_at = step, now
            known = {"pace": self._lookout.pace(), "work": self._lookout.work(now)}
            self._tell_server.fact("progressed", step=step, metrics=metrics, milestone=True, **known)
        elif (step, metrics) != self._told and now >= self._told_at + PROGRESS_S:
            self._tell_server.say("progressed", step=step, metrics=metrics, milestone=False)
        else:
            return
        self._told, self._told_at = (step, metrics), now


class _Tail:
    """One file that grows by whole lines, mostly."""

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
            self._rest = b""  # it is no report: the rank wrote something else there
        records = [_object(line) for line in lines]
        return [record for record in records if record is not None]


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None  # torn by a full disk, or no report
    return checked(found) if isinstance(found, dict) else None


def checked(record: dict[str, Any]) -> dict[str, Any]:
    """Return what a record says, without fields of a wrong type or out of range: any program of the job can write
    there, and the server refuses a message that has one."""
    kept = {name: record[name] for name in ("t", "pid", "step", "checkpoint", "took_ms") if _is_whole(record.get(name))}
    if "end" in record:
        kept["end"] = 0
    if isinstance(record.get("metrics"), dict):
        numbers = [(str(name)[:TEXT_CHARACTERS], value) for name, value in record["metrics"].items()]
        kept["metrics"] = {name: value for name, value in numbers[:MOST_METRICS] if _is_number(value)}
    if "phase" in record:
        kept["phase"] = None if record["phase"] is None else str(record["phase"])[:TEXT_CHARACTERS]
    if "resumed" in record and (record["resumed"] is None or _is_whole(record["resumed"])):
        kept["resumed"], kept["passed"] = record["resumed"], _flaws(record.get("passed"))
    return kept


def _flaws(passed: object) -> list[dict[str, Any]]:
    """Checkpoints that are not whole."""
    flaws = [each for each in passed if isinstance(each, dict)] if isinstance(passed, list) else []
    return [
        {"step": each["step"], "flaw": str(each.get("flaw"))[:TEXT_CHARACTERS]}
        for each in flaws[:MOST_FLAWS]
        if _is_whole(each.get("step"))
    ]


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def _is_number(value: object) -> bool:
    """Return whether it is a number, or None, which stands for one that is not finite."""
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or _is_whole(value)
