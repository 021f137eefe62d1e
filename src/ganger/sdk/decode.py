"""Decoding of the server's JSON into the classes of `model.views.service_views`, by their annotations.

A key that a newer server sends is ignored, one that an older server does not send takes its default.
"""

from typing import Any, TypeVar

from ganger.client.client_errors import ClientError

T = TypeVar("T")


def view(kind: type[T], value: Any) -> T:
    """Return the value as an object of a class; raise ClientError bad_response for a missing or malformed part."""
    import msgspec  # 45 ms, when there is something to decode

    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        why = f"the server's answer is no {kind.__name__}: {error}"
        raise ClientError("bad_response", why, "ganger server restart") from error
