"""A name for a job that was given none. Called by everything that submits a command."""

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

_LENGTH: Final = 40


def name_of_command(command: str | Sequence[str]) -> str:
    """A name for a job that was given none: its script, else its program."""
    words = _split(command) if isinstance(command, str) else command
    script = next((word for word in words if word.endswith((".py", ".sh"))), None)
    name = PurePath(script).stem if script else PurePath(words[0]).name if words else ""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:_LENGTH].strip("-") or "job"


def _split(line: str) -> list[str]:
    """The words of a shell line, as near as can be said without a shell."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()
