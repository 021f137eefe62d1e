"""Type and range of every field that a launcher, or another process of its user, may send or write.

One class for each message of `launcher.protocol.messages.FROM_LAUNCHER`, one for exit records and one for the ranks of
a plan. A message is checked once, when it arrives; the code that handles it relies on that. To add a type, add its
class and name it in `_Message`. docs/reference/launcher-protocol.md, "Limits", documents the limits.
"""

import json
import unicodedata
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from ganger.model.job_metrics import MAX_METRICS, MAX_POINTS

MOST: Final = (1 << 53) - 1
"""The largest integer that every JSON reader accepts unchanged; SQLite accepts more."""
MAX_RANKS: Final = 1_000_000
REASON_CHARACTERS: Final = 300
MAX_PAUSE_S: Final = 10_000_000
"""Longer pauses are invalid, to launchers too."""

Rank = Annotated[int, Field(ge=0, lt=MAX_RANKS)]
RankKey = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,5})$")]
"""A rank as the key of an object."""
Count = Annotated[int, Field(ge=0, le=MOST)]
TimeMs = Count
Step = Annotated[int, Field(ge=-MOST, le=MOST)]
Generation = Annotated[int, Field(ge=0, lt=1 << 31)]
ExitCode = Annotated[int, Field(ge=0, le=255)]
Signal = Annotated[int, Field(ge=1, le=64)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=600)]
ShortText = Annotated[str, StringConstraints(max_length=1_000)]
Text = Annotated[str, StringConstraints(max_length=10_000)]
LongText = Annotated[str, StringConstraints(max_length=100_000)]
Address = Annotated[str, StringConstraints(max_length=255, pattern=r"^[0-9A-Za-z.:%_-]*$")]
Tail = Annotated[list[Text], Field(max_length=100)]


