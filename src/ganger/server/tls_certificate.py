"""Certificates of TLS listeners: made here and self-signed, or put into the state directory by an administrator."""

import datetime
import hashlib
import ipaddress
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ganger.engine.submit.secret_store import write_private
from ganger.server.state_directory import ServerStartError
from ganger.settings import Home

if TYPE_CHECKING:
    from cryptography import x509

VALID_DAYS: Final = 3650


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """The files of a certificate and of its private key."""

    certificate: Path
    key: Path

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the certificate, as `openssl x509 -fingerprint -sha256` prints it, without colons."""
        der = ssl.PEM_cert_to_DER_cert(_first_certificate(self.certificate.read_text()))
        return hashlib.sha256(der).hexdigest()


def server_certificate(home: Home, host: str) -> CertificateFiles:
    """Return the certificate of a server that listens at an address; create it if the state directory has none.

    Raise ServerStartError if the files are not a certificate and its key.
    """
    files = CertificateFiles(home.certificate, home.certificate_key)
    try:
        if not files.certificate.exists() and not files.key.exists():
            certificate, key = self_signed(_names_of(host))
            write_private(files.key, key.decode())
            write_private(files.certificate, certificate.decode())
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.certificate, files.key)
    except (OSError, ValueError) as error:
        detail = f"{files.certificate} and {files.key} cannot be used as a certificate and its key: {error}"
        remedy = f"put others there, or, for one made by the server: rm -f {files.certificate} {files.key}"
        raise ServerStartError(detail, remedy) from None
    return files


def self_signed(names: Sequence[str]) -> tuple[bytes, bytes]:
    """Return a self-signed certificate for names and addresses of a host, and its key, as PEM."""
    from cryptography import x509  # takes long to import, and few servers need it
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ganger")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([_general_name(text) for text in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    private_pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private_pem


def _general_name(text: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _names_of(host: str) -> list[str]:
    """Return the address where a server listens, and the names of its machine."""
    own = [host] if not ipaddress.ip_address(host).is_unspecified else []
    return list(dict.fromkeys([*own, socket.gethostname(), socket.getfqdn(), "localhost", "127.0.0.1", "::1"]))


def _first_certificate(pem: str) -> str:
    end = "-----END CERTIFICATE-----"
    return pem[pem.index("-----BEGIN CERTIFICATE-----") : pem.index(end) + len(end)]
