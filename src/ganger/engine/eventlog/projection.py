"""Projections: gangs and arrays as rows of the listing.

The sentence of a pending job is not in the row: it changes with the pending reason of its class, and `engine.service`
puts it in.
"""

from dataclasses import dataclass

from ganger.core.state.gang import Gang
from ganger.core.state.job_arrays import ArrayJob
from ganger.engine.query.event_text import failure_end_text, killed_text
from ganger.model.decision import Cause
from ganger.model.job import GangState, Job, shell_quoted_id
from ganger.model.views.service_views import JobRow, Ledger

ENDED_BY = {
    Cause.USER: "stopped by its owner",
    Cause.TIME_LIMIT: "time limit reached (limits.time)",
    Cause.QUEUE_TIME: "it had waited longer than limits.queue_time",
    Cause.DIVERGED: "stopped by the loss watch: its loss diverged",
    Cause.STALLED: "stopped by the loss watch: its training stalled",
    Cause.IDLE_STOP: "it was idle for the window of its queue",
}


@dataclass(frozen=True, slots=True)
class Projection:
    """The log's records of one job: its listing row, its ledger, and the job itself (written once).

    gpu_milli: the thousandths of GPUs that it has held, as a mean over time.
    jobs: how many jobs have that ledger; of an array the elements that ended with it before they started.
    """

    number: int
    row: JobRow
    ledger: Ledger
    checkpoint_step: int | None
    job: Job
    gpu_milli: int = 0
    jobs: int = 1


def project(gang: Gang, at_ms: int) -> Projection:
    """Return the gang's projection after an event at `at_ms`."""
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
        generation=gang.attempt.generation,
        exit_code=gang.exit_code,
        sentence=_sentence(gang),
        nodes=gang.nodes,
        array=gang.job.array,
        index=gang.job.index,
        save_ms=max(gang.checkpoints.saves_ms, default=None),
        metrics=gang.metrics,
    )
    ledger, step = gang.account.ledger(at_ms), gang.checkpoints.newest_step
    return Projection(gang.number, row, ledger, step, gang.job, gang.mean_gpu_milli(at_ms))


def project_array(array: ArrayJob, at_ms: int) -> Projection:
    """Return an array's own row after an event at `at_ms`.

    Its ledger is that of an element that ended with it before it started.
    """
    spec = array.job.spec
    counts = {state.value: array.counts[state] for state in GangState if state in array.counts}
    row = JobRow(
        id=array.id,
        name=spec.name,
        user=array.job.user,
        queue=spec.queue,
        priority=spec.priority,
        state=array.state,
        shape=str(spec.shape),
        submitted_ms=array.submitted_ms,
        started_ms=array.started_ms,
        ended_ms=at_ms if array.ended else None,
        exit_code=array.exit_code,
        sentence=", ".join(f"{amount} {state}" for state, amount in counts.items()),
        elements=counts,
    )
    ledger = Ledger(queued_ms=array.unbegun_ms, total_ms=array.unbegun_ms)
    return Projection(array.number, row, ledger, None, array.job, jobs=array.unbegun)


def _sentence(gang: Gang) -> str:
    failure = failure_end_text(gang)
    attempt = f"attempt {gang.attempt.generation}: " if gang.attempt.generation > 1 else ""
    match gang.state:
        case GangState.SUCCEEDED:
            return "finished" if gang.attempt.generation == 1 else f"finished at attempt {gang.attempt.generation}"
        case GangState.FAILED:
            return f"{attempt}{failure}"
        case GangState.STOPPED | GangState.STOPPING:
            if gang.end_cause is Cause.DEPENDENCY:
                return f"never started: it was to start after {gang.awaits[0].job} has {gang.awaits[0].when}"
            return ENDED_BY.get(gang.end_cause or Cause.USER, "stopped") + killed_text(
                gang.attempt.killed, gang.attempt.grace_ms
            )
        case GangState.REQUEUEING:
            vacates = gang.attempt.vacates and f"its node {gang.attempt.vacates} is drained"
            rollback = gang.checkpoints.rollback
            returns = (
                f"it returns to a checkpoint of step {rollback.step} or before" if rollback and gang.goes_back else ""
            )
            return f"{attempt}{returns or vacates or failure or 'preempted'}; the rest of it is being stopped"
        case GangState.RESIZING if gang.missing_nodes:
            return f"{attempt}{failure}; it keeps its other nodes, and starts again with {gang.missing_nodes} more"
        case GangState.RESIZING:
            return f"{attempt}it is being resized, and goes on with its newest checkpoint"
        case GangState.FAILING:
            return f"{attempt}{failure}; the rest of it is being stopped"
        case GangState.SUSPENDED:
            cause = ", because it was idle" if gang.attempt.stop_sent is Cause.IDLE_SUSPEND else ""
            return f"suspended{cause}: continue it with `ganger resume {shell_quoted_id(gang.id)}`"
        case GangState.SUSPENDING:
            return f"attempt {gang.attempt.generation}: it is being suspended"
        case GangState.FINISHING:
            return f"attempt {gang.attempt.generation}: done; the rest of it is being stopped"
        case GangState.STARTING | GangState.RUNNING:
            return f"attempt {gang.attempt.generation}" if gang.attempt.generation > 1 else ""
        case _:
            return ""
