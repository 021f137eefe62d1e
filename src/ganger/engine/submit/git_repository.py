"""Code from a repository: fetched into a cache, the commit resolved, its files stored as a snapshot.

git never prompts, never runs what a repository names, and speaks only the protocols that a spec allows. A repository is
fetched whole once, then incrementally.
"""

import fcntl
import hashlib
import os
import re
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from ganger.code.code_snapshot import MAX_BYTES, MAX_ENTRIES, snapshot_whole
from ganger.errors import RequestError, write_error
from ganger.model.job import GitCode
from ganger.model.units import format_bytes

TIMEOUT_S: Final = 300.0
PROTOCOLS: Final = "file:git:https:ssh"
_HEAD: Final = "refs/ganger/HEAD"
_REFS: Final = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*", f"+HEAD:{_HEAD}")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/\s']*@")
_SETTINGS: Final = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "gc.auto=0", "core.askPass=", "tar.umask=0022")


class FetchedCode(NamedTuple):
    """The commit of a ref, and the name of the snapshot of its files."""

    commit: str
    digest: str


def fetch(code: GitCode, cache: Path, store: Path) -> FetchedCode:
    """Fetch `code`. `cache` holds repositories, `store` snapshots.

    Raise RequestError: no_git, git_failed (unreachable, or not a repository), no_such_ref, code_too_large, disk_full.
    """
    repository = cache / hashlib.sha256(code.git.encode()).hexdigest()[:32]
    try:
        with _locked(repository):
            _git(repository, "init", "--quiet", "--bare", "--template=", ".")
            commit = _resolve_ref(repository, code)
            with tempfile.TemporaryDirectory(prefix=".export-", dir=cache) as directory:
                _export(repository, commit, Path(directory))
                return FetchedCode(commit, snapshot_whole(Path(directory), store))
    except OSError as error:
        raise write_error(Path(error.filename or cache), error) from None


@contextmanager
def _locked(repository: Path) -> Iterator[None]:
    """Hold the lock of a repository: no other fetch into it runs meanwhile."""
    repository.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    repository.mkdir(mode=0o700, exist_ok=True)
    with (repository / "ganger.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _resolve_ref(repository: Path, code: GitCode) -> str:
    """Return the commit of the ref, after fetching what is new; a commit in the cache needs no fetch."""
    if _COMMIT.fullmatch(code.ref) and (commit := _resolve(repository, code.ref)):
        return commit
    fetching = ("fetch", "--quiet", "--prune", "--no-write-fetch-head", "--no-recurse-submodules", "--")
    failure = _git(repository, *fetching, code.git, *_REFS)
    if failure is not None:
        raise _fetch_error(code, failure)
    names = (_HEAD,) if code.ref == "HEAD" else (f"refs/heads/{code.ref}", f"refs/tags/{code.ref}", code.ref)
    for name in names:
        if commit := _resolve(repository, name):
            return commit
    # A commit that no branch or tag leads to: some servers send it by its hash.
    if _COMMIT.fullmatch(code.ref) and _git(repository, *fetching, code.git, code.ref) is None:
        return _resolve(repository, code.ref) or code.ref
    raise RequestError(
        "no_such_ref",
        f"{code.git} has no branch, tag or commit {code.ref}",
        f"see what there is: git ls-remote --heads --tags {code.git}",
    )


def _resolve(repository: Path, name: str) -> str | None:
    """Return the commit of a name in the cache."""
    with _running_git(
        repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"
    ) as process:
        printed, _ = _communicate(process)
    return printed.decode().strip() if process.returncode == 0 else None


def _export(repository: Path, commit: str, target: Path) -> None:
    """Write the files of a commit to `target`."""
    total_bytes = entries = 0
    with _running_git(repository, "archive", "--format=tar", commit) as process:
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                for member in archive:
                    total_bytes, entries = total_bytes + member.size, entries + 1
                    if total_bytes > MAX_BYTES or entries > MAX_ENTRIES:
                        limit = f"{format_bytes(MAX_BYTES)} or {MAX_ENTRIES:,} files are copied"
                        raise RequestError("code_too_large", f"commit {commit[:12]} is too large: at most {limit}")
                    archive.extract(member, target, filter="data")
        except tarfile.TarError as error:
            message = f"commit {commit[:12]} cannot be copied: {error}"
            raise RequestError("git_failed", message, "remove that file from the repository") from None


def _git(repository: Path, *arguments: str) -> str | None:
    """Run git; return its error output when it failed. Raise RequestError when it takes too long."""
    with _running_git(repository, *arguments) as process:
        _, complaint = _communicate(process)
    return complaint.decode(errors="replace").strip() if process.returncode else None


def _communicate(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    try:
        return process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        message = f"the repository did not come within {TIMEOUT_S:.0f} s"
        raise RequestError("git_failed", message, "clone it, and name the directory in code:") from None


@contextmanager
def _running_git(repository: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run git in a session of its own, and kill the whole session on exit."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "SSH_ASKPASS"))}
    environment |= {
        "GIT_ALLOW_PROTOCOL": PROTOCOLS,
        "GIT_NO_LAZY_FETCH": "1",  # the git at the other end of a file:// URL has the settings of that repository
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_SSH_COMMAND": "ssh -o BatchMode=yes -o ConnectTimeout=20",
        "GIT_DIR": str(repository),
        "LC_ALL": "C",
    }
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    try:
        process = subprocess.Popen(
            ["git", *settings, *arguments],
            cwd=repository,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise RequestError(
            "no_git", "there is no git on this machine's PATH", "install git, or name a directory"
        ) from None
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _fetch_error(code: GitCode, complaint: str) -> RequestError:
    # git quotes the URL that it was sent to: the user's settings, or a server, may have put a password into it.
    reason = _CREDENTIALS.sub("", next(iter(complaint.splitlines()), "git failed"))
    message = f"{code.git} cannot be fetched: {reason.removeprefix('fatal: ').strip()}"
    return RequestError("git_failed", message, f"check that you may read it: git ls-remote {code.git}")
