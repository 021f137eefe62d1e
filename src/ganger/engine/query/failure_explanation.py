"""The explanation of a job that failed, or has failed before: the cause, attempt by attempt, and what to do."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from ganger.core.failure.attribution import Blame, attribute
from ganger.core.failure.signatures import MEMORY_TYPES
from ganger.engine.query.event_text import past_participle, sentence
from ganger.model.decision import Cause
from ganger.model.event import Failed, Stamped
from ganger.model.idle.idle_event import Idle
from ganger.model.job import GangState, shell_quoted_id
from ganger.model.units import format_duration
from ganger.model.views.incident_views import Incident
from ganger.model.views.service_views import AttemptView, Explanation, JobRow

NOTED: Final = ("failed", "quiet", "slow", "anomaly", "idle", "code_edited")
"""Kinds of events that explain how a running job is doing."""
RANK_UNSET: Final = "environment variable RANK expected, but not set"
"""Message of `init_process_group` of torch in a process whose rank nothing has set."""
LIBRARY: Final = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3")
"""Files that are not the user's to correct."""
MAX_ATTEMPTS: Final = 5
MAX_NOTES: Final = 3


def explain_ended(
    row: JobRow, attempts: Sequence[AttemptView], failures: Sequence[Stamped], incidents: Sequence[Incident] = ()
) -> Explanation:
    """Explain an ended job by its attempts, its `failed` events, oldest first, and its incidents, newest first."""
    if row.state != GangState.FAILED or row.elements is not None:
        reason = f": {row.sentence}" if row.state != GangState.SUCCEEDED and row.sentence else ""
        return Explanation(
            job=row.id,
            state=row.state,
            sentence=f"{row.id} has {past_participle(row.state)}{reason}",
            advice=_of_array(row),
        )
    newest = failures[-1].event if failures else None
    return Explanation(
        job=row.id,
        state=row.state,
        sentence=f"{row.id} has failed: {row.sentence}",
        domains=(*_attempt_lines(attempts), *_incident_lines(incidents)),
        advice=tuple(_advice(shell_quoted_id(row.id), newest)) if isinstance(newest, Failed) else (),
    )


def with_notes(explanation: Explanation, rows: Sequence[Stamped], idle: Idle | None = None) -> Explanation:
    """Return the explanation of a running job with the newest of its `NOTED` events.

    idle: what follows as of now if it stays idle, in place of what its warnings said.
    """
    events = [row.event for row in rows if idle is None or not isinstance(row.event, Idle)]
    notes = map(sentence, [*events[-MAX_NOTES:], *([idle] if idle is not None else [])])
    return replace(explanation, domains=(*explanation.domains, *notes))


def _of_array(row: JobRow) -> tuple[str, ...]:
    is_failed_array = row.elements is not None and row.state == GangState.FAILED
    return (f"ganger ls {shell_quoted_id(row.id)} --state failed",) if is_failed_array else ()


def _attempt_lines(attempts: Sequence[AttemptView]) -> Iterator[str]:
    """Iterate over a line for each attempt before the last one, whose end the job's sentence tells."""
    before = attempts[:-1]
    if len(before) > MAX_ATTEMPTS:
        earlier = len(before) - MAX_ATTEMPTS
        yield f"{earlier} earlier attempt{'s' * (earlier > 1)}: ganger get shows them"
    for attempt in before[-MAX_ATTEMPTS:]:
        lasted = attempt.started_ms is not None and attempt.ended_ms is not None
        duration = format_duration((attempt.ended_ms or 0) - (attempt.started_ms or 0)) if lasted else "no time"
        yield f"attempt {attempt.generation} {attempt.outcome} after {duration}: {attempt.sentence}"


def _incident_lines(incidents: Sequence[Incident]) -> Iterator[str]:
    """Iterate over a line for each failure that a fault of a device explains, oldest first."""
    for incident in reversed(incidents[:MAX_ATTEMPTS]):
        if incident.device:
            yield f"attempt {incident.generation}: {incident.title or 'fault of a node'}: {incident.sentence}"


def _advice(name: str, failed: Failed) -> Iterator[str]:
    """Iterate over what to do about a failure: commands, each with what it is for."""
    attribution = attribute(failed)
    error, node = attribution.error, attribution.node or failed.node
    rank = "all" if attribution.rank is None else attribution.rank
    is_infrastructure = attribution.blame is Blame.INFRASTRUCTURE
    if failed.cause is Cause.OUT_OF_MEMORY:
        yield f"ganger clone {name} --memory SIZE   runs it with more memory per node"
    elif error is not None and MEMORY_TYPES.match(error.type):
        yield f"use a smaller batch, or GPUs with more memory: ganger clone {name} --gpu TYPE:N"
    elif failed.cause is Cause.HUNG:
        yield f"ganger logs {name} --stacks --attempt {failed.generation}   shows where each rank was"
    elif error is not None and RANK_UNSET in error.message:
        yield "ganger run --framework torch ...   sets RANK and the other variables that torch.distributed reads"
    elif failed.cause is Cause.START_FAILED:
        yield f"ganger get {name}   shows the command, its directory and its set-up, which failed"
    elif error is not None and error.file and not is_infrastructure and not LIBRARY.search(error.file):
        yield f"correct {error.file}:{error.line}, then run it again: ganger retry {name}"
        yield f"ganger logs {name} --rank {rank} --tail 50   shows what rank {rank} wrote"
        return
    elif is_infrastructure:
        yield f"ganger node   shows the state of {node}"
    if failed.rank is not None:
        yield f"ganger logs {name} --rank {rank} --tail 50   shows what it wrote"
    yield f"ganger retry {name}   runs it again as it was"
