"""The log of a world whose truth are the cluster's own objects: it is written as any log is, and never read to recover.

Given to the loop by `controller.assembly`. What a restarted controller begins with was put together from the objects;
after each round what changed of a job goes back to its object, through `tell`: the piece of the state that it is, and
what people read beside it. So the file is a recording, of this process alone, for listings and for `ganger replay`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from ganger.controller.jobs import ended_jobs
from ganger.controller.jobs.conditions import conditions, time_of
from ganger.core.explain.explain import own_reason
from ganger.core.fold.fold import fold
from ganger.core.queues.quota import need
from ganger.core.state.gang import ClassKey, Gang, class_text
from ganger.core.state.state import Image, State
from ganger.core.state.time_accounting import held_by, in_gpus
from ganger.engine.eventlog import job_checkpoint
from ganger.engine.eventlog.codec import decode_image, encode_image
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.eventlog.projection import Projection, project, project_array
from ganger.engine.query.event_text import ending, on_checkpoints
from ganger.model.decision import Wait
from ganger.model.event import Decided, Stamped
from ganger.model.job import ENDED, GangState
from ganger.model.pending_reason import sentence
from ganger.model.views.service_views import PARTS


class EventSink(Protocol):
    """Where a job's object is told what it is."""

    def __call__(self, name: str, status: dict[str, Any], *, soon: bool) -> None:
        """The job of that id has these fields in its status; not `soon`: when it is convenient."""


class ObjectLog(EventLog):
    """A log that begins with `image`, in a file that is new."""

    def __init__(self, path: Path, image: Image, tell: EventSink, over: Iterable[Projection] = ()) -> None:
        """over: jobs that had ended before; listings show them beside those of the image. observed: by
        job, the generation of its object of which it is the state; kept by whoever hears of objects."""
        path.unlink(missing_ok=True)
        super().__init__(path)
        self._first = image
        self._begun = {gang.id: gang for gang in image.gangs if gang.generation}
        state = State(decode_image(encode_image(image)))
        arrays = (project_array(array, state.at_ms) for array in state.arrays.values())
        gangs = (project(gang, state.at_ms) for gang in state.gangs.values() if not gang.is_head)
        self.know(chain(arrays, gangs, over), state.seq)
        self._tell = tell
        self._rows: dict[str, Projection] = {}
        self._answered: set[str] = set()
        self.observed: Mapping[str, int] = {}
        self.told: Callable[[int, bool], None] = lambda seq, is_news: None  # noqa: ARG005
        """Called when objects were told of all up to an event; and whether that was anything of a job."""

    def begun(self, job: str) -> Gang | None:
        """The gang of a job that had started before this controller began, as its object said that it was then."""
        return self._begun.get(job)

    def restore(self, upto: int | None = None) -> State:
        """What the objects said when this controller began, or the last snapshot since, and every event after it."""
        last = self.last_seq() if upto is None else upto
        state = self._image(last)
        if not state.seq:
            state = State(decode_image(encode_image(self._first)))
        for stamped in self.each(state.seq, last):
            fold(state, stamped)
        return state

    def append(
        self,
        batch: Sequence[Stamped],
        projections: Iterable[Projection],
        shows: Callable[[], None] = lambda: None,
        encoded: Mapping[int, bytes] = {},
    ) -> None:
        """Record what happened; which objects it is about is told to them by the next `snapshot`."""
        every = list(projections)
        super().append(batch, every, shows, encoded)
        for each in every:
            # An array's own row, which comes whenever one of an element does, is what its object shows.
            if each.row.array is None:
                self._rows[each.row.id] = each
        for stamped in batch:
            if isinstance(stamped.event, Decided):
                waits = [each for each in stamped.event.plan.decisions if isinstance(each, Wait)]
                self._answered.update(each.gang_class for each in waits)

    def snapshot(self, state: State) -> None:
        """Tell the objects that changed what they are now."""
        super().snapshot(state)
        rows, self._rows = self._rows, {}
        answered, self._answered = self._answered, set()
        for name, piece in job_checkpoint.pieces(state, rows).items():
            self._tell(name, _status(state, rows[name], piece, self.observed.get(name, 0)), soon=True)
        for key, members in state.classes.items() if answered else ():
            if class_text(key) in answered:
                for gang in members:
                    name = gang.array or gang.id
                    if name not in rows:
                        self._tell(name, _waiting(state, key), soon=False)
        self.told(state.seq, bool(rows))


