"""What if: a job as if it had been submitted, to see what the next round would do with it.

Called by `engine.submit.submit_service` for a dry run, and by `core.explain.explain` for what a change would do. The
round is the one that is held: nothing here decides anything. Afterwards the state is as it was."""

from collections.abc import Iterator
from contextlib import contextmanager

from ganger.core.cycle.plan import plan
from ganger.core.fold import fold_arrays
from ganger.core.fold.fold import submitted
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.decision import Start
from ganger.model.job import Job


@contextmanager
def supposed(state: State, job: Job, now_ms: int) -> Iterator[Gang]:
    """Inside it the job waits, as its submission would make it wait; no event may be applied. Its id is a new one."""
    gang = submitted(job, state.seq + 1, now_ms)
    if gang.is_head:
        fold_arrays.begin(state, gang)
    state.gangs[gang.id] = gang
    state.enqueue(gang)
    state.due.note(gang, lives=True)
    try:
        yield gang
    finally:
        state.due.note(gang, lives=False)
        state.dequeue(gang)
        del state.gangs[gang.id]
        state.arrays.pop(gang.id, None)


def would_start(state: State, gang: Gang, now_ms: int, policy: Policy) -> Start | None:
    """How the next round would start a gang that waits, or the first element of an array; None if it would not."""
    for decision in plan(state, now_ms, policy).decisions:
        if isinstance(decision, Start) and decision.gang.partition("[")[0] == gang.id:
            return decision
    return None
