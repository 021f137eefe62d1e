"""Keeps the values of secrets out of what is written and told. Called by `generation` and `logs`.

A value of less than 4 characters cannot be told from ordinary text and is left alone. Of a value of several lines,
each line is a secret of its own, since output is looked at line by line.
"""

from __future__ import annotations

import json
import os

SHORTEST_CHARACTERS = 4
MASK = "***"


class Redaction:
    """Masks the values it was given. Without any it changes nothing."""

    def __init__(self, values: list[str]) -> None:
        lines = {line for value in values for line in value.splitlines()}
        secret = [line for line in lines if len(line) >= SHORTEST_CHARACTERS]
        self._secret = sorted(secret, key=len, reverse=True)  # one may be a part of another

    def mask(self, text: str) -> str:
        """The text without the secrets."""
        for secret in self._secret:
            text = text.replace(secret, MASK)
        return text

    def withheld(self, text: str) -> int:
        """How many characters at the end of the text may be the beginning of a secret that goes on."""
        longest = 0
        for secret in self._secret:
            for length in range(min(len(secret) - 1, len(text)), longest, -1):
                if text.endswith(secret[:length]):
                    longest = length
                    break
        return longest


def load_secrets(path: str) -> dict[str, str]:
    """Variables by name: of a JSON file, or of a directory that has a file for each, as Kubernetes mounts a Secret.
    OSError or ValueError when it is not there or no such thing."""
    if os.path.isdir(path):
        names = [name for name in os.listdir(path) if not name.startswith(".")]  # ..data and the like are its own
        return {name: _text(os.path.join(path, name)) for name in names}
    with open(path, encoding="utf-8") as file:
        found = json.load(file)
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError("it is no JSON object of texts")
    return found


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
