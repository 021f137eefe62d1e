"""Who is to blame for a failure: the program, the machines, or nobody can tell; which rank was first, in one sentence.

Judged by the `Failed` event alone, so that a judgement replays. Called by `core.failure.retry`, which decides what
follows, and by whoever shows a failure. The order of the rules: docs/reference/failures.md, "Attribution". The words
that are looked for: `core.failure.signatures`."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ganger.core.failure.signatures import CRASHES, SIGNALS, Signature, kind
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


BLAMES: Final = {
    Signature.MEMORY: Blame.USER,
    Signature.MACHINE: Blame.INFRASTRUCTURE,
    Signature.PROGRAM: Blame.USER,
    Signature.WAKE: Blame.INFRASTRUCTURE,
    Signature.CRASH: Blame.UNKNOWN,
    Signature.KILLED: Blame.INFRASTRUCTURE,
    Signature.STOPPED: Blame.UNKNOWN,
}
NOT_OF_A_RANK: Final = {
    Cause.PORT_BUSY: Blame.INFRASTRUCTURE,
    Cause.LAUNCHER_LOST: Blame.INFRASTRUCTURE,
    Cause.NODE_LOST: Blame.INFRASTRUCTURE,
}
NO_SUCH_PROGRAM: Final = (126, 127)
"""What a shell exits with when it cannot run a command."""
SIGKILL: Final = 9
LIMIT: Final = re.compile(r"(?i)timed? ?out|watchdog")
"""How somebody says that he waited too long."""
_JOINED = re.compile(r"(\d+)/(\d+) clients joined")
"""How torch's store says who came to the rendezvous."""


def attribute(failed: Failed) -> Attribution:
    """Whose failure it was."""
    bad = (end for end in failed.ends if end.exit_code != 0)
    # Oldest first; of several at one time, one that was killed did not fail because of the others.
    ends = tuple(sorted(bad, key=lambda end: (end.at_ms, end.signal is None, end.rank)))
    if not ends:
        return _without_ends(failed)
    kinds = {end.rank: _kind(end, failed) for end in ends}
    first = next((end for end in ends if kinds[end.rank] is not Signature.WAKE), ends[0])
    blame = _blame(kinds[first.rank], first, ends, failed)
    return Attribution(
        blame=blame,
        sentence=_sentence(first, kinds[first.rank], blame, ends, failed),
        node=first.node,
        rank=first.rank,
        step=first.step,
        error=first.error,
    )


# -- the judgement -----------------------------------------------------------------------------------------------------


def _without_ends(failed: Failed) -> Attribution:
    """Of a failure that was no rank's, or of which nobody knows more than what was told."""
    blame, sentence = NOT_OF_A_RANK.get(failed.cause, Blame.UNKNOWN), failed.detail
    if failed.cause is Cause.START_FAILED and failed.exit_code in NO_SUCH_PROGRAM:
        blame = Blame.USER
    if not sentence and failed.rank is not None and (failed.exit_code is not None or failed.signal is not None):
        sentence = f"rank {failed.rank} on {failed.node} {_ended(failed.exit_code, failed.signal, 'was')}"
    return Attribution(blame=blame, sentence=sentence, node=failed.node, rank=failed.rank)


def _kind(end: RankEnd, failed: Failed) -> Signature:
    """What an end says, by itself and for a gang of this size."""
    found = kind(end)
    joined = _JOINED.search(end.error.message) if end.error else None
    if found is Signature.WAKE and joined and 0 < failed.ranks <= int(joined[1]):
        return Signature.PROGRAM  # all that there are came: it asks for more than the job has
    return found


def _blame(found: Signature, first: RankEnd, ends: tuple[RankEnd, ...], failed: Failed) -> Blame:
    if found is not Signature.WAKE:
        return BLAMES[found]
    if failed.ranks == 1:
        return Blame.UNKNOWN  # it has no peer: it spoke with somebody else
    if _left(first, failed) is not None:
        return Blame.USER
    if LIMIT.search(first.error.message if first.error else first.words) and len(failed.ends) < failed.ranks:
        return Blame.UNKNOWN  # those it waited for have not ended: they hang, or work for longer than it waits
    alike = len(ends) == failed.ranks and all(_place(end) == _place(first) for end in ends)
    # Before the first step it may be that they could never meet, by an address of the program's own.
    return Blame.UNKNOWN if alike and first.step is None else BLAMES[found]


def _left(first: RankEnd, failed: Failed) -> RankEnd | None:
    """A rank that had ended well while its peers still counted on it."""
    return next((end for end in failed.ends if end.exit_code == 0 and end.at_ms <= first.at_ms), None)


def _place(end: RankEnd) -> tuple[str, str, int] | None:
    return (end.error.type, end.error.file, end.error.line) if end.error else None


# -- the sentence ------------------------------------------------------------------------------------------------------


def _sentence(first: RankEnd, found: Signature, blame: Blame, ends: tuple[RankEnd, ...], failed: Failed) -> str:
    """What, who and where, and who is to act."""
    who = _who(first, ends, failed)
    said = f"{_exception(first.error)}; {who}" if first.error else who
    if first.words and first.error is None and first.signal in (None, *CRASHES):
        said += f" after it wrote {first.words!r}"
    left = _left(first, failed) if found is Signature.WAKE else None
    if left is not None:
        return f"{said}; rank {left.rank} on {left.node} had ended before, with code 0: an error of the program"
    advice = _advice(found, blame, first)
    return f"{said}; {advice}" if advice else said


def _who(first: RankEnd, ends: tuple[RankEnd, ...], failed: Failed) -> str:
    """`rank 3 on n2 exited with code 1`; of several that ended alike, how many did."""
    alike = [end for end in ends if (_place(end), _how(end)) == (_place(first), _how(first))]
    if len(alike) == failed.ranks > 1:
        who = f"all {len(alike)} ranks"
    else:
        who = f"rank {first.rank} on {first.node}" + (f" and {len(alike) - 1} more" if len(alike) > 1 else "")
    return f"{who} {_ended(first.exit_code, first.signal, 'were' if len(alike) > 1 else 'was')}"


def _ended(code: int | None, number: int | None, was: str) -> str:
    if number is None:
        return f"exited with code {code}"
    return f"{was} killed by signal {number}" + (f" ({SIGNALS[number]})" if number in SIGNALS else "")


def _how(end: RankEnd) -> tuple[int | None, int | None]:
    return end.exit_code, end.signal


def _exception(error: PythonError) -> str:
    """`train.py:31: KeyError: 'lr'`, and what came of it."""
    place = f"{error.file}:{error.line}: " if error.line else ""
    words = error.message or error.source
    led_to = f" (then {error.led_to})" if error.led_to else ""
    return f"{place}{error.type}{f': {words}' if words else ''}{led_to}"


def _advice(found: Signature, blame: Blame, first: RankEnd) -> str:
    match found:
        case Signature.MEMORY if first.out_of_memory:
            what = "a process of it" if first.signal is None else "it"
            remedy = "ask for more with resources.memory, or make it need less"
            return f"the kernel ended {what} for want of memory: {remedy}"
        case Signature.MEMORY:
            return "out of memory: give it more, or make it need less"
        case Signature.PROGRAM:
            return "an error of the program"
        case Signature.MACHINE:
            return "a fault of the machine, not of the program"
        case Signature.WAKE if blame is Blame.INFRASTRUCTURE:
            return "it lost a peer"
        case Signature.KILLED:
            memory = ", nor for want of memory as far as the kernel tells" if first.signal == SIGKILL else ""
            return f"not by ganger{memory}"
        case _:
            return ""
