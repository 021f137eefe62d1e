"""Errors of requests, by what a caller can do about them. SDK users catch them, the command line prints them.

ClientError     any of these
  BadRequest    the request is invalid: change it
  NotFound      no such job, queue or node
  Refused       not in the current state: the job has already ended, the disk is full
  Unreachable   no server, or it went away; jobs continue
  TimedOut      not within the given time
"""

import shlex
from typing import Final

USAGE: Final = 2
NOT_FOUND: Final = 3
REFUSED: Final = 4
UNREACHABLE: Final = 5
"""Exit codes of the command line (docs/reference/exit-codes.md)."""


class ClientError(Exception):
    """A failed request. A traceback shows `next` too.

    Attributes:
        code: Stable.
        detail: What failed, and why.
        next: What to type next.
        exit_code: That of the command line.
    """

    def __init__(self, code: str, detail: str, next: str = "", exit_code: int = UNREACHABLE) -> None:
        """Store the parts as the server sent them."""
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.next = next
        self.exit_code = exit_code
        if next:
            self.add_note(f"next: {next}")

    def __reduce__(self) -> tuple[type["ClientError"], tuple[str, str, str, int]]:
        """Return the arguments of the constructor, so that pickling keeps all attributes."""
        return type(self), (self.code, self.detail, self.next, self.exit_code)


class BadRequest(ClientError):
    """The request is invalid: a wrong spec, an unknown option, an invalid pattern."""


class NotFound(ClientError):
    """There is no such job, queue, node, attempt or rank."""


class Refused(ClientError):
    """The request conflicts with the current state: the job has already ended, a name is taken, the disk is full."""


class Unreachable(ClientError):
    """There is no server, none can be started, or it went away. Jobs continue without it.

    Attributes:
        sent: It went away after the request was sent, which may have been carried out.
        is_final: Looking for another server is of no use.
    """

    sent = False
    is_final = False


class TimedOut(ClientError):
    """The request took longer than the given time."""


_KINDS: Final = {USAGE: BadRequest, NOT_FOUND: NotFound, REFUSED: Refused, UNREACHABLE: Unreachable}


def client_error(code: str, detail: str, next: str, exit_code: int) -> ClientError:
    """Return the error of the class that the exit code names."""
    return _KINDS[exit_code](code, detail, next, exit_code)


def unreachable(detail: str, next: str = "ganger server status") -> Unreachable:
    """Return the error of a server that does not exist, or went away."""
    return Unreachable("unreachable", detail, next)


def maybe_made(error: ClientError, next: str) -> ClientError:
    """Return the same error for a request that may have created a job; `next`: what to type instead."""
    unknown = "whether it made a job is not known: if it did, `ganger ls` shows it, and the same again makes another"
    return client_error(error.code, f"{error.detail}\n{unknown}", next or error.next, error.exit_code)


def followed(lost: Unreachable, id: str) -> Unreachable:
    """Return the error of a follower that lost the server, which says that the job goes on without it."""
    return unreachable(f"{lost.detail}\n{id} continues without the server", f"ganger attach {shlex.quote(id)}")


def timed_out(detail: str, next: str = "ganger doctor") -> ClientError:
    """Return the error of a response that did not arrive in time."""
    return TimedOut("timeout", detail, next)
