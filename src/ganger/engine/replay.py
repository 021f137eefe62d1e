"""Re-run a part of the log: fold the events, plan each cycle again, compare the decisions.

Run in a fresh process with another hash seed: a plan must not depend on either. A difference means that the code
decides differently now, or that something impure got into the core.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise

from ganger.core.cycle.cycle import plan
from ganger.core.fold.fold import fold, refusal
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import EventLog
from ganger.errors import RequestError
from ganger.model.decision import Decision
from ganger.model.event import Decided, PolicySet, ServerStarted, Stamped, Unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first cycle with another result: the logged decisions and those planned now.

    seq: the `Decided` of that cycle or, where nothing was decided, the event after which it was planned.
    """

    seq: int
    logged: tuple[Decision, ...]
    planned: tuple[Decision, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A replay of events `first` to `last`: `cycles`, the cycles planned again, and the first difference if any."""

    first: int
    last: int
    cycles: int
    difference: Difference | None = None


def replay(log: EventLog, policies: dict[str, Policy], first: int = 1, last: int | None = None) -> Replay:
    """Re-run events `first` to `last` (default: the newest) on the state before them.

    Events that retention has removed cannot be replayed: it begins with the earliest that can be. Raise KeyError for an
    unknown policy; RequestError at an event that cannot be read, or does not follow from those before it.
    """
    first = max(first, log.first_replayable())
    end = log.last_seq() if last is None else min(last, log.last_seq())
    cycles = 0
    for difference in _replay_cycles(log, policies, first, end):
        cycles += 1
        if difference is not None:
            return Replay(first=first, last=end, cycles=cycles, difference=difference)
    return Replay(first=first, last=end, cycles=cycles)


def _replay_cycles(log: EventLog, policies: dict[str, Policy], first: int, end: int) -> Iterator[Difference | None]:
    """Plan each cycle of the part again; yield its difference, or None."""
    if first > end:
        return
    state = log.restore(first - 1)
    policy: Policy | None = None
    for row, next_row in pairwise(chain(log.iter_rows(state.seq, end), log.rows(end, limit=1) or [None])):
        if row is None:
            return
        state = log.state_before(row, state)
        if isinstance(row.event, Decided):
            policy = policies[row.event.policy]
            yield _compare(state, row, row.event.plan.decisions, policy)
        elif isinstance(row.event, PolicySet):
            policy = policies[row.event.document.order]
        elif isinstance(row.event, ServerStarted):
            policy = None  # the server that took over may have another
        if isinstance(row.event, Unreadable) or refusal(state, row.event):
            raise _set_aside_error(log, row)
        fold(state, row)
        if row.closes and policy is not None and not _has_decision(next_row, row):
            yield _compare(state, row, (), policy)


def _set_aside_error(log: EventLog, row: Stamped) -> RequestError:
    """Return the error for an event that was set aside: only a snapshot has the state after it."""
    reason = row.event.reason if isinstance(row.event, Unreadable) else "it does not follow from those before"
    snapshot_seq = log.snapshot_after(row.seq)
    remedy = f"ganger replay --to {row.seq - 1}"
    if snapshot_seq is not None:
        remedy += f", and what is after it: ganger replay --from {snapshot_seq + 1}"
    return RequestError("corrupt_log", f"event {row.seq} was set aside: {reason}", remedy, 500)


def _has_decision(next_row: Stamped | None, row: Stamped) -> bool:
    """Return whether the row after the last one of a batch is the decision about that batch."""
    return next_row is not None and isinstance(next_row.event, Decided) and next_row.at_ms == row.at_ms


def _compare(state: State, row: Stamped, logged: tuple[Decision, ...], policy: Policy) -> Difference | None:
    planned = plan(state, row.at_ms, policy).decisions
    return None if planned == logged else Difference(seq=row.seq, logged=logged, planned=planned)
