"""One request to the API server, ready to be sent, and its answer decoded."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from ganger.kubeapi.api_error import ApiError, from_status
from ganger.kubeapi.objects import Added, Bookmark, Deleted, Ended, Modified
from ganger.kubeapi.resources import Resource

T = TypeVar("T")
News = Added[T] | Modified[T] | Deleted[T] | Bookmark
"""What a watch tells."""

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
APPLY: Final = "application/apply-patch+yaml"
_METHODS: Final = {"create": "POST", "patch": "PATCH", "delete": "DELETE"}


@dataclass(frozen=True, slots=True)
class Program:
    """The program that sends requests.

    name: its user agent, and the manager of the fields that it applies; mark: the annotation that an object gets when
    it is created, with a number of the request; setup: the command that defines the program's resources and grants its
    rights, for messages."""

    name: str
    mark: str
    setup: str = ""


class Use(NamedTuple):
    """What a request needs to be allowed, in the words of a role: `create` of `pods/binding` in the first group."""

    verb: str
    group: str
    resource: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{'.' if self.group else ''}{self.group}"


@dataclass(frozen=True, slots=True)
class Place(Generic[T]):
    """What a request is about: a resource, in a namespace, one object of it, a part of that (`status`, `binding`)."""

    resource: Resource[T]
    namespace: str = ""
    name: str = ""
    part: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request. what: it, for people, its verb first; kind: the media type of its body; headers: beside our own."""

    what: str
    use: Use
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    kind: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


def asking(verb: str, place: Place[Any], query: Mapping[str, str] | None = None) -> Request:
    """A request that brings nothing along."""
    return _request(verb, place, query=query or {})


def telling(
    verb: str, place: Place[Any], body: Any, kind: str = JSON, query: Mapping[str, str] | None = None
) -> Request:
    """A request with a body, as JSON."""
    return _request(verb, place, query=query or {}, body=msgspec.json.encode(body), kind=kind)


def _request(verb: str, place: Place[Any], **more: Any) -> Request:
    resource = place.resource
    plural = f"{resource.plural}/{place.part}" if place.part else resource.plural
    # What is yet to be made has no path of its own.
    name = "" if verb == "create" and not place.part else place.name
    return Request(
        what=" ".join(filter(None, (verb, plural, "/".join(filter(None, (place.namespace, place.name)))))),
        use=Use(verb, resource.group, plural),
        method=_METHODS.get(verb, "GET"),
        path=resource.path(place.namespace, name, place.part),
        **more,
    )


def decoded(request: Request, answer: bytes, kind: type[T]) -> T:
    """An answer's body. Raises ApiError when it is not what was asked for."""
    try:
        read: T = _decoder(kind).decode(answer)  # type: ignore[arg-type]  # a class is hashable
    except msgspec.DecodeError as error:
        raise ApiError(request.what, 200, "Unreadable", str(error)) from error
    return read


def told(request: Request, lines: Sequence[bytes], kind: type[T]) -> Iterator[News[T]]:
    """What some lines of a watch say. Raises ApiError when one says that it ends, or nothing that can be read."""
    decoder = _news_decoder(kind)  # type: ignore[arg-type]  # a class is hashable
    for line in filter(None, lines):
        try:
            news = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise ApiError(request.what, 200, "Unreadable", str(error)) from error
        if isinstance(news, Ended):
            raise from_status(request.what, news.object)
        yield news


@cache
def _decoder(kind: Any) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(kind)


@cache
def _news_decoder(kind: Any) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(Added[kind] | Modified[kind] | Deleted[kind] | Bookmark | Ended)
