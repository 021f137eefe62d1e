"""Failure attribution: whether the program or the machines are to blame, and which rank failed first, in one sentence.

Based on the `Failed` event alone, so that it can be replayed. The order of the rules: docs/how-to/failures.md,
"Attribution". The texts that are searched for: `core.failure.signatures`."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ganger.core.failure.signatures import CRASHES, SIGNALS, Signature, classify
from ganger.model.decision import Cause
from ganger.model.event import Failed
from ganger.model.evidence import PythonError, RankEnd


class Blame(StrEnum):
    """Party that has to act."""

    USER = "user"
    INFRASTRUCTURE = "infrastructure"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Blame for a failure, with the evidence in a sentence.

    sentence: begins with file, line and message of the exception if there is one; empty if only the cause is known.
    rank, node, step, error: those of the first failure; rank is None for a failure of no rank.
    """

    blame: Blame
    sentence: str
    node: str
    rank: int | None = None
    step: int | None = None
    error: PythonError | None = None


BLAMES: Final = {
    Signature.MEMORY: Blame.USER,
    Signature.MACHINE: Blame.INFRASTRUCTURE,
    Signature.SERVICE: Blame.INFRASTRUCTURE,
    Signature.PROGRAM: Blame.USER,
    Signature.PEER_LOST: Blame.INFRASTRUCTURE,
    Signature.CRASH: Blame.UNKNOWN,
    Signature.KILLED: Blame.INFRASTRUCTURE,
    Signature.STOPPED: Blame.UNKNOWN,
}
BLAMES_WITHOUT_RANK: Final = {
    Cause.PORT_BUSY: Blame.INFRASTRUCTURE,
    Cause.PREFLIGHT_FAILED: Blame.INFRASTRUCTURE,
    Cause.LAUNCHER_LOST: Blame.INFRASTRUCTURE,
    Cause.NODE_LOST: Blame.INFRASTRUCTURE,
}
CONNECTION_TYPES: Final = re.compile(r"\w*(Connect(ion)?|Timeout|TimedOut)(Error|Exception)?")
"""Exceptions of a connection that failed, or of a wait that took too long, whosever they are."""
CANNOT_RUN: Final = (126, 127)
"""Exit codes of a shell that cannot run a command."""
SIGKILL: Final = 9
TIMEOUT_WORDS: Final = re.compile(r"(?i)timed? ?out|watchdog")
"""Words with which a program says that it waited too long."""
_CLIENTS_JOINED = re.compile(r"(\d+)/(\d+) clients joined")
"""Text with which torch's store reports the clients at the rendezvous."""


def attribute(failed: Failed) -> Attribution:
    """Return whose failure it was."""
    failures = (end for end in failed.ends if end.exit_code != 0)
    # Oldest first. At equal times a killed rank comes first: it cannot have failed because of the others.
    ends = tuple(sorted(failures, key=lambda end: (end.at_ms, end.signal is None, end.rank)))
    if not ends:
        return _without_ends(failed)
    signatures = {end.rank: _signature(end, failed) for end in ends}
    first = next((end for end in ends if signatures[end.rank] is not Signature.PEER_LOST), ends[0])
    blame = _blame(signatures[first.rank], first, ends, failed)
    return Attribution(
        blame=blame,
        sentence=_sentence(first, signatures[first.rank], blame, ends, failed),
        node=first.node,
        rank=first.rank,
        step=first.step,
        error=first.error,
    )


def may_pass(failed: Failed) -> bool:
    """Return whether the first failure was a lost connection or a time-out that the next attempt may not meet.

    Not where the cause is known: a peer that was lost, or a rank that had left before the others.
    """
    attribution = attribute(failed)
    end = next((end for end in failed.ends if end.rank == attribution.rank), None)
    if end is None:
        return False
    signature = _signature(end, failed)
    if signature is Signature.PEER_LOST:
        return attribution.blame is Blame.UNKNOWN
    is_of_connection = end.error is not None and CONNECTION_TYPES.fullmatch(end.error.type) is not None
    return signature is Signature.PROGRAM and is_of_connection


# -- judgement ---------------------------------------------------------------------------------------------------------


def _without_ends(failed: Failed) -> Attribution:
    """Attribute a failure of no rank, or one without exit records."""
    blame, sentence = BLAMES_WITHOUT_RANK.get(failed.cause, Blame.UNKNOWN), failed.detail
    if failed.cause is Cause.START_FAILED and failed.exit_code in CANNOT_RUN:
        blame = Blame.USER
    if not sentence and failed.rank is not None and (failed.exit_code is not None or failed.signal is not None):
        sentence = f"rank {failed.rank} on {failed.node} {_describe_end(failed.exit_code, failed.signal, 'was')}"
    return Attribution(blame=blame, sentence=sentence, node=failed.node, rank=failed.rank)


