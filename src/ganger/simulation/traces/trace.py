"""The records of a trace, whatever its format: jobs and node faults; and its flaws.

Times are integer ms on the trace's own clock, which may begin anywhere; None and "" mean that the trace does not know.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Generic, TypeVar

from ganger.model.units import DEVICE_MILLI

T = TypeVar("T")
MAX_EXAMPLES: Final = 5
"""Number of rows with the same flaw whose lines are named; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedJob:
    """One job of a trace. Amounts are of the whole job, not of each of its nodes.

    duration_ms: how long it runs at the size it asks for; None if unknown
    gpus: number of whole GPUs
    max_gpus: most whole GPUs that an elastic job can use; None: it runs on `gpus`
    gpu_milli: share of one GPU, instead of `gpus`
    nodes: number of nodes; None: the trace leaves it to the scheduler
    gpu_types: acceptable types, lower-case; empty: any
    queue: queue or virtual cluster
    started_ms: when its own cluster started it
    limit_ms: its time limit
    deadline_ms: time by which it should have ended
    extra: the other columns of its row, parallel to `Trace.extra_columns`
    line: number of its line
    """

    name: str
    submitted_ms: int
    duration_ms: int | None
    gpus: int = 0
    max_gpus: int | None = None
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
        """Total of the GPUs that the job asks for, in thousandths."""
        return self.gpus * DEVICE_MILLI + (self.gpu_milli or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFault:
    """A node that was down from `start_ms` to `end_ms`, which are equal if it came back at once."""

    node: str
    start_ms: int
    end_ms: int
    level: str
    category: str
    detail: str
    line: int = field(default=0, compare=False)


class Flaw(StrEnum):
    """Flaws of a row. The names are stable, for programs."""

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
    NO_GPU = "no_gpu"
    UNKNOWN_GPU_TYPE = "unknown_gpu_type"
    TOO_LARGE = "too_large"
    HELD_BACK = "held_back"
    NO_DURATION = "no_duration"
    NO_THROUGHPUT = "no_throughput"
    TIME_BACK = "time_back"
    OVERLAP = "overlap"
    BEFORE_THE_LOG = "before_the_log"
    FAILED = "failed"
    NOT_ENDED = "not_ended"
    POLICY_CHANGED = "policy_changed"


KEPT_FLAWS: Final = frozenset(
    {
        Flaw.NO_DURATION,
        Flaw.NO_THROUGHPUT,
        Flaw.TIME_BACK,
        Flaw.OVERLAP,
        Flaw.FAILED,
        Flaw.NOT_ENDED,
        Flaw.POLICY_CHANGED,
    }
)
"""Flaws of rows that are kept."""

MEANING: Final[dict[Flaw, str]] = {
    Flaw.NOT_UTF8: "bytes that are not UTF-8",
    Flaw.CONTROL_CHARACTER: "control characters, for instance NUL bytes",
    Flaw.TOO_LONG: "a line longer than 64 KiB",
    Flaw.FIELDS: "more or fewer fields than columns, or an unterminated quote",
    Flaw.MISSING: "a required value is missing",
    Flaw.NOT_A_NUMBER: "not a number, or not a whole number where one is required",
    Flaw.OUT_OF_RANGE: "a number larger than any real value",
    Flaw.NEGATIVE: "a time or an amount below zero",
    Flaw.NOT_LEGAL: "a value that the format does not allow",
    Flaw.ASKS_NOTHING: "a job that asks for no GPU, no CPU and no memory",
    Flaw.DUPLICATE: "the name of an earlier row",
    Flaw.CONTRADICTION: "a row that contradicts itself or an earlier row",
    Flaw.PART_OF_A_JOB: "a part of a job that another row describes as a whole",
    Flaw.NO_GPU: "a pod that asks for no GPU, and is of no group that does",
    Flaw.UNKNOWN_GPU_TYPE: "a type of GPU that no node of the cluster has",
    Flaw.TOO_LARGE: "a job that the whole cluster could not hold",
    Flaw.HELD_BACK: "a job that the cluster could hold only together with its spares",
    Flaw.NO_DURATION: "kept, but its duration is unknown",
    Flaw.NO_THROUGHPUT: "kept, with the recorded duration on the types of GPU that it has no throughput for",
    Flaw.TIME_BACK: "kept, in order of time: earlier than the row before it",
    Flaw.OVERLAP: "kept: begins before the previous fault of the node has ended",
    Flaw.BEFORE_THE_LOG: "a job that was submitted before the first event that the log still has",
    Flaw.FAILED: "kept, without its failures: it runs as long as its work took, and succeeds",
    Flaw.NOT_ENDED: "kept, but its duration is unknown: it is withdrawn when it was, or when the log ends",
    Flaw.POLICY_CHANGED: "the policy was changed meanwhile: one document is in force from the beginning",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """The rows with one flaw. `examples`: (line, text) of the first of them."""

    flaw: Flaw
    count: int
    examples: tuple[tuple[int, str], ...]

    @property
    def is_kept(self) -> bool:
        """The rows are in the trace nevertheless."""
        return self.flaw in KEPT_FLAWS

    def __str__(self) -> str:
        """Return one sentence: `2 x not_a_number (...): line 7: duration: 'nan' is not a number; ...`."""
        lines = "; ".join(f"line {line}: {text}" for line, text in self.examples)
        more = "; ..." if self.count > len(self.examples) else ""
        return f"{self.count} x {self.flaw} ({MEANING[self.flaw]}): {lines}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace(Generic[T]):
    """The records of a file, in order of time; those of the same time in order of the file.

    rows: number of rows; each is a record or is counted by one finding that is not kept
    """

    path: str
    format: str
    rows: int
    records: tuple[T, ...]
    extra_columns: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def dropped(self) -> int:
        """Number of rows that are not among the records."""
        return sum(finding.count for finding in self.findings if not finding.is_kept)


class Findings:
    """A collector of flaws."""

    def __init__(self, known: tuple[Finding, ...] = ()) -> None:
        """Begin with the findings that are known."""
        self._counts = {finding.flaw: finding.count for finding in known}
        self._examples = {finding.flaw: list(finding.examples) for finding in known}

    def add(self, flaw: Flaw, line: int, text: str) -> None:
        """Add a row with a flaw."""
        self._counts[flaw] = self._counts.get(flaw, 0) + 1
        examples = self._examples.setdefault(flaw, [])
        if len(examples) < MAX_EXAMPLES:
            examples.append((line, text))

    def all(self) -> tuple[Finding, ...]:
        """Return each flaw once, in the order of `Flaw`."""
        return tuple(
            Finding(flaw, self._counts[flaw], tuple(self._examples[flaw])) for flaw in Flaw if flaw in self._counts
        )


class UnreadableTrace(Exception):
    """A file that cannot be used, with its path or `path:line`, the reason, and what to do about it."""

    def __init__(self, location: str, reason: str, next: str) -> None:
        super().__init__(f"{location}: {reason}; {next}")
        self.location = location
        self.reason = reason
        self.next = next

    def __reduce__(self) -> tuple[object, ...]:
        """Return what makes an equal error in another process: pickle would call the class with the message alone."""
        return type(self), (self.location, self.reason, self.next)
