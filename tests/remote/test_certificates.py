"""The server that a login means: it gets the token, and a stranger in its place gets nothing."""

import asyncio
import datetime
import hashlib
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ganger.client import ClientError
from ganger.client.local.blocking_transport import BlockingLink
from ganger.client.local.follow_requests import at_once
from ganger.client.local.http import Request
from ganger.client.remote.logins import Login, server_url
from ganger.client.remote.remote_client import RemoteClient
from ganger.sdk.async_transport import AsynchronousLink
from tests.waiting import DEADLINE_S

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


def certificate(folder: Path, address: str = "127.0.0.1", ends: datetime.datetime = NOW + DAY) -> tuple[Path, str]:
    """Return the file of a self-signed certificate and its key, and its fingerprint."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(ends - 30 * DAY)
        .not_valid_after(ends)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = folder / f"{made.serial_number}.pem"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM) + key.private_bytes(*plain))
    return file, hashlib.sha256(made.public_bytes(serialization.Encoding.DER)).hexdigest()


@contextmanager
def listening(file: Path) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the URL of a TLS server that answers any request, and a list that gets what it receives."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    received: list[bytes] = []

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.settimeout(DEADLINE_S)
        try:
            with context.wrap_socket(connection, server_side=True) as tls:
                received.append(tls.recv(65536))
                tls.sendall(ANSWER)
        except OSError:
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(DEADLINE_S)
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        try:
            yield f"https://127.0.0.1:{listener.getsockname()[1]}", received
        finally:
            thread.join()


def ask(login: Login, way: str) -> bytes:
    request, client = Request("GET", "/server"), RemoteClient(login)
    if way == "blocking":
        return at_once(BlockingLink(client).ask(request))
    return asyncio.run(AsynchronousLink(client).ask(request))


@pytest.mark.parametrize("way", ["blocking", "asynchronous"])
@pytest.mark.parametrize("trust", ["pin", "ca"])
def test_a_trusted_server_gets_the_token(tmp_path: Path, trust: str, way: str) -> None:
    file, fingerprint = certificate(tmp_path)
    with listening(file) as (url, received):
        login = Login(url, "t0ken", fingerprint) if trust == "pin" else Login(url, "t0ken", None, str(file))
        assert ask(login, way) == b"{}"
    assert b"Bearer t0ken" in received[0]


STRANGERS = {
    "another certificate than the pinned one": ({}, "has another certificate than the one that was pinned"),
    "any certificate without a pin": ({}, "has neither a fingerprint nor a CA"),
    "a certificate of another CA": ({}, "self-signed certificate"),
    "an expired certificate": ({"ends": NOW - DAY}, "certificate has expired"),
    "a certificate for another host": ({"address": "192.0.2.1"}, "IP address mismatch"),
}


@pytest.mark.parametrize("way", ["blocking", "asynchronous"])
@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_gets_nothing(tmp_path: Path, stranger: str, way: str) -> None:
    options, reason = STRANGERS[stranger]
    file, _ = certificate(tmp_path, **options)
    other, other_fingerprint = certificate(tmp_path)
    trusts = {
        "another certificate than the pinned one": (other_fingerprint, None),
        "any certificate without a pin": (None, None),
        "a certificate of another CA": (None, str(other)),
    }
    with listening(file) as (url, received):
        login = Login(url, "t0ken", *trusts.get(stranger, (None, str(file))))
        with pytest.raises(ClientError, match=reason) as refused:
            ask(login, way)
    assert (refused.value.code, refused.value.exit_code) == ("untrusted_server", 5)
    assert "nothing was sent to it" in refused.value.detail
    assert b"".join(received) == b""


def test_a_pinned_certificate_may_be_old_and_have_another_name(tmp_path: Path) -> None:
    file, fingerprint = certificate(tmp_path, "192.0.2.1", NOW - DAY)
    with listening(file) as (url, _):
        assert ask(Login(url, "t0ken", fingerprint), "blocking") == b"{}"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://gpu1.example.org:7878", "https://gpu1.example.org:7878"),
        ("https://GPU1:7878/", "https://gpu1:7878"),
        ("https://[2001:db8::1]:7878", "https://[2001:db8::1]:7878"),
        ("http://localhost:7878", "http://localhost:7878"),
        ("http://127.0.0.2:7878", "http://127.0.0.2:7878"),
        ("http://gpu1:7878", None),
        ("http://192.0.2.1:7878", None),
        ("http://localhost.example.org:7878", None),
        ("https://gpu1", None),
        ("https://gpu1:port", None),
        ("https://user:password@gpu1:7878", None),
        ("https:/user:password@gpu1:7878", None),
        ("https://:password@gpu1:7878", None),
        ("http://user:password@gpu1:7878", None),
        ("https://gpu1:7878?token=password", None),
        ("https://gpu1:7878#password@", None),
        ("https://gpu1:7878/path", None),
        ("gpu1:7878", None),
        ("file:///etc/passwd", None),
        ("", None),
    ],
)
def test_servers_are_reached_over_tls_or_on_this_machine(text: str, url: str | None) -> None:
    if url is not None:
        assert server_url(text) == url
        return
    with pytest.raises(ClientError) as refused:
        server_url(text)
    assert (refused.value.code, refused.value.exit_code) == ("bad_server_url", 2)
    assert refused.value.next.startswith("ganger login https://")
    assert "password" not in str(refused.value) + refused.value.next
