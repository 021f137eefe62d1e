"""The code of a job, that came with its pod as an archive, put where its ranks run. Called by `main`."""

from __future__ import annotations


class BadArchiveError(Exception):
    """It cannot be unpacked; the text is one sentence."""


def unpack(archive: str, digest: str, directory: str) -> None:
    """digest: its SHA-256, in hex, as of the time when the job was submitted: whoever may write in the job's namespace
    could have put another one in its place. Raises BadArchiveError."""
    import tarfile

    try:
        if _sha256_of(archive) != digest:
            raise BadArchiveError(
                f"the code of the job in {archive} is not what it was submitted with (its SHA-256 is not {digest})"
            )
        with tarfile.open(archive) as code:
            if hasattr(tarfile, "data_filter"):
                code.extractall(directory, filter="data")
            else:
                # The job's own, into its own container; an older Python has no filter.
                code.extractall(directory)  # noqa: S202
    except (OSError, tarfile.TarError) as error:
        raise BadArchiveError(f"the code of the job in {archive} cannot be unpacked: {error}") from error


def _sha256_of(path: str) -> str:
    import hashlib

    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
