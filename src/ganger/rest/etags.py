"""Versions of what is read, by the log's seq: ETag and If-None-Match on reads, If-Match on changes.

Used by the modules of routes. A tag is the seq of the newest event that an answer has seen; a running job's has the
time of its newest report behind it, because progress is no event. What only passes with time, as an account does, is
not in a tag: two answers with one tag may differ by it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, Header, Request, Response

from ganger.rest.responses import Served, answer

TAG_PATTERN: Final = r'"[0-9]{1,18}(-[0-9]{1,18})?"'
_LIST_PATTERN: Final = rf"^(\*|(W/)?{TAG_PATTERN}(, ?(W/)?{TAG_PATTERN})*)$"


class NotModified(Exception):
    """The caller has the answer already."""

    def __init__(self, tag: str) -> None:
        """With the tag that was named."""
        super().__init__(tag)
        self.tag = tag


@dataclass(frozen=True, slots=True)
class Version:
    """The newest seq before the answer was made, and the tags that the caller has."""

    seq: int
    has: frozenset[str]

    def answer(self, make: Callable[[], Any], extra: str = "") -> Response:
        """The answer with its tag; 304 instead, and nothing is made, when the caller has it."""
        tag = f'"{self.seq}-{extra}"' if extra else f'"{self.seq}"'
        if tag in self.has:
            raise NotModified(tag)
        made = answer(make())
        if "*" in self.has:  # which has seen nothing: what it asks for must be there, and asked for as it should be
            raise NotModified(tag)
        made.headers["ETag"] = tag
        return made


async def _version(
    service: Served,
    if_none_match: Annotated[
        str | None, Header(pattern=_LIST_PATTERN, description="ETags of what the caller has: 304 if it is one of them")
    ] = None,
) -> Version:
    named = (if_none_match or "").replace("W/", "").split(",")
    return Version(service.seq(), frozenset(tag.strip() for tag in named if tag))


async def _expected(
    if_match: Annotated[
        str | None,
        Header(pattern=_LIST_PATTERN, description="ETag of what the caller has seen: 412 if it has changed since"),
    ] = None,
) -> int | None:
    if if_match is None or if_match == "*":
        return None
    return max(int(seq) for seq in re.findall(r'"(\d+)', if_match))


async def not_modified(_: Request, error: Exception) -> Response:
    """NotModified as an answer."""
    assert isinstance(error, NotModified)  # noqa: S101 - the application calls it for nothing else
    return Response(status_code=304, headers={"ETag": error.tag})


Versioned = Annotated[Version, Depends(_version)]
"""The version of a read, as a parameter of a route."""

Expected = Annotated[int | None, Depends(_expected)]
"""The seq by which the caller has seen what it changes, or None, as a parameter of a route."""
