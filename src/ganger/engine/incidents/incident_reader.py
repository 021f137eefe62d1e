"""Incidents of the log: its newest failures and faults, joined, with what was lost and what followed."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.incidents.join_faults import At, Evidence, incident_of, join_faults
from ganger.engine.loop import Loop
from ganger.engine.query.health_text import health_decision_text, health_event_text
from ganger.engine.query.job_history import JobHistories
from ganger.model.decision import Cause, Stop
from ganger.model.event import Checkpointed, Decided, Failed, Stamped
from ganger.model.node_health.health_decision import ActOnNode
from ganger.model.node_health.health_event import RepairEnded
from ganger.model.views.incident_views import Incident
from ganger.model.views.service_views import AttemptView

KINDS: Final = ("failed", "node_faulty", "node_lost")
MAX_ROWS: Final = 10_000
"""Events of these kinds that are read, the oldest that may be meant first."""
MAX_DONE: Final = 6
MAX_DECIDED: Final = 20
"""Decisions after a fault among which the stops of the node's jobs are."""


class IncidentReader:
    """Reads the incidents of one server. Safe from any thread."""

    def __init__(self, loop: Loop, log: EventLog, histories: JobHistories) -> None:
        self._loop, self._log, self._histories = loop, log, histories

    def incidents(self, *, span_ms: int, job: str | None = None) -> list[Incident]:
        """Return the incidents of a time up to now, newest first; only those of a job, by id, if it is named."""
        since_ms = max(0, self._loop.now_ms() - span_ms)
        rows = self._log.rows(self._log.before(since_ms), job, MAX_ROWS, KINDS if job is None else ("failed",))
        failures = [row.event for row in rows if isinstance(row.event, Failed)]
        attempts = {name: self._attempts(name) for name in dict.fromkeys(failed.gang for failed in failures)}
        nodes_of = {(name, attempt.generation): attempt.nodes for name, known in attempts.items() for attempt in known}
        if job is not None:
            rows = self._with_faults(rows, nodes_of, since_ms)
        with self._loop.view() as state:
            common = state.document.node_health.correlation.nodes
        found = [self._complete(evidence, attempts) for evidence in join_faults(rows, nodes_of, common)]
        return [incident for incident in reversed(found) if job is None or incident.job == job]

    def _attempts(self, name: str) -> tuple[AttemptView, ...]:
        stored = self._log.job(name)
        return () if stored is None else self._histories.attempts(name, ended_ms=stored[0].ended_ms)

    def _with_faults(
        self, rows: Sequence[Stamped], nodes_of: dict[tuple[str, int], tuple[str, ...]], since_ms: int
    ) -> list[Stamped]:
        """Return the failures of a job with the faults of the nodes that it was on."""
        after, found = self._log.before(since_ms), {row.seq: row for row in rows}
        for node in dict.fromkeys(node for nodes in nodes_of.values() for node in nodes):
            found |= {row.seq: row for row in self._log.rows(after, f"node/{node}", MAX_ROWS, KINDS[1:])}
        return [found[seq] for seq in sorted(found)]

    def _complete(self, evidence: Evidence, attempts: dict[str, tuple[AttemptView, ...]]) -> Incident:
        """Return an incident with what was lost, and what followed."""
        incident = incident_of(evidence)
        done = [*self._of_nodes(evidence, incident)]
        if evidence.failed is None:
            jobs = tuple(self._moved_jobs(evidence, incident.nodes))
            moved = [f"{job} was moved to other nodes" for job in jobs]
            return replace(incident, jobs=jobs, done=tuple([*moved, *done][:MAX_DONE]))
        known = attempts.get(incident.job, ())
        later = next((attempt for attempt in known if attempt.generation > incident.generation), None)
        if later is not None:
            done.insert(0, f"attempt {later.generation} began on {', '.join(later.nodes)}")
        lost = self._lost_gpu_ms(evidence.failed, known)
        return replace(incident, lost_gpu_ms=lost, done=tuple(done[:MAX_DONE]))

    def _lost_gpu_ms(self, failed: At[Failed], attempts: Sequence[AttemptView]) -> int | None:
        """Return the GPU time from the newest checkpoint of the attempt, or from its start, to its failure."""
        name, generation = failed.event.gang, failed.event.generation
        attempt = next((one for one in attempts if one.generation == generation), None)
        stored = self._log.job(name)
        if attempt is None or attempt.started_ms is None or stored is None:
            return None
        kept_ms = attempt.started_ms
        for row in self._log.rows(0, name, MAX_ROWS, ("checkpointed",)):
            if isinstance(row.event, Checkpointed) and row.event.generation == generation and row.seq < failed.seq:
                kept_ms = row.at_ms
        shape = stored[3].spec.shape
        return max(0, failed.at_ms - kept_ms) * sum(part.nodes * part.devices for part in shape.parts)

    def _of_nodes(self, evidence: Evidence, incident: Incident) -> Iterator[str]:
        """Yield what was done with the nodes of an incident, and what came of it."""
        for node in incident.nodes if evidence.faults else ():
            rows = self._log.rows(evidence.rows[0].seq, f"node/{node}", 4 * MAX_DONE, ("decided", "repair_ended"))
            for row in rows:
                if isinstance(row.event, RepairEnded):
                    yield health_event_text(row.event)
                elif isinstance(row.event, Decided):
                    acts = [one for one in row.event.plan.decisions if isinstance(one, ActOnNode) and one.node == node]
                    yield from map(health_decision_text, acts)

    def _moved_jobs(self, evidence: Evidence, nodes: Sequence[str]) -> Iterator[str]:
        """Yield the jobs that were stopped on these nodes because they were drained."""
        rows = self._log.rows(evidence.rows[0].seq, None, MAX_DECIDED, ("decided",))
        stops = (one for row in rows if isinstance(row.event, Decided) for one in row.event.plan.decisions)
        for stop in islice((one for one in stops if isinstance(one, Stop) and one.cause is Cause.DRAINED), MAX_DECIDED):
            attempts = {attempt.generation: attempt for attempt in self._attempts(stop.gang)}
            attempt = attempts.get(stop.generation)
            if attempt is not None and any(node in attempt.nodes for node in nodes):
                yield stop.gang
