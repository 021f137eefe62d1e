"""Event log of a controller, for which the cluster's objects are the source of truth.

It is written as any log, and never read to recover: a restarted controller restores its state from the objects. After
each cycle the changed jobs are written to their objects: the job checkpoint, and what users read beside it. So the file
is a recording, for listings, for `ganger replay` and for simulations. A durable store adds the events of earlier
controllers to it (`durable.event_archive`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from ganger import registry
from ganger.backends.kubernetes.status_writer import LAZY_DELAY_S
from ganger.controller.jobs import ended_jobs
from ganger.controller.jobs.conditions import conditions, time_of
from ganger.controller.jobs.job_events import (
    Notice,
    decision_notices,
    failure_notice,
    object_stop_text,
    pending_notice,
    state_notice,
    wait_kind,
)
from ganger.controller.node_records import NodeRecords, WriteMark
from ganger.core.explain.explain import own_reason
from ganger.core.state.gang import ClassKey, Gang, class_text
from ganger.core.state.state import Image, State
from ganger.core.state.time_accounting import for_devices, in_gpus
from ganger.engine.eventlog import job_checkpoint
from ganger.engine.eventlog.codec import decode_image, encode_image
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.eventlog.projection import Projection, project, project_array
from ganger.engine.query.event_text import failure_end_text, job_of
from ganger.model.decision import ReservedStart, Stop, Wait
from ganger.model.event import Decided, Failed, Stamped
from ganger.model.job import ENDED, GangState, split_element_id
from ganger.model.job_metrics import JobMetrics
from ganger.model.pending_reason import CROWDED, ReasonCode, standing_sentence
from ganger.model.views.service_views import PARTS

SLOW_INTERVAL_S: Final = 600.0
"""Minimum time between two changes of the pending reason on one object, and of a reserved start.

`ganger explain` has the current ones. 5,000 jobs of which each has another reason all the time cost 8 writes a second.
"""


class EventSink(Protocol):
    """Writes the status of a job's object."""

    def __call__(self, name: str, status: dict[str, Any], *, after_s: float) -> None:
        """Set fields of the job's status after a delay, or earlier with whatever else is written of it."""


class _Shown(NamedTuple):
    """The pending reason that a job's object has, or is given at a time.

    kind: what it has in common with reasons that need not replace it.
    text: its sentence; empty for one that replaces none of its kind.
    """

    kind: str
    text: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class ObjectSink:
    """Objects of jobs, as a log writes to them.

    write_status: writes the status of a job's object.
    observed: the generation of its object that a job's state corresponds to; kept by the reconciler.
    on_written: called when objects were given everything up to an event, and whether a job had changed.
    on_notices: called with what there is to tell of jobs, and when that was.
    write_mark: writes the record of a node's health to its object.
    """

    write_status: EventSink
    observed: Mapping[str, int] = field(default_factory=dict)
    on_written: Callable[[int, bool], None] = lambda seq, has_jobs: None  # noqa: ARG005
    on_notices: Callable[[Iterable[Notice], int], None] = lambda notices, at_ms: None  # noqa: ARG005
    write_mark: WriteMark = lambda name, mark, soon: None  # noqa: ARG005


