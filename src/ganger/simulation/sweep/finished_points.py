"""The finished points of a sweep, a file each in its folder, so that a sweep that is run again does not repeat them.

A file is named by a digest of all that decides its result: the arguments of the run, the content of the files that they
name, and the version of ganger.
"""

import argparse
import hashlib
import json
from pathlib import Path
from typing import Final

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
        self._content_digests = dict[Path, str]()
        """Of each file that the arguments name: its points have the same ones, and a trace is long."""

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
        values = {
            name: self._content_digest(value) if isinstance(value, Path) else value
            for name, value in vars(arguments).items()
            if name not in _OF_THE_SWEEP
        }
        text = json.dumps([__version__, values], sort_keys=True)
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"

    def _content_digest(self, path: Path) -> str:
        if path not in self._content_digests:
            with path.open("rb") as file:
                self._content_digests[path] = hashlib.file_digest(file, "sha256").hexdigest()
        return self._content_digests[path]
