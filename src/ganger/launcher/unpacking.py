"""The code of a job, that came with its pod as an archive, put where its ranks run. Called by `main`."""

from __future__ import annotations


class BadArchiveError(Exception):
    """It cannot be unpacked; the text is one sentence."""


def unpack(archive: str, directory: str) -> None:
    """Raises BadArchiveError."""
    import tarfile

    try:
        with tarfile.open(archive) as code:
            if hasattr(tarfile, "data_filter"):
                code.extractall(directory, filter="data")
            else:
                # The job's own, into its own container; an older Python has no filter.
                code.extractall(directory)  # noqa: S202
    except (OSError, tarfile.TarError) as error:
        raise BadArchiveError(f"the code of the job in {archive} cannot be unpacked: {error}") from error