class ObjectLog(EventLog):
    """A log that begins with `image`, in a new file.

    Args:
        path: the file.
        image: the state with which it begins.
        sink: where the status of jobs is written.
        ended: jobs that ended before, which listings show beside those of the image.
    """

    def __init__(self, path: Path, image: Image, sink: ObjectSink, ended: Iterable[Projection] = ()) -> None:
        path.unlink(missing_ok=True)
        super().__init__(path)
        encoded = encode_image(image)
        self._writer.execute("INSERT INTO beginning VALUES (?, ?)", (image.seq, encoded))
        self._begun = {gang.id: gang for gang in image.gangs if gang.attempt.generation}
        state = State(decode_image(encoded), registry.score)
        arrays = (project_array(array, state.at_ms) for array in state.arrays.values())
        gangs = (project(gang, state.at_ms) for gang in state.gangs.values() if not gang.is_head)
        self.import_jobs(chain(arrays, gangs, ended), state.seq)
        self._sink = sink
        self._rows: dict[str, Projection] = {}
        self._changed_classes: set[str] = set()
        self._notices: list[Notice] = []
        self._failed: set[str] = set()
        self._shown: dict[str, _Shown] = {}
        """What the object of each pending job shows. Set with each write, dropped when the job has nodes, or ends."""
        self._reserved_ms: dict[str, int] = {}
        """When the object of a pending job is given its newest reservation. Dropped as `_shown` is."""
        self._changed: set[str] = set()
        self._reserved: set[str] = set()
        """Gangs changed since the last `snapshot`: by an event or a decision about them, and by a reservation."""
        self._node_records = NodeRecords(sink.write_mark, (record.node for record in image.health.nodes))

    def gang_before_log(self, job: str) -> Gang | None:
        """Return the gang of a job that started before this controller, as its object described it then."""
        return self._begun.get(job)

    def append(
        self,
        batch: Sequence[Stamped],
        projections: Iterable[Projection],
        shows: Callable[[], None] = lambda: None,
        encoded: Mapping[int, bytes] = {},
    ) -> None:
        """Record events; the next `snapshot` writes the objects that they concern."""
        rows = list(projections)
        super().append(batch, rows, shows, encoded)
        # An array's row is updated with each of its elements', and is what its object shows.
        self._rows.update({row.row.id: row for row in rows if row.row.array is None})
        for stamped in batch:
            self._notices += decision_notices(stamped.event)
            self._node_records.note(stamped.event)
            if isinstance(stamped.event, Failed):
                self._failed.add(stamped.event.gang)
            if not isinstance(stamped.event, Decided):
                # An event of no one job may change any.
                self._changed.update([job] if (job := job_of(stamped.event)) else [row.row.id for row in rows])
                continue
            for decision in stamped.event.plan.decisions:
                if isinstance(decision, Wait):
                    self._changed_classes.add(decision.gang_class)
                elif isinstance(decision, ReservedStart):
                    self._reserved.add(decision.gang)
                elif gang := getattr(decision, "gang", None):
                    self._changed.add(gang)

    def snapshot(self, state: State) -> None:
        """Write the status of objects that changed."""
        super().snapshot(state)
        self._node_records.write(state)
        rows, self._rows = self._rows, {}
        changed_classes, self._changed_classes = self._changed_classes, set()
        failed, self._failed = self._failed, set()
        moved = {_job_of(gang) for gang in self._reserved} - {_job_of(gang) for gang in self._changed}
        self._changed, self._reserved = set(), set()
        notices: list[Notice | None] = [*self._notices]
        notices += [failure_notice(state.gangs[name]) for name in failed if name in state.gangs]
        for name, checkpoint in job_checkpoint.checkpoint_jobs(state, rows).items():
            status = _status(state, rows[name], checkpoint, self._sink.observed.get(name, 0))
            is_pending, at_ms, before = rows[name].row.state == GangState.PENDING, state.at_ms, self._shown.get(name)
            # The end of a dependency is an event of another job, and has to be on the object soon.
            if name in moved and is_pending and before is not None and before.kind != ReasonCode.DEPENDENCY:
                at_ms = self._reserved_ms[name] = _due_ms(at_ms, self._reserved_ms.get(name))
                del status["seq"]  # nothing waits for it
            self._sink.write_status(name, status, after_s=(at_ms - state.at_ms) / 1000)
            notices.append(state_notice(rows[name].row, status))
            if is_pending and status["reason"]:
                self._shown[name] = _shown(status, at_ms)
            else:
                self._shown.pop(name, None)
                self._reserved_ms.pop(name, None)
        for key, members in state.pending.classes.items() if changed_classes else ():
            if class_text(key) in changed_classes:
                others = (name for gang in members if (name := gang.array or gang.id) not in rows)
                notices += self._show_reason(_pending_reason(state, key), others, state.at_ms)
        self._notices = []
        self._sink.on_notices(filter(None, notices), state.at_ms)
        self._sink.on_written(state.seq, bool(rows))

    def _show_reason(self, status: dict[str, Any], jobs: Iterable[str], now_ms: int) -> Iterator[Notice | None]:
        """Write a pending reason to the objects of jobs that have another one; yield what there is to tell of them.

        While jobs come and go, reasons of all that wait change with every cycle, and what each change wrote would be
        the product of both. So an object has the standing sentence of a reason, which does not say who holds what; of
        reasons that alternate it keeps what is missing; and of others it is given the newest after
        `SLOW_INTERVAL_S`, in which the writer drops one that has changed back.
        """
        for name in jobs if status else ():
            before = self._shown.get(name)
            shown = _shown(status, _due_ms(now_ms, None if before is None else before.at_ms))
            if before is not None and before.kind == shown.kind and shown.text in ("", before.text):
                continue
            self._shown[name] = shown
            self._sink.write_status(name, status, after_s=(shown.at_ms - now_ms) / 1000)
            yield pending_notice(name, status)


def _due_ms(now_ms: int, before_ms: int | None) -> int:
    """Return when an object is given a change, after one that it is given, or was, at `before_ms`.

    The first comes soon. One that is still to be written is replaced in that write.
    """
    soon_ms = now_ms + int(1000 * LAZY_DELAY_S)
    if before_ms is None:
        return soon_ms
    return before_ms if before_ms > now_ms else max(soon_ms, before_ms + int(1000 * SLOW_INTERVAL_S))


def _job_of(gang: str) -> str:
    element = split_element_id(gang)
    return element[0] if element else gang


def _shown(status: Mapping[str, Any], at_ms: int) -> _Shown:
    text = "" if status["reason"] in CROWDED and status["reason"] != ReasonCode.NO_CAPACITY else status["message"]
    return _Shown(wait_kind(status["reason"]), text, at_ms)


