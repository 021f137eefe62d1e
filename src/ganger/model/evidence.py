"""Evidence on failures: how each rank ended, the exception it raised, and what is wrong with a checkpoint."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonError:
    """The exception that ended a process, parsed from its output: the first cause of a chain.

    Attributes:
        type: Without its module: `ValueError`.
        message: Its first line, joined with its continuation lines.
        file, line: The innermost frame in the job's own code, else the innermost one; "" and 0 if none was written.
        source: The text of that line, as far as it was written.
        led_to: The exception that followed from it: `ConfigError: no optimizer`.
    """

    type: str
    message: str = ""
    file: str = ""
    line: int = 0
    source: str = ""
    led_to: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """The end of one rank. Exactly one of exit_code and signal is set.

    Attributes:
        at_ms: When, in Unix ms by its node's clock.
        step: The newest step that it reported in this generation, None for none.
        out_of_memory: The kernel's OOM killer ended it or one of its processes.
        error_line: Without an exception, the last line it wrote that mentions an error.
    """

    rank: int
    node: str
    at_ms: int
    exit_code: int | None = None
    signal: int | None = None
    step: int | None = None
    out_of_memory: bool = False
    error: PythonError | None = None
    error_line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlawedCheckpoint:
    """An incomplete checkpoint, and what is wrong with it: `model.pt has 3 bytes instead of 10`."""

    step: int
    flaw: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """Times for which the first thread of a rank ran in a step, and waited for a CPU."""

    ran_ms: int
    queued_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleMatch:
    """The rule of `retry.rules` that matches a failure: its index, and its action.

    Attributes:
        node: The node of the log line that the pattern matched; for a rule by cause alone, the node of the failure.
        rank: The rank that wrote the line, None without a pattern.
        line: Its text, cut to the width of a log tail.
    """

    rule: int
    do: str
    node: str
    rank: int | None = None
    line: str = ""
