"""The git state of a job's directory, as a record of what ran.

Nothing here fails: without git, outside a repository, or when git takes too long, less is recorded.
"""

import contextlib
import os
import re
import selectors
import subprocess
import time
from pathlib import Path
from typing import IO, Final, NamedTuple

TIMEOUT_S: Final = 5.0
MAX_DIFF_BYTES: Final = 1 << 20

# No program named by the repository is run, and no lock is taken that would make another git fail.
_GIT: Final = ("git", "--no-optional-locks", "--no-pager")
_SETTINGS: Final = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "core.quotePath=false")
_ENVIRONMENT: Final = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",  # a git that does not know GIT_NO_LAZY_FETCH cannot fetch either
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
_LIST: Final = ("config", "--list", "--null", "--name-only")
# A changed file in a submodule would need a git process that reads the submodule's own settings.
_STATUS: Final = ("status", "--porcelain", "--ignore-submodules=dirty")
_DIFF: Final = (
    "diff", "--no-ext-diff", "--no-textconv", "--no-color", "--binary", "--submodule=short",
    "--ignore-submodules=dirty", "HEAD",
)  # fmt: skip
_MAX_NAMES_BYTES: Final = 1 << 20
_FILTER: Final = re.compile(rb"(filter\..*)\.[^.]*", re.DOTALL)


class GitState(NamedTuple):
    """The commit checked out, whether files differ from it (new ones count), and at most 1 MiB of diff."""

    commit: str | None = None
    dirty: bool = False
    diff: bytes = b""


def git_state(directory: Path) -> GitState:
    """Return the state of the repository around `directory`; empty when there is none, or no commit in it."""
    start = directory.resolve()
    # Path.exists raises where this user has no permission.
    if not any(os.path.exists(above / ".git") for above in (start, *start.parents)):  # noqa: PTH110
        return GitState()  # starting git would cost more than the rest of the submission
    deadline_s = time.monotonic() + TIMEOUT_S
    commit, _ = _git(directory, (), ("rev-parse", "--verify", "HEAD"), 100, deadline_s)
    if not commit:
        return GitState()
    no_filters = _no_filters(directory, deadline_s)
    if no_filters is None:
        return GitState(commit.decode().strip(), dirty=True)
    status, is_complete = _git(directory, no_filters, _STATUS, 1, deadline_s)
    diff, _ = _git(directory, no_filters, _DIFF, MAX_DIFF_BYTES, deadline_s)
    # A status that failed does not mean clean.
    return GitState(commit.decode().strip(), bool(status) or not is_complete, diff)


def _no_filters(directory: Path, deadline_s: float) -> tuple[str, ...] | None:
    """Return the settings that disable all filters (gitattributes(5)), or None if one cannot be disabled.

    A filter has any name, hence the names are read first, from all files that git reads. git itself splits a setting on
    its command line at the first `=`.
    """
    names, is_complete = _git(directory, (), _LIST, _MAX_NAMES_BYTES, deadline_s)
    filters = {match[1] for name in names.split(b"\0") if (match := _FILTER.fullmatch(name))}
    if not is_complete or len(names) == _MAX_NAMES_BYTES or any(b"=" in name for name in filters):
        return None
    disabled = ("clean=", "smudge=", "process=", "required=false")
    return tuple(f"{os.fsdecode(name)}.{setting}" for name in sorted(filters) for setting in disabled)


def _git(
    directory: Path, settings: tuple[str, ...], arguments: tuple[str, ...], max_bytes: int, deadline_s: float
) -> tuple[bytes, bool]:
    """Return the first bytes that git prints, and whether it ran to its end or to that many."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "SSH_ASKPASS"))}
    options = [word for setting in (*_SETTINGS, *settings) for word in ("-c", setting)]
    try:
        process = subprocess.Popen(
            (*_GIT, *options, "-C", os.fspath(directory), *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment | _ENVIRONMENT,
        )
    except OSError:  # also for more settings than a command line may have
        return b"", False
    with process:
        printed = _read(process.stdout, max_bytes, deadline_s) if process.stdout else b""
        if len(printed) < max_bytes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline_s - time.monotonic()))
        process.kill()
    return printed, len(printed) == max_bytes or process.returncode == 0


def _read(output: IO[bytes], max_bytes: int, deadline_s: float) -> bytes:
    """Return the output until it ends, is enough, or the deadline has passed."""
    printed = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while len(printed) < max_bytes and selector.select(max(0.0, deadline_s - time.monotonic())):
            chunk = os.read(output.fileno(), max_bytes - len(printed))
            if not chunk:
                break
            printed += chunk
    return printed
