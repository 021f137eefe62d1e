"""Requests to the API server, prepared for sending, and the decoding of responses."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from ganger.kubeapi.api_error import ApiError, error_from_status
from ganger.kubeapi.objects import Added, Bookmark, Deleted, Modified, WatchError
from ganger.kubeapi.resources import Resource

T = TypeVar("T")
WatchEvent = Added[T] | Modified[T] | Deleted[T] | Bookmark
"""One event of a watch."""

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
APPLY: Final = "application/apply-patch+yaml"
_METHODS: Final = {"create": "POST", "patch": "PATCH", "delete": "DELETE"}


@dataclass(frozen=True, slots=True)
class Program:
    """The program that sends requests.

    Attributes:
        name: user agent, and manager of the fields that it applies.
        mark: annotation of objects that it creates, with an id of the request.
        setup: command that installs the program's resources and grants its permissions, for messages.
    """

    name: str
    mark: str
    setup: str = ""


class Permission(NamedTuple):
    """RBAC permission that a request needs, such as `create` of `pods/binding` in the core group."""

    verb: str
    group: str
    resource: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{'.' if self.group else ''}{self.group}"


@dataclass(frozen=True, slots=True)
class ObjectRef(Generic[T]):
    """Target of a request: a resource, a namespace, one object, or a subresource of it (`status`, `binding`)."""

    resource: Resource[T]
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prepared request.

    Attributes:
        description: the request for messages, verb first.
        permission: what it needs to be allowed.
        query: a parameter may have several values.
        content_type: media type of the body.
        headers: in addition to the client's own.
        response_timeout_s: how long the response may be silent; None: as the client's.
    """

    description: str
    permission: Permission
    method: str
    path: str
    query: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    response_timeout_s: float | None = None


def read_request(verb: str, ref: ObjectRef[Any], query: Mapping[str, str | Sequence[str]] | None = None) -> Request:
    """Return a request without a body."""
    return _request(verb, ref, query=query or {})


def write_request(
    verb: str, ref: ObjectRef[Any], body: Any, content_type: str = JSON, query: Mapping[str, str] | None = None
) -> Request:
    """Return a request with a JSON body."""
    return _request(verb, ref, query=query or {}, body=msgspec.json.encode(body), content_type=content_type)


def _request(verb: str, ref: ObjectRef[Any], **fields: Any) -> Request:
    resource = ref.resource
    plural = f"{resource.plural}/{ref.subresource}" if ref.subresource else resource.plural
    # An object that does not exist yet has no path of its own.
    name = "" if verb == "create" and not ref.subresource else ref.name
    return Request(
        description=" ".join(filter(None, (verb, plural, "/".join(filter(None, (ref.namespace, ref.name)))))),
        permission=Permission(verb, resource.group, plural),
        method=_METHODS.get(verb, "GET"),
        path=resource.path(ref.namespace, name, ref.subresource),
        **fields,
    )


def decode_response(request: Request, body: bytes, object_type: type[T]) -> T:
    """Return the decoded response body. Raises ApiError if it is not as expected."""
    try:
        decoded: T = _decoder(object_type).decode(body)  # type: ignore[arg-type]  # a class is hashable
    except msgspec.DecodeError as error:
        raise ApiError(request.description, 200, "Unreadable", str(error)) from error
    return decoded


def watch_events(request: Request, lines: Sequence[bytes], object_type: type[T]) -> Iterator[WatchEvent[T]]:
    """Yield the events in lines of a watch. Raises ApiError for an error event or an unreadable line."""
    decoder = _event_decoder(object_type)  # type: ignore[arg-type]  # a class is hashable
    for line in filter(None, lines):
        try:
            event = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise ApiError(request.description, 200, "Unreadable", str(error)) from error
        if isinstance(event, WatchError):
            raise error_from_status(request.description, event.object)
        yield event


@cache
def _decoder(object_type: Any) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(object_type)


@cache
def _event_decoder(object_type: Any) -> "msgspec.json.Decoder[Any]":
    added, modified, deleted = Added[object_type], Modified[object_type], Deleted[object_type]
    return msgspec.json.Decoder(added | modified | deleted | Bookmark | WatchError)
