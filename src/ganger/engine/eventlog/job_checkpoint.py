"""The state in pieces, one for each job, so that each can lie where its job does; and put together again.

An image of the state is the same in one piece (`core.state.state.Image`, snapshots of the log). Written and read by
`wiring` for worlds whose truth are the cluster's own objects: there a restarted controller has nothing else."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter

from ganger.core.state.gang import Gang
from ganger.core.state.job_arrays import ArrayJob
from ganger.core.state.state import Image, State
from ganger.model.decision import ReservedStart
from ganger.model.job import GangState, Job

LARGEST: Final = (1 << 63) - 1
"""Of integers in the log: SQLite takes no more."""
MOST_DEVICES: Final = 10_000
"""No node has so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCheckpoint:
    """What the state knows of one live job: its gang, or of an array its head and those of its elements that have one
    of their own, in order of submission; and what they were promised. `array` of an array job."""

    gangs: tuple[Gang, ...]
    array: ArrayJob | None = None
    promises: tuple[ReservedStart, ...] = ()


@cache
def _pieces() -> TypeAdapter[JobCheckpoint]:
    return TypeAdapter(JobCheckpoint)


@cache
def _jobs() -> TypeAdapter[Job]:
    return TypeAdapter(Job)


def encode(piece: JobCheckpoint) -> str:
    """A piece as JSON. The job, which may have many gangs, is in it once."""
    job = piece.array.job if piece.array else piece.gangs[0].job
    hidden: dict[str, Any] = {"gangs": {"__all__": {"job"}}, "array": {"job"}}
    told = _pieces().dump_python(piece, mode="json", exclude=hidden)
    for gang, written in zip(piece.gangs, told["gangs"], strict=True):
        written["job"] = {"index": gang.job.index, "priority": gang.job.spec.priority}
    return _whole().dump_json({"job": _jobs().dump_python(job, mode="json"), **told}).decode()


def decode(text: str | bytes, name: str) -> JobCheckpoint:
    """The piece again, of the job of that id. ValueError: it is none, or says what cannot be, or is one that this
    version cannot read; it says where."""
    told = _whole().validate_json(text)
    try:
        job = _jobs().validate_python(told.pop("job"))
        for written in told["gangs"]:
            written["job"] = _of(job, **written["job"])
        if told.get("array") is not None:
            told["array"]["job"] = job
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a piece of a state: {error!r}") from None
    piece = _pieces().validate_python(told)
    for gang in piece.gangs:
        _check(gang)
        if name != (gang.array or gang.id):
            raise ValueError(f"it is of {gang.id}")
    waiting = {gang.id: None for gang in piece.gangs if gang.state is GangState.PENDING}
    if strange := [promise.gang for promise in piece.promises if promise.gang not in waiting]:
        raise ValueError(f"{strange[0]} is promised a start, and does not wait")
    return piece


def _check(gang: Gang) -> None:
    """ValueError: it says of itself what cannot be."""
    shares = gang.start.shares if gang.start is not None else ()
    devices = [(share.node, device) for share in shares for device in share.devices]
    if gang.ended or (gang.start is None) != (gang.state in (GangState.PENDING, GangState.SUSPENDED)):
        raise ValueError(f"{gang.id} is {gang.state}, and {'has no nodes' if gang.start is None else 'has nodes'}")
    if strange := {*gang.left} - {share.node for share in shares}:
        raise ValueError(f"{gang.id} is left on {', '.join(sorted(strange))}, where it never was")
    times = (gang.since_ms, gang.submitted_ms, gang.began_ms, gang.number, gang.generation)
    if not all(0 <= figure <= LARGEST for figure in times):
        raise ValueError(f"{gang.id} has a time or a number that cannot be")
    if any(not 0 <= device < MOST_DEVICES for _, device in devices):
        raise ValueError(f"{gang.id} has a device that no node has")
    if len({*devices}) < len(devices) and not any(part.has_share for part in gang.shape.parts):
        raise ValueError(f"{gang.id} has a device twice")


def is_piece(text: str | bytes) -> bool:
    """Whether a record is meant to be a piece, and so of a job that lives. One that is not even JSON is none."""
    try:
        return "gangs" in _whole().validate_json(text)
    except ValueError:
        return False


def pieces(state: State, names: Iterable[str]) -> dict[str, JobCheckpoint | None]:
    """What the state knows of these jobs, by id; None of one that does not live. What it costs goes by how many are
    named, but for arrays: there by how many of its elements have a gang of their own."""
    return {name: _piece(state, name) for name in names}


def together(found: Iterable[JobCheckpoint], rest: Image) -> Image:
    """The image of the state that these are pieces of; `rest` has what is of no job."""
    every = list(found)
    gangs = sorted((gang for piece in every for gang in piece.gangs), key=lambda gang: gang.number)
    arrays = sorted((piece.array for piece in every if piece.array), key=lambda array: array.number)
    return replace(
        rest, gangs=gangs, arrays=arrays, promises=[promise for piece in every for promise in piece.promises]
    )


@cache
def _whole() -> TypeAdapter[dict[str, Any]]:
    return TypeAdapter(dict[str, Any])


def _piece(state: State, name: str) -> JobCheckpoint | None:
    array = state.arrays.get(name)
    gangs = [state.gangs[name]] if name in state.gangs else []
    if array is not None:
        gangs += [gang for gang in state.gangs.values() if gang.job.array == name]
    if not gangs and array is None:
        return None
    promises = tuple(state.promises[gang.id] for gang in gangs if gang.id in state.promises)
    return JobCheckpoint(gangs=tuple(gangs), array=array, promises=promises)


def _of(job: Job, index: int | None, priority: int) -> Job:
    """The job of one gang: an element's, and with the priority that it has now."""
    own = job if index is None else job.element(index)
    return own if own.spec.priority == priority else replace(own, spec=replace(own.spec, priority=priority))
