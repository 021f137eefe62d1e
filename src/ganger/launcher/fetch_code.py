"""`launcher.pyz fetch URL REF MAX_BYTES`: fetch the code of a job from a repository, in a pod of its own.

The pod has no rights, and whatever a repository or its server makes git do stays in it. The controller reads the
result: the output is a line of JSON with the commit and the size, or with an error, and the file ARCHIVE of the current
directory is a tar.gz of the files of the commit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

FAILED = 1
ARCHIVE = "code.tar.gz"
READ_BYTES = 64 * 1024
MAX_UNPACKED_BYTES = 1 << 30
GZIP = 16 + zlib.MAX_WBITS
FETCHED = "refs/ganger/fetched"
HEAD = "refs/ganger/HEAD"
WHOLE = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*", f"+HEAD:{HEAD}")
MISSING_REF = "find remote ref"  # of git's message
SETTINGS = (
    *("core.hooksPath=/dev/null", "core.fsmonitor=false", "gc.auto=0", "core.askPass=", "tar.umask=0022"),
    *("http.followRedirects=false", "http.lowSpeedLimit=1000", "http.lowSpeedTime=30"),
)
"""A redirection would lead to a host that the policy has not permitted."""
ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "git:https",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


class FetchError(Exception):
    """Code that cannot be fetched: a code of `ganger.error_codes`, a sentence, and what to do."""

    def __init__(self, code: str, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.code, self.detail, self.remedy = code, detail, remedy


def main(arguments: list[str]) -> int:
    """Print the code, or the error; return the exit code."""
    url, ref, max_bytes = arguments
    try:
        with tempfile.TemporaryDirectory(dir=os.getcwd()) as directory:
            repository = _Repository(directory)
            commit = repository.fetch(url, ref)
            with open(ARCHIVE, "wb") as file:
                size_bytes = repository.archive(commit, int(max_bytes), file)
    except FetchError as error:
        sys.stdout.write(json.dumps({"error": error.code, "detail": error.detail, "next": error.remedy}) + "\n")
        return FAILED
    sys.stdout.write(json.dumps({"commit": commit, "bytes": size_bytes}) + "\n")
    return 0


class _Repository:
    """A bare repository in an empty directory. Raises FetchError."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._git("init", "--quiet", "--bare", "--template=", ".")

    def fetch(self, url: str, ref: str) -> str:
        """Fetch what a ref needs, or else the whole repository; return the commit."""
        is_hash = len(ref) == 40 and not ref.strip("0123456789abcdef")
        sources = ("HEAD",) if ref == "HEAD" else (f"refs/heads/{ref}", f"refs/tags/{ref}", *([ref] if is_hash else ()))
        for source in sources:
            complaint = self._fetch("--depth=1", url, f"+{source}:{FETCHED}")
            if complaint is None:
                return self._resolve(FETCHED) or ref
            if MISSING_REF not in complaint:
                break  # the server has no shallow clones, or cannot be reached
        complaint = self._fetch("--prune", url, *WHOLE)
        if complaint is not None:
            reason = next(iter(complaint.splitlines()), "git failed").replace("fatal: ", "", 1)
            remedy = f"check that it may be read without a password: git ls-remote {url}"
            raise FetchError("git_failed", f"{url} cannot be fetched: {reason}", remedy)
        for name in (HEAD,) if ref == "HEAD" else (f"refs/heads/{ref}", f"refs/tags/{ref}", ref):
            commit = self._resolve(name)
            if commit:
                return commit
        listing = f"see what there is: git ls-remote --heads --tags {url}"
        raise FetchError("no_such_ref", f"{url} has no branch, tag or commit {ref}", listing)

    def archive(self, commit: str, max_bytes: int, file: IO[bytes]) -> int:
        """Write the files of a commit as a tar.gz, the same bytes for the same commit; return its size."""
        unpacked_bytes = 0
        compressor = zlib.compressobj(wbits=GZIP)
        with self._start("archive", "--format=tar", commit) as process:
            output: IO[bytes] = process.stdout  # type: ignore[assignment]  # it is a pipe
            for data in iter(lambda: output.read(READ_BYTES), b""):
                unpacked_bytes += len(data)
                file.write(compressor.compress(data))
                if unpacked_bytes > MAX_UNPACKED_BYTES or file.tell() > max_bytes:
                    process.kill()
                    break
        file.write(compressor.flush())
        if unpacked_bytes > MAX_UNPACKED_BYTES or file.tell() > max_bytes:
            limit = f"{max_bytes >> 10} KiB when packed, or {MAX_UNPACKED_BYTES >> 20} MiB"
            remedy = "put it into the image, or on a volume, and leave code: out"
            raise FetchError("code_too_large", f"commit {commit[:12]} has more than {limit}", remedy)
        if process.returncode:
            raise FetchError("git_failed", f"commit {commit[:12]} cannot be read", "look at the repository: git fsck")
        return file.tell()

    def _fetch(self, how: str, url: str, *refs: str) -> str | None:
        """Fetch; return git's complaint if it failed."""
        flags = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")
        code, _, complaint = self._git("fetch", how, *flags, "--", url, *refs)
        return complaint if code else None

    def _resolve(self, name: str) -> str:
        """Return the commit of a name; empty if there is none."""
        arguments = ("--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        return self._git("rev-parse", *arguments)[1].strip()

    def _git(self, *arguments: str) -> tuple[int, str, str]:
        """Run git; return its exit code, output and error output."""
        with self._start(*arguments) as process:
            output, complaint = process.communicate()
        return process.returncode, output.decode(errors="replace"), complaint.decode(errors="replace").strip()

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        settings = [word for setting in SETTINGS for word in ("-c", setting)]
        pipe = subprocess.PIPE
        stderr = subprocess.DEVNULL if arguments[0] == "archive" else pipe
        environment = {**os.environ, **ENVIRONMENT, "GIT_DIR": self._directory}
        command = ["git", *settings, *arguments]
        try:
            return subprocess.Popen(
                command, cwd=self._directory, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=stderr
            )
        except FileNotFoundError:
            remedy = "start the controller with --git-image IMAGE, an image with git and Python"
            raise FetchError("no_git", "the image of the pod that fetches code has no git", remedy) from None
