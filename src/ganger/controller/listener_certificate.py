"""By what launchers know the controller's door, and the controller its launchers: a certificate and a key of its own.

Made once, beside the controller's other files, and kept: launchers that are running must find the same door again.
Called by `controller.assembly`.
"""

import datetime
import ipaddress
import secrets
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ganger.backends.kubernetes.pod_bootstrap import Entry
from ganger.settings import make_private

LASTS_DAYS: Final = 3650
KEY_BYTES: Final = 32


def entry(folder: Path, address: str) -> tuple[Entry, tuple[Path, Path]]:
    """The door at HOST:PORT, and the files of its certificate and of that one's key. OSError."""
    host = address.rpartition(":")[0]
    make_private(folder)
    certificate, private, key = (folder / name for name in (f"{host}.crt", f"{host}.key", "tokens.key"))
    if not key.exists():
        _keep(key, secrets.token_bytes(KEY_BYTES))
    if not certificate.exists():
        made = _made(host)
        _keep(private, made[1])
        _keep(certificate, made[0])
    return Entry(address=address, certificate=certificate.read_text(), key=key.read_bytes()), (certificate, private)


def _made(host: str) -> tuple[bytes, bytes]:
    """A certificate for a host, signed by itself, and its key, as PEM."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ganger")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=LASTS_DAYS))
        .add_extension(x509.SubjectAlternativeName([_name(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    written = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.public_bytes(serialization.Encoding.PEM), written


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _keep(path: Path, content: bytes) -> None:
    """A private file, whole or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    draft.touch(0o600)
    draft.write_bytes(content)
    draft.replace(path)
