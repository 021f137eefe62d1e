"""Who is to blame for a failure: the program, the machines, or nobody can tell; which rank was first, in one sentence.

Judged by the `Failed` event alone, so that a judgement replays. Called by `core.heal`, which decides what follows, and
by whoever shows a failure. The order of the rules: docs/decisions/5-nothing-is-lost.md, "Verdict". The tables of types
and phrases are the words of Python, torch, NCCL, gloo, MPI, CUDA and the kernel (reference/reliability.md, section 3).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ganger.model.decision import Cause
from ganger.model.event import Failed
from ganger.model.evidence import PythonError, RankEnd


class Blame(StrEnum):
    """Who has to act."""

    USER = "user"
    INFRASTRUCTURE = "infrastructure"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Whose failure it was. rank, node, step and error are those of the first cause; rank None: no rank's. `sentence`
    begins with file, line and message where there is an exception; empty where nothing is known but the cause."""

    blame: Blame
    sentence: str
    node: str
    rank: int | None = None
    step: int | None = None
    error: PythonError | None = None


class Kind(StrEnum):
    """What one rank's end says by itself."""

    MEMORY = "memory"
    MACHINE = "machine"
    PROGRAM = "program"
    WAKE = "wake"
    CRASH = "crash"
    KILLED = "killed"


BLAMES: Final = {
    Kind.MEMORY: Blame.USER,
    Kind.MACHINE: Blame.INFRASTRUCTURE,
    Kind.PROGRAM: Blame.USER,
    Kind.WAKE: Blame.INFRASTRUCTURE,
    Kind.CRASH: Blame.UNKNOWN,
    Kind.KILLED: Blame.INFRASTRUCTURE,
}
NOT_OF_A_RANK: Final = {
    Cause.PORT_BUSY: Blame.INFRASTRUCTURE,
    Cause.LAUNCHER_LOST: Blame.INFRASTRUCTURE,
    Cause.NODE_LOST: Blame.INFRASTRUCTURE,
}
NO_SUCH_PROGRAM: Final = (126, 127)
"""What a shell exits with when it cannot run a command."""


def attribute(failed: Failed) -> Attribution:
    """Whose failure it was."""
    by_rank = failed.cause in (Cause.RANK_FAILED, Cause.OUT_OF_MEMORY) and failed.rank is not None
    ends = _bad_ends(failed) if by_rank else ()
    if not ends:
        user = failed.cause is Cause.START_FAILED and failed.exit_code in NO_SUCH_PROGRAM
        blame = Blame.USER if user else NOT_OF_A_RANK.get(failed.cause, Blame.UNKNOWN)
        return Attribution(blame=blame, sentence=failed.detail, node=failed.node)
    first = next((end for end in ends if kind(end) is not Kind.WAKE), ends[0])
    return Attribution(
        blame=BLAMES[kind(first)],
        sentence=failed.detail,
        node=first.node,
        rank=first.rank,
        step=first.step,
        error=first.error,
    )


def kind(end: RankEnd) -> Kind:
    """What a bad end says by itself."""
    if end.out_of_memory:
        return Kind.MEMORY
    if end.error is None and end.signal is not None:
        return Kind.KILLED
    return Kind.PROGRAM


def _bad_ends(failed: Failed) -> tuple[RankEnd, ...]:
    """Oldest first; of several at one time, one that was killed did not fail because of the others."""
    bad = [end for end in failed.ends if end.exit_code != 0]
    if not bad and failed.rank is not None and (failed.exit_code is not None or failed.signal is not None):
        code, number = failed.exit_code, failed.signal
        bad = [RankEnd(rank=failed.rank, node=failed.node, at_ms=0, exit_code=code, signal=number)]
    return tuple(sorted(bad, key=lambda end: (end.at_ms, end.signal is None, end.rank)))
