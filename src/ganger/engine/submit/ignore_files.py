"""What `code:` leaves out: .gitignore and .gangerignore, level by level as git reads them.

Called by `engine.submit.code_snapshot`.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pathspec import GitIgnoreSpec

from ganger.errors import RequestError

ALWAYS: Final = (".git", "__pycache__", ".venv")
FILES: Final = (".gitignore", ".gangerignore")
"""Both in git's syntax; where they differ, the second is right."""


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """Patterns of a folder and of those above it; the nearest decides."""

    layers: tuple[tuple[str, GitIgnoreSpec], ...] = ()

    def below(self, folder: Path) -> "IgnoreRules":
        """These, and what the ignore files in `folder` add. OSError: one cannot be read. Refused: bad_ignore_file."""
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
        """Whether `path`, absolute, is left out. What is below a folder that is left out is never asked for."""
        if os.path.basename(path) in ALWAYS:  # noqa: PTH119 - thousands of them, as text
            return True
        for folder, spec in reversed(self.layers):
            verdict = spec.check_file(path.removeprefix(folder) + (os.sep if is_folder else "")).include
            if verdict is not None:
                return verdict
        return False


def rules_above(directory: Path) -> IgnoreRules:
    """What the repository around `directory` says. A directory that the repository ignores was meant all the same."""
    rules = IgnoreRules()
    repository = next((each for each in (directory, *directory.parents) if (each / ".git").exists()), directory)
    for folder in reversed(directory.parents):
        if folder.is_relative_to(repository):
            rules = rules.below(folder)
    above = [directory, *(each for each in directory.parents if each != repository and each.is_relative_to(repository))]
    return IgnoreRules() if any(rules.ignore(str(each), is_folder=True) for each in above) else rules
