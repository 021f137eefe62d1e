"""Reads a file that a person names, no further than such a file can be long: a device never ends.

Called by the commands that take a job or a policy.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO, Final

from ganger.cli.output.error_output import Problem

MAX_BYTES: Final = 1 << 20


def read_given(file: str, what: str, next: str, stream: BinaryIO | None = None) -> str:
    """The text of a file that is to be a `what`, or of `stream`, which is called `file`. Problem when it cannot be
    read, is too long, or is no text."""
    try:
        with Path(file).open("rb") if stream is None else nullcontext(stream) as opened:
            content = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise Problem(f"cannot read {file}: {error.strerror}", next) from None
    if len(content) > MAX_BYTES:
        raise Problem(f"{file} is longer than 1 MiB: is it a {what} at all?", next)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise Problem(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}", "save it as UTF-8") from None
