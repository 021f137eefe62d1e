"""What is known of a failure besides that it happened: how each rank ended, and the exception it ended with. And what
is wrong with a checkpoint.

Gathered by launchers and backends as facts of `model.event.Failed`, judged by `core.failure.attribution`; of `Resumed`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonError:
    """The exception that ended a process, read from what it wrote: the first cause of a chain.

    type: without its module, as `ValueError`; message: its first line, with those that belong to it, joined; file,
    line: the innermost frame in the job's own code, else the innermost one, "" and 0 where none was written; source:
    that line, as far as it was written; led_to: the exception that came of it, as `ConfigError: no optimizer`.
    """

    type: str
    message: str = ""
    file: str = ""
    line: int = 0
    source: str = ""
    led_to: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How one rank ended. Exactly one of exit_code and signal is set; at_ms: when, in Unix ms by its node's clock;
    step: the newest it had reported in this generation, None for none; out_of_memory: the kernel ended it, or a
    process of it, for want of memory; words: without an exception, what it wrote last that speaks of an error."""

    rank: int
    node: str
    at_ms: int
    exit_code: int | None = None
    signal: int | None = None
    step: int | None = None
    out_of_memory: bool = False
    error: PythonError | None = None
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlawedCheckpoint:
    """A checkpoint that is not whole, and what is wrong with it: `model.pt has 3 bytes instead of 10`."""

    step: int
    flaw: str
