"""Ids of new jobs; the command line makes them too, so nothing else is imported here."""

import secrets
from collections.abc import Callable
from typing import Final

_SUFFIX_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz234567"
_SUFFIX_LENGTH: Final = 4


def new_id(name: str, taken: Callable[[str], object]) -> str:
    """Return the name with a suffix that is not taken."""
    while True:
        suffix = "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(_SUFFIX_LENGTH))
        if not taken(f"{name}-{suffix}"):
            return f"{name}-{suffix}"
