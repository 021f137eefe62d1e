"""A gang as a row of the listing. Called by `engine.loop` for every gang that events touched; written with them.

The sentence of a waiting job is not in the row: it changes with its class's answer, and `engine.service` puts it in.
"""

from dataclasses import dataclass

from ganger.core.gang import Gang
from ganger.model.decision import Cause
from ganger.model.job import GangState, Job
from ganger.model.view import JobRow, Ledger

ENDED_BY = {
    Cause.USER: "stopped by its owner",
    Cause.TIME_LIMIT: "stopped: it had used up limits.time",
    Cause.QUEUE_TIME: "stopped: it had waited longer than limits.queue_time",
}


@dataclass(frozen=True, slots=True)
class Projection:
    """What the log keeps of one job: its listing row, its account, and the job itself (written once)."""

    number: int
    row: JobRow
    ledger: Ledger
    checkpoint_step: int | None
    job: Job


def project(gang: Gang, at_ms: int) -> Projection:
    """The gang's projection after an event at `at_ms`."""
    row = JobRow(
        id=gang.id,
        name=gang.job.spec.name,
        user=gang.job.user,
        queue=gang.queue,
        priority=gang.job.spec.priority,
        state=gang.state,
        shape=str(gang.shape),
        submitted_ms=gang.submitted_ms,
        started_ms=gang.first_started_ms,
        ended_ms=at_ms if gang.ended else None,
        generation=gang.generation,
        exit_code=_exit_code(gang),
        sentence=_sentence(gang),
        nodes=gang.nodes,
    )
    return Projection(gang.number, row, gang.account.ledger(at_ms), gang.checkpoint_step, gang.job)


def _exit_code(gang: Gang) -> int | None:
    """0, or what the first failing rank left behind, as a shell would say it; None for a job that was stopped."""
    if gang.state is GangState.SUCCEEDED:
        return 0
    if gang.state is not GangState.FAILED or gang.failure is None:
        return None
    if gang.failure.signal is not None:
        return 128 + gang.failure.signal
    return 1 if gang.failure.exit_code is None else gang.failure.exit_code


def _sentence(gang: Gang) -> str:
    failed = gang.failure.detail or str(gang.failure.cause) if gang.failure else ""
    match gang.state:
        case GangState.SUCCEEDED:
            return "finished" if gang.generation == 1 else f"finished at attempt {gang.generation}"
        case GangState.FAILED:
            return f"attempt {gang.generation}: {failed}"
        case GangState.STOPPED | GangState.STOPPING:
            return ENDED_BY.get(gang.end_cause or Cause.USER, "stopped")
        case GangState.REQUEUEING:
            return f"attempt {gang.generation}: {failed or 'gives way'}; the rest of it is being stopped"
        case GangState.FAILING:
            return f"attempt {gang.generation}: {failed}; the rest of it is being stopped"
        case GangState.SUSPENDED:
            return f"suspended: it waits for `ganger resume {gang.id}`"
        case GangState.SUSPENDING:
            return f"attempt {gang.generation}: it is being suspended"
        case GangState.FINISHING:
            return f"attempt {gang.generation}: done; the rest of it is being stopped"
        case GangState.STARTING | GangState.RUNNING:
            return f"attempt {gang.generation}" if gang.generation > 1 else ""
        case _:
            return ""
