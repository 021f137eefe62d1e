"""The exit codes of every command, the one table for commands, help and documentation.

They are stable, since scripts compare them. The client uses the same codes (`client.local.http`).
"""

from typing import Final

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
REFUSED: Final = 4
UNREACHABLE: Final = 5
TIMED_OUT: Final = 124
NOT_STARTED: Final = 125
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141

EXIT_CODES: Final[dict[int, tuple[str, str]]] = {
    OK: ("ok", "success; a report such as `diff` or `explain` exits with 0 whatever it shows"),
    FAILED: (
        "the job failed",
        (
            "the job failed or was stopped (`--exit-code`: its own code); `doctor` found a fault, `replay` a "
            "difference, `sim size` no size"
        ),
    ),
    USAGE: ("usage or bad spec", "the command line or the job spec is invalid"),
    NOT_FOUND: ("not found", "there is no such job, attempt, rank, role, queue, node, secret or token"),
    REFUSED: (
        "refused",
        "it conflicts with the state (the job has ended ...), or the token does not allow it",
    ),
    UNREACHABLE: (
        "no server",
        (
            "no server is running and none could be started, or it failed; a followed job continues, and a submission "
            "says if the job may exist"
        ),
    ),
    TIMED_OUT: ("time-out", "`wait --timeout` expired"),
    NOT_STARTED: ("not started", "`exec` could not run the command; otherwise it exits with the command's exit code"),
    INTERRUPTED: ("interrupted", "interrupted by Ctrl-C; a followed job keeps running"),
    PIPE_CLOSED: ("reader left", "the reader of the output closed the pipe (`ganger logs JOB | head`)"),
}
"""Code -> (short name, meaning).

A command on several jobs does what it can, reports each failure, and exits with the code of the first one.
"""


def exit_code_summary() -> str:
    """Return `0 ok, 1 the job failed, ...`, for the help."""
    return ", ".join(f"{code} {name}" for code, (name, _) in EXIT_CODES.items())
