"""Tokens for the TCP listener: made once, shown once; only a hash of each is kept, in a private file.

A token is 256 random bits, so that a plain SHA-256 of it reveals nothing. A token that may submit is as good as a login
of the server's user: a job is a program of the holder's choice.
"""

import hashlib
import hmac
import json
import secrets
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from ganger.engine.submit.secret_store import write_private
from ganger.errors import RequestError, write_error

PREFIX: Final = "ganger_"
"""Prefix by which secret scanners recognise a leaked token."""
_BYTES: Final = 32


Scope = Literal["read", "submit", "admin"]
"""Requests that the holder of a token may make, each scope including the one before.

read: requests that change nothing. submit: those on jobs and secrets too. admin: on queues, nodes and the policy too.
"""
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
READ, SUBMIT, ADMIN = SCOPES


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """A token as listed: everything but the token. Times are Unix ms; expires_ms None: never."""

    name: str
    scope: Scope
    created_ms: int
    expires_ms: int | None
    expired: bool

    @property
    def user(self) -> str:
        """The name of the holder, which no user of the machine has."""
        return f"{self.name}@token"

    def allows(self, scope: Scope) -> bool:
        """Return whether the holder may make requests that need `scope`."""
        return SCOPES.index(self.scope) >= SCOPES.index(scope)


@dataclass(frozen=True, slots=True)
class _StoredToken:
    digest: str
    created_ms: int
    expires_ms: int | None
    scope: Scope

    def row(self, name: str, now_ms: int) -> TokenRow:
        """Return it as listed."""
        return TokenRow(
            name=name,
            scope=self.scope,
            created_ms=self.created_ms,
            expires_ms=self.expires_ms,
            expired=_expired(self, now_ms),
        )


class Tokens:
    """The tokens of one server, which alone writes their file. Safe from any thread."""

    def __init__(self, path: Path) -> None:
        """Read the file at `path`, if it exists. Raise RequestError (store_failed) if it cannot be read."""
        self._path = path
        self._lock = threading.Lock()
        self._on_revoke: list[Callable[[str], object]] = []
        try:
            stored = json.loads(path.read_text()) if path.exists() else {}
            self._tokens = {name: _StoredToken(**fields) for name, fields in stored.items()}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            message = f"{path} cannot be read as a file of tokens: {error}"
            raise RequestError("store_failed", message, f"to start over: mv {path} {path}.broken", 500) from None

    def on_revoke(self, callback: Callable[[str], object]) -> None:
        """Call `callback` with the name of each token that is revoked, on the thread that revokes it."""
        self._on_revoke.append(callback)

    def create(self, name: str, now_ms: int, expires_ms: int | None, scope: Scope = SUBMIT) -> str:
        """Return a new token, which is never shown again. Raise RequestError (token_exists, 409)."""
        token = PREFIX + secrets.token_urlsafe(_BYTES)
        with self._lock:
            if name in self._tokens:
                remedy = f"choose another name, or: ganger token revoke {name}"
                raise RequestError("token_exists", f"there is a token {name}", remedy, 409)
            self._write(self._tokens | {name: _StoredToken(_digest(token), now_ms, expires_ms, scope)})
        return token

    def revoke(self, name: str) -> None:
        """Remove a token. Raise RequestError (no_such_token, 404)."""
        with self._lock:
            if name not in self._tokens:
                raise RequestError("no_such_token", f"there is no token {name}", "ganger token ls", 404)
            self._write({other: token for other, token in self._tokens.items() if other != name})
        for callback in self._on_revoke:
            callback(name)

    def rows(self, now_ms: int) -> list[TokenRow]:
        """Return every token, oldest first."""
        rows = [token.row(name, now_ms) for name, token in self._tokens.items()]
        return sorted(rows, key=lambda row: (row.created_ms, row.name))

    def find(self, token: str, now_ms: int) -> TokenRow | None:
        """Return the row of a valid token, or None. Takes the same time whatever is wrong with it."""
        digest, found = _digest(token), None
        for name, stored in self._tokens.items():
            if hmac.compare_digest(stored.digest, digest) and not _expired(stored, now_ms):
                found = stored.row(name, now_ms)
        return found

    def _write(self, tokens: dict[str, _StoredToken]) -> None:
        try:
            write_private(self._path, json.dumps({name: asdict(token) for name, token in tokens.items()}))
        except OSError as error:
            raise write_error(self._path, error) from None
        self._tokens = tokens


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


def _expired(token: _StoredToken, now_ms: int) -> bool:
    return token.expires_ms is not None and now_ms >= token.expires_ms
