"""Semantic versions (semver.org 2.0.0) as lists, and their order."""

import re
from typing import Any, Final

_NUMBER: Final = r"(0|[1-9][0-9]{0,17})"
_VERSION: Final = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")


def parse_version(text: str) -> list[Any]:
    """Return [major, minor, patch, pre-release]; the build is of no consequence. Raises ValueError."""
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a semantic version: write 1.2.3")
    return [int(match[1]), int(match[2]), int(match[3]), match[4] or ""]


def version_key(version: list[Any]) -> tuple[Any, ...]:
    """Return the key that versions are ordered by: a pre-release is before its release, numbers are before words."""
    *numbers, before = version
    identifiers = [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in before.split(".")]
    return (*numbers, before == "", identifiers if before else [])