def _status(
    state: State, shown: Projection, piece: job_checkpoint.JobCheckpoint | None, observed: int
) -> dict[str, Any]:
    """An object's status. What is not so any more is null, which takes it away."""
    row = shown.row
    gang = state.gangs.get(row.id)
    ended = row.state in ENDED
    waits = {}
    if gang is not None and row.state == GangState.PENDING:
        waits = _for_others(state, gang) or _waiting(state, gang.class_key) or _failed(gang)
    since_ms = state.at_ms if gang is None else gang.since_ms
    return {
        "seq": state.seq,
        "observedGeneration": observed,
        "conditions": conditions(row, waits, since_ms, observed),
        "phase": row.state.capitalize(),
        "generation": row.generation,
        "starts": None if piece is None else _starts(piece),
        "reason": None,
        "message": row.sentence,
        "nodes": list(row.nodes),
        "shape": row.shape,
        "startTime": _time(row.started_ms),
        "completionTime": _time(row.ended_ms),
        "exitCode": row.exit_code,
        "ledger": _ledger(shown),
        "promise": None if piece is None else _promise(piece),
        "record": ended_jobs.encode(shown) if ended else None if piece is None else job_checkpoint.encode(piece),
        **waits,
    }


def _starts(piece: job_checkpoint.JobCheckpoint) -> str | None:
    """Which generation of which elements of an array starts, or runs: no pod of one is made before it is written."""
    if piece.array is None:
        return None
    started = [(gang.job.index, gang.generation) for gang in piece.gangs if gang.start is not None]
    return " ".join(f"{index}:{generation}" for index, generation in started)


def _waiting(state: State, key: ClassKey) -> dict[str, Any]:
    """Why the gangs of a class wait."""
    reason = state.waits.get(class_text(key))
    return {"reason": reason.why, "message": sentence(reason)} if reason else {}


def _for_others(state: State, gang: Gang) -> dict[str, Any]:
    """Whom a gang comes after that is not even tried before."""
    reason = own_reason(state, gang, state.at_ms) if gang.awaits else None
    return {"reason": reason.why, "message": sentence(reason)} if reason else {}


def _failed(gang: Gang) -> dict[str, Any]:
    """What became of the last attempt of a gang that is to be tried again."""
    if gang.failure is None:
        return {}
    return {
        "reason": gang.failure.cause,
        "message": f"attempt {gang.generation}: {ending(gang.failure)}{on_checkpoints(gang)}",
    }


def _ledger(shown: Projection) -> dict[str, Any] | None:
    """Where the time of its GPUs went, in GPU-seconds. None of an array: its elements have theirs."""
    if shown.row.elements is not None:
        return None
    of = in_gpus(held_by(shown.ledger, need(shown.job.spec.shape)[0]))
    parts = {part: getattr(of, f"{part}_ms") // 1000 for part in PARTS if part != "queued"}
    causes = {loss.cause: (loss.detect_ms + loss.recovery_ms + loss.lost_ms) // 1000 for loss in of.losses}
    queued_s = shown.ledger.queued_ms // 1000
    return {"queuedSeconds": queued_s, "gpuSeconds": {"held": sum(parts.values()), **parts}, "lostGpuSeconds": causes}


def _promise(piece: job_checkpoint.JobCheckpoint) -> str | None:
    """By when the first of its gangs is promised to start."""
    return _time(min((each.start_ms for each in piece.promises if each.start_ms is not None), default=None))


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else time_of(at_ms)
