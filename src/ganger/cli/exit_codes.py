"""The exit codes of every command: the one table of them, for the commands, the help and the documents.

Stable: scripts compare them. The client gives its errors the same ones (`client.local.http`).
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
    OK: ("ok", "it was done; a report, such as `diff` or `explain`, was given whatever it says"),
    FAILED: (
        "the job failed",
        "the job failed or was stopped (`--exit-code`: its own code); `doctor` found a fault, `replay` a difference",
    ),
    USAGE: ("usage or bad spec", "what was typed, or the spec, cannot be"),
    NOT_FOUND: ("not found", "there is no such job, attempt, rank, role, queue, node, secret or token"),
    REFUSED: ("refused", "it stands against how things are: the job has ended, is suspended already ..."),
    UNREACHABLE: (
        "no server",
        "no server, and none could be started; or it broke down: what was to make a job says if it may have",
    ),
    TIMED_OUT: ("time-out", "`wait` ran out of time"),
    NOT_STARTED: ("not started", "`exec` could not run the command; else it exits as the command did"),
    INTERRUPTED: ("interrupted", "by Ctrl-C; a job that was followed runs on"),
    PIPE_CLOSED: ("reader left", "whoever read the output went away (`ganger logs JOB | head`)"),
}
"""Code -> (in a word, what it means). A command that is given several jobs does what it can, says of each other one why
not, and exits with the code of the first that failed."""


def in_short() -> str:
    """`0 ok, 1 the job failed, ...`, for the help."""
    return ", ".join(f"{code} {word}" for code, (word, _) in EXIT_CODES.items())
