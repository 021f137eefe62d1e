"""The state split into one checkpoint per job, so that each can be stored with its job; and joined again.

An image of the state is the same in one piece (`core.state.state.Image`, snapshots of the log). Used where the
cluster's own objects are the source of truth: a restarted controller has nothing else.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from ganger.core.state.gang import Gang
from ganger.core.state.job_arrays import ArrayJob
from ganger.core.state.state import Image, State
from ganger.engine.eventlog.codec import adapter
from ganger.model.decision import ReservedStart
from ganger.model.job import GangState, Job

MAX_INTEGER: Final = (1 << 63) - 1
"""The largest integer in the log: SQLite's limit."""
MAX_DEVICES: Final = 10_000
"""More than any node has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCheckpoint:
    """The state of one live job.

    gangs: its gang; of an array its head and those elements that have a gang, in order of submission.
    array: set for an array job.
    reservations: their reserved starts.
    """

    gangs: tuple[Gang, ...]
    array: ArrayJob | None = None
    reservations: tuple[ReservedStart, ...] = ()


def encode(checkpoint: JobCheckpoint) -> str:
    """Return a checkpoint as JSON. The job, which may have many gangs, is in it once.

    Of a gang, what is as it begins is left out, which is nearly all of one that waits: the objects of 50,000 of these
    are in a controller's memory. The job is whole, so that a later release with other defaults does not change it.
    """
    job = checkpoint.array.job if checkpoint.array else checkpoint.gangs[0].job
    hidden: dict[str, Any] = {"gangs": {"__all__": {"job"}}, "array": {"job"}}
    data = adapter(JobCheckpoint).dump_python(checkpoint, mode="json", exclude=hidden, exclude_defaults=True)
    for gang, gang_data in zip(checkpoint.gangs, data["gangs"], strict=True):
        gang_data["job"] = {"index": gang.job.index, "priority": gang.job.spec.priority}
    return adapter(dict[str, Any]).dump_json({"job": adapter(Job).dump_python(job, mode="json"), **data}).decode()


def decode(text: str | bytes, name: str) -> JobCheckpoint:
    """Return the checkpoint of the job of that id.

    Raise ValueError, naming the place, when the text is not a checkpoint, contradicts itself, or is of a version that
    cannot be read.
    """
    data = adapter(dict[str, Any]).validate_json(text)
    try:
        job = adapter(Job).validate_python(data.pop("job"))
        for gang_data in data["gangs"]:
            gang_data["job"] = _gang_job(job, **gang_data["job"])
        if data.get("array") is not None:
            data["array"]["job"] = job
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the text is not a job checkpoint: {error!r}") from None
    checkpoint = adapter(JobCheckpoint).validate_python(data)
    for gang in checkpoint.gangs:
        _check(gang)
        if name != (gang.array or gang.id):
            raise ValueError(f"the checkpoint belongs to {gang.id}")
    pending = {gang.id: None for gang in checkpoint.gangs if gang.state is GangState.PENDING}
    if unexpected := [reserved.gang for reserved in checkpoint.reservations if reserved.gang not in pending]:
        raise ValueError(f"{unexpected[0]} has a reserved start, and is not pending")
    return checkpoint


def _check(gang: Gang) -> None:
    """Raise ValueError when a gang contradicts itself."""
    shares = gang.attempt.start.shares if gang.attempt.start is not None else ()
    devices = [(share.node, device) for share in shares for device in share.devices]
    if gang.ended or (gang.attempt.start is None) != (gang.state in (GangState.PENDING, GangState.SUSPENDED)):
        raise ValueError(
            f"{gang.id} is {gang.state}, and {'has no nodes' if gang.attempt.start is None else 'has nodes'}"
        )
    if unexpected := {*gang.attempt.left} - {share.node for share in shares}:
        raise ValueError(f"{gang.id} is left on {', '.join(sorted(unexpected))}, where it never ran")
    figures = (gang.since_ms, gang.submitted_ms, gang.attempt.began_ms, gang.number, gang.attempt.generation)
    if not all(0 <= figure <= MAX_INTEGER for figure in figures):
        raise ValueError(f"{gang.id} has a time or a number out of range")
    if any(not 0 <= device < MAX_DEVICES for _, device in devices):
        raise ValueError(f"{gang.id} has a device number out of range")
    if len({*devices}) < len(devices) and not any(part.has_share for part in gang.shape.parts):
        raise ValueError(f"{gang.id} has a device twice")


def is_checkpoint(text: str | bytes) -> bool:
    """Return whether a record is meant to be a checkpoint, and so of a live job. Text that is not JSON is none."""
    try:
        return "gangs" in adapter(dict[str, Any]).validate_json(text)
    except ValueError:
        return False


def checkpoint_jobs(state: State, names: Iterable[str]) -> dict[str, JobCheckpoint | None]:
    """Return the checkpoints of these jobs, by id; None for one that does not live.

    The cost is linear in the jobs named, and for arrays in their elements with a gang.
    """
    return {name: _checkpoint_of(state, name) for name in names}


def join_checkpoints(checkpoints: Iterable[JobCheckpoint], rest: Image) -> Image:
    """Return the image of the state made of these checkpoints; `rest` has what belongs to no job."""
    all_checkpoints = list(checkpoints)
    gangs = sorted((gang for checkpoint in all_checkpoints for gang in checkpoint.gangs), key=lambda gang: gang.number)
    arrays = sorted(
        (checkpoint.array for checkpoint in all_checkpoints if checkpoint.array), key=lambda array: array.number
    )
    return replace(
        rest,
        gangs=gangs,
        arrays=arrays,
        reservations=[reserved for checkpoint in all_checkpoints for reserved in checkpoint.reservations],
    )


def _checkpoint_of(state: State, name: str) -> JobCheckpoint | None:
    array = state.arrays.get(name)
    gangs = [state.gangs[name]] if name in state.gangs else []
    if array is not None:
        gangs += [gang for gang in state.gangs.values() if gang.job.array == name]
    if not gangs and array is None:
        return None
    reserved_starts = tuple(state.reservations[gang.id] for gang in gangs if gang.id in state.reservations)
    return JobCheckpoint(gangs=tuple(gangs), array=array, reservations=reserved_starts)


def _gang_job(job: Job, index: int | None, priority: int) -> Job:
    """Return the job of one gang: an element's, with its present priority."""
    gang_job = job if index is None else job.element(index)
    return (
        gang_job
        if gang_job.spec.priority == priority
        else replace(gang_job, spec=replace(gang_job.spec, priority=priority))
    )
