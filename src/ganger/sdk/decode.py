"""JSON of the server as the classes of `model.views.service_views`. Called by `verbs`.

The classes' own annotations say how; a key that a newer server sends is passed over, one that an older server does not
send has its default. Nothing is imported for it but `typing`.
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
    """The value as a `kind`. ClientError bad_answer when a part is missing, or of another shape."""
    wanted: Any = kind
    try:
        read: T = _reader(wanted)(value)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        why = f"the server's answer is no {kind.__name__}: {type(error).__name__} {error}"
        raise ClientError("bad_answer", why, "ganger server restart") from error
    return read


@cache
def _reader(kind: Any) -> Reader:
    if is_dataclass(kind) and isinstance(kind, type):
        return _reader_of_class(kind)
    origin, of = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _reader_of_union(of)
    if origin is tuple:
        item = _reader(of[0])
        return lambda value: tuple(item(each) for each in value)
    if origin is dict:
        item = _reader(of[1])
        return lambda value: {key: item(each) for key, each in value.items()}
    return lambda value: value


def _reader_of_class(kind: type[Any]) -> Reader:
    hints = get_type_hints(kind)
    readers = {each.name: _reader(hints[each.name]) for each in fields(kind)}
    needed = {
        each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING and each.init
    }

    def read(value: Mapping[str, Any]) -> Any:
        if missing := needed - value.keys():
            raise KeyError(", ".join(sorted(missing)))
        return kind(**{name: reader(value[name]) for name, reader in readers.items() if name in value})

    return read


def _reader_of_union(of: tuple[Any, ...]) -> Reader:
    """A value's JSON type tells which of them it is: null, an object, an array, or anything else as it stands."""
    classes: list[Any] = [each for each in of if is_dataclass(each)]
    arrays = [each for each in of if get_origin(each) is tuple]
    others = [each for each in of if each is not NoneType and each not in (*classes, *arrays)]

    readers = [_reader(each) for each in classes]

    def read(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, Mapping) and classes:
            return readers[0](value)
        if isinstance(value, list) and arrays:
            return _reader(arrays[0])(value)
        return _reader(others[0])(value)

    return read
