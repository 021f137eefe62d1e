"""Events, state snapshots and jobs as JSON and back, and the listing data of a job as JSON.

pydantic builds the codec from the dataclasses, which are the schema; a row that does not fit them is an error that
names the field.
"""

from functools import cache
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field, TypeAdapter

from ganger.core.state.state import Image
from ganger.model.event import Event

T = TypeVar("T")

_EVENT: Final = Annotated[Event, Field(discriminator="kind")]


def adapter(kind: type[T]) -> TypeAdapter[T]:
    """Return the codec of a type, which is built when it is first needed."""
    return _adapter(kind)  # type: ignore[arg-type]  # a type is hashable


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
    return adapter(Image).dump_json(image)


def decode_image(text: str | bytes) -> Image:
    """Return the snapshot."""
    return adapter(Image).validate_json(text)


def _events() -> TypeAdapter[Event]:
    return _adapter(_EVENT)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
