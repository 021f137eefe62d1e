"""Connections to a server on another machine: TLS with a certificate that is pinned, or that a CA vouches for.

A pin stands for the certificate itself, as a host key does in ssh: its names and its age are not looked at.
"""

import hashlib
import hmac
import socket
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from ganger.client.client_errors import USAGE, BadRequest, Unreachable, unreachable
from ganger.client.remote.logins import Login

if TYPE_CHECKING:
    import asyncio

CONNECT_S: Final = 10.0
"""Time limit of a connection and of its handshake."""
KEEP_ALIVE: Final = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))
"""A follower of a server whose machine vanishes learns of it after 30 s."""


class RemoteServer:
    """A server as a login names it. `host` is what a request names it by, `headers` carry the token."""

    def __init__(self, login: Login) -> None:
        """Keep the login; nothing is connected yet."""
        parts = urlsplit(login.url)
        self.url = login.url
        self.host = parts.netloc
        self.headers: Mapping[str, str] = {"Authorization": f"Bearer {login.token}"}
        self.name = parts.hostname or ""
        self._port = parts.port or 0
        self._is_tls = parts.scheme == "https"
        self._fingerprint, self._ca_file = login.fingerprint, login.ca_file

    def __str__(self) -> str:
        return self.url

    def connected(self, timeout_s: float | None) -> socket.socket:
        """Return a connection to the server that the login means; else raise Unreachable before anything is sent."""
        link = self.dialled()
        context = self.context()
        try:
            if context is not None:
                link = tls = context.wrap_socket(link, server_hostname=self.name)
                self.check(tls.getpeercert(binary_form=True))
            link.settimeout(timeout_s)
        except OSError as error:
            link.close()
            raise self.refusal(error) from None
        except BaseException:
            link.close()
            raise
        return link

    async def opened(self) -> "tuple[asyncio.StreamReader, asyncio.StreamWriter]":
        """Return the same to an event loop."""
        import asyncio

        link = await asyncio.to_thread(self.dialled)
        link.setblocking(False)
        context = self.context()
        name = self.name if context else None
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(sock=link, ssl=context, server_hostname=name)
        except OSError as error:
            link.close()
            raise self.refusal(error) from None
        if context is not None:
            try:
                self.check(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
            except Unreachable:
                writer.transport.abort()  # a stranger is not waited for until it has answered the end of TLS
                raise
        return reader, writer

    def dialled(self) -> socket.socket:
        """Return a TCP connection to the server's address; raise Unreachable."""
        try:
            link = socket.create_connection((self.name, self._port), CONNECT_S)
        except OSError as error:
            raise self.refusal(error) from None
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEP_ALIVE:
            link.setsockopt(socket.IPPROTO_TCP, option, value)
        return link

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context of a connection; None for plain HTTP to this machine. Raise BadRequest."""
        if not self._is_tls:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self._ca_file is None:  # `check` compares the certificate
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            return context
        try:
            context.load_verify_locations(self._ca_file)
        except (OSError, ValueError) as error:
            detail = f"{self._ca_file} cannot be used as certificates of a CA: {error}"
            raise BadRequest("bad_ca_file", detail, f"ganger login {self.url} --ca-file FILE", USAGE) from None
        return context

    def check(self, certificate: bytes | None) -> None:
        """Raise Unreachable (untrusted_server) if the server's certificate, in DER, is not the pinned one."""
        if self._ca_file is not None:
            return  # the handshake has verified it
        if self._fingerprint is None:
            detail = f"the login for {self.url} has neither a fingerprint nor a CA: nothing was sent to it"
            raise _untrusted(detail, f"ganger login {self.url}")
        actual = fingerprint_of(certificate or b"")
        if not hmac.compare_digest(actual, self._fingerprint):
            detail = (
                f"{self.url} has another certificate than the one that was pinned, with this SHA-256:\n{actual}\n"
                "it may be another server, or one in between; nothing was sent to it"
            )
            raise _untrusted(detail, f"compare it with `ganger server status` there, then: ganger login {self.url}")

    def refusal(self, error: OSError) -> Unreachable:
        """Return the error of a connection that was not made."""
        if isinstance(error, ssl.SSLCertVerificationError):
            detail = f"the certificate of {self.url} is not valid: {error.verify_message}\nnothing was sent to it"
            return _untrusted(detail, f"ganger login {self.url} --ca-file FILE, or with its fingerprint")
        reason = "it did not answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        return unreachable(f"no server can be reached at {self.url}: {reason}", "on its machine: ganger server status")


def fingerprint_of(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate in DER, in hexadecimal digits."""
    return hashlib.sha256(certificate).hexdigest()


def parse_fingerprint(text: str) -> str:
    """Return a fingerprint in hexadecimal digits, given with colons or without; raise BadRequest."""
    digits = text.replace(":", "").strip().lower()
    if len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        detail = f"{text!r} is not the SHA-256 of a certificate: 64 hexadecimal digits"
        raise BadRequest("bad_fingerprint", detail, "on the server's machine: ganger server status", USAGE)
    return digits


def certificate_at(url: str) -> str:
    """Return the fingerprint of the certificate that a server has now; raise Unreachable. Nothing is sent to it."""
    server = RemoteServer(Login(url, ""))
    context = server.context()
    if context is None:
        return ""
    link = server.dialled()
    try:
        with context.wrap_socket(link, server_hostname=server.name) as tls:
            return fingerprint_of(tls.getpeercert(binary_form=True) or b"")
    except OSError as error:
        raise server.refusal(error) from None
    finally:
        link.close()


def _untrusted(detail: str, next: str) -> Unreachable:
    error = Unreachable("untrusted_server", detail, next)
    error.is_final = True
    return error
