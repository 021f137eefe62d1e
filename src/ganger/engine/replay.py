"""Re-run a stretch of the log: fold the events, plan again wherever a round was planned, compare the decisions.

Called by `wiring replay`, in a fresh process with another hash seed: a plan must not depend on either. A difference
means that the code has changed its mind, or that something impure crept into the core.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise

from ganger.core.cycle.plan import plan
from ganger.core.fold.fold import fold, refusal
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import EventLog
from ganger.errors import RequestError
from ganger.model.decision import Decision
from ganger.model.event import Decided, PolicySet, ServerStarted, Stamped, Unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first round that came out otherwise: what the log has and what is planned now. `seq` is the `Decided` of
    that round or, where nothing was decided, the event that it was planned after."""

    seq: int
    logged: tuple[Decision, ...]
    planned: tuple[Decision, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What was re-run: rounds planned again over events `first` to `last`, and the first difference if there is one."""

    first: int
    last: int
    rounds: int
    difference: Difference | None = None


def replay(log: EventLog, policies: dict[str, Policy], first: int = 1, last: int | None = None) -> Replay:
    """Re-run events `first` to `last` (the newest) on the state before them. Of events that were forgotten there is
    nothing to re-run: it begins with the earliest that can be. KeyError for an unknown policy; Refused at an event that
    cannot be read, or does not follow from those before it."""
    first = max(first, log.earliest())
    end = log.last_seq() if last is None else min(last, log.last_seq())
    rounds = 0
    for difference in _rounds(log, policies, first, end):
        rounds += 1
        if difference is not None:
            return Replay(first=first, last=end, rounds=rounds, difference=difference)
    return Replay(first=first, last=end, rounds=rounds)


def _rounds(log: EventLog, policies: dict[str, Policy], first: int, end: int) -> Iterator[Difference | None]:
    """Each round of the stretch, planned again."""
    if first > end:
        return
    state = log.restore(first - 1)
    policy: Policy | None = None
    for row, after in pairwise(chain(log.each(state.seq, end), log.rows(end, limit=1) or [None])):
        if row is None:
            return
        if isinstance(row.event, Decided):
            policy = policies[row.event.policy]
            yield _compared(state, row, row.event.plan.decisions, policy)
        elif isinstance(row.event, PolicySet):
            policy = policies[row.event.document.order]
        elif isinstance(row.event, ServerStarted):
            policy = None  # the server that took over may have another
        if isinstance(row.event, Unreadable) or refusal(state, row.event):
            raise _broken_off(log, row)
        fold(state, row)
        if row.closes and policy is not None and not _decides(after, row):
            yield _compared(state, row, (), policy)


def _broken_off(log: EventLog, row: Stamped) -> RequestError:
    """Return the refusal of decisions after an event that was set aside: only a snapshot has the state behind them."""
    why = row.event.why if isinstance(row.event, Unreadable) else "it does not follow from those before"
    later = log.snapshot_after(row.seq)
    remedy = f"ganger replay --to {row.seq - 1}"
    if later is not None:
        remedy += f", and what is after it: ganger replay --from {later + 1}"
    return RequestError("corrupt_log", f"event {row.seq} was set aside: {why}", remedy, 500)


def _decides(after: Stamped | None, row: Stamped) -> bool:
    """Whether the row after the last one of a batch is what was decided about that batch."""
    return after is not None and isinstance(after.event, Decided) and after.at_ms == row.at_ms


def _compared(state: State, row: Stamped, logged: tuple[Decision, ...], policy: Policy) -> Difference | None:
    planned = plan(state, row.at_ms, policy).decisions
    return None if planned == logged else Difference(seq=row.seq, logged=logged, planned=planned)
