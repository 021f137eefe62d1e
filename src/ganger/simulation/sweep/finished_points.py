"""The finished points of a sweep, a file each in its folder, so that a sweep that is run again does not repeat them.

A file is named by a digest of all that decides its result: the arguments of the run, the content of the files that they
name, and the version of ganger.
"""

import argparse
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, Final

from ganger import __version__
from ganger.simulation.compare.compare import write_atomically
from ganger.simulation.json_output import Record

_OF_THE_SWEEP: Final = ("subcommand", "to", "grid", "measures")
"""Arguments that do not change the result of a point."""


class FinishedPoints:
    """The files of finished points."""

    def __init__(self, folder: Path) -> None:
        """Create the folder if there is none."""
        self._folder = folder / "points"
        self._folder.mkdir(parents=True, exist_ok=True)

    def load(self, arguments: argparse.Namespace) -> Record | None:
        """Return the result of a point; None if it is not finished, or its file is damaged."""
        try:
            result = json.loads(self._path(arguments).read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return result if isinstance(result, dict) else None

    def save(self, arguments: argparse.Namespace, result: Record) -> None:
        """Write the result of a point, all of it or nothing."""
        write_atomically(self._path(arguments), json.dumps(result))

    def _path(self, arguments: argparse.Namespace) -> Path:
        return self._folder / f"{_digest(arguments)}.json"


def _digest(arguments: argparse.Namespace) -> str:
    values = {name: _comparable(value) for name, value in vars(arguments).items() if name not in _OF_THE_SWEEP}
    text = json.dumps([__version__, values], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _comparable(value: Any) -> Any:
    """Return the value of an argument; of a file its content."""
    return _content_digest(value) if isinstance(value, Path) else value


@cache
def _content_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
