"""Ignore files of `code:`: .gitignore and .gangerignore, level by level as git reads them."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pathspec import GitIgnoreSpec

from ganger.errors import RequestError

ALWAYS: Final = (".git", "__pycache__", ".venv")
FILES: Final = (".gitignore", ".gangerignore")
"""Both in git's syntax; where they differ, the second wins."""


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """Patterns of a folder and of those above it; the nearest wins."""

    layers: tuple[tuple[str, GitIgnoreSpec], ...] = ()

    def below(self, folder: Path) -> "IgnoreRules":
        """Return these rules plus those of the ignore files in `folder`.

        Raise OSError when a file cannot be read, RequestError (bad_ignore_file) when it is invalid.
        """
        lines = []
        for name in FILES:
            file = folder / name
            if file.is_file():
                lines += file.read_text(errors="surrogateescape").splitlines()
        if not lines:
            return self
        try:
            spec = GitIgnoreSpec.from_lines(lines)
        except ValueError as error:
            raise RequestError(
                "bad_ignore_file", f"an ignore file in {folder} has a bad pattern: {error}", next="correct it"
            ) from None
        return IgnoreRules((*self.layers, (f"{folder}{os.sep}".replace("//", "/"), spec)))

    def ignore(self, path: str, *, is_folder: bool) -> bool:
        """Return whether `path`, absolute, is left out. Paths below an ignored folder are never passed."""
        if os.path.basename(path) in ALWAYS:  # noqa: PTH119 - thousands of them, as text
            return True
        for folder, spec in reversed(self.layers):
            is_ignored = spec.check_file(path.removeprefix(folder) + (os.sep if is_folder else "")).include
            if is_ignored is not None:
                return is_ignored
        return False


def rules_above(directory: Path) -> IgnoreRules:
    """Return the rules of the repository around `directory`, none if the repository ignores the directory itself.

    A directory that the user names is copied even when the repository ignores it.
    """
    rules = IgnoreRules()
    repository = next((folder for folder in (directory, *directory.parents) if (folder / ".git").exists()), directory)
    for folder in reversed(directory.parents):
        if folder.is_relative_to(repository):
            rules = rules.below(folder)
    above = [
        directory,
        *(folder for folder in directory.parents if folder != repository and folder.is_relative_to(repository)),
    ]
    return IgnoreRules() if any(rules.ignore(str(folder), is_folder=True) for folder in above) else rules
