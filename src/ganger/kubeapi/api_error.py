"""Errors of the API server: refused requests, and requests without a response."""

from dataclasses import dataclass, replace
from http import HTTPStatus
from http.client import responses
from typing import Final

import msgspec

from ganger.kubeapi.objects import Status, StatusCause

NO_WEBHOOK: Final = "failed calling webhook"
_SHOWN_CHARACTERS: Final = 300
_TRY_LATER: Final = {HTTPStatus.TOO_MANY_REQUESTS, *range(500, 600)} - {HTTPStatus.NOT_IMPLEMENTED}


@dataclass(eq=False)
class ApiError(Exception):
    """A request that failed.

    Attributes:
        request: the request for messages, verb first.
        status: the HTTP status, or 0 without a response.
        reason: the API's one-word reason (NotFound, Conflict, Expired ...); NoAnswer, NoCredential, Untrusted,
            Unreadable and Fenced are this client's.
        message: the API's message.
        outcome_unknown: the request may have been carried out all the same.
        is_retryable: the same request may succeed later.
        causes: the invalid fields.
        retry_after_s: how long the server asks clients to wait.
        body: a response that is not in the API's form.
        setup: the command that installs the program's resources and grants its permissions.
    """

    request: str
    status: int
    reason: str
    message: str
    outcome_unknown: bool = False
    is_retryable: bool = False
    causes: tuple[StatusCause, ...] = ()
    retry_after_s: float = 0.0
    body: bytes = b""
    setup: str = ""

    def __str__(self) -> str:
        fields = "; ".join(f"{cause.field}: {cause.message}" for cause in self.causes if cause.field)
        text = ": ".join(filter(None, (f"{self.status or ''} {self.reason}".strip(), self.message)))
        return f"could not {self.request}: {text}{f' ({fields})' if fields else ''}"

    @property
    def remedy(self) -> str:
        """Remedy without which the same request cannot succeed; empty where that is not known."""
        match self.status:
            case HTTPStatus.UNAUTHORIZED:
                return "this process's credentials have expired: renew the token or the kubeconfig file"
            case HTTPStatus.FORBIDDEN:
                grants = f": `{self.setup}` grants what is needed" if self.setup else ""
                return f"its account lacks that permission, or a policy forbids it{grants}"
            case _:
                return ""

    @property
    def missing(self) -> bool:
        """True if there is no such object, or no such resource."""
        return self.status == HTTPStatus.NOT_FOUND

    @property
    def conflict(self) -> bool:
        """True if the object is not as the request assumed, or exists already."""
        return self.status == HTTPStatus.CONFLICT

    @property
    def expired(self) -> bool:
        """True if the resource version is too old: list again."""
        return self.status == HTTPStatus.GONE


def error_from_response(request: str, code: int, body: bytes, retry_after: str = "") -> ApiError:
    """Return the error of an unsuccessful response. A proxy on the way may respond in another form than the API's."""
    try:
        return error_from_status(request, msgspec.json.decode(body, type=Status), code, retry_after)
    except msgspec.DecodeError:
        status = Status(message=" ".join(body[:_SHOWN_CHARACTERS].decode(errors="replace").split()))
    return replace(error_from_status(request, status, code, retry_after), body=body)


def error_from_status(request: str, status: Status, code: int = 0, retry_after: str = "") -> ApiError:
    """Return the error that a Status object describes."""
    code = code or status.code
    return ApiError(
        request,
        code,
        status.reason or responses.get(code, ""),
        status.message,
        # An overloaded server rejects a request before it acts on it; with any other internal error it may have acted.
        outcome_unknown=code in _TRY_LATER and code != HTTPStatus.TOO_MANY_REQUESTS and not _webhook_failed(status),
        is_retryable=(code in _TRY_LATER and not _webhook_failed(status)) or _is_quota_race(status, code),
        causes=status.details.causes,
        retry_after_s=float(retry_after) if retry_after.isdecimal() else float(status.details.retry_after_seconds),
    )


def _webhook_failed(status: Status) -> bool:
    """Return whether a webhook could not be called, which happens before the request has any effect.

    Repeating such a request is left to the caller.
    """
    return NO_WEBHOOK in status.message


def _is_quota_race(status: Status, code: int) -> bool:
    """Return whether two requests updated a quota at once: this one was not carried out and may be repeated."""
    return code == HTTPStatus.CONFLICT and status.details.kind == "resourcequotas"
