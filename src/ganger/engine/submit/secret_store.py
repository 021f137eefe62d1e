"""Secrets of a user: one file each, readable by the user alone.

A value is in these files and, while a job that uses it is kept, in that job's directory; never in a log, a row or an
error.
"""

import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ganger.errors import RequestError, write_error
from ganger.framework_api.rank_environment import PREFIX
from ganger.model.views.service_views import SecretRow
from ganger.spec.text_fields import ENV_NAME_PATTERN

MAX_VALUE_BYTES: Final = 64 * 1024


class SecretStore:
    """The secrets in one directory."""

    def __init__(self, directory: Path) -> None:
        """Set the directory, which is created with the first secret."""
        self._directory = directory

    def rows(self) -> list[SecretRow]:
        """Return the secrets by name, without the values."""
        try:
            names = sorted(entry.name for entry in os.scandir(self._directory) if _is_name(entry.name))
        except FileNotFoundError:
            return []
        return [SecretRow(name=name, set_ms=(self._directory / name).stat().st_mtime_ns // 1_000_000) for name in names]

    def get(self, name: str) -> str | None:
        """Return the value, or None when there is none."""
        try:
            return (self._directory / _checked(name)).read_text()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError):
            message = f"the secret {name} in {self._directory} cannot be read"
            raise RequestError("secret_unreadable", message, f"ganger secret set {name}", 500) from None

    def set(self, name: str, value: str) -> SecretRow:
        """Store a value, replacing the present one. Raise RequestError (bad_secret) for an invalid name or value."""
        path = self._directory / _checked(name)
        check_value(name, value)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(path, value)
        except OSError as error:
            raise write_error(path, error) from None
        return next(row for row in self.rows() if row.name == name)

    def delete(self, name: str) -> None:
        """Delete a value. Raise RequestError (no_such_secret, 404).

        Jobs that have it keep it until they are deleted.
        """
        try:
            (self._directory / _checked(name)).unlink()
        except FileNotFoundError:
            raise RequestError("no_such_secret", f"there is no secret {name}", "ganger secret ls", 404) from None


def values_of(names: tuple[str, ...], sent: Mapping[str, str], store: SecretStore) -> dict[str, str]:
    """Return the values of a job's secrets: those sent with it, else the stored ones.

    Raise RequestError (secret_not_set), naming all that are in neither.
    """
    values = {name: sent[name] if name in sent else store.get(name) for name in names}
    if missing := [name for name, value in values.items() if value is None]:
        first_missing, is_plural = missing[0], len(missing) > 1
        raise RequestError(
            "secret_not_set",
            f"{'the secrets' if is_plural else 'the secret'} {', '.join(missing)} {'are' if is_plural else 'is'} "
            "not set: neither in this shell nor with `ganger secret`",
            f"ganger secret set {first_missing}, or: export {first_missing}=...",
        )
    return {name: value for name, value in values.items() if value is not None}


def keep_values(values: Mapping[str, str], path: Path) -> None:
    """Write a job's secrets where its launchers read them. Raise OSError when the disk is full."""
    if values:
        write_private(path, json.dumps(values))


def check_value(name: str, value: str) -> None:
    """Raise RequestError (bad_secret) when the value cannot be a variable. The message never has the value."""
    if not value:
        raise RequestError("bad_secret", f"the value of {name} is empty", f"ganger secret set {name}")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise RequestError(
            "bad_secret", f"the value of {name} is not text that can be passed to a program", "send text"
        )
    if len(value.encode()) > MAX_VALUE_BYTES:
        message = f"the value of {name} is longer than {MAX_VALUE_BYTES >> 10} KiB"
        raise RequestError("bad_secret", message, "keep it in a file, and set the file's path")


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600, atomically. Raise OSError when the disk refuses it."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", delete=False) as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)  # noqa: PTH105 - a name, not a path
        except BaseException:
            os.unlink(file.name)  # noqa: PTH108 - the same
            raise


def _checked(name: str) -> str:
    if not _is_name(name):
        rule = "letters, digits and '_', no digit at the beginning"
        raise RequestError("bad_secret", f"{name!r} is not the name of a variable: write {rule}", "choose another name")
    if name.startswith(PREFIX):
        raise RequestError("bad_secret", f"names that begin with {PREFIX} are ganger's", "choose another name")
    return name


def _is_name(name: str) -> bool:
    return re.fullmatch(ENV_NAME_PATTERN, name) is not None and len(name) <= 200
