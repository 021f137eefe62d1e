"""Masking of secrets in logs and messages.

A value of fewer than 4 characters cannot be distinguished from ordinary text and is not masked. Each line of a value
with several lines is a secret of its own, since output is masked line by line."""

from __future__ import annotations

import json
import os

MIN_CHARACTERS = 4
MASK = "***"


class Redaction:
    """Masks the given values; without any it changes nothing."""

    def __init__(self, values: list[str]) -> None:
        lines = {line for value in values for line in value.splitlines()}
        secrets = [line for line in lines if len(line) >= MIN_CHARACTERS]
        self._secrets = sorted(secrets, key=len, reverse=True)  # one may be a part of another

    def mask(self, text: str) -> str:
        """Return the text with all secrets masked."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text

    def withheld(self, text: str) -> int:
        """Return how many characters at the end of the text may be the beginning of a secret."""
        longest = 0
        for secret in self._secrets:
            for length in range(min(len(secret) - 1, len(text)), longest, -1):
                if text.endswith(secret[:length]):
                    longest = length
                    break
        return longest


def load_secrets(path: str) -> dict[str, str]:
    """Read variables by name from a JSON file, or from a directory with one file each, as Kubernetes mounts a Secret.

    Raises OSError or ValueError if it does not exist or has another format.
    """
    if os.path.isdir(path):
        names = [name for name in os.listdir(path) if not name.startswith(".")]  # not ..data, Kubernetes's own
        return {name: _text(os.path.join(path, name)) for name in names}
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        raise ValueError("the file is not a JSON object of strings")
    return content


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
