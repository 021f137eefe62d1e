"""What git says of a directory that a job runs in, so that what ran can be told later. Called by `engine.submit.build`.

Nothing here fails: without git, outside a repository, or when git takes too long, there is just less to tell.
"""

import contextlib
import os
import selectors
import subprocess
import time
from pathlib import Path
from typing import IO, Final, NamedTuple

TIMEOUT_S: Final = 5.0
MAX_DIFF_BYTES: Final = 1 << 20

# No program that the repository names is run, no lock is taken that another git could stumble over.
_GIT: Final = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")
_DIFF: Final = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--binary", "HEAD")


class GitState(NamedTuple):
    """The commit that is checked out, whether files differ from it (new ones count), and how: at most 1 MiB of diff."""

    commit: str | None = None
    dirty: bool = False
    diff: bytes = b""


def git_state(directory: Path) -> GitState:
    """The state of the repository around `directory`; all empty when there is none, or no commit in it."""
    here = directory.resolve()
    # Path.exists raises where this user may not look.
    if not any(os.path.exists(above / ".git") for above in (here, *here.parents)):  # noqa: PTH110
        return GitState()  # a process would cost more than all the rest of a submission
    deadline_s = time.monotonic() + TIMEOUT_S
    commit, _ = _git(directory, ("rev-parse", "--verify", "HEAD"), 100, deadline_s)
    if not commit:
        return GitState()
    changes, whole = _git(directory, ("status", "--porcelain", "--ignore-submodules=dirty"), 1, deadline_s)
    diff, _ = _git(directory, _DIFF, MAX_DIFF_BYTES, deadline_s)
    # Asked in vain is not clean.
    return GitState(commit.decode().strip(), bool(changes) or not whole, diff)


def _git(directory: Path, arguments: tuple[str, ...], most_bytes: int, deadline_s: float) -> tuple[bytes, bool]:
    """The first bytes that git prints, and whether it ran to its end or to that many."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        process = subprocess.Popen(
            (*_GIT, "-C", os.fspath(directory), *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
        )
    except OSError:
        return b"", False
    with process:
        printed = _read(process.stdout, most_bytes, deadline_s) if process.stdout else b""
        if len(printed) < most_bytes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline_s - time.monotonic()))
        process.kill()
    return printed, len(printed) == most_bytes or process.returncode == 0


def _read(output: IO[bytes], most_bytes: int, deadline_s: float) -> bytes:
    """What comes, until it ends, is enough, or the time is over."""
    printed = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while len(printed) < most_bytes and selector.select(max(0.0, deadline_s - time.monotonic())):
            chunk = os.read(output.fileno(), most_bytes - len(printed))
            if not chunk:
                break
            printed += chunk
    return printed
