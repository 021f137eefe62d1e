"""Servers that the user has logged in to: a private file with the token and the certificate's pin of each."""

import json
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ganger.client.client_errors import REFUSED, USAGE, BadRequest, Refused

MAX_TOKEN_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class Login:
    """A server, and how its user is known there.

    Attributes:
        fingerprint: SHA-256 of the server's certificate in hexadecimal digits; None if a CA vouches for it.
        ca_file: The file of the CA's certificates.
    """

    url: str
    token: str = field(repr=False)
    fingerprint: str | None = None
    ca_file: str | None = None


def server_url(text: str) -> str:
    """Return the URL of a server as it is stored; raise BadRequest unless it is https, or http to this machine."""
    # A password, which stands before an @ or after a ?, is not repeated.
    shown = repr(text) if not set(text) & set("@?") else "the address, which is not repeated because of its @ or ?,"
    bad = BadRequest("bad_server_url", f"{shown} is not https://HOST:PORT", "ganger login https://HOST:PORT", USAGE)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise bad from None
    is_plain = not (parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc)
    if not host or not port or parts.scheme not in ("https", "http") or not is_plain:
        raise bad
    if parts.scheme == "http" and not _is_loopback(host):
        detail = f"http://{host}:{port} is another machine: without TLS the token would cross the network in clear"
        raise BadRequest("bad_server_url", detail, f"ganger login https://{host}:{port}", USAGE)
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def login_of(url: str, file: Path) -> Login:
    """Return the stored login of a server; raise Refused if there is none."""
    url = server_url(url)
    login = read_logins(file).get(url)
    if login is None:
        raise Refused("not_logged_in", f"there is no login for {url} in {file}", f"ganger login {url}", REFUSED)
    return login


def read_logins(file: Path) -> dict[str, Login]:
    """Return all logins by URL; raise Refused if the file cannot be read, or others may read it."""
    try:
        with file.open() as stored:
            if stat.S_IMODE(os.fstat(stored.fileno()).st_mode) & 0o077:
                detail = f"{file} has tokens, and is open to other users"
                raise Refused("bad_logins", detail, f"chmod 600 {file}; then revoke and replace its tokens", REFUSED)
            return {url: Login(url, **fields) for url, fields in json.load(stored).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise Refused("bad_logins", f"{file} cannot be read: {error}", f"mv {file} {file}.broken", REFUSED) from None


def write_logins(file: Path, logins: Mapping[str, Login]) -> None:
    """Replace the file, readable by its owner alone; raise Refused if it cannot be written."""
    content = {url: asdict(login) for url, login in logins.items()}
    for fields in content.values():
        del fields["url"]
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        with os.fdopen(handle, "w") as opened:
            json.dump(content, opened)
        Path(draft).replace(file)
    except OSError as error:
        raise Refused(
            "bad_logins", f"{file} cannot be written: {error.strerror}", f"ls -ld {file.parent}", REFUSED
        ) from None


def _is_loopback(host: str) -> bool:
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
