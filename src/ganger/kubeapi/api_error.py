"""What the API server refuses, or does not answer. Raised by `transport`, for everybody who asks it for something."""

from dataclasses import dataclass, replace
from http import HTTPStatus
from http.client import responses
from typing import Final

import msgspec

from ganger.kubeapi.objects import Cause, Status

NO_WEBHOOK: Final = "failed calling webhook"
_SHOWN_CHARACTERS: Final = 300
_TRY_LATER: Final = {HTTPStatus.TOO_MANY_REQUESTS, *range(500, 600)} - {HTTPStatus.NOT_IMPLEMENTED}


@dataclass(eq=False)
class ApiError(Exception):
    """A request that did not do what it was for.

    what: the request, for people; status: of HTTP, or 0 when there was no answer; reason: the API's one word for it
    (NotFound, Conflict, Expired ...; NoAnswer, NoCredential, Untrusted and Unreadable are ours); unclear: it may have
    been carried out all the same; passes: the same request may well succeed in a while; causes: the fields it is about;
    retry_after_s: how long the server asks to be left alone; body: an answer not in the API's form; setup: the command
    that defines the program's resources and grants its rights.
    """

    what: str
    status: int
    reason: str
    message: str
    unclear: bool = False
    passes: bool = False
    causes: tuple[Cause, ...] = ()
    retry_after_s: float = 0.0
    body: bytes = b""
    setup: str = ""

    def __str__(self) -> str:
        where = "; ".join(f"{cause.field}: {cause.message}" for cause in self.causes if cause.field)
        said = ": ".join(filter(None, (f"{self.status or ''} {self.reason}".strip(), self.message)))
        return f"could not {self.what}: {said}{f' ({where})' if where else ''}"

    @property
    def remedy(self) -> str:
        """What somebody has to do before the same request can succeed; nothing where that is not known."""
        match self.status:
            case HTTPStatus.UNAUTHORIZED:
                return "what this process shows to the API server has run out: renew the token, or its kubeconfig file"
            case HTTPStatus.FORBIDDEN:
                grants = f": `{self.setup}` grants what is needed" if self.setup else ""
                return f"its account lacks that right, or a policy forbids it{grants}"
        return ""

    @property
    def missing(self) -> bool:
        """There is no such object, or no such resource."""
        return self.status == HTTPStatus.NOT_FOUND

    @property
    def conflict(self) -> bool:
        """The object is not as the request took it to be, or there is one already."""
        return self.status == HTTPStatus.CONFLICT

    @property
    def expired(self) -> bool:
        """What is asked for lies too far back: list again."""
        return self.status == HTTPStatus.GONE


def refusal(what: str, code: int, body: bytes, retry_after: str = "") -> ApiError:
    """What an answer says that is none of success. A proxy on the way answers otherwise than the API does."""
    try:
        return from_status(what, msgspec.json.decode(body, type=Status), code, retry_after)
    except msgspec.DecodeError:
        status = Status(message=" ".join(body[:_SHOWN_CHARACTERS].decode(errors="replace").split()))
    return replace(from_status(what, status, code, retry_after), body=body)


def from_status(what: str, status: Status, code: int = 0, retry_after: str = "") -> ApiError:
    """The same, of the API's own words for it."""
    code = code or status.code
    return ApiError(
        what,
        code,
        status.reason or responses.get(code, ""),
        status.message,
        # An overloaded server says so before it does anything; with any other fault of its own it may have begun.
        unclear=code in _TRY_LATER and code != HTTPStatus.TOO_MANY_REQUESTS and not _lacks_webhook(status),
        passes=(code in _TRY_LATER and not _lacks_webhook(status)) or _races_for_quota(status, code),
        causes=status.details.causes,
        retry_after_s=float(retry_after) if retry_after.isdecimal() else float(status.details.retry_after_seconds),
    )


def _lacks_webhook(status: Status) -> bool:
    """Return whether a webhook did not answer, which is asked before anything is done: to repeat it is the caller's."""
    return NO_WEBHOOK in status.message


def _races_for_quota(status: Status, code: int) -> bool:
    """Two requests were counted against a quota at once: this one was not carried out, and may be asked again."""
    return code == HTTPStatus.CONFLICT and status.details.kind == "resourcequotas"
