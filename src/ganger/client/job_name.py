"""Default names of jobs."""

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

_LENGTH: Final = 40


def name_of_command(command: str | Sequence[str]) -> str:
    """Return a name for a job without one: that of its script, else of its program."""
    words = _split(command) if isinstance(command, str) else command
    script = next((word for word in words if word.endswith((".py", ".sh"))), None)
    name = PurePath(script).stem if script else PurePath(words[0]).name if words else ""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:_LENGTH].strip("-") or "job"


def _split(line: str) -> list[str]:
    """Return the words of a shell line, approximately if its quotes are not balanced."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()
