"""Re-run a stretch of the log: fold the events, plan again wherever a round was planned, compare the decisions.

Called by `wiring replay`, in a fresh process with another hash seed: a plan must not depend on either. A difference means
that the code has changed its mind, or that something impure crept into the core.
"""

from dataclasses import dataclass

from ganger.core.plan import plan
from ganger.core.policy import Policy
from ganger.engine.log import EventLog
from ganger.model.decision import Decision
from ganger.model.event import Decided, ServerStarted, Stamped


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first round that came out otherwise: after event `seq`, what the log has and what was planned now."""

    seq: int
    logged: tuple[Decision, ...]
    planned: tuple[Decision, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What was re-run: rounds planned again over events `first` to `last`, and the first difference if there was one."""

    first: int
    last: int
    rounds: int
    difference: Difference | None = None


def replay(log: EventLog, policies: dict[str, Policy], first: int = 1, last: int | None = None) -> Replay:
    """Re-run events `first` to `last` (the newest) on the state before them. KeyError for a policy that is not there."""
    end = log.last_seq() if last is None else min(last, log.last_seq())
    state = log.restore(first - 1)
    rounds = 0
    policy: Policy | None = None
    pending: Stamped | None = None
    for row in log.each(state.seq, end):
        if isinstance(row.event, Decided):
            policy = policies[row.event.policy]
            planned = plan(state, row.at_ms, policy).decisions
            rounds += 1
            if planned != row.event.plan.decisions:
                difference = Difference(seq=row.seq, logged=row.event.plan.decisions, planned=planned)
                return Replay(first=first, last=end, rounds=rounds, difference=difference)
        elif pending is not None and policy is not None and not isinstance(row.event, ServerStarted):
            # A round was planned after `pending` and decided nothing. (A server that died in between never planned it.)
            planned = plan(state, pending.at_ms, policy).decisions
            rounds += 1
            if planned:
                return Replay(
                    first=first,
                    last=end,
                    rounds=rounds,
                    difference=Difference(seq=pending.seq, logged=(), planned=planned),
                )
        state.apply(row)
        pending = row if row.closes else None
    return Replay(first=first, last=end, rounds=rounds)
