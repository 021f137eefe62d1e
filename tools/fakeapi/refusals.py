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


class Refusal(Exception):
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


def qualified(plural: str, group: str) -> str:
    """Return a resource as messages name it: `pods`, `gangjobs.ganger.dev`."""
    return f"{plural}.{group}" if group else plural


def about(plural: str, group: str, name: str) -> dict[str, Any]:
    """Return the details that name the object."""
    return {**({"name": name} if name else {}), **({"group": group} if group else {}), "kind": plural}


def not_found(plural: str, group: str, name: str) -> Refusal:
    return Refusal(404, f'{qualified(plural, group)} "{name}" not found', details=about(plural, group, name))


def no_such_resource() -> Refusal:
    return Refusal(404, "the server could not find the requested resource", details={})


def already_exists(plural: str, group: str, name: str) -> Refusal:
    message = f'{qualified(plural, group)} "{name}" already exists'
    return Refusal(409, message, reason="AlreadyExists", details=about(plural, group, name))


def conflict(plural: str, group: str, name: str, problem: str) -> Refusal:
    message = f'Operation cannot be fulfilled on {qualified(plural, group)} "{name}": {problem}'
    return Refusal(409, message, details=about(plural, group, name))


def modified(plural: str, group: str, name: str) -> Refusal:
    problem = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(plural, group, name, problem)


def invalid(kind: str, group: str, name: str, *causes: tuple[str, str, str]) -> Refusal:
    """Return a validation error. causes: (reason, field, message) of each field error."""
    lines = [f"{field}: {message}" for _, field, message in causes]
    text = lines[0] if len(lines) == 1 else f"[{', '.join(lines)}]"
    details = {
        **about(kind, group, name),
        "causes": [{"reason": reason, "message": message, "field": field} for reason, field, message in causes],
    }
    return Refusal(422, f'{qualified(kind, group)} "{name}" is invalid: {text}', details=details)


def bad_request(message: str) -> Refusal:
    return Refusal(400, message)


def expired(message: str, rest: str | None = None) -> Refusal:
    return Refusal(410, message, reason="Expired", rest=rest)


def internal(message: str) -> Refusal:
    """Return an internal error, as the real server for errors without a reason."""
    return Refusal(500, message, reason="")
