"""Decoding of the server's JSON into the classes of `model.views.service_views`, by their annotations.

A key that a newer server sends is ignored, one that an older server does not send takes its default. The module imports
no more than `typing`, to load fast.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ganger.client.client_errors import ClientError

T = TypeVar("T")
Reader = Callable[[Any], Any]


def view(kind: type[T], value: Any) -> T:
    """Return the value as an object of a class; raise ClientError bad_response for a missing or malformed part."""
    annotation: Any = kind
    try:
        read: T = _reader(annotation)(value)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        why = f"the server's answer is no {kind.__name__}: {type(error).__name__} {error}"
        raise ClientError("bad_response", why, "ganger server restart") from error
    return read


@cache
def _reader(kind: Any) -> Reader:
    if is_dataclass(kind) and isinstance(kind, type):
        return _reader_of_class(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _reader_of_union(arguments)
    if origin is tuple:
        read_item = _reader(arguments[0])
        return lambda value: tuple(read_item(item) for item in value)
    if origin is dict:
        read_item = _reader(arguments[1])
        return lambda value: {key: read_item(item) for key, item in value.items()}
    return lambda value: value


def _reader_of_class(kind: type[Any]) -> Reader:
    hints = get_type_hints(kind)
    readers = {part.name: _reader(hints[part.name]) for part in fields(kind)}
    needed = {
        part.name for part in fields(kind) if part.default is MISSING and part.default_factory is MISSING and part.init
    }

    def read(value: Mapping[str, Any]) -> Any:
        if missing := needed - value.keys():
            raise KeyError(", ".join(sorted(missing)))
        return kind(**{name: reader(value[name]) for name, reader in readers.items() if name in value})

    return read


def _reader_of_union(types: tuple[Any, ...]) -> Reader:
    """Return a reader that distinguishes the types by JSON type: null, object, array, or any other value as it is."""
    classes: list[Any] = [kind for kind in types if is_dataclass(kind)]
    arrays = [kind for kind in types if get_origin(kind) is tuple]
    others = [kind for kind in types if kind is not NoneType and kind not in (*classes, *arrays)]

    readers = [_reader(kind) for kind in classes]

    def read(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, Mapping) and classes:
            return readers[0](value)
        if isinstance(value, list) and arrays:
            return _reader(arrays[0])(value)
        return _reader(others[0])(value)

    return read
