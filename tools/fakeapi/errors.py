"""Errors of the API server: a `Status` object whose reasons and codes clients act on.

Texts follow kube-apiserver 1.36, since clients and users read them.
"""

from http import HTTPStatus
from typing import Any

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class StatusError(Exception):
    """An unsuccessful response. reason: that of the code by default; retry_after_s: header and detail."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        reason: str | None = None,
        details: dict[str, Any] | None = None,
        retry_after_s: int | None = None,
        rest: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.retry_after_s = code, message, retry_after_s
        self.reason = REASONS.get(code, HTTPStatus(code).phrase.replace(" ", "")) if reason is None else reason
        self.details, self.rest = details, rest
        if retry_after_s is not None:
            self.details = {**(details or {}), "retryAfterSeconds": retry_after_s}

    def status(self) -> dict[str, Any]:
        """Return the Status object. Its metadata has a token if an expired list can go on without its version."""
        details = {} if self.details is None else {"details": self.details}
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {"continue": self.rest} if self.rest else {},
            "status": "Failure",
            "message": self.message,
            **({"reason": self.reason} if self.reason else {}),
            **details,
            "code": self.code,
        }


def qualified_name(plural: str, group: str) -> str:
    """Return a resource as messages name it: `pods`, `gangjobs.ganger.dev`."""
    return f"{plural}.{group}" if group else plural


def object_details(plural: str, group: str, name: str) -> dict[str, Any]:
    """Return the details that name the object."""
    return {**({"name": name} if name else {}), **({"group": group} if group else {}), "kind": plural}


def not_found_error(plural: str, group: str, name: str) -> StatusError:
    return StatusError(
        404, f'{qualified_name(plural, group)} "{name}" not found', details=object_details(plural, group, name)
    )


def no_such_resource_error() -> StatusError:
    return StatusError(404, "the server could not find the requested resource", details={})


def already_exists_error(plural: str, group: str, name: str) -> StatusError:
    message = f'{qualified_name(plural, group)} "{name}" already exists'
    return StatusError(409, message, reason="AlreadyExists", details=object_details(plural, group, name))


def conflict_error(plural: str, group: str, name: str, problem: str) -> StatusError:
    message = f'Operation cannot be fulfilled on {qualified_name(plural, group)} "{name}": {problem}'
    return StatusError(409, message, details=object_details(plural, group, name))


def modified_error(plural: str, group: str, name: str) -> StatusError:
    problem = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict_error(plural, group, name, problem)


def invalid_error(kind: str, group: str, name: str, *causes: tuple[str, str, str]) -> StatusError:
    """Return a validation error. causes: (reason, field, message) of each field error."""
    lines = [f"{field}: {message}" for _, field, message in causes]
    text = lines[0] if len(lines) == 1 else f"[{', '.join(lines)}]"
    details = {
        **object_details(kind, group, name),
        "causes": [{"reason": reason, "message": message, "field": field} for reason, field, message in causes],
    }
    return StatusError(422, f'{qualified_name(kind, group)} "{name}" is invalid: {text}', details=details)


def bad_request_error(message: str) -> StatusError:
    return StatusError(400, message)


def expired_error(message: str, rest: str | None = None) -> StatusError:
    return StatusError(410, message, reason="Expired", rest=rest)


def internal_error(message: str) -> StatusError:
    """Return an internal error, as the real server for errors without a reason."""
    return StatusError(500, message, reason="")