def _status(
    state: State, projection: Projection, checkpoint: job_checkpoint.JobCheckpoint | None, observed: int
) -> dict[str, Any]:
    """Return a job's status. A field that does not apply any more is null, which removes it."""
    row = projection.row
    gang = state.gangs.get(row.id)
    ended = row.state in ENDED
    waits = {}
    if gang is not None and row.state == GangState.PENDING:
        waits = _dependency_reason(state, gang) or _pending_reason(state, gang.class_key) or _last_failure(gang)
    since_ms = state.at_ms if gang is None else gang.since_ms
    return {
        "seq": state.seq,
        "observedGeneration": observed,
        "conditions": conditions(row, waits, since_ms, observed),
        "phase": row.state.capitalize(),
        "generation": row.generation,
        "starts": None if checkpoint is None else _starts(checkpoint),
        "reason": None,
        "message": row.sentence,
        "nodes": list(row.nodes),
        "shape": row.shape,
        "startTime": _time(row.started_ms),
        "completionTime": _time(row.ended_ms),
        "noticeUntil": None if gang is None else _time(gang.notice_ends_ms(state.at_ms)),
        "exitCode": row.exit_code,
        "ledger": _ledger(projection),
        "metrics": _metrics(row.metrics),
        "reservedStart": None if checkpoint is None else _reserved_start(checkpoint),
        "record": ended_jobs.encode(projection)
        if ended
        else None
        if checkpoint is None
        else job_checkpoint.encode(checkpoint),
        **waits,
    }


def _starts(checkpoint: job_checkpoint.JobCheckpoint) -> str | None:
    """Return the generation of each started element of an array: none of its pods is created before this is written."""
    if checkpoint.array is None:
        return None
    started = [(gang.job.index, gang.attempt.generation) for gang in checkpoint.gangs if gang.attempt.start is not None]
    return " ".join(f"{index}:{generation}" for index, generation in started)


def _pending_reason(state: State, key: ClassKey) -> dict[str, Any]:
    """Return the pending reason of a job class."""
    reason = state.pending.reasons.get(class_text(key))
    return {"reason": reason.code, "message": standing_sentence(reason)} if reason else {}


def _dependency_reason(state: State, gang: Gang) -> dict[str, Any]:
    """Return the dependency that keeps a gang from being considered."""
    reason = own_reason(state, gang, state.at_ms) if gang.awaits else None
    return {"reason": reason.code, "message": standing_sentence(reason)} if reason else {}


def _last_failure(gang: Gang) -> dict[str, Any]:
    """Return how the last attempt of a gang ended that will be retried."""
    attempt = gang.attempt
    if attempt.stop_sent and attempt.vacates:  # what failed afterwards is a consequence
        stop = Stop(gang=gang.id, generation=attempt.generation, cause=attempt.stop_sent, node=attempt.vacates)
        return {"reason": stop.cause, "message": f"attempt {attempt.generation}: {object_stop_text(stop)}"}
    if attempt.failure is None:
        return {}
    return {
        "reason": attempt.failure.cause,
        "message": f"attempt {attempt.generation}: {failure_end_text(gang)}",
    }


def _ledger(projection: Projection) -> dict[str, Any] | None:
    """Return the use of its GPU time, in GPU-seconds. None for an array: its elements have their own."""
    if projection.row.elements is not None:
        return None
    ledger = in_gpus(for_devices(projection.ledger, projection.gpu_milli))
    parts = {part: getattr(ledger, f"{part}_ms") // 1000 for part in PARTS if part != "queued"}
    causes = {
        loss.cause: (loss.detect_ms + loss.recovery_ms + loss.lost_ms + loss.unobserved_ms) // 1000
        for loss in ledger.losses
    }
    queued_s = projection.ledger.queued_ms // 1000
    return {"queuedSeconds": queued_s, "gpuSeconds": {"held": sum(parts.values()), **parts}, "lostGpuSeconds": causes}


def _metrics(metrics: JobMetrics) -> dict[str, Any] | None:
    """Return what ended attempts have reported, as `client.kubernetes.job_row` reads it."""
    if not metrics.values:
        return None
    values = [
        {
            "name": metric.name,
            "lastStep": metric.last_step,
            "last": metric.last,
            "minStep": metric.min_step,
            "min": metric.min,
            "maxStep": metric.max_step,
            "max": metric.max,
        }
        for metric in metrics.values
    ]
    values = [{key: figure for key, figure in value.items() if figure is not None} for value in values]
    return {"values": values, "leftOut": metrics.left_out}


def _reserved_start(checkpoint: job_checkpoint.JobCheckpoint) -> str | None:
    """Return the earliest reserved start of the job's gangs."""
    starts_ms = (reservation.start_ms for reservation in checkpoint.reservations if reservation.start_ms is not None)
    return _time(min(starts_ms, default=None))


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else time_of(at_ms)
