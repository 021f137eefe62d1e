"""Events, state snapshots and jobs as JSON and back, and the listing data of a job as JSON.

pydantic builds the codec from the dataclasses, which are the schema; a row that does not fit them is an error that
names the field.
"""

from functools import cache
from typing import Annotated

from pydantic import Field, TypeAdapter

from ganger.core.state.state import Image
from ganger.model.event import Event
from ganger.model.job import Job
from ganger.model.views.service_views import JobRow, Ledger


@cache
def _events() -> TypeAdapter[Event]:
    return TypeAdapter(Annotated[Event, Field(discriminator="kind")])


@cache
def _images() -> TypeAdapter[Image]:
    return TypeAdapter(Image)


@cache
def _jobs() -> TypeAdapter[Job]:
    return TypeAdapter(Job)


@cache
def _rows() -> TypeAdapter[JobRow]:
    return TypeAdapter(JobRow)


@cache
def _figures() -> TypeAdapter[dict[str, Ledger | int | None]]:
    return TypeAdapter(dict[str, Ledger | int | None])


def encode(event: Event) -> bytes:
    """Return an event as JSON."""
    return _events().dump_json(event)


def encode_checked(event: Event) -> bytes:
    """Encode an event for the log. Raise ValueError if it cannot be written, or reads back differently."""
    text = _events().dump_json(event, warnings="error")
    if decode(text) != event:
        raise ValueError(f"{event.kind} is another event when it is read again")
    return text


def decode(text: str | bytes) -> Event:
    """Return the event. Raise pydantic's ValidationError if the text is not one."""
    return _events().validate_json(text)


def encode_image(image: Image) -> bytes:
    """Return a snapshot as JSON."""
    return _images().dump_json(image)


def decode_image(text: str | bytes) -> Image:
    """Return the snapshot."""
    return _images().validate_json(text)


def encode_job(job: Job) -> bytes:
    """Return a job as JSON."""
    return _jobs().dump_json(job)


def decode_job(text: str | bytes) -> Job:
    """Decode the JSON text of a job."""
    return _jobs().validate_json(text)


def encode_row(row: JobRow) -> bytes:
    """Return the listing row of a job as JSON."""
    return _rows().dump_json(row)


def encode_figures(ledger: Ledger, checkpoint_step: int | None) -> bytes:
    """Return the ledger and the newest checkpoint of a job as JSON."""
    return _figures().dump_json({"ledger": ledger, "checkpoint_step": checkpoint_step})
