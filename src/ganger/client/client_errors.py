"""Errors of requests, by what a caller can do about them. Raised by `wire` and its neighbours; the SDK's users catch
them, the command line shows them.

    ClientError     any of these
      BadRequest    what was asked for can never be: change it
      NotFound      there is no such job, queue or node
      Refused       not as things are: the job has ended already, the disk is full
      Unreachable   no server, or it went away; jobs run on
      TimedOut      not within the time that was given
"""

from typing import Final

USAGE: Final = 2
NOT_FOUND: Final = 3
REFUSED: Final = 4
UNREACHABLE: Final = 5
"""Exit codes of the command line (docs/reference/exit-codes.md)."""


class ClientError(Exception):
    """A request that failed. `code` is stable, `detail` says what and why, `next` what to type; `exit_code` is the
    command line's. A traceback shows `next` too."""

    def __init__(self, code: str, detail: str, next: str = "", exit_code: int = UNREACHABLE) -> None:
        """Keep the parts apart, as the server sent them."""
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.next = next
        self.exit_code = exit_code
        if next:
            self.add_note(f"next: {next}")

    def __reduce__(self) -> tuple[type["ClientError"], tuple[str, str, str, int]]:
        """So that it comes whole out of another process."""
        return type(self), (self.code, self.detail, self.next, self.exit_code)


class BadRequest(ClientError):
    """What was asked for can never be: a wrong spec, an unknown option, a pattern that is none."""


class NotFound(ClientError):
    """There is no such job, queue, node, attempt or rank."""


class Refused(ClientError):
    """Not as things are: the job has ended already, a name is taken, the disk is full."""


class Unreachable(ClientError):
    """There is no server, none can be started, or it went away. Jobs run on without it. `sent`: it went away when the
    request was on its way, and may have been carried out; `is_final`: to look for another helps nobody."""

    sent = False
    is_final = False


class TimedOut(ClientError):
    """Not within the time that was given."""


_KINDS: Final = {USAGE: BadRequest, NOT_FOUND: NotFound, REFUSED: Refused, UNREACHABLE: Unreachable}


def client_error(code: str, detail: str, next: str, exit_code: int) -> ClientError:
    """The error of the kind that the exit code names."""
    return _KINDS[exit_code](code, detail, next, exit_code)


def unreachable(detail: str, next: str = "ganger server status") -> Unreachable:
    """The error of a server that is not there, or went away."""
    return Unreachable("unreachable", detail, next)


def maybe_made(error: ClientError, next: str) -> ClientError:
    """The same error, of a request that may have made a job. `next`: what to type, if not what the error says."""
    unknown = "whether it made a job is not known: if it did, `ganger ls` shows it, and the same again makes another"
    return client_error(error.code, f"{error.detail}\n{unknown}", next or error.next, error.exit_code)


def timed_out(detail: str, next: str = "ganger doctor") -> ClientError:
    """The error of what did not come in time."""
    return TimedOut("timeout", detail, next)
