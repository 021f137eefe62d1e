"""What a trace says, whatever its format: jobs, faults, spot nodes; and what of it was dropped or kept with a doubt.

Made by the readers, used by whoever replays a trace. Times are integer ms on the trace's own clock, which may begin
anywhere; None and "" say that the trace does not know.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Generic, TypeVar

from ganger.model.units import DEVICE_MILLI

T = TypeVar("T")
FIRST: Final = 5
"""Of so many rows with the same flaw the lines are named; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedJob:
    """One job of a trace. Amounts are of the whole job, not of each of its nodes.

    gpus: whole ones; gpu_milli: instead of them a share of one; nodes: on how many it must be, None where the trace
    leaves that to the scheduler. duration_ms: how long it runs at the size it asks for, None where nobody knows;
    started_ms: when its own cluster started it; limit_ms: how long it may run; deadline_ms: by when it should have
    ended. gpu_types: any of these, lower-case, empty: any. queue: or the virtual cluster. extra: the other columns of
    its row, parallel to `Trace.extra_columns`. line: where it stood, which makes no difference to what it is.
    """

    name: str
    submitted_ms: int
    duration_ms: int | None
    gpus: int = 0
    gpu_milli: int | None = None
    nodes: int | None = None
    cpu_milli: int | None = None
    memory_bytes: int | None = None
    gpu_types: tuple[str, ...] = ()
    user: str = ""
    queue: str = ""
    priority: int | None = None
    started_ms: int | None = None
    limit_ms: int | None = None
    deadline_ms: int | None = None
    iterations: int | None = None
    model_name: str = ""
    batch_size: int | None = None
    extra: tuple[str, ...] = ()
    line: int = field(default=0, compare=False)

    @property
    def asked_gpu_milli(self) -> int:
        """Thousandths of GPUs that it asks for in all."""
        return self.gpus * DEVICE_MILLI + (self.gpu_milli or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFault:
    """One node that did not work from `start_ms` to `end_ms`, which are equal where it came back at once."""

    node: str
    start_ms: int
    end_ms: int
    level: str
    category: str
    detail: str
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotChange:
    """One spot node that was given (`is_up`) or taken back."""

    at_ms: int
    node: str
    is_up: bool
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotCapacity:
    """How many spot nodes were held from then on."""

    at_ms: int
    nodes: int
    line: int = field(default=0, compare=False)


class Flaw(StrEnum):
    """What is wrong with a row, and so with what is made of it. Stable, for programs; `KEPT` are only doubts."""

    NOT_UTF8 = "not_utf8"
    CONTROL_CHARACTER = "control_character"
    TOO_LONG = "too_long"
    FIELDS = "fields"
    MISSING = "missing"
    NOT_A_NUMBER = "not_a_number"
    OUT_OF_RANGE = "out_of_range"
    NEGATIVE = "negative"
    NOT_LEGAL = "not_legal"
    ASKS_NOTHING = "asks_nothing"
    DUPLICATE = "duplicate"
    CONTRADICTION = "contradiction"
    PART_OF_A_JOB = "part_of_a_job"
    UNKNOWN_GPU_TYPE = "unknown_gpu_type"
    TOO_LARGE = "too_large"
    NO_DURATION = "no_duration"
    TIME_BACK = "time_back"
    OVERLAP = "overlap"
    BEFORE_THE_LOG = "before_the_log"
    FAILED = "failed"
    NOT_ENDED = "not_ended"
    POLICY_CHANGED = "policy_changed"


KEPT: Final = frozenset(
    {Flaw.NO_DURATION, Flaw.TIME_BACK, Flaw.OVERLAP, Flaw.FAILED, Flaw.NOT_ENDED, Flaw.POLICY_CHANGED}
)
"""Flaws of rows that are kept all the same."""

MEANING: Final[dict[Flaw, str]] = {
    Flaw.NOT_UTF8: "bytes that are not UTF-8",
    Flaw.CONTROL_CHARACTER: "control characters, for instance NUL bytes",
    Flaw.TOO_LONG: "a line longer than 64 KiB",
    Flaw.FIELDS: "more or fewer fields than columns, or a quote that does not end",
    Flaw.MISSING: "a value is missing that every row must have",
    Flaw.NOT_A_NUMBER: "not a number, or not a whole one where only a whole one makes sense",
    Flaw.OUT_OF_RANGE: "a number larger than anything real",
    Flaw.NEGATIVE: "a time or an amount below zero",
    Flaw.NOT_LEGAL: "a value that the format does not know",
    Flaw.ASKS_NOTHING: "a job that asks for no GPU, no CPU and no memory",
    Flaw.DUPLICATE: "a name that an earlier row has",
    Flaw.CONTRADICTION: "a row that cannot be true, by itself or after those before it",
    Flaw.PART_OF_A_JOB: "a part of a job that another row tells of as a whole",
    Flaw.UNKNOWN_GPU_TYPE: "a type of GPU that no node of the cluster has",
    Flaw.TOO_LARGE: "a job that the whole cluster could not hold",
    Flaw.NO_DURATION: "kept, but nobody knows how long it runs",
    Flaw.TIME_BACK: "kept, in order of time: earlier than a row before it",
    Flaw.OVERLAP: "kept: begins before the last fault of the node has ended",
    Flaw.BEFORE_THE_LOG: "a job that was there before the first event that the log still has",
    Flaw.FAILED: "kept, without its failures: it runs for as long as its work took, and ends well",
    Flaw.NOT_ENDED: "kept, but nobody knows how long it runs: it is withdrawn when it was, or when the log ends",
    Flaw.POLICY_CHANGED: "the policy was changed meanwhile: one document holds from the beginning on",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """So many rows had this flaw; of the first the lines, and what stood there."""

    flaw: Flaw
    count: int
    first: tuple[tuple[int, str], ...]

    @property
    def is_kept(self) -> bool:
        """Whether the rows are in the trace nevertheless."""
        return self.flaw in KEPT

    def __str__(self) -> str:
        """One sentence: `2 x not_a_number (...): line 7: duration: 'nan' is not a number; ...`."""
        lines = "; ".join(f"line {line}: {what}" for line, what in self.first)
        more = "; ..." if self.count > len(self.first) else ""
        return f"{self.count} x {self.flaw} ({MEANING[self.flaw]}): {lines}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace(Generic[T]):
    """What was read of a file. Records are in order of time, those of the same time in order of the file.

    rows: how many there were; each is a record or is counted by one finding that is not kept.
    """

    place: str
    format: str
    rows: int
    records: tuple[T, ...]
    extra_columns: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def dropped(self) -> int:
        """How many rows are not among the records."""
        return sum(finding.count for finding in self.findings if not finding.is_kept)


class Findings:
    """Flaws as they are found."""

    def __init__(self, known: tuple[Finding, ...] = ()) -> None:
        """Go on after those that are known."""
        self._count = {finding.flaw: finding.count for finding in known}
        self._first = {finding.flaw: list(finding.first) for finding in known}

    def add(self, flaw: Flaw, line: int, what: str) -> None:
        """One more row."""
        self._count[flaw] = self._count.get(flaw, 0) + 1
        first = self._first.setdefault(flaw, [])
        if len(first) < FIRST:
            first.append((line, what))

    def all(self) -> tuple[Finding, ...]:
        """Each flaw once, in the order of `Flaw`."""
        return tuple(Finding(flaw, self._count[flaw], tuple(self._first[flaw])) for flaw in Flaw if flaw in self._count)


class Unreadable(Exception):
    """A file of which nothing can be used: where, why, and what to do about it."""

    def __init__(self, place: str, reason: str, next: str) -> None:
        super().__init__(f"{place}: {reason}; {next}")
        self.place = place
        self.reason = reason
        self.next = next