def _check_printable(name: str) -> str:
    # Not str.isprintable: a launcher with a newer Python knows characters that are unassigned here.
    if any(unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") for character in name):
        raise ValueError("a name of a metric has a character that cannot be printed")
    return name


MetricName = Annotated[str, StringConstraints(min_length=1, max_length=100), AfterValidator(_check_printable)]
Metrics = Annotated[dict[ShortText, float | None], Field(max_length=1_000)]


class BadMessage(ValueError):
    """A message, or a file of a launcher, that does not fit the protocol."""


class _Checked(BaseModel):
    """An object whose fields have exactly the declared types: no conversion, no NaN, unknown fields dropped."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


# -- parts of messages ------------------------------------------------------------------------------------------------


class _PythonError(_Checked):
    type: Text = ""
    message: Text = ""
    file: Text = ""
    line: Count = 0
    source: Text = ""
    led_to: Text = ""


class _FlawedCheckpoint(_Checked):
    step: Step
    flaw: Text = ""


class _Schedule(_Checked):
    """A checkpoint schedule: an id, and the segments of `checkpoint_coordinator.Segment`."""

    id: Count
    segments: Annotated[list[tuple[Literal["step", "call"], Count, Count, Count]], Field(max_length=1_000)]


class _RankStack(_Checked):
    step: Step | None
    state: Annotated[str, StringConstraints(max_length=16)]
    busy_permille: Count
    idle_ms: Count = 0
    frames: Annotated[list[tuple[Text, Text, Count]], Field(max_length=64)] = []
    tail: Tail = []


class _NodeFinding(_Checked):
    code: Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,40}$")]
    gpu: Annotated[int, Field(ge=0, le=10_000)] | None = None
    sentence: ShortText
    is_bad: bool


class _TestedNode(_Checked):
    """The result of a node, by its place among those of the gang."""

    node: Count
    performance_milli: Annotated[int, Field(ge=0, le=1_000)]
    findings: Annotated[list[_NodeFinding], Field(max_length=100)] = []


class _End(_Checked):
    """The end of a rank: either with an exit code or by a signal."""

    rank: Rank
    exit_code: ExitCode | None = None
    signal: Signal | None = None
    at_ms: TimeMs = 0
    step: Step | None = None
    out_of_memory: bool = False
    error: _PythonError | None = None
    error_line: Text = ""

    @model_validator(mode="after")
    def _has_one_ending(self) -> Self:
        if (self.exit_code is None) == (self.signal is None):
            raise ValueError("either exit_code or signal must be set")
        return self


# -- messages ---------------------------------------------------------------------------------------------------------


class _Versioned(_Checked):
    v: Literal[2]


class _Hello(_Versioned):
    type: Literal["hello"]
    token: Text
    gang: Name
    node: Name
    pid: Count
    start_ticks: Count
    generations: Annotated[list[Generation], Field(max_length=1_000)]
    generation: Generation = 0
    address: Address | None = None


class _GetCode(_Versioned):
    type: Literal["get_code"]
    token: Text
    gang: Name
    node: Name
    generation: Generation
    start: Count


class _OfGeneration(_Versioned):
    gang: Name
    node: Name
    generation: Generation
    n: Annotated[int, Field(ge=1, le=MOST)] | None = None


class _Ready(_OfGeneration):
    type: Literal["ready"]
    stage: Annotated[int, Field(ge=0, le=1_000)]
    agent_port: Port | None = None


class _Started(_OfGeneration):
    type: Literal["started"]
    pids: Annotated[dict[RankKey, tuple[Count, Count]], Field(max_length=MAX_RANKS)] = {}


class _Progressed(_OfGeneration):
    type: Literal["progressed"]
    step: Step
    metrics: Metrics = {}
    milestone: bool = False
    step_times_ms: dict[RankKey, Count] = {}
    busy_shares: dict[RankKey, tuple[Count, Count, Count]] = {}


class _Observed(_OfGeneration):
    type: Literal["observed"]
    points: Annotated[list[tuple[Step, TimeMs, float | None]], Field(max_length=1_000)]


class _MetricsKept(_OfGeneration):
    """Values by metric: rank; step and value of the newest report, of the lowest value, and of the highest."""

    type: Literal["metrics_kept"]
    values: Annotated[
        dict[
            MetricName,
            tuple[Rank, Step, float | None, Step | None, float | None, Step | None, float | None],
        ],
        Field(max_length=MAX_METRICS),
    ]
    left_out: Count


class _Checkpointed(_OfGeneration):
    type: Literal["checkpointed"]
    step: Step
    took_ms: Count = 0
    saved_ms: TimeMs | None = None
    parts: Count = 1


class _NoticeSaved(_OfGeneration):
    type: Literal["notice_saved"]
    step: Step
    parts: Count = 1


class _Resumed(_OfGeneration):
    type: Literal["resumed"]
    step: Step | None
    skipped: Annotated[list[_FlawedCheckpoint], Field(max_length=1_000)]
    older_step: Step | None = None
    source: Text = ""


class _CopyDropped(_OfGeneration):
    type: Literal["copy_dropped"]
    peer: Name
    step: Step
    reason: Text


class _Preflight(_OfGeneration):
    type: Literal["preflight"]
    nodes: Annotated[list[_TestedNode], Field(max_length=10_000)]


class _CheckpointCounts(_OfGeneration):
    type: Literal["checkpoint_counts"]
    reply_to: Count
    calling_ranks: Count
    stepping_ranks: Count
    step: Count | None
    call: Count
    pending: Count
    schedule: _Schedule


class _Pauses(_Checked):
    """The pauses of the job that its launcher knows: the longest by phase, and a silence that may be one."""

    longest_s: Annotated[
        dict[Annotated[str, StringConstraints(max_length=200)], Annotated[float, Field(ge=0, le=MAX_PAUSE_S)]],
        Field(max_length=64),
    ] = {}
    suspected_s: Annotated[float, Field(ge=0, le=MAX_PAUSE_S)] = 0.0
    stuck_step: Step = -1


class _StallReport(_OfGeneration):
    type: Literal["stall_report"]
    has_run: bool
    has_reports: bool
    stopped_ranks: list[tuple[Rank, Literal["stopped", "blocked", "dead"], TimeMs, bool]]
    silent_since_ms: TimeMs | None
    quiet_since_ms: TimeMs | None = None
    unwritten_since_ms: TimeMs | None = None
    usual_gap_ms: Count | None = None
    ranks_lost_since_ms: TimeMs | None
    pauses: _Pauses = _Pauses()


class _StacksTaken(_OfGeneration):
    type: Literal["stacks_taken"]
    ranks: dict[RankKey, _RankStack]


class _RankUsage(_OfGeneration):
    type: Literal["rank_usage"]
    ranks: Annotated[dict[RankKey, tuple[Count, Count, Count]], Field(max_length=MAX_RANKS)]


class _ExitRecordMessage(_End, _OfGeneration):
    type: Literal["exit_record"]
    pid: Count
    left: bool = False


class _FileContent(_OfGeneration):
    type: Literal["file_content"]
    id: Count
    start: Count
    data: Annotated[str, StringConstraints(max_length=1 << 19)]
    end: Count


class _RankFailed(_End, _OfGeneration):
    type: Literal["rank_failed"]
    tail: Tail = []

    @model_validator(mode="after")
    def _has_failed(self) -> Self:
        if self.exit_code == 0:
            raise ValueError("a rank that failed has no exit_code 0")
        return self


class _StartFailed(_OfGeneration):
    type: Literal["start_failed"]
    detail: LongText
    exit_code: ExitCode | None = None
    tail: Tail = []


class _Warmed(_OfGeneration):
    type: Literal["warmed"]


class _Evicted(_OfGeneration):
    type: Literal["evicted"]
    notice_ms: Count


class _Done(_OfGeneration):
    type: Literal["done"]


class _Finished(_OfGeneration):
    type: Literal["finished"]


class _Cleared(_OfGeneration):
    type: Literal["cleared"]
    killed: list[Rank] = []
    grace_ms: Count = 0


_Message = Annotated[
    _Ready
    | _Warmed
    | _Started
    | _Progressed
    | _Observed
    | _MetricsKept
    | _Checkpointed
    | _NoticeSaved
    | _Resumed
    | _CopyDropped
    | _Preflight
    | _CheckpointCounts
    | _StallReport
    | _StacksTaken
    | _RankUsage
    | _ExitRecordMessage
    | _FileContent
    | _RankFailed
    | _StartFailed
    | _Evicted
    | _Done
    | _Finished
    | _Cleared,
    Field(discriminator="type"),
]

# -- files ------------------------------------------------------------------------------------------------------------


class _ExitRecord(_End):
    pid: Count | None = None
    left: bool = False
    tail: Tail = []


class _PlannedRank(_Checked):
    rank: Rank
    ends: bool = False
    on_failure: ShortText = ""
    environment: dict[str, str] = {}


class _Plan(_Checked):
    ranks: list[_PlannedRank]
    environment: dict[str, str] = {}


class _Report(_Checked):
    t: TimeMs | None = None
    step: Step | None = None
    metrics: Metrics | None = None
    phase: Text | None = None


class _Curve(_Checked):
    rank: Rank
    points: Annotated[list[tuple[Step, TimeMs, float | None]], Field(max_length=MAX_POINTS)]


class _Curves(_Checked):
    """Curves of a generation on one node, by metric."""

    curves: Annotated[dict[MetricName, _Curve], Field(max_length=MAX_METRICS)]


_FIRST: Final[TypeAdapter[_Checked]] = TypeAdapter(Annotated[_Hello | _GetCode, Field(discriminator="type")])
_MESSAGE: Final[TypeAdapter[_Checked]] = TypeAdapter(_Message)
_EXIT_RECORD: Final = TypeAdapter(_ExitRecord)
_PLAN: Final = TypeAdapter(_Plan)
_CURVES: Final = TypeAdapter(_Curves)
_REPORT: Final = TypeAdapter(_Report)


def first_message(line: bytes | bytearray) -> dict[str, Any]:
    """Parse a message of a peer without `hello`; raise BadMessage if it is neither `hello` nor `get_code`."""
    return _validated(_FIRST.validate_json, line)


def message(line: bytes | bytearray) -> dict[str, Any]:
    """Parse a message after the `hello`, filling in defaults; raise BadMessage if it is invalid."""
    return _validated(_MESSAGE.validate_json, line)


def exit_record(text: bytes) -> dict[str, Any]:
    """Parse the file `rank-R.exit`; raise BadMessage if it is invalid."""
    return _validated(_EXIT_RECORD.validate_json, text)


def plan(text: bytes) -> dict[str, Any]:
    """Parse the parts of `plan-G.json` that the server reads again; raise BadMessage if they are invalid.

    Unlike messages it may contain lone surrogates: Python represents a variable that is not UTF-8 that way.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"not JSON: {error}"[:REASON_CHARACTERS]) from None
    return _validated(_PLAN.validate_python, document)


def curves(text: bytes) -> dict[str, Any]:
    """Parse the file `metrics.json` of a generation; raise BadMessage if it is invalid."""
    return _validated(_CURVES.validate_json, text)


def report(line: bytes) -> dict[str, Any]:
    """Parse a line of `rank-R.report`, without filling in defaults; raise BadMessage if it is invalid."""
    return _validated(_REPORT.validate_json, line, exclude_unset=True)


def _validated(validate: Callable[[Any], _Checked], content: Any, *, exclude_unset: bool = False) -> dict[str, Any]:
    try:
        return validate(content).model_dump(exclude_unset=exclude_unset)
    except ValidationError as error:
        raise BadMessage(_reason(error)) from None


def _reason(error: ValidationError) -> str:
    """Return the first error without the value, which may be long, or a secret."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    location = ".".join(map(str, first["loc"]))
    return f"{location}: {first['msg']}"[:REASON_CHARACTERS]
