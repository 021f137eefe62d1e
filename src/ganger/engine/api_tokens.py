"""Tokens for whoever comes over TCP: made once, shown once; only a hash of each is kept, in a file of the owner's.

Called by `engine.service`. A token is 256 random bits, so that a plain SHA-256 of it tells nothing.
"""

import hashlib
import hmac
import json
import secrets
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from ganger.engine.submit.secret_store import write_private
from ganger.errors import RequestError, unwritable

PREFIX: Final = "ganger_"
"""By which a token that got somewhere it should not be is recognised."""
_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """A token as it is listed: everything but the token. Times are Unix ms; expires_ms None: never."""

    name: str
    created_ms: int
    expires_ms: int | None
    expired: bool


@dataclass(frozen=True, slots=True)
class _Kept:
    digest: str
    created_ms: int
    expires_ms: int | None


class Tokens:
    """The tokens of one server, which alone writes their file. Safe from any thread."""

    def __init__(self, path: Path) -> None:
        """Read what is kept at `path`, if anything is. Refused (store_failed) if it cannot be read."""
        self._path = path
        self._lock = threading.Lock()
        try:
            kept = json.loads(path.read_text()) if path.exists() else {}
            self._kept = {name: _Kept(**each) for name, each in kept.items()}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            why = f"{path} cannot be read as a file of tokens: {error}"
            raise RequestError("store_failed", why, f"to begin anew: mv {path} {path}.broken", 500) from None

    def create(self, name: str, now_ms: int, expires_ms: int | None) -> str:
        """A new token, which is never seen again. Refused (token_exists, 409)."""
        token = PREFIX + secrets.token_urlsafe(_BYTES)
        with self._lock:
            if name in self._kept:
                remedy = f"choose another name, or: ganger token revoke {name}"
                raise RequestError("token_exists", f"there is a token {name}", remedy, 409)
            self._write(self._kept | {name: _Kept(_digest(token), now_ms, expires_ms)})
        return token

    def revoke(self, name: str) -> None:
        """The token is good for nothing any more. Refused (no_such_token, 404)."""
        with self._lock:
            if name not in self._kept:
                raise RequestError("no_such_token", f"there is no token {name}", "ganger token ls", 404)
            self._write({other: kept for other, kept in self._kept.items() if other != name})

    def rows(self, now_ms: int) -> list[TokenRow]:
        """Every token, oldest first."""
        rows = [
            TokenRow(name=name, created_ms=kept.created_ms, expires_ms=kept.expires_ms, expired=_expired(kept, now_ms))
            for name, kept in self._kept.items()
        ]
        return sorted(rows, key=lambda row: (row.created_ms, row.name))

    def holder(self, token: str, now_ms: int) -> str | None:
        """The name of a token that is good, or None. Takes the same time whatever is wrong with it."""
        asked, found = _digest(token), None
        for name, kept in self._kept.items():
            if hmac.compare_digest(kept.digest, asked) and not _expired(kept, now_ms):
                found = name
        return found

    def _write(self, kept: dict[str, _Kept]) -> None:
        try:
            write_private(self._path, json.dumps({name: asdict(each) for name, each in kept.items()}))
        except OSError as error:
            raise unwritable(self._path, error) from None
        self._kept = kept


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


def _expired(kept: _Kept, now_ms: int) -> bool:
    return kept.expires_ms is not None and now_ms >= kept.expires_ms
