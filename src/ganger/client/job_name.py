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
    if words and words[0] == "srun":
        words = _without_srun(tuple(words))
    script = next((word for word in words if word.endswith((".py", ".sh"))), None)
    name = PurePath(script).stem if script else PurePath(words[0]).name if words else ""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:_LENGTH].strip("-") or "job"


def _without_srun(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words after srun and its options, or the name that these give."""
    from ganger.framework_api.srun import find_srun

    srun = find_srun(words)
    if srun is None:
        return words
    return (srun.options["job-name"],) if "job-name" in srun.options else srun.command


def _split(line: str) -> list[str]:
    """Return the words of a shell line, approximately if its quotes are not balanced."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()
