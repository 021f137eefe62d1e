"""A repository that git serves over the network, as a git server does."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.real.cluster import until

AUTHOR = ("-c", "user.name=ada", "-c", "user.email=ada@example.org")


def git(repository: Path, *arguments: str) -> str:
    """Return git's output."""
    command = ["git", *AUTHOR, *arguments]
    return subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True).stdout.strip()


def commit(repository: Path, message: str) -> str:
    """Commit all files of a repository, which is created if need be; return the commit."""
    git(repository, "init", "--quiet", "--initial-branch=main")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--allow-empty", "-m", message)
    return git(repository, "rev-parse", "HEAD")


@contextmanager
def served(folder: Path, address: str = "127.0.0.1") -> Iterator[str]:
    """Serve the repositories in a folder over the network, and yield the URL."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port = probe.getsockname()[1]
    command = ["git", "daemon", "--export-all", f"--base-path={folder}", f"--listen={address}", f"--port={port}"]
    daemon = subprocess.Popen([*command, "--reuseaddr", str(folder)], start_new_session=True)
    try:
        until(lambda: _answers(address, port), "the repository to be served")
        yield f"git://{address}:{port}"
    finally:
        daemon.terminate()
        daemon.wait()


def _answers(address: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0
