"""`ganger fetch`: copy files that a job wrote to this machine.

The files come as a tar stream. They are extracted into a temporary directory beside their destination and moved when
all are there, so an interrupted or refused fetch leaves nothing behind.
"""

import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import click

from ganger.cli.exit_codes import REFUSED
from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.options import job_argument
from ganger.cli.output.error_output import Problem
from ganger.cli.output.print_output import say, shell_quote, show
from ganger.client.client_errors import Unreachable

SHOWN: Final = 5
"""Conflicting or refused files that are named; the others are counted."""
MAX_HEADER_BYTES: Final = 1 << 20


@click.command("fetch")
@job_argument
@click.argument("path", required=False)
@click.option(
    "-o", "--output", "directory", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Copy to DIR."
)
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
def fetch_command(job: str, path: str | None, directory: Path | None, force: bool) -> None:
    """Copy files that a job wrote from its copy of the code to this machine.

    PATH is a file or directory in the job's run directory (GANGER_RUN_DIR) or in its copy of the code, and comes
    into DIR under its last name; DIR is the current directory if -o is not given. Without PATH come all files there
    that were written since the submission, but for checkpoints, into a directory with the id of the job. Prints the
    files. Nothing is overwritten without --force. A job without `code:` runs in place, and only its run directory
    can be fetched. With --context the files are those of its running pods, in their working directory or, by an
    absolute PATH, on their volumes: the file of the lowest rank, if several have it. Once the pods have ended, only
    files on volumes are left.

    \b
      ganger fetch bert-7f3 results/metrics.json
      ganger fetch bert-7f3 -o bert-outputs
    """  # noqa: D301 - click keeps the lines of a paragraph after \b
    client = connect()
    if directory is None:
        directory = Path() if path is not None else _directory_of(client.job(job)["row"]["id"])
    blocks = client.fetch(job, path)
    stream = _Blocks(next(blocks, b""), blocks)  # before a directory is created: the job may have no such file
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".ganger-fetch-", dir=directory) as draft:
            refused = _extract(stream, Path(draft))
            _publish(Path(draft), directory, force=force)
    except Unreachable as error:
        if error.code == "fetch_failed":
            raise  # a pod has said why
        detail = f"nothing was copied: the server broke off in {stream.member or 'the first file'}: {error}"
        raise Problem(detail, next="ganger server status; the server's log names a file that it cannot read") from None
    except (OSError, tarfile.TarError, LookupError, ValueError, RecursionError) as error:
        raise Problem(f"cannot copy to {directory}: {error}", next=f"df -h {shell_quote(str(directory))}") from None
    if refused:
        say(f"left out, since they point or lead outside the directory: {_listed(refused)}", fg="yellow")


def _directory_of(job: str) -> Path:
    """Return the directory for a job's files. Raise Problem if the server's id of it leads elsewhere."""
    directory = Path(job)
    if directory.is_absolute() or not directory.parts or any(part.startswith(".") for part in directory.parts):
        raise Problem(f"the server calls the job {job!r}, which is no name of a directory here", next="-o DIR")
    return directory


class _Member(tarfile.TarInfo):
    """A member of the stream; tarfile keeps headers in memory, however long they say to be."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if member.size < 0 or (member.size > MAX_HEADER_BYTES and not member.isreg()):
            raise tarfile.ReadError(f"{member.name[:200]!r} has an invalid size")
        return member


class _Blocks:
    """The stream as a file that can only be read."""

    member = ""
    """The name of the member that is being read."""

    def __init__(self, first: bytes, others: Iterator[bytes]) -> None:
        self._rest, self._others = first, others

    def read(self, size: int) -> bytes:
        while not self._rest and (block := next(self._others, b"")):
            self._rest = block
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def _extract(blocks: _Blocks, target: Path) -> list[str]:
    """Extract the stream, which is only read, and return the names of members that the filter of tarfile refused."""
    refused = []
    with tarfile.open(fileobj=blocks, mode="r|", tarinfo=_Member) as archive:  # type: ignore[call-overload]
        for member in archive:
            blocks.member = member.name
            try:
                archive.extract(member, target, filter="data")
            except tarfile.FilterError:
                refused.append(member.name)
    return refused


def _publish(draft: Path, directory: Path, *, force: bool) -> None:
    """Move the files from `draft` to `directory` and print them. Raise Problem if one exists, unless forced."""
    paths = sorted(draft.rglob("*"))
    folders = [path.relative_to(draft) for path in paths if path.is_dir() and not path.is_symlink()]
    files = [path.relative_to(draft) for path in paths if path.is_symlink() or not path.is_dir()]
    existing = [str(directory / name) for name in files if os.path.lexists(directory / name)]
    if existing and not force:
        again = "ganger fetch --force ...   or another directory: -o DIR"
        raise Problem(
            f"nothing was copied, since it would overwrite: {_listed(existing)}", next=again, exit_code=REFUSED
        )
    for folder in folders:
        (directory / folder).mkdir(exist_ok=True)
    for name in files:
        (draft / name).replace(directory / name)
        show(str(directory / name))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
