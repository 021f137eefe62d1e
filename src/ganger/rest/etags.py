"""Versions of resources, by the log's seq: ETag and If-None-Match on reads, If-Match on changes.

A tag is the seq of the newest event in an answer; a running job's has the time of its newest report appended, because
progress is no event. What changes only with time, as a ledger does, is not in a tag: two answers with one tag may
differ by it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, Header, Request, Response

from ganger.rest.responses import ServiceParam, json_response

TAG_PATTERN: Final = r'"[0-9]{1,18}(-[0-9]{1,18})?"'
_LIST_PATTERN: Final = rf"^(\*|(W/)?{TAG_PATTERN}(, ?(W/)?{TAG_PATTERN})*)$"


class NotModified(Exception):
    """The caller has the present version already."""

    def __init__(self, tag: str) -> None:
        """Keep the tag that the caller named."""
        super().__init__(tag)
        self.tag = tag


@dataclass(frozen=True, slots=True)
class Version:
    """The newest seq before the answer was made, and the tags that the caller has."""

    seq: int
    known_tags: frozenset[str]

    def respond(self, make: Callable[[], Any], extra: str = "") -> Response:
        """Return the answer with its tag; raise NotModified, and make nothing, when the caller has it."""
        tag = f'"{self.seq}-{extra}"' if extra else f'"{self.seq}"'
        if tag in self.known_tags:
            raise NotModified(tag)
        response = json_response(make())
        if "*" in self.known_tags:  # "*" names no version, so the request must be valid and the resource must exist
            raise NotModified(tag)
        response.headers["ETag"] = tag
        return response


async def _version(
    service: ServiceParam,
    if_none_match: Annotated[
        str | None,
        Header(pattern=_LIST_PATTERN, description="ETags that the caller has: 304 if the current one is among them"),
    ] = None,
) -> Version:
    tags = (if_none_match or "").replace("W/", "").split(",")
    return Version(service.seq(), frozenset(tag.strip() for tag in tags if tag))


async def _expected(
    if_match: Annotated[
        str | None,
        Header(
            pattern=_LIST_PATTERN,
            description="ETag of the version that the caller has read: 412 if it has changed since",
        ),
    ] = None,
) -> int | None:
    if if_match is None or if_match == "*":
        return None
    return max(int(seq) for seq in re.findall(r'"(\d+)', if_match))


async def not_modified(_: Request, error: Exception) -> Response:
    """Return NotModified as a response."""
    assert isinstance(error, NotModified)  # noqa: S101 - the application calls it for nothing else
    return Response(status_code=304, headers={"ETag": error.tag})


VersionParam = Annotated[Version, Depends(_version)]
"""The version of a read, as a parameter of a route."""

ExpectedSeq = Annotated[int | None, Depends(_expected)]
"""The seq at which the caller has read what it changes, or None, as a parameter of a route."""