def _signature(end: RankEnd, failed: Failed) -> Signature:
    """Return the signature of an end in a gang of this size."""
    signature = classify(end)
    joined = _CLIENTS_JOINED.search(end.error.message) if end.error else None
    if signature is Signature.PEER_LOST and joined and 0 < failed.ranks <= int(joined[1]):
        return Signature.PROGRAM  # all ranks joined: the program expects more than the job has
    return signature


def _blame(signature: Signature, first: RankEnd, ends: tuple[RankEnd, ...], failed: Failed) -> Blame:
    if signature is not Signature.PEER_LOST:
        return BLAMES[signature]
    if failed.ranks == 1:
        return Blame.UNKNOWN  # it has no peer: the connection was to something else
    if _left_early(first, failed) is not None:
        return Blame.USER
    error_text = first.error.message if first.error else first.error_line
    if TIMEOUT_WORDS.search(error_text) and len(failed.ends) < failed.ranks:
        return (
            Blame.UNKNOWN
        )  # the ranks that it waited for have not ended: they hang, or work for longer than its timeout
    is_same_everywhere = len(ends) == failed.ranks and all(_error_place(end) == _error_place(first) for end in ends)
    # Before the first step, a wrong address in the program may be why the ranks never connected.
    return Blame.UNKNOWN if is_same_everywhere and first.step is None else BLAMES[signature]


def _left_early(first: RankEnd, failed: Failed) -> RankEnd | None:
    """Return a rank that had exited with 0 while its peers still counted on it, or None."""
    return next((end for end in failed.ends if end.exit_code == 0 and end.at_ms <= first.at_ms), None)


def _error_place(end: RankEnd) -> tuple[str, str, int] | None:
    return (end.error.type, end.error.file, end.error.line) if end.error else None


# -- sentence ----------------------------------------------------------------------------------------------------------


def _sentence(first: RankEnd, signature: Signature, blame: Blame, ends: tuple[RankEnd, ...], failed: Failed) -> str:
    """Return error, ranks and advice as one sentence."""
    ranks = _describe_ranks(first, ends, failed)
    text = f"{_describe_error(first.error)}; {ranks}" if first.error else ranks
    if first.error_line and first.error is None and first.signal in (None, *CRASHES):
        text += f" after it wrote {first.error_line!r}"
    leaver = _left_early(first, failed) if signature is Signature.PEER_LOST else None
    if leaver is not None:
        return f"{text}; rank {leaver.rank} on {leaver.node} had ended before, with code 0: a program error"
    advice = _advice(signature, blame, first)
    return f"{text}; {advice}" if advice else text


def _describe_ranks(first: RankEnd, ends: tuple[RankEnd, ...], failed: Failed) -> str:
    """Describe the ranks that ended the same way: `rank 3 on n2 exited with code 1`, or how many did."""
    similar = [
        end for end in ends if (_error_place(end), _exit_status(end)) == (_error_place(first), _exit_status(first))
    ]
    if len(similar) == failed.ranks > 1:
        ranks = f"all {len(similar)} ranks"
    else:
        ranks = f"rank {first.rank} on {first.node}" + (f" and {len(similar) - 1} more" if len(similar) > 1 else "")
    return f"{ranks} {_describe_end(first.exit_code, first.signal, 'were' if len(similar) > 1 else 'was')}"


def _describe_end(code: int | None, number: int | None, verb: str) -> str:
    if number is None:
        return f"exited with code {code}"
    return f"{verb} killed by signal {number}" + (f" ({SIGNALS[number]})" if number in SIGNALS else "")


def _exit_status(end: RankEnd) -> tuple[int | None, int | None]:
    return end.exit_code, end.signal


def _describe_error(error: PythonError) -> str:
    """Describe the error: `train.py:31: KeyError: 'lr'`, and what it led to."""
    location = f"{error.file}:{error.line}: " if error.line else ""
    description = error.message or error.source
    led_to = f" (then {error.led_to})" if error.led_to else ""
    return f"{location}{error.type}{f': {description}' if description else ''}{led_to}"


def _advice(signature: Signature, blame: Blame, first: RankEnd) -> str:
    match signature:
        case Signature.MEMORY if first.out_of_memory:
            process = "a process of it" if first.signal is None else "it"
            remedy = "ask for more with resources.memory, or make it need less"
            return f"the kernel's OOM killer ended {process}: {remedy}"
        case Signature.MEMORY:
            return "out of memory: give it more, or make it need less"
        case Signature.PROGRAM:
            return "program error"
        case Signature.MACHINE:
            return "a fault of the machine, not of the program"
        case Signature.SERVICE:
            return "a service outside the job did not answer"
        case Signature.PEER_LOST if blame is Blame.INFRASTRUCTURE:
            return "it lost a peer"
        case Signature.KILLED:
            memory = ", and not by the OOM killer as far as the kernel reports" if first.signal == SIGKILL else ""
            return f"not by ganger{memory}"
        case _:
            return ""
