"""Hypothetical submissions: a job as if it had been submitted, to see what the next scheduling cycle would do with it.

The cycle is the real one, but nothing is decided: afterwards the state is as it was.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from ganger.core.cycle.cycle import plan
from ganger.core.fold import fold_arrays
from ganger.core.fold.fold import new_gang
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.decision import Start, Stop
from ganger.model.job import Job


@contextmanager
def hypothetical_gang(state: State, job: Job, now_ms: int) -> Iterator[Gang]:
    """Add the job as its submission would, under a new id, and remove it at the end of the context.

    No event may be folded inside.
    """
    gang = new_gang(job, state.seq + 1, now_ms)
    if gang.is_head:
        fold_arrays.begin(state, gang)
    state.gangs[gang.id] = gang
    state.enqueue(gang)
    state.timers.note(gang, live=True)
    try:
        yield gang
    finally:
        state.timers.note(gang, live=False)
        state.dequeue(gang)
        del state.gangs[gang.id]
        state.arrays.pop(gang.id, None)


def decisions_for(state: State, gang: Gang, now_ms: int, policy: Policy) -> tuple[Start | None, list[Stop]]:
    """Return how the next cycle would start a waiting gang, or an array's first element, and whom it would preempt.

    The start is None if it would not start.
    """
    decisions = plan(state, now_ms, policy).decisions
    starts = (d for d in decisions if isinstance(d, Start) and d.gang.partition("[")[0] == gang.id)
    return next(starts, None), [d for d in decisions if isinstance(d, Stop) and d.preemptor == gang.id]
