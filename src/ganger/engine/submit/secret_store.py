"""Secrets that a user keeps with ganger: one file each, which only the user may read. Called by `engine.service` and
`engine.submit.build`.

A value is in these files and, while a job that uses it is kept, in that job's directory; in no log, no row, no error.
"""

import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ganger.errors import RequestError, unwritable
from ganger.framework_api.rank_environment import PREFIX
from ganger.model.views.service_views import SecretRow
from ganger.spec.text_fields import ENV_NAME_PATTERN

MAX_VALUE_BYTES: Final = 64 * 1024


class SecretStore:
    """The secrets in one directory."""

    def __init__(self, directory: Path) -> None:
        """The directory is made with the first secret."""
        self._directory = directory

    def rows(self) -> list[SecretRow]:
        """What there is, by name, without the values."""
        try:
            found = sorted(entry.name for entry in os.scandir(self._directory) if _is_name(entry.name))
        except FileNotFoundError:
            return []
        return [SecretRow(name=name, set_ms=(self._directory / name).stat().st_mtime_ns // 1_000_000) for name in found]

    def get(self, name: str) -> str | None:
        """The value, or None when there is none."""
        try:
            return (self._directory / _checked(name)).read_text()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError):
            why = f"the secret {name} in {self._directory} cannot be read"
            raise RequestError("secret_unreadable", why, f"ganger secret set {name}", 500) from None

    def set(self, name: str, value: str) -> SecretRow:
        """Keep a value, in place of one that is there. Refused (bad_secret): no name, no text, or too long."""
        path = self._directory / _checked(name)
        check_value(name, value)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(path, value)
        except OSError as error:
            raise unwritable(path, error) from None
        return next(row for row in self.rows() if row.name == name)

    def delete(self, name: str) -> None:
        """Forget a value. Refused (no_such_secret, 404). Jobs that have it already keep it until they are deleted."""
        try:
            (self._directory / _checked(name)).unlink()
        except FileNotFoundError:
            raise RequestError("no_such_secret", f"there is no secret {name}", "ganger secret ls", 404) from None


def values_of(names: tuple[str, ...], given: Mapping[str, str], store: SecretStore) -> dict[str, str]:
    """The values of a job's secrets: what was sent with it, else what is kept. Refused (secret_not_set) names all that
    are in neither."""
    found = {name: given[name] if name in given else store.get(name) for name in names}
    if missing := [name for name, value in found.items() if value is None]:
        first, more = missing[0], len(missing) > 1
        raise RequestError(
            "secret_not_set",
            f"{'the secrets' if more else 'the secret'} {', '.join(missing)} {'are' if more else 'is'} not set: "
            "neither in this shell nor with `ganger secret`",
            f"ganger secret set {first}, or: export {first}=...",
        )
    return {name: value for name, value in found.items() if value is not None}


def keep_values(values: Mapping[str, str], path: Path) -> None:
    """Write a job's secrets where its launchers read them. OSError when there is no room."""
    if values:
        write_private(path, json.dumps(values))


def check_value(name: str, value: str) -> None:
    """Refused (bad_secret) when it can be no variable. What it is, is not said."""
    if not value:
        raise RequestError("bad_secret", f"the value of {name} is empty", f"ganger secret set {name}")
    if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise RequestError("bad_secret", f"the value of {name} is not text that a program can be given", "send text")
    if len(value.encode()) > MAX_VALUE_BYTES:
        why = f"the value of {name} is longer than {MAX_VALUE_BYTES >> 10} KiB"
        raise RequestError("bad_secret", why, "keep it in a file, and set the file's path")


def write_private(path: Path, text: str) -> None:
    """A file of mode 0600, whole or not at all. OSError when the disk will not have it."""
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
        legal = "letters, digits and '_', no digit at the beginning"
        raise RequestError(
            "bad_secret", f"{name!r} is not the name of a variable: write {legal}", "choose another name"
        )
    if name.startswith(PREFIX):
        raise RequestError("bad_secret", f"names that begin with {PREFIX} are ganger's", "choose another name")
    return name


def _is_name(name: str) -> bool:
    return re.fullmatch(ENV_NAME_PATTERN, name) is not None and len(name) <= 200
